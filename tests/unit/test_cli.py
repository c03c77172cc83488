"""The command line: exit codes, one-line errors, logs, what it imports; and requirement files that agree."""

import subprocess
import sys
from pathlib import Path

import pytest

from causal_priors.cli import main
from causal_priors.yamlfile import load_yaml

ROOT = Path(__file__).resolve().parents[2]


def test_stages_without_tensors_import_no_torch():
    script = (
        "import sys\nimport causal_priors.cli, causal_priors.study, causal_priors.codedigest\n"
        "import causal_priors.theory.margin\n"
        "import causal_priors.prereg.scoring, causal_priors.report.tables, causal_priors.report.snapshot\n"
        "import causal_priors.data.corpus, causal_priors.data.index, causal_priors.data.tokenise\n"
        "import causal_priors.data.tokenizer, causal_priors.data.batches, causal_priors.data.windows\n"
        "causal_priors.cli.parser()\nprint('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"


def test_help_needs_the_standard_library_only():
    script = (
        "import sys\nfrom causal_priors.cli import parser\nparser().format_help()\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'yaml', 'pyarrow', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_a_mistake_is_one_line_and_exit_code_2(capfd, tmp_path):
    out = str(tmp_path / "margins.json")
    assert main(["margins", "--scale", "huge", "--out", out]) == 2
    assert capfd.readouterr().err == "error: scale = 'huge': is not a scale; known scales: micro, mini, nano, paper\n"


def test_with_a_log_the_failure_is_in_the_log_and_on_the_terminal(tmp_path):
    log = tmp_path / "logs" / "margins.log"
    command = [sys.executable, "-m", "causal_priors", "--log", str(log), "margins", "--scale", "huge", "--out", "x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == log.read_text()
    assert done.stderr.startswith("error: scale = 'huge'")


def test_a_log_that_cannot_be_written_is_named(capfd, tmp_path):
    (tmp_path / "file").write_text("")
    log = str(tmp_path / "file" / "x.log")
    assert main(["--log", log, "margins", "--scale", "nano", "--out", "x"]) == 2
    assert "x.log: cannot be written" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["S-ropee-L16-s0", "S-rope-L16-s9", "rope", "../S-rope-L16-s0"])
def test_only_registered_runs_are_trained(capfd, tmp_path, name):
    arguments = ["train", name, "--scale", "nano", "--preregistration", str(ROOT / "preregistration")]
    assert main([*arguments, "--shards", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert repr(name) in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_seals_of_the_register_are_whole(capfd):
    assert main(["seal", "--check", "--preregistration", str(ROOT / "preregistration")]) == 0
    sealed = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [words[0] for words in sealed] == ["0001", "0002", "0003", "0004", "0005", "0006"]
    assert sealed[-1][2] == "exploratory"


def pins(name):
    """The pins of a requirements file, those it includes among them."""
    found = []
    for line in (ROOT / "envs" / f"{name}.txt").read_text().splitlines():
        if line.startswith("-r "):
            found += pins(line.removeprefix("-r ").removesuffix(".txt"))
        elif line and not line.startswith("#"):
            found.append(line)
    return found


@pytest.mark.parametrize("name", ["cpu", "gpu", "dev", "slurm"])
def test_conda_and_pip_environments_agree(name):
    dependencies = load_yaml(ROOT / "envs" / f"{name}.yaml")["dependencies"]
    assert sorted(dependencies[-1]["pip"]) == sorted(pins(name))
    assert all("==" in pin for pin in pins(name))


def test_make_help_lists_the_documented_targets():
    text = subprocess.check_output(["make", "--no-print-directory", "help"], cwd=ROOT, text=True)
    assert [line.split()[0] for line in text.splitlines()][:2] == ["help", "setup"]
    assert {"reproduce", "test", "test-all", "clean"} <= {line.split()[0] for line in text.splitlines()}
