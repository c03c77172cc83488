"""Explanations and pages of experiments: words from the sealed protocols, outcomes and numbers from the records."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import planted
import pytest

from causal_priors.cli import main
from causal_priors.config import load_scale, scale_file
from causal_priors.report.explain import WIDTH, explain_text
from causal_priors.report.register import entries

ROOT = Path(__file__).resolve().parents[2]
REGISTER = entries(ROOT / "preregistration")
TESTS = {test.id: (entry, test) for entry in REGISTER.values() for test in entry.protocol.tests}
NANO, MICRO = (load_scale(scale_file(name)) for name in ("nano", "micro"))
REFERENCE = {
    record["test_id"]: record for record in json.loads((ROOT / "results/reference/micro/verdicts.json").read_text())
}


def explained(test_id, record, scale=NANO):
    entry, test = TESTS[test_id]
    return explain_text(test, entry.protocol, entry.seal, scale, record, entry.ledger)


def told(test_id, frame, **options):
    """The explanation of the verdict on a planted study, in one line."""
    verdict = planted.verdicts(frame, **options)[test_id]
    return " ".join(explained(test_id, asdict(verdict)).split())


@pytest.mark.parametrize("test_id", TESTS)
def test_what_was_claimed_and_what_came_out_stand_in_the_explanation(test_id):
    record = REFERENCE[test_id]
    text = explained(test_id, record, MICRO)
    assert max(map(len, text.splitlines())) <= WIDTH
    words = " ".join(text.split())
    entry, test = TESTS[test_id]
    assert test.claim in words
    assert f"sealed on {entry.seal['date']} (seal {entry.seal['digest'][:12]})" in words
    outcome = {"holds": "It holds: ", "fails": "It fails: ", "not triggered": "It is not triggered: "}
    assert outcome.get(record["verdict"], "It was not evaluated") in words
    for row in record["observed"]:
        values = (row["before"], row["after"]) if "before" in row else (row["value"],)
        assert all(f"{value:.5f}" in text for value in values)
    for assumption in test.assumptions:
        assert f" {assumption}: " in words
    assert record["expected"]["note"] in words
    assert "Only the scale `paper` is confirmatory." in words


def test_the_windows_are_counted_in_the_tokens_of_the_scale():
    words = " ".join(explained("0003-a", REFERENCE["0003-a"], MICRO).split())
    for length in (64, 128, 256):
        assert (
            f"L = {length}: windows of {4 * length} tokens (4 L), cut from all held-out blocks of {8 * length + 1} tokens"
            in words
        )
        assert f"stands at position {length + 1} to {4 * length}." in words
    assert "odd-numbered held-out blocks of 513 tokens" in " ".join(explained("0001-a", None, MICRO).split())
    assert "far means 64 tokens or more away" in " ".join(
        explained("0004-c", None, load_scale(scale_file("paper"))).split()
    )


def test_why_a_comparison_holds_or_fails():
    # cable 4.5 and rope under YaRN 5.1 in the plan: .6 on each of eleven pairs.
    words = told("0003-a", planted.study())
    assert "It holds: 11 of 11 differences (comparator minus arm) are at least 0.02" in words
    assert ": +0.60000, 0.58000 more than needed." in words
    # log-gt1 at 4.3 and log-lt1 at 4.4, but for one seed.
    words = told("0003-b", planted.shifted(-0.096, "C", "log-lt1", seed=1, factor=8))
    assert (
        "It fails: 1 of 2 differences (comparator minus arm) are at least 0.01, and all must be; 2 of 2 have" in words
    )
    assert (
        "decides is log-gt1 against log-lt1, size C, L = 16, seed 1: +0.00400, 0.00600 short of what is needed."
        in words
    )
    assert re.search(r"seed 1: log-gt1 / log-lt1 4\.30400 4\.30000 \+0\.00400 short", words)


def test_why_the_other_rules_hold_or_fail():
    words = told("0002-b", planted.study())
    assert "It is triggered: one arm must be below cable by at least 0.02 on every seed." in words
    assert "grape-m -0.10000; grape-a -0.10000; grape-ap -0.10000; alibi-ot +0.10000." in words
    words = told("0004-a", planted.shifted(-0.02, "C", "alibi", seed=1, variant="cap", stage="intervene", factor=8))
    assert "It fails: 16 of 17 checkpoints moved as claimed, 1 moved the other way, and 0 moved by too little" in words
    assert re.search(r"cap of C-alibi-L16-s1 4\.60000 4\.59000 -0\.01000 other way", words)
    words = told("0004-b", planted.shifted(0.01, "S", "log", seed=0, variant="repair", stage="intervene", factor=8))
    assert "It was not evaluated: nothing is said either way: 9 of 10 checkpoints moved as claimed, 0 moved" in words
    assert re.search(r"repair of S-log-L16-s0 4\.60000 4\.60000 \+0\.00000 unresolved", words)
    # Growth .04, .015 and .004 in the plan, against .05, .02 and .005.
    words = told("0005-a", planted.study())
    assert "It holds: 6 of 6 values are at most their bound" in words
    assert (
        "decides is log-margin-t005, size S, L = 16, seed 0: +0.00400 against 0.005, 0.00100 more than needed." in words
    )
    assert "Chance level: none" in words
    words = told("0005-b", planted.shifted(0.04, "S", "log-margin-t005", seed=1, quantity="far_mass", factor=8))
    assert "It fails: 3 of 4 differences (comparator minus arm) are more than 0, and all must be; 3 of 4 have" in words


def test_a_test_without_numbers_says_why():
    gone = planted.without(planted.rows(planted.study(), "C", "cable", seed=3))
    words = told("0003-a", gone)
    assert "It was not evaluated: nothing is said either way." in words
    assert "C-cable-L16-s3" in words


def test_a_verdict_on_another_seal_is_marked():
    assert "Take care: this verdict was scored against another seal (" in told("0001-a", planted.study())
    assert "Take care" not in explained("0001-a", REFERENCE["0001-a"], MICRO)


def call(capfd, *arguments):
    code = main([*arguments, "--preregistration", str(ROOT / "preregistration")])
    found = capfd.readouterr()
    return code, found.out, found.err


def test_the_commands_read_the_study_or_the_experiment_alone(capfd, tmp_path):
    given = ["--scale", "micro", "--results", str(tmp_path)]
    code, text, _ = call(capfd, "explain", "0005-b", *given)
    assert code == 0
    assert "There is no verdict at scale micro yet." in text
    own = tmp_path / "micro/experiments/0005"
    own.mkdir(parents=True)
    shutil.copy(ROOT / "results/reference/micro/verdicts.json", own)
    _, text, _ = call(capfd, "explain", "0005-b", *given)
    assert "It holds: 4 of 4" in text
    _, text, _ = call(capfd, "show", "0005", *given)
    assert f"0005-b: {REFERENCE['0005-b']['verdict']}, margin " in text
    assert REGISTER["0005"].seal["digest"] in text
    _, text, _ = call(capfd, "show", "0003", *given)
    assert "0003-b: no verdict yet" in text
    assert "Runs (35): training 35 waiting" in text
    assert "C-cable-L256 seeds 0, 1, 2" in text


def test_a_name_that_is_not_registered_is_told_with_those_that_are(capfd):
    assert call(capfd, "explain", "0003", "--scale", "micro")[::2] == (
        2,
        "error: '0003': is not a registered test; there are 0003-a, 0003-b\n",
    )
    code, _, error = call(capfd, "show", "3", "--scale", "micro")
    assert (code, error) == (2, "error: '3': is not an experiment; registered are 0001, 0002, 0003, 0004, 0005\n")
    code, _, error = call(capfd, "show", "0006", "--scale", "micro")
    assert code == 2
    assert "is exploratory: it has no registered test; read" in error


def test_commands_that_only_look_need_no_torch(tmp_path):
    (tmp_path / "micro/tables").mkdir(parents=True)
    for name in ("verdicts.json", "tables/summary.csv"):
        shutil.copy(ROOT / "results/reference/micro" / name, tmp_path / "micro" / name)
    script = (
        "import sys\nfrom causal_priors.cli import main\n"
        "for words in (['status'], ['plan'], ['show', '0003'], ['explain', '0003-a']):\n"
        f"    assert main([*words, '--results', {str(tmp_path)!r}]) == 0\n"
        f"assert main(['compare', 'micro', 'results/reference/micro', '--results', {str(tmp_path)!r}]) == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "are the same bytes." in done.stdout
