"""Negative controls of the bias swap: the changes pair by pair, and what they do to trained checkpoints."""

import dataclasses

import numpy as np
import pandas as pd
import planted
import pytest
import torch
from helpers import scale, write_shards
from prior_cases import bias, make, past, window

from causal_priors import control, tables
from causal_priors.arms import ARMS
from causal_priors.control import VARIANTS, control_stage
from causal_priors.errors import UserError
from causal_priors.evaluate import evaluate_stage
from causal_priors.priors.base import PriorContext
from causal_priors.priors.control import Flat, Sham, head_keys, random_signs, split_mix
from causal_priors.priors.distance import LogDistance
from causal_priors.priors.edits import Cap
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage

NANO = scale("nano")
CODE = "c" * 64
L = 16


def sham(length=L, heads=4, even=False, seed=0):
    return Sham(make(Flat, heads=heads), length, head_keys(seed, 0, heads), even)


def change(prior, length):
    """The biases of a whole window at j <= i, [H, T, T]."""
    return past(bias(prior, window(prior, length)))[0]


def test_the_generator_gives_the_published_numbers():
    numbers = split_mix(np.uint64(1234567), np.arange(1, 6, dtype=np.uint64))
    assert numbers.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_signs_are_fair_and_unrelated_between_heads_layers_and_seeds():
    every = torch.arange(128)
    signs = [random_signs(head_keys(seed, layer, 4), every, every).double() for seed in (0, 1) for layer in (0, 1)]
    one_SN = torch.cat(signs).flatten(1)
    correlations = one_SN @ one_SN.T / one_SN.shape[1]
    # Standard error 1/128; with 16 rows, 136 numbers all lie within four of them but once in a hundred times or less.
    assert (correlations - torch.eye(16)).abs().max() < 4 / 128
    assert one_SN.mean(dim=1).abs().max() < 4 / 128
    neighbours = [(signs[0][:, 1:] * signs[0][:, :-1]).mean(), (signs[0][..., 1:] * signs[0][..., :-1]).mean()]
    assert max(abs(value) for value in neighbours) < 4 / 256


def test_pairs_within_the_training_length_are_untouched():
    near = torch.arange(40)[:, None] - torch.arange(40) <= L
    for even in (False, True):
        changed = change(sham(even=even), 40)
        assert (changed[:, near] == 0).all()
        assert (changed[:, ~near] != 0).all()


def test_the_size_is_what_cap_does_to_a_log_prior_of_exponent_one():
    log = make(LogDistance)
    with torch.no_grad():
        log.theta_H.fill_(1.0).expm1_().log_()
    capped = change(Cap(log, L), 8 * L) - change(log, 8 * L)
    torch.testing.assert_close(change(sham(), 8 * L).abs(), capped, rtol=1e-5, atol=1e-6)


def test_even_signs_leave_the_mean_weight_as_it_was():
    heads, size = 20_000, np.log(8 * L / (1 + L))
    context = PriorContext(torch.tensor([8 * L - 1]), torch.tensor([0]))
    for even, mean in ((True, 1.0), (False, np.cosh(size))):
        weight = sham(heads=heads, even=even)(context).double().exp()
        error = np.sinh(size) / np.sqrt(heads) / (np.cosh(size) if even else 1)
        assert abs(weight.mean().item() - mean) < 4 * error


@pytest.mark.parametrize(("rows", "columns"), [(range(30, 40), range(40)), ([39, 5], [0, 17, 33]), ([39], [0])])
def test_any_block_equals_the_whole(rows, columns):
    prior = sham()
    whole = change(prior, 40)[:, list(rows)][..., list(columns)]
    seen = torch.tensor(list(columns)) <= torch.tensor(list(rows))[:, None]
    block = bias(prior, window(prior, 40), rows, columns)[0]
    assert torch.equal(torch.where(seen, block, 0), whole)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, shards):
    found = {}
    for arm in ("nope", "rope"):
        found[arm] = tmp_path_factory.mktemp(arm)
        train_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], shards, found[arm], CODE)
    return found


def measured(arm, folders, shards, out):
    control_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], folders[arm], shards, out, CODE)
    return tables.read_table(out, "evaluation")


def moved(table, variant, quantity):
    """Variant minus plain, row by row."""
    keys = ["block", "window", "bin", "far_window", "layer", "head"]
    chosen = table[table["quantity"] == quantity]
    plain, other = (chosen[chosen["variant"] == name].set_index(keys)["value"] for name in ("plain", variant))
    assert len(plain) > 0
    return other - plain


@pytest.mark.parametrize("arm", ["nope", "rope"])
def test_an_edit_that_changes_nothing_moves_nothing_and_a_sham_moves_positions_beyond_the_training_length(
    folders, shards, tmp_path, arm
):
    table = measured(arm, folders, shards, tmp_path / "c.parquet")
    assert set(table["stage"]) == {"control"}
    assert set(table["length"]) == {8 * L}
    assert sorted(set(table["variant"])) == sorted(VARIANTS)
    for quantity in ("loss", "far_mass", "far_mass_head"):
        assert (moved(table, "identity", quantity) == 0).all()
    for variant in ("sham", "sham-even"):
        losses = moved(table, variant, "loss")
        inside = losses.index.get_level_values("bin") == 0
        assert (losses[inside] == 0).all()
        assert (losses[~inside] != 0).all()
        assert (moved(table, variant, "far_mass") != 0).all()
    assert measured(arm, folders, shards, tmp_path / "again.parquet").equals(table)


@pytest.mark.parametrize("arm", ["nope", "rope"])
def test_without_a_change_the_numbers_are_those_of_the_evaluation(folders, shards, tmp_path, arm):
    """The evaluation computes these arms without any bias, by another implementation."""
    evaluate_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], folders[arm], shards, tmp_path / "e.parquet", CODE)
    keys = ["quantity", "length", "block", "window", "bin", "far_window", "layer", "head"]
    evaluation = tables.read_table(tmp_path / "e.parquet", "evaluation")
    evaluation = evaluation[evaluation["variant"] == "plain"].set_index(keys)["value"]
    table = measured(arm, folders, shards, tmp_path / "c.parquet")
    plain = table[table["variant"] == "plain"].set_index(keys)["value"]
    np.testing.assert_allclose(plain, evaluation[plain.index], rtol=1e-5, atol=1e-6)


def test_a_control_that_leaks_below_the_training_length_is_caught(folders, shards, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "Sham", lambda flat, length, *rest, **more: Sham(flat, length // 2, *rest, **more))
    with pytest.raises(AssertionError, match="S-rope-L16-s0: a control moved numbers"):
        measured("rope", folders, shards, tmp_path / "c.parquet")
    assert not (tmp_path / "c.parquet").exists()


def test_an_arm_with_a_log_prior_is_refused_by_name(folders, shards, tmp_path):
    with pytest.raises(UserError, match="is for arms without a log-prior, which alibi has"):
        control_stage(Run("S", "alibi", 1, 0), NANO, ARMS["alibi"], folders["nope"], shards, tmp_path / "c", CODE)


def test_scoring_does_not_look_at_controls(folders, shards, tmp_path):
    table = measured("rope", folders, shards, tmp_path / "c.parquet")
    frame = planted.study()
    assert planted.verdicts(pd.concat([frame, table[frame.columns]], ignore_index=True)) == planted.verdicts(frame)


def test_a_diverged_run_gives_an_empty_table_that_says_so(shards, tmp_path):
    size = dataclasses.replace(NANO.sizes["S"], learning_rate=1e30, warmup_fraction=0.0)
    hot = dataclasses.replace(NANO, sizes={**NANO.sizes, "S": size})
    train_stage(Run("S", "nope", 1, 0), hot, ARMS["nope"], shards, tmp_path, CODE)
    control_stage(Run("S", "nope", 1, 0), hot, ARMS["nope"], tmp_path, shards, tmp_path / "c.parquet", CODE)
    assert tables.read_table(tmp_path / "c.parquet", "evaluation").empty
    status = tables.read_metadata(tmp_path / "c.parquet", "evaluation")["status"]
    assert status.startswith("diverged at step ")
