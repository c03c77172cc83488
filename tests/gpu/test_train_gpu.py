"""Training on a GPU: the losses of a CPU within what bfloat16 rounds, through a kill, in micro-batches."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from helpers import scale, write_shards

from causal_priors import tables
from causal_priors.arms import ARMS
from causal_priors.runs import Run
from causal_priors.train import loop
from causal_priors.train.loop import train_stage

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]
NANO = scale("nano")
# Heads that are wide enough for the kernels, two tiles a window.
SIZE = dataclasses.replace(
    NANO.sizes["S"], width=64, depth=2, heads=4, train_length=256, steps=12, tokens_per_step=1024
)
SMALL = dataclasses.replace(NANO, sizes={**NANO.sizes, "S": SIZE})


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


def losses(shards, out, arm, device=DEVICE, **options):
    train_stage(Run("S", arm, 1, 0), SMALL, ARMS[arm], shards, out, "c" * 64, device=device, **options)
    return tables.read_table(out / "losses.parquet", "losses")["loss"].to_numpy()


@pytest.mark.parametrize("arm", ["rope", "log", "cable", "grape-ap", "ot-75"])
def test_losses_are_those_of_a_cpu_within_rounding(shards, tmp_path, arm):
    found, expected = losses(shards, tmp_path / "gpu", arm), losses(shards, tmp_path / "cpu", arm, "cpu")
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    timing = json.loads((tmp_path / "gpu" / "timing.json").read_text())
    assert timing["gpu"] == torch.cuda.get_device_name()
    assert timing["peak_gpu_memory_mb"] > 0


def test_a_killed_run_goes_on_and_micro_batches_are_worth_rounding(shards, tmp_path, monkeypatch, capsys):
    whole = losses(shards, tmp_path / "whole", "log")
    real, left = loop.training_batch, iter(range(5))

    def fails(*arguments):
        if next(left, None) is None:
            raise ZeroDivisionError
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batch", fails)
        with pytest.raises(ZeroDivisionError):
            losses(shards, tmp_path / "cut", "log", save_seconds=0.0)
    capsys.readouterr()
    found = losses(shards, tmp_path / "cut", "log", micro_batch=256)
    assert "continues after step 5 of 12" in capsys.readouterr().err
    # Atomic additions are in no fixed order: not the same bits.
    np.testing.assert_allclose(found, whole, rtol=1e-2)
