"""One run in several processes, and a step in several forward passes: the same training but for rounding."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from helpers import scale, write_shards
from model_cases import MARGINS

from causal_priors import tables
from causal_priors.arms import ARMS
from causal_priors.artifacts import writer_lock
from causal_priors.config import ROOT
from causal_priors.data.batches import training_batch
from causal_priors.data.shards import open_shards
from causal_priors.devices import hold
from causal_priors.errors import UserError
from causal_priors.model import Transformer
from causal_priors.runs import Run
from causal_priors.train.gradient import Cut
from causal_priors.train.loop import train_stage
from causal_priors.train.optimizer import FlatAdamW, learning_rate
from causal_priors.train.parallel import Team

NANO = scale("nano")
SIZE = NANO.sizes["S"]
RUN = "S-log-L16-s0"
OUTPUTS = ("model.safetensors", "losses.parquet", "positions.parquet", "run.json")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), NANO)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, shards):
    out = tmp_path_factory.mktemp("alone")
    train_stage(Run("S", "log", 1, 0), NANO, ARMS["log"], shards, out, "c" * 64)
    return out


def trained(shards, arm, micro_batch, dtype=torch.float64, half=False, steps=3):
    """Weights and losses after some steps as the loop takes them."""
    model = Transformer(SIZE, NANO.vocabulary, ARMS[arm], SIZE.train_length, 0, MARGINS).to(dtype)
    optimizer = FlatAdamW(
        [p for _, p in model.other_parameters()], [p for _, p in model.positional_parameters()], ARMS[arm].position_lr
    )
    windows = SIZE.tokens_per_step // SIZE.train_length
    cut = Cut.of(windows, SIZE.train_length, micro_batch, half, Team())
    store, losses = open_shards(shards), []
    for step in range(steps):
        losses.append(cut.add_gradient(model, training_batch(store, 1000, step, windows, SIZE.train_length)))
        optimizer.update(learning_rate(SIZE, step), float(optimizer.gradient_norm()))
    return torch.stack(losses), optimizer, model


@pytest.mark.parametrize("arm", ["rope", "log-logn", "cable", "grape-ap", "goat", "ot-75"])
@pytest.mark.parametrize("micro_batch", [1, 48, 100])
def test_in_float64_no_number_depends_on_the_micro_batch(shards, arm, micro_batch):
    # One window, three and six of eight at a time.
    losses, optimizer, _ = trained(shards, arm, None)
    others, other, _ = trained(shards, arm, micro_batch)
    torch.testing.assert_close(others, losses, rtol=1e-12, atol=0)
    # Adam divides by a gradient's own size: what is rounding of nothing may move by more.
    torch.testing.assert_close(other.values, optimizer.values, rtol=1e-9, atol=1e-12)


def test_in_float32_and_bfloat16_the_micro_batch_is_worth_rounding(shards):
    for half, band in ((False, 1e-6), (True, 4e-3)):
        losses, _, _ = trained(shards, "log", None, torch.float32, half)
        others, _, _ = trained(shards, "log", 16, torch.float32, half)
        torch.testing.assert_close(others, losses, rtol=band, atol=0)


def test_a_whole_step_is_one_pass_and_takes_the_bits_of_none_asked_for(shards):
    assert Cut.of(8, 16, 128, False, Team()) == Cut.of(8, 16, None, False, Team()) == Cut(8, 8, False, Team())
    assert Cut.of(8, 16, 1, False, Team()).together == 1


def test_processes_that_do_not_divide_the_windows_are_refused():
    with pytest.raises(
        UserError, match=r"processes = 3: cannot share 8 windows a step evenly; use a number that divides"
    ):
        Cut.of(8, 16, None, False, Team(0, 3))


@pytest.mark.parametrize("arm", [key for key in ARMS if "margin" not in key])
def test_under_autocast_all_but_matrix_products_stays_float32(shards, arm):
    seen = {}

    def watch(name):
        return lambda module, given, out: seen.update({name: out.dtype})

    model = Transformer(SIZE, NANO.vocabulary, ARMS[arm], SIZE.train_length, 0, MARGINS)
    block = model.layers[0]
    block.qkv.register_forward_hook(watch("product"))
    block.attention_norm.register_forward_hook(watch("norm"))
    if block.log_prior is not None:
        block.log_prior.register_forward_hook(watch("bias"))
    ids_BT = torch.arange(2 * 17).view(2, 17) % NANO.vocabulary
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(ids_BT[:, :-1], ids_BT[:, 1:])
    torch.autograd.backward(losses.mean())
    assert seen.pop("product") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}
    assert losses.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
    # Rounding of products to 8 bits, and no more.
    expected = model(ids_BT[:, :-1], ids_BT[:, 1:])
    torch.testing.assert_close(losses, expected, rtol=4e-3, atol=0)


def test_master_weights_and_moments_are_float32_and_take_updates_below_half_precision(shards):
    losses, optimizer, model = trained(shards, "cable", None, torch.float32, half=True)
    assert {x.dtype for x in (optimizer.values, optimizer.gradients, optimizer.mean, optimizer.square)} == {
        torch.float32
    }
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert losses.dtype == torch.float32
    # Numbers that bfloat16 does not have.
    gain = model.layers[0].attention_norm.weight.detach()
    assert (gain != gain.bfloat16().float()).sum() > len(gain) / 2


def start(shards, out, *options, before=()):
    """`train` of nano from the command line."""
    command = [sys.executable, "-m", "causal_priors", *before, "train", RUN, "--scale", "nano"]
    command += [
        "--preregistration",
        str(ROOT / "preregistration"),
        "--shards",
        str(shards),
        "--out",
        str(out),
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def columns(out):
    return tables.read_table(out / "losses.parquet", "losses")


def test_two_processes_train_the_run_of_one(shards, alone, tmp_path):
    process = start(shards, tmp_path / "run", "--processes", "2")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert said.count("S-log-L16-s0: step 5/5") == 1
    ours, theirs = columns(tmp_path / "run"), columns(alone)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-6)
    np.testing.assert_allclose(ours["grad_norm"], theirs["grad_norm"], rtol=1e-5)
    card, expected = (json.loads((folder / "run.json").read_text()) for folder in (tmp_path / "run", alone))
    assert card["parameters"] == expected["parameters"]
    assert json.loads((tmp_path / "run" / "timing.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_what_the_first_process_refuses_ends_the_others_in_silence(shards, tmp_path):
    with writer_lock(tmp_path / "run"):
        process = start(shards, tmp_path / "run", "--processes", "2", before=("--log", str(tmp_path / "log")))
        said = process.communicate(timeout=300)[1]
    assert process.returncode != 0, said
    lines = (tmp_path / "log").read_text().splitlines()
    (mistake,) = [line for line in lines if line.startswith("error: ")]
    assert mistake == f"error: {tmp_path}/run: another process is writing here; wait for it, or stop it and call again"


PROGRAM = """
import dataclasses, sys
from pathlib import Path
from causal_priors.arms import ARMS
from causal_priors.artifacts import writer_lock
from causal_priors.config import load_scale, scale_file
from causal_priors.devices import end_with_launcher
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage

end_with_launcher()
nano = load_scale(scale_file("nano"))
longer = dataclasses.replace(nano, sizes={**nano.sizes, "S": dataclasses.replace(nano.sizes["S"], steps=400)})
train_stage(Run("S", "log", 1, 0), longer, ARMS["log"], Path(sys.argv[1]), Path(sys.argv[2]), "c" * 64, save_seconds=0.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["torchrun", "a process"])
def test_two_processes_go_on_after_a_kill_and_end_with_the_same_bytes(shards, tmp_path, killed):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def launch(out):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.Popen([*command, program, shards, out], stderr=subprocess.PIPE, text=True)

    whole = launch(tmp_path / "whole")
    assert whole.wait(300) == 0, whole.stderr.read()
    cut = launch(tmp_path / "cut")
    state = tmp_path / "cut" / "work" / "state.safetensors"
    wait_for(state.exists)
    workers = psutil.Process(cut.pid).children()
    assert len(workers) == 2
    (cut if killed == "torchrun" else workers[1]).kill()
    assert cut.wait(60) != 0
    wait_for(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
    assert not (tmp_path / "cut" / "run.json").exists()
    again = launch(tmp_path / "cut")
    said = again.communicate(timeout=300)[1]
    assert again.returncode == 0, said
    assert re.search(r"continues after step [1-9]\d* of 400", said)
    for name in OUTPUTS:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def wait_for(happened, seconds=120):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


class TestHold:
    def test_each_takes_the_first_that_is_free(self, tmp_path):
        assert [hold(["a", "b"], tmp_path / "held") for _ in range(3)] == [0, 1, None]

    def test_a_hold_goes_with_its_process(self, tmp_path):
        program = (
            f"from pathlib import Path; from causal_priors.devices import hold; hold(['a'], Path({str(tmp_path)!r}))"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
        assert hold(["a"], tmp_path) == 0
