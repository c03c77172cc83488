"""The resume state: what is saved comes back bit for bit, and what is damaged or of another run does not."""

import signal

import pytest
import torch

from causal_priors.train.resume import STATE_FILE, TrainingState, load_state, save_state
from causal_priors.train.signals import StopRequest

FINGERPRINT = {"run": "S-rope-L16-s0", "code": "c" * 64, "shards": "d" * 64}


def state() -> TrainingState:
    generator = torch.Generator().manual_seed(0)
    optimizer = {name: torch.randn(96, generator=generator) for name in ("values", "mean", "square")}
    optimizer["updates"] = torch.tensor(3.0)
    losses = [(6.9, 1e-3, 0.1 + 0.2), (6.5, 2e-3, float("inf")), (float("nan"), 3e-3, 1.0)]
    return TrainingState(3, optimizer, losses, [[0.5, 1.5], [0.6, 1.4]], diverged_at=2)


def test_a_saved_state_comes_back_bit_for_bit(tmp_path):
    save_state(state(), tmp_path, FINGERPRINT)
    found, reason = load_state(tmp_path, FINGERPRINT)
    assert reason == ""
    assert (found.step, found.diverged_at, found.positions) == (3, 2, [[0.5, 1.5], [0.6, 1.4]])
    # repr tells floats apart to the last bit, and NaN equals itself.
    assert repr(found.losses) == repr(state().losses)
    assert found.optimizer.keys() == state().optimizer.keys()
    assert all(torch.equal(found.optimizer[name], tensor) for name, tensor in state().optimizer.items())


@pytest.mark.parametrize("positions", [[], [[], []]], ids=["before the first step", "no positional quantities"])
def test_a_state_without_rows_comes_back(tmp_path, positions):
    save_state(TrainingState(positions=positions), tmp_path, FINGERPRINT)
    found, _ = load_state(tmp_path, FINGERPRINT)
    assert (found.step, found.losses, found.positions, found.diverged_at) == (0, [], positions, None)


def test_the_same_state_makes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        save_state(state(), tmp_path / name, FINGERPRINT)
    assert (tmp_path / "a" / STATE_FILE).read_bytes() == (tmp_path / "b" / STATE_FILE).read_bytes()


def test_no_state_is_no_complaint(tmp_path):
    assert load_state(tmp_path / "absent", FINGERPRINT) == (None, "")


@pytest.mark.parametrize("key", FINGERPRINT)
def test_a_state_of_something_else_is_not_taken_and_says_of_what(tmp_path, key):
    save_state(state(), tmp_path, FINGERPRINT)
    found, reason = load_state(tmp_path, {**FINGERPRINT, key: "other"})
    assert found is None
    assert reason.endswith(f"another {key}")


def test_no_flipped_byte_is_taken(tmp_path):
    save_state(state(), tmp_path, FINGERPRINT)
    path = tmp_path / STATE_FILE
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        found, reason = load_state(tmp_path, FINGERPRINT)
        assert found is None, position
        assert reason, position


@pytest.mark.parametrize("kept", [0, 1, 8, 100, -1])
def test_no_truncated_file_is_taken(tmp_path, kept):
    save_state(state(), tmp_path, FINGERPRINT)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:kept])
    found, reason = load_state(tmp_path, FINGERPRINT)
    assert found is None
    assert str(path) in reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_request_is_noted_and_the_handlers_before_come_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.received == 0
        signal.raise_signal(number)
        assert (stop.received, stop.name) == (number, number.name)
    assert signal.getsignal(number) is before
