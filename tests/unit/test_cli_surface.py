"""The command line's surface is frozen: commands, options, defaults and exit codes stand in a golden file.

A change on purpose rewrites it: `python tests/unit/test_cli_surface.py`, and is told in CHANGELOG.md.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from causal_priors.cli import EXIT_CODES, main, parser

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "cli.txt"
HEAVY = {
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "matplotlib",
    "yaml",
    "jsonschema",
    "jinja2",
    "snakemake",
    "shtab",
}


def commands(top=None):
    """Every command's parser by its name."""
    actions = (top or parser())._actions
    (found,) = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    return found.choices


def surface():
    """One line per command and per argument, and the exit codes."""
    lines = ["causal_priors", *arguments(parser())]
    for name, sub in commands().items():
        lines += [name, *arguments(sub)]
    return "\n".join([*lines, EXIT_CODES]) + "\n"


def arguments(of):
    for action in of._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        words = [", ".join(action.option_strings) or action.dest]
        words += [f"nargs={action.nargs}"] if action.nargs not in (None, 0) else []
        words += [f"choices={','.join(action.choices)}"] if action.choices else []
        words += ["required"] if action.required and action.option_strings else []
        words += ["flag"] if action.nargs == 0 else []
        words += [f"default={action.default}"] if action.default not in (None, False, argparse.SUPPRESS) else []
        yield f"  {' '.join(words)}"


def test_the_surface_is_the_golden_one():
    assert surface() == GOLDEN.read_text(encoding="utf-8"), "on purpose? then: python tests/unit/test_cli_surface.py"


def test_help_of_every_command_needs_the_standard_library_only():
    """A tenth of a second each; what would make it slow is an import, and that does not hang on the machine."""
    script = (
        "import sys, io, contextlib\nfrom causal_priors.cli import main\n"
        f"for name in {['', *commands()]!r}:\n"
        "    out = io.StringIO()\n"
        "    with contextlib.redirect_stdout(out):\n"
        "        try:\n            main([*filter(None, [name]), '--help'])\n"
        "        except SystemExit as done:\n            assert done.code == 0\n"
        "    assert 'usage:' in out.getvalue()\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_names_are_alike():
    for name, sub in commands().items():
        assert name == name.lower()
        assert "_" not in name
        assert sub.description[0].isupper()
        for action in sub._actions:
            for option in action.option_strings:
                assert option == option.lower()
                assert "_" not in option
    # The same option means the same in every command that looks or shares.
    for option in ("--scale", "--results", "--preregistration"):
        looking = [
            commands()[name] for name in ("status", "plan", "show", "explain", "compare", "export", "tensorboard")
        ]
        found = [action for sub in looking for action in sub._actions if option in action.option_strings]
        assert len({(str(action.default), action.help) for action in found}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stauts"], "argument COMMAND: invalid choice: 'stauts'; did you mean status?"),
        ([], "the following arguments are required: COMMAND; see python -m causal_priors --help"),
        (
            ["plan", "--flops", "-1"],
            "argument --flops: -1 is not a positive number; see python -m causal_priors plan --help",
        ),
        (["explain"], "the following arguments are required: test; see python -m causal_priors explain --help"),
        (["completion", "bsh"], "argument shell: invalid choice: 'bsh'; did you mean bash?"),
    ],
)
def test_a_mistyped_command_is_one_line_with_its_remedy(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--scale", "huge"],
        ["plan", "--scale", "huge"],
        ["plan", "--preregistration", "none"],
        ["show", "0009"],
        ["explain", "0003-z"],
        ["compare", "S-rope-L64-s0", "nowhere"],
        ["export", "S-rope-L64-s0", "--out", "x"],
        ["tensorboard", "S-rope-L64-s0", "--out", "x"],
        ["crate", "--scale", "nano"],
        ["verdicts", "--scale", "nano"],
    ],
)
def test_what_is_not_there_is_one_line_with_its_remedy(capfd, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "preregistration").symlink_to(ROOT / "preregistration")
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "; " in error
    assert {path.name for path in tmp_path.iterdir()} <= {"preregistration", "results"}


def test_exit_codes_stand_in_the_help_and_in_the_readme():
    assert EXIT_CODES in parser().format_help()
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for line in EXIT_CODES.splitlines()[1:]:
        code = line.strip().partition("  ")[0]
        assert f"| {code} |" in readme


def test_a_reader_who_leaves_and_a_reader_who_stops_are_no_faults(tmp_path):
    """`... | head` ends quietly with 0, Ctrl-C with 128 + 2 and one line."""
    command = [
        sys.executable,
        "-m",
        "causal_priors",
        "status",
        "--scale",
        "nano",
        "--results",
        str(tmp_path),
        "--watch",
    ]
    reader = subprocess.Popen([*command, "--every", "0.5"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reader.stdout.readline()
    reader.stdout.close()
    assert (reader.wait(timeout=60), reader.stderr.read()) == (0, b"")
    watcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watcher.stdout.readline()
    watcher.send_signal(2)
    assert watcher.wait(timeout=60) == 130
    assert watcher.stderr.read().count(b"\n") == 1


def test_completion_knows_every_command(capsys):
    pytest.importorskip("shtab", reason="shtab writes the completion")
    for shell in ("bash", "zsh", "tcsh"):
        assert main(["completion", shell]) == 0
        text = capsys.readouterr().out
        assert all(name in text for name in commands())
    assert main(["completion", "bash"]) == 0
    script = (
        capsys.readouterr().out
        + "\nCOMP_WORDS=(causal-priors sta); COMP_CWORD=1; _shtab_causal_priors\necho ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["status"]


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(surface(), encoding="utf-8")
