"""Cap and repair on trained checkpoints: what must move, which way, and what must not."""

import numpy as np
import pytest
from helpers import scale, write_shards

from causal_priors import intervene, tables
from causal_priors.arms import ARMS
from causal_priors.errors import UserError
from causal_priors.evaluate import evaluate_stage
from causal_priors.intervene import intervene_stage
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage

NANO = scale("nano")
CODE = "c" * 64
L = 16


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, shards):
    found = {}
    for arm in ("alibi", "log", "fox", "cable"):
        found[arm] = tmp_path_factory.mktemp(arm)
        train_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], shards, found[arm], CODE)
    return found


def edit(arm, kind, folder, shards, out, **options):
    intervene_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], kind, folder, shards, out, CODE, **options)
    return tables.read_table(out, "evaluation")


def change(table, kind, quantity, length):
    """After minus before, row by row."""
    chosen = table[(table["quantity"] == quantity) & (table["length"] == length)]
    keys = ["block", "window", "bin", "far_window", "layer", "head"]
    before, after = (chosen[chosen["variant"] == variant].set_index(keys)["value"] for variant in ("plain", kind))
    return after - before


@pytest.mark.parametrize("arm", ["alibi", "log", "fox", "cable"])
@pytest.mark.parametrize("kind", ["cap", "repair"])
def test_nothing_moves_where_no_pair_is_beyond_the_training_length(folders, shards, tmp_path, arm, kind):
    table = edit(arm, kind, folders[arm], shards, tmp_path / "x.parquet")
    assert set(table["dtype"]) == {"float64"}
    assert set(table["stage"]) == {"intervene"}
    beyond = change(table, kind, "loss", 8 * L)
    # Positions 1..L of a long window see no pair beyond L.
    inside = beyond.index.get_level_values("bin") == 0
    assert (beyond[inside] == 0).all()
    assert (beyond[~inside] != 0).all()


def test_other_window_lengths_are_measured_on_demand(folders, shards, tmp_path):
    table = edit("log", "cap", folders["log"], shards, tmp_path / "x.parquet", factors=(1, 2))
    assert set(table["length"]) == {L, 2 * L}
    assert (change(table, "cap", "loss", L) == 0).all()
    assert (change(table, "cap", "far_mass", L) == 0).all()
    assert (change(table, "cap", "loss", 2 * L) != 0).any()


@pytest.mark.parametrize(("kind", "sign"), [("cap", 1), ("repair", -1)])
def test_cap_moves_attention_outward_and_repair_inward(folders, shards, tmp_path, kind, sign):
    table = edit("alibi", kind, folders["alibi"], shards, tmp_path / "x.parquet")
    moved = change(table, kind, "far_mass", 8 * L)
    # In the first layer this holds for every row of attention, whatever the contents: nano has one layer.
    assert (sign * moved > 0).all()


def test_before_the_edit_the_numbers_are_those_of_the_evaluation(folders, shards, tmp_path):
    run = Run("S", "log", 1, 0)
    evaluate_stage(run, NANO, ARMS["log"], folders["log"], shards, tmp_path / "e.parquet", CODE)
    table = edit("log", "repair", folders["log"], shards, tmp_path / "r.parquet")
    keys = ["quantity", "length", "block", "window", "bin", "far_window", "layer", "head"]
    single = tables.read_table(tmp_path / "e.parquet", "evaluation").set_index(keys)["value"]
    double = table[table["variant"] == "plain"].set_index(keys)["value"]
    assert len(double) > 0
    np.testing.assert_allclose(single[double.index], double, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(single[double.index], double)


def test_an_edit_that_leaks_below_the_training_length_is_caught(folders, shards, tmp_path, monkeypatch):
    from causal_priors.priors import edits

    real = edits.EDITS["repair"]
    monkeypatch.setitem(edits.EDITS, "repair", lambda prior, length: real(prior, length // 2))
    with pytest.raises(AssertionError, match="S-log-L16-s0: repair moved numbers"):
        edit("log", "repair", folders["log"], shards, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_an_arm_without_a_log_prior_is_refused_by_name(folders, shards, tmp_path):
    with pytest.raises(UserError, match="cannot be applied to rope, which has no log-prior"):
        edit("rope", "cap", folders["log"], shards, tmp_path / "x.parquet")


def test_another_edit_is_refused_by_name(folders, shards, tmp_path):
    with pytest.raises(UserError, match="known edits: cap, repair"):
        edit("log", "crop", folders["log"], shards, tmp_path / "x.parquet")


def test_the_stage_knows_the_edits_of_the_log_priors():
    from causal_priors.priors.edits import EDITS

    assert set(intervene.EDITS) == set(EDITS)
