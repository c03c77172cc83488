"""Scoring against planted data: what must leave a test not evaluated, and what must never enter one."""

import math

import pandas as pd
import pytest
from planted import (
    ARMS,
    SCALE,
    planted_loss,
    rows,
    study,
    verdicts,
    without,
)

from causal_priors.runs import Run


def test_one_seed_copied_under_the_name_of_another_is_not_evaluated():
    copied = study()[rows(study(), "S", "cable", 0)]
    other = copied.assign(run="S-cable-L16-s1", seed=1)
    found = verdicts(pd.concat([without(rows(study(), "S", "cable", 1)), other], ignore_index=True))
    for test_id in ("0002-a", "0002-b"):
        assert found[test_id].verdict == "not evaluated"
        assert "S-cable-L16-s0 and S-cable-L16-s1 hold the same values" in found[test_id].reason


def test_rows_that_contradict_their_name_are_not_evaluated():
    for column, value in (("arm", "cable-lr"), ("seed", 7), ("train_length", 32), ("size", "C")):
        frame = study().copy()
        frame.loc[frame["run"] == "S-cable-L16-s1", column] = value
        found = verdicts(frame)["0002-a"]
        assert (found.verdict, found.reason) == (
            "not evaluated",
            f"the rows of run S-cable-L16-s1 say {column} {value}",
        )


def test_a_dropped_seed_does_not_shrink_every():
    found = verdicts(study()[study()["run"] != "C-cable-L16-s4"])
    assert (found["0003-a"].verdict, found["0003-a"].reason) == ("not evaluated", "run C-cable-L16-s4 missing")
    assert (found["0003-a"].n, found["0003-a"].margin, found["0003-a"].observed) == (0, None, [])
    assert found["0003-b"].verdict == "holds"


def test_a_seed_without_its_yarn_rows_is_not_evaluated():
    found = verdicts(without(rows(study(), "C", "rope", 2, multiple=4, variant="yarn")))["0003-a"]
    assert (found.verdict, found.reason) == (
        "not evaluated",
        "loss (yarn) at 256 tokens of run C-rope-L64-s2 is missing",
    )


def test_a_duplicated_seed_is_not_evaluated():
    again = study()[study()["run"] == "S-cable-L16-s0"]
    found = verdicts(pd.concat([study(), again], ignore_index=True))["0002-a"]
    assert (found.verdict, found.reason) == (
        "not evaluated", "loss (plain) at 64 tokens of run S-cable-L16-s0 has duplicate rows",
    )  # fmt: skip


def test_a_mispaired_seed_is_not_evaluated():
    """The same number of targets, on other blocks."""
    frame = study().copy()
    frame.loc[rows(frame, "S", "cable", 1), "block"] += 2
    found = verdicts(frame)["0002-a"]
    assert found.verdict == "not evaluated"
    assert "S-cable-L16-s1 did not score the same blocks and targets" in found.reason


def test_a_run_on_fewer_blocks_than_its_partner_is_not_evaluated():
    found = verdicts(without(rows(study(), "S", "cable", 1) & (study()["block"] == 7)))["0002-a"]
    assert found.verdict == "not evaluated"
    assert "did not score the same blocks and targets" in found.reason


@pytest.mark.parametrize("hole", [{"window": 1}, {"bin": 0}, {"bin": 2}])
def test_a_hole_in_the_evaluation_is_not_evaluated(hole):
    (column, value), frame = next(iter(hole.items())), study()
    cut = rows(frame, "S", "cable", factor=4) | rows(frame, "S", "rope", variant="yarn", factor=4)
    found = verdicts(without(cut & (frame["block"] == 3) & (frame[column] == value)))["0002-a"]
    assert found.verdict == "not evaluated"
    assert "does not cover its blocks" in found.reason


def test_counts_that_are_not_those_of_a_bin_are_not_evaluated():
    frame = study().copy()
    frame.loc[frame["stage"] == "evaluate", "count"] *= 2
    assert "does not cover its blocks" in verdicts(frame)["0003-b"].reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_non_finite_value_is_not_evaluated(value):
    frame = study().copy()
    index = frame.index[rows(frame, "S", "cable", 1, factor=4)][5]
    frame.loc[index, "value"] = value
    found = verdicts(frame)
    for test_id in ("0002-a", "0002-b"):
        assert (found[test_id].verdict, found[test_id].reason) == (
            "not evaluated", "loss (plain) at 64 tokens of run S-cable-L16-s1 holds a non-finite value",
        )  # fmt: skip
    assert found["0003-a"].verdict == "holds"


def test_ranges_end_where_the_protocol_says():
    # Nano: ln 300 + 2 = 7.7038 nats.
    for value, evaluated in ((7.7, True), (7.71, False), (0.0, True), (-0.01, False)):
        frame = study().copy()
        frame.loc[frame.index[rows(frame, "S", "cable", 1, factor=4)][5], "value"] = value
        found = verdicts(frame)["0002-a"]
        assert (found.verdict != "not evaluated") == evaluated
        assert evaluated or "outside its range 0 to 7.704" in found.reason
    for value, evaluated in ((1.0, True), (1.01, False), (0.0, True), (-0.01, False)):
        frame = study().copy()
        arguments = {"quantity": "far_mass", "factor": 1}
        cell = rows(frame, "S", "log-margin-t050", 1, **arguments) & (frame["far_window"] == 2)
        frame.loc[frame.index[cell][0], "value"] = value
        found = verdicts(frame)["0005-a"]
        assert (found.verdict != "not evaluated") == evaluated


def test_the_floor_counts_scored_targets():
    """Two of eight nano blocks hold 256 targets in all, 128 on odd blocks: enough for a test on all blocks only."""
    frame = study()
    few = frame[(frame["train_length"] != 16) | frame["block"].isin([0, 1])]
    found = verdicts(few)
    reason = "run S-ot-50-L16-s0 has 128 targets at 4 L, below the floor of 256"
    assert (found["0001-a"].verdict, found["0001-a"].reason) == ("not evaluated", reason)
    # Beyond(4L) leaves out the first quarter of each window: 192 targets.
    assert "192 targets at 4 L, below the floor of 256" in found["0002-a"].reason
    # Loss(8L) scores all 256; the cancelling noise is then gone, so only that it is evaluated matters.
    assert found["0003-b"].verdict in {"holds", "fails"}
    assert found["0005-a"].verdict in {"holds", "fails"}
    one = frame[(frame["train_length"] != 16) | (frame["block"] == 0)]
    assert "128 targets at 8 L, below the floor" in verdicts(one)["0003-b"].reason


def test_an_arm_that_is_not_implemented():
    found = verdicts(study(), implemented=ARMS - {"grape-a", "grape-ap", "log-margin-t005"})
    assert (found["0002-b"].verdict, found["0002-b"].reason) == (
        "not evaluated",
        "arms grape-a, grape-ap not implemented",
    )
    assert found["0004-a"].reason == "arm grape-a not implemented"
    assert found["0005-b"].reason == "arm log-margin-t005 not implemented"
    assert [name for name, verdict in found.items() if verdict.verdict == "holds"] == [
        "0001-a", "0001-b", "0002-a", "0003-a", "0003-b", "0004-b",
    ]  # fmt: skip


def test_the_switching_rule_needs_all_members_even_where_one_decides():
    found = verdicts(study(), implemented=ARMS - {"grape-m"})["0002-b"]
    assert found.verdict == "not evaluated"
    found = verdicts(study()[study()["run"] != "S-grape-m-L16-s1"])["0002-b"]
    assert (found.verdict, found.reason) == ("not evaluated", "run S-grape-m-L16-s1 missing")


def test_diverged_and_missing_runs_are_told():
    frame = study()[~study()["run"].isin(["S-cable-L16-s0", "S-cable-L16-s1"])]
    found = verdicts(frame, statuses={"S-cable-L16-s0": "diverged at step 12"})
    assert found["0002-a"].reason == "run S-cable-L16-s0 diverged at step 12; run S-cable-L16-s1 missing"
    # A diverged run stays so even where rows of it lie about.
    found = verdicts(study(), statuses={"S-rope-L16-s2": "diverged at step 3"})
    assert found["0001-a"].reason == "run S-rope-L16-s2 diverged at step 3"
    assert (
        verdicts(study().iloc[:0])["0001-a"].reason
        == "runs S-ot-50-L16-s0, S-ot-50-L16-s1, S-ot-50-L16-s2 and 6 more missing"
    )


def test_runs_that_are_not_registered_never_enter():
    """A third seed that would break the claim, an arm of one's own, a copy under another name."""
    base = verdicts(study())
    extra = [planted_loss(Run("S", "cable", 1, 2), SCALE, lambda factor, parity: 6.0)]
    extra += [planted_loss(Run("S", "mine", 1, seed), SCALE, lambda factor, parity: 1.0) for seed in range(3)]
    extra += [study()[rows(study(), "S", "cable", 0)].assign(run="S-cable-L16-s0-copy")]
    found = verdicts(pd.concat([study(), *extra], ignore_index=True), implemented=ARMS | {"mine"})
    assert found == base
