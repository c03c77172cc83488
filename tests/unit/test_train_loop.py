"""The training stage at nano scale on a made-up corpus: logs, checkpoint, resume, divergence, refusals."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import scale, write_shards

from causal_priors import tables
from causal_priors.arms import ARMS
from causal_priors.artifacts import sha256_file, write_signed_json, writer_lock
from causal_priors.errors import UserError
from causal_priors.runs import Run
from causal_priors.train import checkpoint, loop
from causal_priors.train.checkpoint import build_model, read_checkpoint
from causal_priors.train.loop import train_stage

NANO = scale("nano")
CODE = "c" * 64
OUTPUTS = ("model.safetensors", "losses.parquet", "positions.parquet", "run.json")


def with_size(**changes):
    """Nano with other numbers for size S, under a name of its own so that no digest is mistaken for nano's."""
    return dataclasses.replace(NANO, sizes={**NANO.sizes, "S": dataclasses.replace(NANO.sizes["S"], **changes)})


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


def train(out, shards, arm="log", of=NANO, seed=0, code=CODE, **options):
    run = Run("S", arm, 1, seed)
    train_stage(run, of, ARMS[arm], shards, out, code, **options)
    return run


def content(out):
    return {name: (out / name).read_bytes() for name in OUTPUTS}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shards):
    out = tmp_path_factory.mktemp("run")
    train(out, shards)
    return out


def test_the_card_names_every_output_by_its_digest_and_nothing_of_this_machine(trained):
    card = json.loads((trained / "run.json").read_text())
    assert card["status"] == "finished"
    assert card["outputs"] == {name: sha256_file(trained / name) for name in OUTPUTS[:3]}
    assert card["parameters"]["run"] == "S-log-L16-s0"
    assert os.uname().nodename not in json.dumps(card)
    assert str(trained.parent) not in json.dumps(card)


def test_parameter_counts_are_those_of_the_study(trained):
    counts = json.loads((trained / "run.json").read_text())["parameter_counts"]
    # 300 ids x 16; depth (12 C^2 + 13 C) + 2 C; one exponent for each of two heads.
    assert counts == {"embedding": 4800, "blocks": 12 * 256 + 13 * 16 + 32, "positional": 2, "total": 4800 + 3312 + 2}


def test_the_loss_log_has_one_row_a_step_and_starts_at_a_guess(trained):
    losses = tables.read_table(trained / "losses.parquet", "losses")
    assert losses["step"].tolist() == list(range(5))
    # Five steps, warm-up half a step: a cosine from the peak (at u = .5) to a tenth of it (at u = 5).
    expected = [3e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * (u - 0.5) / 4.5))) for u in range(1, 6)]
    np.testing.assert_allclose(losses["lr"], expected, rtol=1e-12)
    assert losses["loss"][0] == pytest.approx(math.log(300), abs=0.02)
    assert (losses["grad_norm"] > 0).all()


def test_the_positions_log_follows_the_exponents_from_their_initial_values(trained):
    rows = tables.read_table(trained / "positions.parquet", "positions")
    exponents = rows[rows["quantity"] == "exponent"].pivot(index="step", columns="head", values="value")
    assert exponents.index.tolist() == list(range(6))
    # A16: log-spaced from .5 to 1.5 over the heads.
    np.testing.assert_allclose(exponents.loc[0], [0.5, 1.5], rtol=1e-6)
    assert (exponents.loc[5] != exponents.loc[0]).all()


def test_the_saved_weights_are_the_trained_ones(trained, shards):
    model = read_checkpoint(Run("S", "log", 1, 0), NANO, ARMS["log"], trained).model(
        Run("S", "log", 1, 0), NANO, ARMS["log"]
    )
    initial = build_model(Run("S", "log", 1, 0), NANO, ARMS["log"], None)
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), initial.parameters(), strict=True)]
    assert all(moved)


def test_the_same_run_makes_the_same_bytes(trained, shards, tmp_path):
    train(tmp_path / "again", shards, save_seconds=0.0)
    assert content(tmp_path / "again") == content(trained)


def test_nothing_is_left_to_resume_after_a_commit_but_the_run_itself(trained):
    assert sorted(path.name for path in (trained / "work").iterdir()) == sorted(OUTPUTS)
    assert all((trained / "work" / name).samefile(trained / name) for name in OUTPUTS)


def test_a_run_whose_outputs_the_pipeline_deleted_is_put_back(trained, shards, tmp_path, capsys, monkeypatch):
    out = tmp_path / "copy"
    train(out, shards)
    for name in OUTPUTS:
        (out / name).unlink()
    monkeypatch.setattr(loop, "training_batch", None)
    train(out, shards)
    assert "are put back" in capsys.readouterr().err
    assert content(out) == content(trained)


def test_a_run_of_other_code_is_not_put_back(trained, shards, tmp_path, capsys):
    out = tmp_path / "copy"
    train(out, shards, code="d" * 64)
    for name in OUTPUTS:
        (out / name).unlink()
    train(out, shards)
    assert "are put back" not in capsys.readouterr().err
    assert content(out) == content(trained)


def test_a_whole_run_is_not_trained_again(trained, shards, capsys, monkeypatch):
    monkeypatch.setattr(loop, "training_batch", None)
    before = content(trained)
    train(trained, shards)
    assert "nothing to do" in capsys.readouterr().err
    assert content(trained) == before


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_damaged_run_is_trained_again(trained, shards, tmp_path, name):
    out = tmp_path / "copy"
    train(out, shards)
    # In place, so that the links that the run is kept as are damaged with it.
    (out / name).write_bytes((out / name).read_bytes()[:-3])
    train(out, shards)
    assert content(out) == content(trained)


def test_arms_see_the_same_batches_and_seeds_do_not(shards, tmp_path, monkeypatch):
    seen = []
    real = loop.training_batch

    def recorded(*arguments):
        seen.append(real(*arguments))
        return seen[-1]

    monkeypatch.setattr(loop, "training_batch", recorded)
    for name, arm, seed in (("a", "log", 0), ("b", "rope", 0), ("c", "rope", 1)):
        train(tmp_path / name, shards, arm=arm, seed=seed)
    log, rope, other = (np.stack(seen[start : start + 5]) for start in (0, 5, 10))
    assert log.shape == (5, 128 // 16, 17)
    np.testing.assert_array_equal(log, rope)
    assert (log != other).any(axis=(1, 2)).all()


def interrupted(out, shards, after, monkeypatch, **options):
    """Leave `out` as a kill would, `after` steps were saved."""
    real, steps = loop.training_batch, iter(range(after))

    def fails_after(*arguments):
        if next(steps, None) is None:
            raise ZeroDivisionError
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batch", fails_after)
        with pytest.raises(ZeroDivisionError):
            train(out, shards, save_seconds=0.0, **options)


@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("arm", ["log", "rope"])
def test_an_interrupted_run_ends_with_the_same_bytes(shards, tmp_path, monkeypatch, capsys, after, arm):
    train(tmp_path / "whole", shards, arm=arm)
    interrupted(tmp_path / "cut", shards, after, monkeypatch, arm=arm)
    capsys.readouterr()
    train(tmp_path / "cut", shards, arm=arm)
    assert f"continues after step {after} of 5" in capsys.readouterr().err
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert json.loads((tmp_path / "cut" / "timing.json").read_text())["steps_here"] == 5 - after


@pytest.mark.parametrize(
    ("change", "named"),
    [({"code": "d" * 64}, "code"), ({"of": with_size(learning_rate=1e-3)}, "scale"), ({"seed": 1}, "run")],
)
def test_a_state_of_another_run_starts_fresh_and_says_so(shards, tmp_path, monkeypatch, capsys, change, named):
    interrupted(tmp_path / "cut", shards, 3, monkeypatch)
    capsys.readouterr()
    train(tmp_path / "cut", shards, **change)
    said = capsys.readouterr().err
    assert "starting fresh" in said
    assert named in said
    train(tmp_path / "whole", shards, **change)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_damaged_state_starts_fresh_and_says_so(shards, tmp_path, monkeypatch, capsys, trained):
    interrupted(tmp_path / "cut", shards, 3, monkeypatch)
    path = tmp_path / "cut" / "work" / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    train(tmp_path / "cut", shards)
    assert "starting fresh" in capsys.readouterr().err
    assert content(tmp_path / "cut") == content(trained)


def test_a_run_killed_between_its_last_step_and_its_card_only_commits(shards, tmp_path, monkeypatch, trained):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "cut", shards)
    assert not (tmp_path / "cut" / "run.json").exists()
    monkeypatch.setattr(loop, "training_batch", None)
    train(tmp_path / "cut", shards)
    assert content(tmp_path / "cut") == content(trained)


def test_a_diverging_run_keeps_the_weights_before_and_says_when(shards, tmp_path):
    train(tmp_path / "hot", shards, of=with_size(learning_rate=1e30, warmup_fraction=0.0))
    card = json.loads((tmp_path / "hot" / "run.json").read_text())
    losses = tables.read_table(tmp_path / "hot" / "losses.parquet", "losses")
    step = len(losses) - 1
    assert card["status"] == f"diverged at step {step}"
    last = losses.iloc[-1]
    assert not (math.isfinite(last["loss"]) and math.isfinite(last["grad_norm"]))
    assert np.isfinite(losses.iloc[:-1]).all(axis=None)
    weights = safetensors.torch.load_file(tmp_path / "hot" / "model.safetensors")
    assert card["steps"] == step >= 1
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_diverged_run_is_whole_and_is_not_trained_again(shards, tmp_path, capsys):
    hot = with_size(learning_rate=1e30, warmup_fraction=0.0)
    train(tmp_path, shards, of=hot)
    train(tmp_path, shards, of=hot)
    assert "nothing to do" in capsys.readouterr().err


def test_a_second_writer_is_refused(shards, tmp_path):
    with writer_lock(tmp_path), pytest.raises(UserError, match="another process is writing here"):
        train(tmp_path, shards)
    assert not (tmp_path / "run.json").exists()


def test_leftovers_of_a_killed_writer_are_swept(shards, tmp_path):
    (tmp_path / ".model.safetensors.123.tmp").write_bytes(b"half")
    train(tmp_path, shards)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".lock", "timing.json", "work", *OUTPUTS])


def test_damaged_shards_are_refused_before_a_step(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "shards")
    path = tmp_path / "shards" / "train.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"train\.bin.*snakemake"):
        train(tmp_path / "run", tmp_path / "shards")
    assert not (tmp_path / "run" / "run.json").exists()


class TestReading:
    RUN = Run("S", "log", 1, 0)

    @pytest.fixture
    def copy(self, trained, tmp_path):
        return shutil.copytree(trained, tmp_path / "copy")

    def read(self, folder, run=RUN, of=NANO):
        return read_checkpoint(run, of, ARMS[run.arm], folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "run.json"])
    @pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete"])
    def test_damage_is_named_with_the_command_that_mends_it(self, copy, name, damage):
        path = copy / name
        data = path.read_bytes()
        if damage == "delete":
            path.unlink()
        else:
            place = data.index(b'"model.safetensors"') + 25 if name == "run.json" else len(data) // 2
            flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            path.write_bytes({"flip": flipped, "truncate": data[:-40], "empty": b""}[damage])
        with pytest.raises(UserError, match=rf"{copy}/(model\.safetensors|run\.json).*snakemake --cores all --force"):
            self.read(copy)

    def test_a_checkpoint_of_another_seed_is_refused(self, copy):
        with pytest.raises(UserError, match="is of another run"):
            self.read(copy, Run("S", "log", 1, 1))

    def test_a_checkpoint_of_another_arm_under_this_name_is_refused(self, trained):
        changed = dataclasses.replace(ARMS["log"], log_prior=ARMS["alibi"].log_prior)
        with pytest.raises(UserError, match="is of another arm"):
            read_checkpoint(self.RUN, NANO, changed, trained)

    def test_a_checkpoint_of_another_scale_is_refused(self, copy):
        with pytest.raises(UserError, match="is of another scale"):
            self.read(copy, of=with_size(steps=6))

    def test_weights_that_do_not_fit_are_refused(self, copy):
        weights = safetensors.torch.load_file(copy / "model.safetensors")
        weights.popitem()
        safetensors.torch.save_file(weights, copy / "model.safetensors")
        card = json.loads((copy / "run.json").read_text())
        card["outputs"]["model.safetensors"] = sha256_file(copy / "model.safetensors")
        write_signed_json(copy / "run.json", card)
        with pytest.raises(UserError, match="does not fit S-log-L16-s0"):
            self.read(copy).model(self.RUN, NANO, ARMS["log"])

    @pytest.mark.parametrize("text", ["[]", "{}", '{"status": "finished"}'])
    def test_a_card_without_its_digest_is_refused(self, copy, text):
        (copy / "run.json").write_text(text)
        with pytest.raises(UserError, match=r"is damaged \(its digest differs\)"):
            checkpoint.read_card(copy)

    @pytest.mark.parametrize("card", [{}, {"status": 1, "inputs": {}, "outputs": {}, "parameters": {}}])
    def test_a_card_of_another_form_is_refused(self, copy, card):
        write_signed_json(copy / "run.json", card)
        with pytest.raises(UserError, match="is not the card of a training run"):
            checkpoint.read_card(copy)


def test_a_training_process_imports_neither_the_compiler_nor_pandas(shards, tmp_path):
    # Two seconds and .4 s of every job; at micro a whole run takes ten.
    program = f"""
import sys
from pathlib import Path
from causal_priors.arms import ARMS
from causal_priors.config import load_scale, scale_file
from causal_priors.evaluate import evaluate_stage
from causal_priors.intervene import intervene_stage
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage
shards, out = Path({str(shards)!r}), Path({str(tmp_path)!r})
run, nano = Run("S", "log", 1, 0), load_scale(scale_file("nano"))
train_stage(run, nano, ARMS["log"], shards, out, "c")
evaluate_stage(run, nano, ARMS["log"], out, shards, out / "evaluation.parquet", "c")
intervene_stage(run, nano, ARMS["log"], "repair", out, shards, out / "repair.parquet", "c")
print([name for name in ("torch._dynamo", "torch._inductor", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
