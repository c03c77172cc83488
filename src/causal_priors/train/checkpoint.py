"""A finished run on disk: its weights, its logs, and `run.json`, written last.

`run.json` is the commit point: a folder without it holds no run. It names every other file by sha256 and bears a digest
of its own, and whoever uses the run checks them first, so a torn, damaged or swapped checkpoint ends in an error and
never in a number. A finished run is also kept as hard links in a folder that no rule of the pipeline declares: Snakemake
deletes the outputs of a job that it did not see end, before it starts the job again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from causal_priors import remedies
from causal_priors.arms import Arm
from causal_priors.artifacts import read_at_most, read_signed_json, sha256_bytes, sha256_file
from causal_priors.errors import UserError, refuse
from causal_priors.model import Transformer
from causal_priors.runs import Run
from causal_priors.scale import Scale
from causal_priors.train.tensorfile import check_header, write_tensors

MODEL, LOSSES, POSITIONS = "model.safetensors", "losses.parquet", "positions.parquet"
CARD, TIMING = "run.json", "timing.json"
# In the order in which they are written.
FILES = (MODEL, LOSSES, POSITIONS, CARD)
FINISHED = "finished"


def build_model(run: Run, scale: Scale, arm: Arm, margins: Mapping[str, float] | None) -> Transformer:
    """Return the run's model with its initial weights."""
    size = run.budget(scale)
    return Transformer(size, scale.vocabulary, arm, run.train_length(scale), run.init_seed, margins)


def save_weights(model: Transformer, path: Path) -> None:
    """Write the model's weights as safetensors, whole or not at all."""
    weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    write_tensors(path, weights, {"format": "pt"})


def parameter_counts(model: Transformer) -> dict[str, int]:
    """Count parameters: total, embedding, positional, and the rest ("blocks")."""
    positional = sum(parameter.numel() for _, parameter in model.positional_parameters())
    others = {name: parameter.numel() for name, parameter in model.other_parameters()}
    embedding = sum(count for name, count in others.items() if "embedding" in name)
    total = positional + sum(others.values())
    return {"total": total, "embedding": embedding, "positional": positional, "blocks": total - embedding - positional}


@dataclass(frozen=True)
class Checkpoint:
    """A run read from disk, its digests verified."""

    folder: Path
    card: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def status(self) -> str:
        """How the run ended: "finished" or "diverged at step k"."""
        return str(self.card["status"])

    def model(self, run: Run, scale: Scale, arm: Arm) -> Transformer:
        """Return the trained model.

        Raises `UserError` where the weights do not fit this run's arm and scale.
        """
        model = build_model(run, scale, arm, self.card["parameters"].get("margins"))
        try:
            model.load_state_dict(self.weights)
        except RuntimeError as error:
            problem = " ".join(str(error).split())[:300]
            raise refuse(
                f"does not fit {run.name(scale)} ({problem})", file=self.folder / MODEL, remedy=rebuild(self.folder)
            ) from None
        return model


def read_checkpoint(run: Run, scale: Scale, arm: Arm, folder: Path) -> Checkpoint:
    """Return the run in `folder`.

    Raises `UserError`, naming the file and the command that rebuilds it, where a file is missing, differs from the
    digest in `run.json`, or belongs to another run, arm or scale.
    """
    card = read_card(folder)
    expected = {"run": run.name(scale), "scale": scale.digest(), "arm": arm.resolved()}
    for key, value in expected.items():
        found = card["parameters"].get(key)
        if _plain(found) != _plain(value):
            shown = found if key == "run" else ...
            raise refuse(f"is of another {key}", file=folder / CARD, key=key, value=shown, remedy=rebuild(folder))
    path = folder / MODEL
    data = read_at_most(path, _most_bytes(run, scale), rebuild(folder))
    if sha256_bytes(data) != card["outputs"].get(MODEL):
        raise refuse("differs from the digest in run.json", file=path, remedy=rebuild(folder))
    try:
        check_header(data[:8])
        weights = load(data)
    except (SafetensorError, ValueError) as error:
        raise refuse(f"is not safetensors ({error})", file=path, remedy=rebuild(folder)) from None
    return Checkpoint(folder, card, weights)


def read_card(folder: Path) -> dict[str, Any]:
    """Return `run.json` of a run folder. Raises `UserError` where it is missing, damaged or of another form."""
    path = folder / CARD
    card = read_signed_json(path, rebuild(folder))
    whole = isinstance(card.get("status"), str) and all(
        isinstance(card.get(key), dict) for key in ("inputs", "outputs", "parameters")
    )
    # Files of these names only: a card is data, and `../..` in one would lead elsewhere.
    if not whole or card["outputs"].keys() != {*FILES} - {CARD} or not _are_margins(card["parameters"].get("margins")):
        raise refuse("is not the card of a training run", file=path, remedy=rebuild(folder))
    return card


def _most_bytes(run: Run, scale: Scale) -> int:
    """Bytes that no weights of `run` exceed, whatever an arm of one's own adds."""
    size = run.budget(scale)
    return max(1 << 30, 32 * (scale.vocabulary * size.width + size.non_embedding_parameters()))


def _are_margins(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(delta, float) for delta in value.values()))


def is_committed(folder: Path, request: Mapping[str, Any]) -> bool:
    """Say whether `folder` holds, whole and undamaged, the run whose card has the entries of `request`."""
    if not (folder / CARD).is_file():
        return False
    try:
        card = read_card(folder)
        asked = all(_plain(card.get(key)) == _plain(value) for key, value in request.items())
        return asked and all(sha256_file(folder / name) == digest for name, digest in card["outputs"].items())
    except UserError:
        return False


def keep(folder: Path, kept: Path) -> None:
    """Keep the committed run in `folder` as hard links in `kept`, which cost no space."""
    try:
        for name in FILES:
            (kept / name).unlink(missing_ok=True)
            os.link(folder / name, kept / name)
    except OSError:
        # A file system without links: a run whose outputs get lost is then trained again.
        drop(kept)


def drop(kept: Path) -> None:
    """Remove what `keep` made."""
    for name in FILES:
        (kept / name).unlink(missing_ok=True)


def take_back(folder: Path, kept: Path, request: Mapping[str, Any]) -> bool:
    """Put the run that `keep` kept back into `folder`, and say so, if it is whole and has the entries of `request`."""
    if not is_committed(kept, request):
        return False
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name in FILES:
        os.utime(kept / name)
        os.link(kept / name, folder / name)
    return True


def rebuild(folder: Path) -> str:
    """Return the advice that ends an error about a run folder."""
    return remedies.rebuild(folder / CARD)


def _plain(value: Any) -> Any:
    """Bring values read from JSON and values built here to one form: mappings, lists, scalars."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def as_device(model: Transformer, device: str, dtype: str) -> Transformer:
    """Return the model on `device` in the arithmetic called `dtype`, in evaluation mode."""
    return model.to(device=device, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
