"""Exploratory tables of edits, controls and exponents, on planted data."""

import numpy as np
import pandas as pd
import planted
import pytest
from exploratory_cases import L, logged
from helpers import scale

from causal_priors import control
from causal_priors.exploratory import drift
from causal_priors.exploratory.changes import CONTROLS, changes
from causal_priors.runs import Run

NANO = scale("nano")
CAP = Run("S", "alibi", 1, 0)
NAME = CAP.name(NANO)


def capped():
    """One checkpoint under cap whose loss moves the more, the farther a position lies, and not at all within L."""
    frame = planted.planted_edit(CAP, "cap", NANO)
    moved = (frame["variant"] == "cap") & (frame["quantity"] == "loss")
    frame.loc[moved, "value"] += -planted.EDIT_LOSS["cap"] + 0.01 * frame.loc[moved, "bin"]
    return frame


def found(frame, wanted=None, gone=None):
    resolutions = {("loss", "float64"): 1e-7, ("far_mass", "float64"): 1e-9}
    return changes(frame, wanted or {(NAME, "cap"): "registered"}, gone or {}, resolutions)


def test_a_planted_change_is_shown_where_it_was_planted():
    table = found(capped()).rows
    losses = table[table["quantity"] == "loss"]
    assert losses[["first", "last"]].to_numpy().tolist() == [[1, 16], [17, 32], [33, 64], [65, 128]]
    assert losses["change"].tolist() == pytest.approx([0, 0.01, 0.02, 0.03], abs=1e-12)
    assert (losses["after"] - losses["before"]).tolist() == pytest.approx(losses["change"].tolist(), abs=1e-12)
    assert losses["sign"].tolist()[1:] == ["up"] * 3
    far = table[table["quantity"] == "far_mass"].set_index("far_window")["change"]
    assert far.to_dict() == pytest.approx({L // 8: planted.EDIT_FAR["cap"], L: 0}, abs=1e-12)
    assert (table["blocks"] == 8).all()


def test_what_did_not_move_is_counted_to_the_last_bit():
    frame = planted.planted_edit(CAP, "cap", NANO)
    plain, edited = (frame["variant"] == name for name in ("plain", "cap"))
    frame.loc[edited, "value"] = frame.loc[plain, "value"].to_numpy()
    table = found(frame).rows
    assert (table["equal_rows"] == table["rows"]).all()
    assert (table["sign"] == "zero").all()
    assert (table[["change", "low", "high"]] == 0).all(axis=None)
    moved = edited & (frame["length"] == 8 * L) & (frame["bin"] == 3) & (frame["block"] == 5)
    frame.loc[moved, "value"] = np.nextafter(frame.loc[moved, "value"], 9)
    table = found(frame).rows.set_index("first")
    assert table.loc[4 * L + 1, ["equal_rows", "rows", "sign"]].tolist() == [7, 8, "unresolved"]
    assert table.loc[2 * L + 1, "sign"] == "zero"


@pytest.mark.parametrize("damage", ["missing", "doubled", "not finite", "one side"])
def test_tables_that_are_not_whole_leave_no_rows(damage):
    frame = capped()
    chosen = frame.index[(frame["length"] == 8 * L) & (frame["variant"] == "cap")]
    if damage == "missing":
        frame = frame.drop(chosen[3])
    elif damage == "doubled":
        frame = pd.concat([frame, frame.loc[chosen[:1]]])
    elif damage == "not finite":
        frame.loc[chosen[3], "value"] = np.nan
    else:
        frame = frame[frame["variant"] == "cap"]
    result = found(frame)
    assert result.rows.empty
    assert [item.item for item in result.absent] == [f"cap of {NAME}"]
    assert "not whole" in result.absent[0].reason


def test_checkpoints_without_a_table_are_named_with_the_reason():
    wanted = {(NAME, "cap"): "registered", ("x", "cap"): "registered", ("y", "cap"): "exploratory"}
    result = found(capped(), wanted, {"y": "diverged at step 2"})
    assert set(result.rows["run"]) == {NAME}
    assert [(item.item, item.reason) for item in result.absent] == [
        ("cap of x", "is missing"),
        ("cap of y", "diverged at step 2"),
    ]


def test_the_controls_are_those_that_are_measured():
    assert ("plain", *CONTROLS) == control.VARIANTS


def test_exponents_that_drift_to_one_are_seen_to_do_so():
    steps = {step: (1.5 - 0.15 * step, 0.7 + 0.09 * step) for step in range(4)}
    over = drift.over_steps(logged(steps)).rows
    assert over["step"].tolist() == [0, 1, 2, 3]
    assert over["near_one"].tolist() == [0, 0, 0, 1]
    assert over["above_one"].tolist() == [0.5] * 4
    assert over["mean"].tolist() == pytest.approx([1.1, 1.07, 1.04, 1.01])
    end = drift.moved(logged(steps), {}).rows.iloc[0]
    assert (end["near_at_start"], end["near_at_end"], end["nearer"], end["farther"], end["crossed"]) == (0, 2, 2, 0, 0)
    assert end["start_distance"] == pytest.approx(0.4)
    assert end["end_distance"] == pytest.approx(0.04)


def test_exponents_that_stay_cross_or_leave_are_told_apart():
    end = drift.moved(logged({0: (1.5, 1.2, 0.95, 1.0), 9: (1.5, 0.8, 1.02, 1.3)}), {}).rows.iloc[0]
    assert (end["nearer"], end["farther"], end["crossed"]) == (1, 1, 3)
    assert (end["near_at_start"], end["near_at_end"]) == (2, 1)


def test_the_edge_of_near_counts_in_and_other_quantities_do_not():
    rows = pd.concat([logged({0: (1.1, 1.11)}), logged({0: (1.0, 1.0)}, quantity="rate")])
    assert drift.over_steps(rows).rows["near_one"].tolist() == [0.5]


def test_a_diverged_run_has_steps_but_no_end():
    rows = logged({0: (1.5,), 2: (9.0,)})
    assert len(drift.over_steps(rows).rows) == 2
    result = drift.moved(rows, {"S-log-L16-s0": "diverged at step 3"})
    assert result.rows.empty
    assert result.absent[0].reason == "diverged at step 3"
