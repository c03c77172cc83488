"""What a config or a corpus from elsewhere can do to the Snakefile: nothing but end in one line."""

import helpers
import pytest

pytestmark = pytest.mark.workflow
BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 14))])


def test_names_of_texts_are_no_commands(checkout):
    texts = helpers.write_corpus(checkout.folder / "texts")
    for number, name in enumerate(["a b;touch evil.txt", "$(touch evil).txt", "a'\"*.txt", "-rf.txt", "a\nb.txt"]):
        (texts / f"text-{number:03}.txt").rename(texts / name)
    config = ["corpus=texts", "allow_packed_blocks=True"]
    done = checkout.snakemake("results/nano/data/index.parquet", config=config)
    assert done.returncode == 0, done.stdout
    assert not list(checkout.folder.rglob("evil"))
    (texts / "text-009.txt").rename(texts / "{scale}.txt")
    done = checkout.snakemake("--dry-run", config=config)
    assert done.returncode != 0
    assert "texts/{scale}.txt: has a brace in its name, which Snakemake takes for a pattern; rename it" in done.stdout


def test_a_bomb_in_the_config_is_refused_before_snakemake_reads_it(checkout):
    (checkout.folder / "workflow/config/config.yaml").write_text(BOMB)
    done = checkout.snakemake("--dry-run")
    assert done.returncode != 0
    assert "aliases are refused" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_folder_that_is_a_command_is_refused(checkout):
    done = checkout.snakemake("--dry-run", config=["results=$(touch evil)"])
    assert done.returncode != 0
    assert "results = '$(touch evil)': has a wrong value" in done.stdout
    assert not (checkout.folder / "evil").exists()
