"""Kill and resume with real processes and real signals: the end is bit-identical to a run left alone.

The processes are forked from a server that has imported torch once and computed nothing.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import scale, write_shards

from causal_priors.arms import ARMS
from causal_priors.runs import Run
from causal_priors.train.loop import train_stage

NANO = scale("nano")
STEPS = 150
# A nano run that is long enough to be hit; it saves after every step.
LONG = replace(NANO, sizes={**NANO.sizes, "S": replace(NANO.sizes["S"], steps=STEPS)})
OUTPUTS = ("model.safetensors", "losses.parquet", "positions.parquet", "run.json")

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["causal_priors.train.loop", "causal_priors.data.tokenise", "causal_priors.data.index"])


def train(shards: Path, out: Path, errors: Path) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    train_stage(Run("S", "log", 1, 0), LONG, ARMS["log"], shards, out, "c" * 64, save_seconds=0.0)


class Child:
    """One training process on the run folder `out`."""

    def __init__(self, shards: Path, out: Path) -> None:
        self.out, self.errors = out, out.with_name(f"{out.name}.stderr")
        self.process = SERVER.Process(target=train, args=(shards, out, self.errors))
        self.process.start()

    def wait_for_a_state(self) -> None:
        until = time.monotonic() + 60
        while not (self.out / "work" / "state.safetensors").exists():
            assert self.process.is_alive(), self.errors.read_text()
            assert time.monotonic() < until, "no state was saved"
            time.sleep(0.002)

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for the process; return its exit code and what it wrote to stderr."""
        self.process.join(timeout=120)
        assert self.process.exitcode is not None, "the run did not end"
        return self.process.exitcode, self.errors.read_text()


def content(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in OUTPUTS}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data"), LONG)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, shards):
    """The bytes of a run left alone, and the seconds it took."""
    out = tmp_path_factory.mktemp("whole") / "run"
    out.mkdir()
    child = Child(shards, out)
    child.wait_for_a_state()
    began = time.monotonic()
    assert child.end()[0] == 0
    return content(out), time.monotonic() - began


def killed(shards: Path, out: Path, seconds: float) -> bool:
    """Start the run, kill it after its first saved state plus `seconds`; say whether it was still at work."""
    out.mkdir(exist_ok=True)
    child = Child(shards, out)
    child.wait_for_a_state()
    time.sleep(seconds)
    if child.process.is_alive():
        child.send(signal.SIGKILL)
    return child.end()[0] == -signal.SIGKILL


def finished(shards: Path, out: Path) -> dict[str, bytes]:
    code, errors = Child(shards, out).end()
    assert code == 0, errors
    return content(out)


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(shards, undisturbed, tmp_path):
    whole, seconds = undisturbed
    moments = random.Random(0)
    hits = [killed(shards, tmp_path / "run", moments.random() * seconds / 3) for _ in range(3)]
    assert any(hits)
    assert finished(shards, tmp_path / "run") == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_one_kill_anywhere_in_a_run_changes_nothing(shards, undisturbed, tmp_path, seed):
    whole, seconds = undisturbed
    # Up to a tenth after the run's usual end, so that the commit is hit too.
    killed(shards, tmp_path / "run", random.Random(seed).random() * 1.1 * seconds)
    assert finished(shards, tmp_path / "run") == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_saves_at_the_step_boundary_and_says_so(shards, undisturbed, tmp_path, number):
    out = tmp_path / "run"
    out.mkdir()
    child = Child(shards, out)
    child.wait_for_a_state()
    child.send(number)
    code, errors = child.end()
    last = errors.strip().splitlines()[-1]
    assert code == 128 + number, errors
    assert "Traceback" not in errors
    assert f"stopped by {number.name} after step " in last
    assert last.endswith("the same command continues from here")
    assert not (out / "run.json").exists()
    done = int(last.split("after step ")[1].split()[0])
    assert 0 < done < STEPS
    again = Child(shards, out)
    assert f"continues after step {done} of {STEPS}" in again.end()[1]
    assert content(out) == undisturbed[0]
    assert json.loads((out / "timing.json").read_text())["steps_here"] == STEPS - done


def test_a_second_process_on_the_same_run_is_refused(shards, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    first = Child(shards, out)
    first.wait_for_a_state()
    first.send(signal.SIGSTOP)
    second = Child(shards, out)
    code, errors = second.end()
    first.send(signal.SIGKILL)
    assert code != 0
    assert "another process is writing here" in errors
