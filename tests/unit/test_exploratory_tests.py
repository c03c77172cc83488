"""Intervals and flip thresholds of the registered tests, on a study whose effects are planted.

The planted study (nano) holds every test by known margins; noise cancels over the blocks of a run, so a scored
difference is the planted one to the last digit, while single blocks scatter.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from planted import ARMS, EDIT_LOSS, GROWTH, LOSS, PROTOCOLS, RUNS, SCALE, rows, study, verdicts

from causal_priors.exploratory.comparisons import intervals
from causal_priors.exploratory.sensitivity import ALL_BOUNDS, sensitivity
from causal_priors.prereg.observations import Observations
from causal_priors.prereg.scoring import find

NOISE = 0.01


def observed(frame=None, statuses=None):
    return Observations(study() if frame is None else frame, SCALE, RUNS, statuses or {})


def protocol_of(test):
    return next(protocol for protocol in PROTOCOLS if protocol.id == test[:4])


def only(test):
    """The register with this one test."""
    protocol = protocol_of(test)
    kept = tuple(item for item in protocol.tests if item.id == test)
    return (dataclasses.replace(protocol, tests=kept),)


def flips(test, frame=None):
    found = sensitivity(only(test), observed(frame), ARMS)
    assert not found.absent
    return found.rows


@pytest.fixture(scope="module")
def table():
    return intervals(PROTOCOLS, observed(), ARMS)


def test_every_comparison_of_every_verdict_has_a_row_with_its_difference(table):
    assert not table.absent
    for test, verdict in verdicts(study()).items():
        own = table.rows[table.rows["test"] == test]
        seen = {
            "registered": verdict.observed,
            "beside": [row for other in verdict.beside for row in other["observed"]],
            "exploratory": verdict.exploratory,
        }
        for role, expected in seen.items():
            found = own[own["role"] == role]
            assert found["difference"].tolist() == [row["difference"] for row in expected]
            assert found["seed"].tolist() == [row["seed"] for row in expected]


def test_intervals_lie_around_planted_effects_and_within_the_planted_noise(table):
    rows_of = table.rows[(table.rows["test"] == "0003-b") | (table.rows["test"] == "0002-b")]
    rows_of = rows_of[rows_of["blocks"] >= 8]
    planted = {arm: LOSS["cable"] - LOSS.get(arm, 4.6) for arm in rows_of["arm"]}
    planted["log-gt1"] = LOSS["log-lt1"] - LOSS["log-gt1"]
    assert len(rows_of) == 10
    for row in rows_of.to_dict("records"):
        assert row["difference"] == pytest.approx(planted[row["arm"]], abs=1e-12)
        assert row["low"] < row["difference"] < row["high"]
        assert row["high"] - row["low"] < 2 * NOISE
        assert row["sign"] == ("up" if planted[row["arm"]] > 0 else "down")


def test_edits_are_held_to_their_own_side_and_bounds_to_their_room(table):
    found = table.rows.set_index(["test", "role"])
    assert set(found.loc[("0004-a", "registered"), "comparator"]) == {"alibi", "grape-a", "fox", "cable", "cable-lr"}
    for test, sign in (("0004-a", "up"), ("0004-b", "down")):
        clear = found.loc[(test, "registered")].query("blocks >= 8")
        assert set(clear["sign"]) == {sign}
        assert set(clear["against_threshold"]) == {"beyond"}
    room = {arm: bound - GROWTH[arm] for arm, bound in (("log-margin-t050", 0.05), ("log-margin-t020", 0.02))}
    for arm, expected in room.items():
        chosen = found.loc[("0005-a", "registered")]
        chosen = chosen[chosen["arm"] == arm]
        assert chosen["difference"].tolist() == pytest.approx([expected, expected])


def test_blocks_are_counted_and_too_few_give_no_interval(table):
    """Nano has 8 blocks at the shortest training length, half of them odd, and 2 at four times that length."""
    blocks = table.rows.groupby(["test", "train_length"])["blocks"].agg(set).to_dict()
    assert blocks["0001-a", 16] == {4}
    assert blocks["0003-b", 16] == {8}
    assert blocks["0003-a", 64] == {2}
    few = table.rows[table.rows["blocks"] < 8]
    assert few[["low", "high"]].isna().all(axis=None)
    assert set(few["sign"]) == set(few["against_threshold"]) == {"few blocks"}


def test_only_what_differs_between_the_sides_counts():
    """A change that hits both sides of a block alike, however large, changes nothing: pairs are drawn together."""
    before = intervals(only("0003-b"), observed(), ARMS).rows
    frame = study().copy()
    for arm in ("log-gt1", "log-lt1"):
        chosen = rows(frame, "C", arm)
        frame.loc[chosen, "value"] += frame.loc[chosen, "block"] % 3
    after = intervals(only("0003-b"), observed(frame), ARMS).rows
    assert before["low"].notna().all()
    np.testing.assert_allclose(after[["low", "high"]], before[["low", "high"]], rtol=0, atol=1e-9)


def test_sides_that_are_the_same_differ_by_exactly_zero():
    frame = study().copy()
    edited, plain = (rows(frame, "S", "alibi", 0, variant=name, stage="intervene") for name in ("cap", "plain"))
    frame.loc[edited, "value"] = frame.loc[plain, "value"].to_numpy()
    found = intervals(only("0004-a"), observed(frame), ARMS).rows
    row = found[(found["arm"] == "alibi+cap") & (found["size"] == "S") & (found["seed"] == 0)].iloc[0]
    assert (row["difference"], row["low"], row["high"], row["sign"]) == (0, 0, 0, "zero")
    assert row["against_threshold"] == "short"


def test_missing_and_diverged_runs_leave_no_rows_and_are_named():
    frame = study()[~((study()["arm"] == "cable") & (study()["size"] == "S") & (study()["seed"] == 1))]
    observations = observed(frame, {"S-rope-L16-s2": "diverged at step 3"})
    for analysis in (intervals, sensitivity):
        found = analysis(PROTOCOLS, observations, ARMS)
        reasons = {item.item: item.reason for item in found.absent}
        assert reasons["0001-a"] == "run S-rope-L16-s2 diverged at step 3"
        assert reasons["0002-a"] == "run S-cable-L16-s1 missing"
        assert not set(found.rows["test"]) & set(reasons)
        assert "0003-a" in set(found.rows["test"])


def test_a_comparator_that_is_only_shown_beside_may_be_missing():
    frame = study()[~((study()["run"] == "S-rope-L16-s0") & (study()["variant"] == "plain"))]
    found = intervals(only("0002-a"), observed(frame), ARMS)
    assert set(found.rows["role"]) == {"registered"}
    assert [item.item for item in found.absent] == ["0002-a beside rope"]


@pytest.mark.parametrize(
    ("test", "value", "distance", "becomes"),
    [
        ("0001-a", 0.3, 0.25, "fails"),
        ("0002-b", 0.1, 0.08, "not triggered"),
        ("0003-b", 0.1, 0.09, "fails"),
        ("0005-b", 0.011, 0.011, "fails"),
    ],
)
def test_a_difference_flips_at_the_planted_margin(test, value, distance, becomes):
    found = flips(test)
    assert found[["threshold", "side", "becomes"]].to_numpy().tolist() == [["difference", "above", becomes]]
    assert found["flips_at"].item() == pytest.approx(value, abs=1e-12)
    assert found["distance"].item() == found["margin"].item() == pytest.approx(distance, abs=1e-12)


def test_a_failed_test_flips_below():
    frame = study().copy()
    frame.loc[rows(frame, "C", "log-gt1", 1), "value"] += 0.095
    found = flips("0003-b", frame)
    assert found[["outcome", "side", "becomes"]].to_numpy().tolist() == [["fails", "below", "holds"]]
    assert found["flips_at"].item() == pytest.approx(0.005, abs=1e-12)
    assert found["distance"].item() == pytest.approx(-0.005, abs=1e-12)


def test_bounds_flip_one_by_one_and_together():
    found = flips("0005-a").set_index("threshold")
    assert (found["side"] == "below").all()
    assert (found["becomes"] == "fails").all()
    assert found.loc[ALL_BOUNDS, "flips_at"] == pytest.approx(-0.001, abs=1e-12)
    for arm, growth in GROWTH.items():
        assert found.loc[f"bound of {arm}", "flips_at"] == pytest.approx(growth, abs=1e-12)


def test_a_direction_is_unresolved_above_its_smallest_change():
    found = flips("0004-a")
    assert found[["threshold", "side", "becomes"]].to_numpy().tolist() == [
        ["resolution in float64", "above", "not evaluated"]
    ]
    assert found["flips_at"].item() == pytest.approx(EDIT_LOSS["cap"], abs=1e-12)


def test_a_direction_that_fails_never_holds_and_one_that_is_unresolved_may():
    cap = {"variant": "cap", "stage": "intervene"}
    frame = study().copy()
    frame.loc[rows(frame, "S", "fox", 0, **cap), "value"] -= EDIT_LOSS["cap"] + 0.002
    assert flips("0004-a", frame)[["outcome", "side", "becomes"]].to_numpy().tolist() == [
        ["fails", "above", "not evaluated"]
    ]
    frame = study().copy()
    frame.loc[rows(frame, "S", "fox", 0, **cap), "value"] -= EDIT_LOSS["cap"] - 5e-8
    found = flips("0004-a", frame)
    assert found[["outcome", "side", "becomes"]].to_numpy().tolist() == [["not evaluated", "below", "holds"]]
    assert found["flips_at"].item() == pytest.approx(5e-8, rel=1e-3)
    signs = intervals(only("0004-a"), observed(frame), ARMS).rows.set_index(["arm", "size", "seed"])["sign"]
    assert (signs["fox+cap", "S", 0], signs["fox+cap", "S", 1]) == ("unresolved", "up")


def test_a_verdict_that_no_threshold_changes_says_so():
    """One change of nothing at all is unresolved at any resolution above zero."""
    frame = study().copy()
    edited, plain = (rows(frame, "S", "fox", 0, variant=name, stage="intervene") for name in ("cap", "plain"))
    frame.loc[edited, "value"] = frame.loc[plain, "value"].to_numpy()
    found = flips("0004-a", frame)
    assert found["side"].tolist() == ["none"]
    assert found["flips_at"].isna().all()


def test_scored_again_on_both_sides_of_a_flip_the_outcome_is_the_one_and_the_other():
    observations = observed()
    for row in sensitivity(PROTOCOLS, observations, ARMS).rows.to_dict("records"):
        protocol = protocol_of(row["test"])
        test = next(item for item in protocol.tests if item.id == row["test"])
        if not hasattr(test.rule, "threshold"):
            continue
        step = 1e-9 if row["side"] == "above" else -1e-9
        outcomes = [
            find(
                dataclasses.replace(test, rule=dataclasses.replace(test.rule, threshold=row["flips_at"] + shift)),
                *(protocol, observations, ARMS),
            ).outcome
            for shift in (-step, step)
        ]
        assert outcomes == [row["outcome"], row["becomes"]]


def test_tables_without_a_single_result_are_empty_and_say_why():
    nothing = observed(pd.DataFrame(columns=study().columns))
    for analysis in (intervals, sensitivity):
        found = analysis(PROTOCOLS, nothing, ARMS)
        assert found.rows.empty
        assert [item.item for item in found.absent] == [test.id for protocol in PROTOCOLS for test in protocol.tests]
