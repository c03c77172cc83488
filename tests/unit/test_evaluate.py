"""Evaluation at nano scale: equal targets at every length, bits that no batching moves, far mass in closed form."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from helpers import scale, write_shards

from causal_priors import tables
from causal_priors.arms import ARMS
from causal_priors.data.windows import evaluation_blocks
from causal_priors.errors import UserError
from causal_priors.evaluate import evaluate_stage, measure, position_bins
from causal_priors.runs import Run
from causal_priors.train.checkpoint import as_device, build_model, read_checkpoint
from causal_priors.train.loop import train_stage

NANO = scale("nano")
CODE = "c" * 64
L = 16
LENGTHS = [L, 2 * L, 4 * L, 8 * L]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, shards):
    """Trained and evaluated runs of three arms."""
    found = {}
    for arm in ("rope", "log", "fox"):
        out = tmp_path_factory.mktemp(arm)
        train_stage(Run("S", arm, 1, 0), NANO, ARMS[arm], shards, out, CODE)
        evaluate(arm, out, shards, out / "evaluation.parquet")
        found[arm] = out
    return found


def evaluate(arm, folder, shards, out, of=NANO, **options):
    evaluate_stage(Run("S", arm, 1, 0), of, ARMS[arm], folder, shards, out, CODE, **options)
    return tables.read_table(out, "evaluation")


def rows(folder, quantity, variant="plain"):
    table = tables.read_table(folder / "evaluation.parquet", "evaluation")
    return table[(table["quantity"] == quantity) & (table["variant"] == variant)]


def trained(arm, folder):
    run = Run("S", arm, 1, 0)
    return read_checkpoint(run, NANO, ARMS[arm], folder).model(run, NANO, ARMS[arm])


def blocks_of(shards):
    return evaluation_blocks(shards, L, NANO)[0]


@pytest.mark.parametrize("arm", ["rope", "log", "fox"])
def test_every_length_scores_each_target_once(folders, arm):
    found = rows(folders[arm], "loss")
    assert found.groupby("length")["count"].sum().to_dict() == dict.fromkeys(LENGTHS, 1024)
    for length in LENGTHS:
        places = found[found["length"] == length]
        assert len(places) == len(places[["block", "window", "bin"]].drop_duplicates())
        assert places.groupby("block")["count"].sum().tolist() == [8 * L] * 8


@pytest.mark.parametrize("arm", ["rope", "log", "fox"])
def test_window_and_bin_means_are_those_of_a_plain_forward_in_float64(folders, shards, arm):
    model = trained(arm, folders[arm]).double()
    found = rows(folders[arm], "loss").set_index(["length", "block", "window", "bin"])["value"]
    for length in LENGTHS:
        for number, block in enumerate(blocks_of(shards)[:3]):
            for window in range(8 * L // length):
                ids = torch.from_numpy(block[window * length : (window + 1) * length + 1])[None]
                with torch.no_grad():
                    losses = model(ids[:, :-1], ids[:, 1:])[0].numpy()
                # Positions p of the targets, from 1: the bins are 1..L, L+1..2L, 2L+1..4L, 4L+1..8L.
                bins = np.searchsorted(LENGTHS, np.arange(1, length + 1))
                for index in np.unique(bins):
                    expected = losses[bins == index].mean()
                    assert found[length, number, window, index] == pytest.approx(expected, rel=2e-6)


def test_position_bins_double():
    assert position_bins(8 * L, L) == [(0, L), (L, 2 * L), (2 * L, 4 * L), (4 * L, 8 * L)]
    assert position_bins(L, L) == [(0, L)]


@pytest.mark.parametrize("arm", ["rope", "log", "fox"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_block_gives_the_same_bits_in_any_company(folders, shards, arm, length):
    model = as_device(trained(arm, folders[arm]), "cpu", "float32")
    blocks = blocks_of(shards)
    everything = measure(model, blocks, [length], L)[length]
    alone = measure(model, blocks[5:6], [length], L)[length]
    turned = measure(model, blocks[::-1].copy(), [length], L)[length]
    np.testing.assert_array_equal(alone.loss[0], everything.loss[5])
    np.testing.assert_array_equal(turned.loss, everything.loss[::-1])
    for w in (2, L):
        np.testing.assert_array_equal(alone.far[w][0], everything.far[w][5])
        np.testing.assert_array_equal(turned.far[w], everything.far[w][::-1])


@pytest.mark.parametrize("key", [key for key in ARMS if "margin" not in key])
def test_lengths_measured_together_are_those_measured_alone(shards, key):
    model = as_device(build_model(Run("S", key, 1, 0), NANO, ARMS[key], None), "cpu", "float64")
    blocks = blocks_of(shards)[:3]
    together = measure(model, blocks, LENGTHS, L)
    assert list(together) == LENGTHS
    for length in LENGTHS:
        alone = measure(model, blocks, [length], L)[length]
        np.testing.assert_allclose(together[length].loss, alone.loss, rtol=0, atol=1e-9)
        for w in (2, L):
            np.testing.assert_allclose(together[length].far[w], alone.far[w], rtol=0, atol=1e-9)
            np.testing.assert_allclose(together[length].far_head[w], alone.far_head[w], rtol=0, atol=1e-9)


def test_no_window_is_computed_twice(shards, monkeypatch):
    model = as_device(build_model(Run("S", "nope", 1, 0), NANO, ARMS["nope"], None), "cpu", "float32")
    passed = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model),
        "forward",
        lambda self, ids, *rest, **far: passed.append(ids.numel()) or forward(self, ids, *rest, **far),
    )
    measure(model, blocks_of(shards)[:4], LENGTHS, L)
    assert sum(passed) == 4 * 20 * L


def test_lengths_that_do_not_fill_each_other_are_refused(shards):
    model = build_model(Run("S", "nope", 1, 0), NANO, ARMS["nope"], None)
    with pytest.raises(ValueError, match="windows of 24 tokens do not fill 32"):
        measure(model, blocks_of(shards), [24, 32], L)


def test_the_same_evaluation_makes_the_same_bytes(folders, shards, tmp_path):
    evaluate("rope", folders["rope"], shards, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (folders["rope"] / "evaluation.parquet").read_bytes()


@pytest.mark.parametrize("length", LENGTHS)
def test_far_mass_of_uniform_attention_is_a_share_of_keys(shards, length):
    model = build_model(Run("S", "nope", 1, 0), NANO, ARMS["nope"], None)
    width = NANO.sizes["S"].width
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("qkv.weight", "qkv.bias")):
                parameter[:width] = 0.0
    found = measure(as_device(model, "cpu", "float64"), blocks_of(shards), [length], L)[length]
    for w in (2, L):
        # Query i sees i + 1 keys, of which i + 1 - w lie at distance w or more; mean over the last w queries.
        expected = np.mean([max(0, i + 1 - w) / (i + 1) for i in range(length - w, length)])
        np.testing.assert_allclose(found.far[w], expected, rtol=1e-12)
        np.testing.assert_allclose(found.far_head[w], expected, rtol=1e-12)


@pytest.mark.parametrize("arm", ["rope", "log", "fox"])
def test_far_mass_of_windows_and_of_heads_have_one_mean(folders, arm):
    windows, heads = rows(folders[arm], "far_mass"), rows(folders[arm], "far_mass_head")
    assert set(windows["far_window"]) == set(heads["far_window"]) == {2, L}
    assert windows["value"].between(0, 1).all()
    keys = ["length", "far_window"]
    pair = [frame.groupby(keys)["value"].mean() for frame in (windows, heads)]
    np.testing.assert_allclose(pair[0], pair[1], rtol=1e-12)
    # One layer, two heads; far mass at w = L is none at length L, where no key is that far.
    assert (heads.groupby(keys).size() == 2).all()
    assert (windows[(windows["length"] == L) & (windows["far_window"] == L)]["value"] == 0).all()
    assert (windows["count"] == 2 * windows["far_window"]).all()


def test_the_exponent_census_is_that_of_the_model(folders):
    found = rows(folders["log"], "exponent").sort_values("head")
    expected = [value for _, _, _, value in trained("log", folders["log"]).position_report()]
    assert found["value"].tolist() == expected
    assert found["head"].tolist() == [0, 1]
    assert rows(folders["rope"], "exponent").empty


def test_only_rope_is_measured_under_yarn_and_at_its_own_length_that_changes_nothing(folders):
    plain, yarn = rows(folders["rope"], "loss"), rows(folders["rope"], "loss", "yarn")
    assert set(tables.read_table(folders["log"] / "evaluation.parquet", "evaluation")["variant"]) == {"plain"}
    same = yarn["value"].to_numpy() == plain["value"].to_numpy()
    assert same[yarn["length"] == L].all()
    assert not same[yarn["length"] == 2 * L].any()


def test_the_other_ramp_is_a_variant_of_its_own(folders, shards, tmp_path):
    found = evaluate("rope", folders["rope"], shards, tmp_path / "x.parquet", yarn_ramps=("paper", "code"))
    assert set(found["variant"]) == {"plain", "yarn", "yarn-code"}


def test_the_table_names_its_checkpoint_and_its_status(folders):
    metadata = tables.read_metadata(folders["log"] / "evaluation.parquet", "evaluation")
    card = json.loads(metadata["card"])
    assert metadata["status"] == "finished"
    assert card["stage"] == "evaluate"
    assert card["parameters"]["run"] == "S-log-L16-s0"
    assert len(card["inputs"]["run.json"]) == 64


def test_a_diverged_run_gives_an_empty_table_that_says_so(shards, tmp_path):
    size = dataclasses.replace(NANO.sizes["S"], learning_rate=1e30, warmup_fraction=0.0)
    hot = dataclasses.replace(NANO, sizes={**NANO.sizes, "S": size})
    train_stage(Run("S", "log", 1, 0), hot, ARMS["log"], shards, tmp_path, CODE)
    found = evaluate("log", tmp_path, shards, tmp_path / "evaluation.parquet", of=hot)
    assert found.empty
    status = json.loads((tmp_path / "run.json").read_text())["status"]
    assert tables.read_metadata(tmp_path / "evaluation.parquet", "evaluation")["status"] == status
    assert status.startswith("diverged at step ")


def test_a_swapped_checkpoint_is_refused_and_nothing_is_written(folders, shards, tmp_path):
    with pytest.raises(UserError, match="is of another run"):
        evaluate("log", folders["fox"], shards, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
