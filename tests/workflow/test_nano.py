"""The whole study at nano scale through the real Snakefile: from text to verdicts, and what reruns after an edit."""

import dataclasses
import json
import re
import shutil

import crate_profile
import pandas as pd
import pytest

pytestmark = pytest.mark.workflow

TESTS = [f"0001-{x}" for x in "ab"] + [f"0002-{x}" for x in "ab"] + [f"0003-{x}" for x in "ab"]
TESTS += [f"0004-{x}" for x in "abc"] + [f"0005-{x}" for x in "ab"]
CONTROLLED = [("nope", 0), ("nope", 1), ("rope", 0), ("rope", 1), ("rope", 2)]
OUTCOMES = {"holds", "fails", "triggered", "not triggered", "not evaluated"}


def test_every_registered_test_has_a_verdict(study):
    found, printed = study
    records = json.loads((found.folder / "results/nano/verdicts.json").read_text())
    assert [record["test_id"] for record in records] == TESTS
    assert {record["verdict"] for record in records} <= OUTCOMES
    for record in records:
        assert record["scale_status"] == "test"
        assert "not implemented" not in record["reason"]
        assert record["test_id"] in printed
    assert "mean nothing" in printed
    flat = pd.read_parquet(found.folder / "results/nano/verdicts.parquet")
    assert flat["test_id"].tolist() == TESTS


def test_an_audit_of_the_study_finds_nothing_broken(study):
    found, _ = study
    done = found.call("causal_priors", "audit", "--scale", "nano", "--json")
    report = json.loads(done.stdout)
    assert [link["name"] for link in report["links"] if link["broken"]] == []
    # The archives lie elsewhere, and the copy is no git repository.
    missing = [link["name"] for link in report["links"] if link["missing"]]
    assert missing == ["archives -> corpus", "seals before results (git)", "scale before results (git)"]
    assert done.returncode == report["exit_code"] == 2
    assert {link["name"]: link["checked"] for link in report["links"]}["registered tables"] == 112


def test_the_summary_holds_every_run_and_length(study):
    found, _ = study
    table = pd.read_csv(found.folder / "results/nano/tables/summary.csv")
    plain = table[table["variant"] == "plain"]
    assert plain["run"].nunique() == 82
    assert plain.groupby("run")["length"].nunique().eq(4).all()
    assert table["loss"].between(0, 8).all()


def test_theory_and_source_stand_beside_the_verdicts(study):
    found, _ = study
    theory = pd.read_csv(found.folder / "results/nano/theory/theory.csv")
    assert {"amplitude", "dilution", "far mass at this scale", "classification"} <= set(theory["result"])
    source = pd.read_csv(found.folder / "results/nano/tables/source.csv")
    assert source[source["compared"] == "outcome"]["name"].tolist() == TESTS
    assert source[source["compared"] == "direction"]["here"].ne("–").all()


def test_exploratory_tables_stand_apart_from_the_verdicts(study):
    found, _ = study
    folder = found.folder / "results/nano/tables/exploratory"
    text = (folder / "exploratory.md").read_text()
    assert text.count("Exploratory: enters no verdict.") == text.count("\n## ") == 6
    controls = pd.read_csv(folder / "controls.csv")
    assert sorted(set(controls["run"])) == [f"S-{name}-L16-s{seed}" for name, seed in CONTROLLED]
    identity = controls[controls["variant"] == "identity"]
    assert (identity["equal_rows"] == identity["rows"]).all()
    assert (identity["change"] == 0).all()
    assert pd.read_csv(folder / "edits.csv").groupby("variant")["run"].nunique().to_dict() == {"cap": 17, "repair": 13}
    records = json.loads((found.folder / "results/nano/verdicts.json").read_text())
    intervals = pd.read_csv(folder / "intervals.csv")
    counts = intervals[intervals["role"] == "registered"]["test"].value_counts()
    assert {record["test_id"]: record["n"] for record in records if record["n"]} == counts.to_dict()


def test_every_job_with_tensors_starts_warm(study):
    found, _ = study
    lines = (found.folder / "results/nano/logs/warm.log").read_text().splitlines()
    assert {line.split(":")[0] for line in lines} == {"warm"}
    assert len(lines) == 82 + 82 + 30 + len(CONTROLLED)


def test_a_second_run_does_nothing(study):
    found, _ = study
    done = found.snakemake("--dry-run")
    assert "Nothing to be done" in done.stdout


def test_a_comment_or_docstring_reruns_nothing(study, edited):
    found, _ = study
    edited("src/causal_priors/model.py", '"""The transformer', '"""In other words.\n\nThe transformer')
    edited("src/causal_priors/train/loop.py", "import math\n", "# a remark\nimport math\n")
    assert found.planned() == {}


def test_a_new_arm_retrains_nothing(study, edited):
    found, _ = study
    edited("src/causal_priors/arms.py", "_ROWS = (", '_ROWS = (\n    Arm("mine", "an arm of my own"),')
    assert found.planned() == {}


def test_an_edit_of_the_scoring_reruns_scoring_only(study, edited):
    found, _ = study
    edited("src/causal_priors/prereg/scoring.py", "\n\n\n", "\n\nREMARK = 1\n\n\n")
    assert found.planned() == {"verdicts": 1, "exploratory": 1, "source": 1, "page": 1, "crate": 1, "all": 1}


def test_an_edit_of_one_prior_retrains_its_arms_only(study, edited):
    found, _ = study
    edited("src/causal_priors/priors/fourier.py", "import torch\n", "import torch\n\nREMARK = 1\n")
    plan = found.planned()
    assert (plan["train"], plan["evaluate"]) == (2, 2)
    assert "intervene" not in plan


def test_a_prior_is_retrained_when_its_numbers_change(study, edited):
    found, _ = study
    edited("src/causal_priors/arms.py", 'Arm("cable-lr", "', 'Arm("cable-lr", log_n=True, source_name="')
    assert found.planned()["train"] == 3


def test_a_damaged_checkpoint_is_named_with_its_remedy(study):
    found, _ = study
    folder = found.folder / "results/nano/runs/S-nope-L16-s0"
    model = folder / "model.safetensors"
    content = model.read_bytes()
    try:
        model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        done = found.call(
            *("causal_priors", "evaluate", "S-nope-L16-s0", "--scale", "nano", "--shards", "results/nano/data/shards"),
            *("--folder", "results/nano/runs/S-nope-L16-s0", "--out", "elsewhere.parquet"),
        )
    finally:
        model.write_bytes(content)
    assert done.returncode == 2
    assert "S-nope-L16-s0/model.safetensors" in done.stdout
    assert "snakemake" in done.stdout
    assert "Traceback" not in done.stdout


def test_verdicts_can_be_printed_again(study):
    found, _ = study
    done = found.call("causal_priors", "verdicts", "--scale", "nano")
    assert done.returncode == 0
    assert all(test in done.stdout for test in TESTS)


def test_the_arm_of_the_readme_runs_beside_the_study_and_enters_no_verdict(study, tmp_path):
    """The README's file, then a composition, in the README's own commands."""
    found = dataclasses.replace(study[0], folder=shutil.copytree(study[0].folder, tmp_path / "copy"))
    section = (found.folder / "README.md").read_text().split("## Add your own arm")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (name,) = re.findall(r"into a file, say `(.*?)`", section)
    (given,) = set(re.findall(r"--config '(arms=.*?)'", section))
    assert len(code.splitlines()) <= 25
    (found.folder / name).parent.mkdir()
    (found.folder / name).write_text(code)
    results = found.folder / "results" / "nano"
    verdicts = (results / "verdicts.json").read_bytes()

    done = found.snakemake(config=[given])
    assert done.returncode == 0, done.stdout
    table = pd.read_csv(results / "tables" / "summary.csv")
    mine = table[table["arm"] == "root"]
    assert set(mine["status"]) == {"exploratory"}
    assert set(mine["run"]) == {"S-root-L16-s0", "S-root-L16-s1"}
    assert mine.groupby("variant")["length"].apply(sorted).to_dict() == {
        "plain": [16, 16, 32, 32, 64, 64, 128, 128],
        "cap": [128, 128],
        "repair": [128, 128],
    }
    assert table[table["status"] == "registered"]["run"].nunique() == 82
    assert "root + cap (exploratory)" in (results / "tables" / "summary.md").read_text()
    assert (results / "verdicts.json").read_bytes() == verdicts
    assert b"root" not in verdicts

    assert found.planned(config=[given]) == {}
    found.edit(name, "softplus(", "2 * softplus(")
    assert found.planned(config=[given]) == {
        "train": 2,
        "evaluate": 2,
        "intervene": 4,
        "summary": 1,
        "exploratory": 1,
        "source": 1,
        "figures": 1,
        "page": 1,
        "crate": 1,
        "all": 1,
    }


def test_the_crate_says_what_came_from_what(study):
    found, _ = study
    results = found.folder / "results" / "nano"
    entities = crate_profile.check(results)
    trained = entities["#train-S-log-margin-t050-L16-s0"]
    assert "theory/margins.json" in crate_profile.ids(trained["object"])
    assert "runs/S-log-margin-t050-L16-s0/run.json" in crate_profile.ids(trained["result"])
    kinds = [key.partition("-")[0] for key in entities if key.startswith("#") and key.endswith(("-s0", "-s1", "-s2"))]
    assert {kind: kinds.count(kind) for kind in ("#train", "#evaluate")} == {"#train": 78, "#evaluate": 78}
    assert len([key for key in entities if key.startswith(("#cap-", "#repair-"))]) == 30
    text = (results / "ro-crate-metadata.json").read_text()
    assert str(found.folder) not in text
    # The same study gives the same crate.
    assert found.call("causal_priors", "crate", "--scale", "nano").returncode == 0
    assert (results / "ro-crate-metadata.json").read_text() == text


def test_a_library_of_others_reads_the_crate(study):
    rocrate = pytest.importorskip("rocrate.rocrate", reason="rocrate is for tests only")
    crate = rocrate.ROCrate(study[0].folder / "results" / "nano")
    assert crate.mainEntity.id == "code/Snakefile"
    assert {part.id for part in crate.root_dataset["hasPart"]} >= {"verdicts.json", "theory/theory.csv"}


def test_the_finished_study_is_looked_at(study):
    found, _ = study
    status = found.call("causal_priors", "status", "--scale", "nano", "--watch")
    assert status.returncode == 0
    assert status.stdout.splitlines()[3:7] == [
        "train            82        –        –        –        –",
        "evaluate         82        –        –        –        –",
        "intervene        30        –        –        –        –",
        "control           5        –        –        –        –",
    ]
    assert "All done." in status.stdout
    plan = found.call("causal_priors", "plan", "--scale", "nano")
    assert "Hours measured in 82 runs of results/nano." in plan.stdout
    runs = found.call("causal_priors", "compare", "S-rope-L16-s0", "S-log-L16-s0", "--scale", "nano")
    table = pd.read_csv(found.folder / "results/nano/tables/summary.csv").set_index(["run", "variant", "length"])
    loss = [table["loss"][name, "plain", 128] for name in ("S-rope-L16-s0", "S-log-L16-s0")]
    (line,) = [line for line in runs.stdout.splitlines() if line.startswith("loss at 8 L ")]
    assert [float(cell) for cell in line.split()[4:]] == pytest.approx([*loss, loss[1] - loss[0]], abs=6e-5)
    assert "arm.log_prior" in runs.stdout
    itself = found.call("causal_priors", "compare", "nano", "results/nano")
    records = json.loads((found.folder / "results/nano/verdicts.json").read_text())
    number = len({name for record in records for name in record["inputs"]})
    assert number > 50
    assert f"Of the {number} tables behind these verdicts that both have, {number} are the same bytes." in itself.stdout
    for test in ("0003-a", "0004-c"):
        told = found.call("causal_priors", "explain", test, "--scale", "nano")
        assert told.returncode == 0
        assert "mean nothing" in told.stdout
