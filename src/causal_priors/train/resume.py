"""The resume state: everything a killed training run needs to go on as if nothing had happened.

It lies in the run folder's `work/`, which no rule of the pipeline declares, so that a failed or repeated job keeps it.
One safetensors file, written whole or not at all, holds one object. Its header carries a digest of the content (a
damaged state is never taken) and a fingerprint of all that shaped the run (a state of other code or data is not taken
either). There is no random state in it: batches are a pure function of (data seed, step) and the model has no dropout.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from causal_priors.artifacts import canonical_json
from causal_priors.train.tensorfile import check_header, write_tensors

STATE_FILE = "state.safetensors"


@dataclass
class TrainingState:
    """What survives a restart.

    step: updates done. optimizer: `FlatAdamW.state()`, the parameters included. losses: one row (loss, lr, grad_norm)
    per step. positions: one row of `Transformer.position_report()` values per logged step. diverged_at: the step whose
    loss or gradient was not finite, if any; its update was not made.
    """

    step: int = 0
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    losses: list[tuple[float, float, float]] = field(default_factory=list)
    positions: list[list[float]] = field(default_factory=list)
    diverged_at: int | None = None


def save_state(state: TrainingState, folder: Path, fingerprint: dict[str, Any]) -> None:
    """Write `state` to `folder`, whole or not at all. Raises `UserError` where the disk is full or read-only."""
    tensors = {f"optimizer.{name}": tensor for name, tensor in state.optimizer.items()}
    tensors["losses"] = torch.tensor(state.losses, dtype=torch.float64).reshape(-1, 3)
    # Shaped by hand: an arm without positional quantities logs rows of none.
    columns = len(state.positions[0]) if state.positions else 0
    tensors["positions"] = torch.tensor(state.positions, dtype=torch.float64).reshape(len(state.positions), columns)
    header: dict[str, Any] = {"step": state.step, "diverged_at": state.diverged_at, "fingerprint": fingerprint}
    header["digest"] = _digest(tensors, header)
    write_tensors(folder / STATE_FILE, tensors, {"state": canonical_json(header).decode()})


def remove_state(folder: Path) -> None:
    """Remove the state in `folder`, if there is one: its run is committed."""
    (folder / STATE_FILE).unlink(missing_ok=True)


def load_state(folder: Path, fingerprint: dict[str, Any]) -> tuple[TrainingState | None, str]:
    """Return the state in `folder` and "", or None and the reason in words ("" where there simply is none)."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None, ""
    try:
        with open(path, "rb") as start:
            check_header(start.read(8))
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        digest = header.pop("digest")
        if digest != _digest(tensors, header):
            return None, f"{path}: does not have the digest it was saved with"
        found = header["fingerprint"]
        if found != fingerprint:
            changed = sorted(key for key in {*found, *fingerprint} if found.get(key) != fingerprint.get(key))
            return None, f"{path}: was made with another {', '.join(changed)}"
        state = TrainingState(
            step=header["step"],
            optimizer={key.removeprefix("optimizer."): value for key, value in tensors.items() if "." in key},
            losses=[(loss, rate, norm) for loss, rate, norm in tensors["losses"].tolist()],
            positions=tensors["positions"].tolist(),
            diverged_at=header["diverged_at"],
        )
        # A step that diverged has a loss and no update.
        if len(state.losses) - state.step not in (0, 1):
            return None, f"{path}: is damaged (it has {len(state.losses)} losses after step {state.step})"
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f"{path}: is damaged ({' '.join(str(error).split())[:200]})"
    return state, ""


def _digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(header))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().reshape(-1).data)
    return digest.hexdigest()
