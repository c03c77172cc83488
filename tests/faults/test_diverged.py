"""A run that diverges, from its step to the verdict: it stops with finite weights, and its tests say why they have none."""

import dataclasses
import json
import math

import numpy as np
import pytest
import safetensors.torch
from helpers import scale, write_shards

from causal_priors.arms import ARMS
from causal_priors.config import ROOT
from causal_priors.evaluate import evaluate_stage
from causal_priors.prereg.scoring import score_stage
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.runs import Run
from causal_priors.tables import read_table
from causal_priors.train.loop import train_stage

NANO = scale("nano")
RUN = Run("C", "rope", 1, 0)
CODE = "c" * 64


def hot(learning_rate):
    size = dataclasses.replace(NANO.sizes["C"], steps=40, learning_rate=learning_rate, warmup_fraction=0.0)
    return dataclasses.replace(NANO, sizes={**NANO.sizes, "C": size})


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


@pytest.mark.parametrize("learning_rate", [1e30, 3.0], ids=["not finite", "far above a guess"])
def test_the_run_stops_and_its_tests_are_not_evaluated(shards, tmp_path, learning_rate):
    of, out = hot(learning_rate), tmp_path / RUN.name(NANO)
    train_stage(RUN, of, ARMS["rope"], shards, out, CODE)
    losses = read_table(out / "losses.parquet", "losses")["loss"]
    step = len(losses) - 1
    assert 0 < step < 39
    assert not losses.iloc[-1] < 4 * math.log(NANO.vocabulary)
    assert (losses.iloc[:-1] < 4 * math.log(NANO.vocabulary)).all()
    status = f"diverged at step {step}"
    assert json.loads((out / "run.json").read_text())["status"] == status
    weights = safetensors.torch.load_file(out / "model.safetensors")
    assert all(np.isfinite(tensor.numpy()).all() for tensor in weights.values())

    evaluate_stage(RUN, of, ARMS["rope"], out, shards, out / "evaluation.parquet", CODE, allow_packed=True)
    score_stage(ROOT / "preregistration", of, [out / "evaluation.parquet"], ARMS, tmp_path / "verdicts")
    records = {record["test_id"]: record for record in read_verdicts(tmp_path / "verdicts" / "verdicts.json")}
    needing = [record for record in records.values() if status in record["reason"]]
    assert "0003-a" in {record["test_id"] for record in needing}
    for record in needing:
        assert record["verdict"] == "not evaluated"
        assert f"run {out.name} {status}" in record["reason"]
