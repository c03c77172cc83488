"""Measure one checkpoint: loss per window and position bin, far mass, exponents, at L, 2L, 4L and 8L.

Shape legend: K blocks, G blocks of a forward pass, W windows of a block, T tokens of a window, N position bins, B = G W,
L layers, H heads. Every length cuts the same blocks of 8L inputs, so every length scores the same targets. No target
looks ahead, so the windows of a length that longer ones begin with are read off those: 20 L tokens a block are computed
for the 32 L that are scored. A forward pass holds whole blocks, as many as `PASS_TOKENS` says: a number depends on the
checkpoint, the blocks and the lengths, and on no batch size to choose, bit for bit on a CPU.
"""

import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_priors import runcard
from causal_priors.arms import Arm
from causal_priors.artifacts import canonical_json, write_json
from causal_priors.data.windows import evaluation_blocks
from causal_priors.model import Transformer
from causal_priors.runs import EVALUATION_FACTORS, Run
from causal_priors.scale import Scale
from causal_priors.tables import SCHEMAS, write_table
from causal_priors.train.checkpoint import CARD, FINISHED, Checkpoint, as_device, read_checkpoint
from causal_priors.train.determinism import settle

KIND = "evaluation"
FULL_BLOCK = 8
# Tokens of one forward pass: several short blocks, or one long one. A constant, so that it is no batch size to choose.
PASS_TOKENS = 4096
YARN_VARIANTS = {"paper": "yarn", "code": "yarn-code"}


def far_windows(train_length: int) -> tuple[int, int]:
    """Far-mass windows w in tokens: L/8, registered, and L, recorded (A2)."""
    return train_length // 8, train_length


def evaluate_stage(
    run: Run,
    scale: Scale,
    arm: Arm,
    folder: Path,
    shards: Path,
    out: Path,
    code: str,
    *,
    allow_packed: bool = False,
    device: str = "cpu",
    yarn_ramps: tuple[str, ...] = ("paper",),
) -> None:
    """Evaluate the checkpoint in `folder` and write the table `out` (kind "evaluation", stage "evaluate").

    An arm whose row asks for YaRN is also measured under it with each of `yarn_ramps` ("paper" | "code"). A diverged
    run gives an empty table whose metadata says so. Raises `UserError` where the checkpoint or the shards are missing
    or damaged.
    """
    startup = settle(device)
    parameters = {"packed": allow_packed, "yarn_ramps": list(yarn_ramps)}
    checkpoint = read_checkpoint(run, scale, arm, folder)
    parts: list[Rows] = []
    if checkpoint.status == FINISHED:
        blocks = load_blocks(run, scale, shards, allow_packed)
        dtype = "float32"
        model = as_device(checkpoint.model(run, scale, arm), device, dtype)
        table = Table(run, scale, "evaluate", dtype)
        parts.append(table.exponents(model))
        short = table.train_length
        plain = measure(model, blocks, [factor * short for factor in EVALUATION_FACTORS], short)
        for length, found in plain.items():
            parts += table.measured("plain", found)
            for ramp in yarn_ramps if arm.yarn else ():
                # Stretched to L, which is no stretch, YaRN is RoPE. Else it is another model at each length.
                stretched = found
                if length > short:
                    model.set_yarn(length, ramp=ramp)
                    stretched = measure(model, blocks, [length], short)[length]
                    model.set_yarn(None)
                parts += table.measured(YARN_VARIANTS[ramp], stretched)
    write_evaluation(parts, out, "evaluate", checkpoint, shards, code, parameters, startup)


def load_blocks(run: Run, scale: Scale, shards: Path, allow_packed: bool) -> np.ndarray:
    """Return the evaluation blocks of the run's training length, int64 [K, 8 L + 1]."""
    blocks: np.ndarray
    blocks, _ = evaluation_blocks(shards, run.train_length(scale), scale, allow_packed)
    return blocks


@dataclass(frozen=True)
class Measurement:
    """What one pass over the blocks at window length `length` gives.

    loss: nats per target [K, W, N]. bins: (first, end) positions of each bin, 0-based. far: per w, the far mass
    [K, W], mean over the last w queries, heads and layers. far_head: per w, the same [depth, H] over all windows.
    """

    length: int
    bins: list[tuple[int, int]]
    loss: np.ndarray
    far: dict[int, np.ndarray]
    far_head: dict[int, np.ndarray]


@torch.inference_mode()
def measure(
    model: Transformer, blocks: np.ndarray, lengths: Sequence[int], train_length: int
) -> dict[int, Measurement]:
    """Return losses and far mass of `model` over `blocks` [K, T + 1], cut into windows of each of `lengths` tokens.

    A window that begins one of the next longer length is not computed again, so the model may not depend on the length
    of a window. Raises `ValueError` for lengths of which one does not divide the next longer, or T.
    """
    device, total = next(model.parameters()).device, blocks.shape[1] - 1
    ordered = sorted(lengths, reverse=True)
    for longer, length in pairwise([total, *ordered]):
        if longer % length:
            raise ValueError(
                f"windows of {length} tokens do not fill {longer}: choose lengths of which each divides the next"
            )
    heads, depth = model.layers[0].geometry.heads, len(model.layers)
    found = {length: _Found(len(blocks), length, total, train_length, depth, heads) for length in sorted(lengths)}
    for longer, length in pairwise([0, *ordered]):
        starts = [start for start in range(0, total, length) if not longer or start % longer]
        begun = [found[shorter] for shorter in found if shorter <= length]
        together = max(1, PASS_TOKENS // max(1, len(starts) * length))
        for first_block in range(0, len(blocks) if starts else 0, together):
            group = torch.from_numpy(blocks[first_block : first_block + together]).to(device)
            ids_BN = torch.stack([group[:, start : start + length + 1] for start in starts], dim=1).flatten(0, 1)
            far = [(one.length, w) for one in begun for w in one.far]
            loss_BT, mass = model(ids_BN[:, :-1], ids_BN[:, 1:], far=far)
            loss_GWT = loss_BT.double().view(len(group), -1, length)
            for one in begun:
                one.take(first_block, starts, loss_GWT, mass)
    return {length: one.measurement() for length, one in found.items()}


class _Found:
    """What has been found so far about the windows of one length."""

    def __init__(self, count: int, length: int, total: int, train_length: int, depth: int, heads: int) -> None:
        self.length, self.bins = length, position_bins(length, train_length)
        windows = total // length
        self.loss = np.full((count, windows, len(self.bins)), np.nan)
        self.far = {w: np.full((count, depth, windows, heads), np.nan) for w in far_windows(train_length)}

    def take(
        self, first_block: int, starts: Sequence[int], loss_GWT: Tensor, mass: Mapping[tuple[int, int], Tensor]
    ) -> None:
        """Take the windows of this length that stand at `starts` in a group of blocks."""
        some = slice(first_block, first_block + len(loss_GWT))
        windows = [start // self.length for start in starts]
        binned = [loss_GWT[:, :, first:end].mean(dim=2) for first, end in self.bins]
        self.loss[some, windows] = torch.stack(binned, dim=2).cpu().numpy()
        for w, values in self.far.items():
            mass_LBH = mass[self.length, w].double()
            mass_LGWH = mass_LBH.view(len(mass_LBH), len(loss_GWT), len(starts), -1)
            values[some, :, windows] = mass_LGWH.transpose(0, 1).cpu().numpy()

    def measurement(self) -> Measurement:
        far_KW = {w: values.mean(axis=(1, 3)) for w, values in self.far.items()}
        far_LH = {w: values.mean(axis=(0, 2)) for w, values in self.far.items()}
        return Measurement(self.length, self.bins, self.loss, far_KW, far_LH)


def position_bins(length: int, train_length: int) -> list[tuple[int, int]]:
    """Return the (first, end) 0-based positions of the bins 1..L, L+1..2L, 2L+1..4L, 4L+1..8L that fit in `length`."""
    ends = [factor * train_length for factor in EVALUATION_FACTORS if factor * train_length <= length]
    return list(zip([0, *ends], ends, strict=False))


Rows = dict[str, Sequence[Any] | np.ndarray]
_PLACES = ("block", "window", "bin", "layer", "head")


class Table:
    """Builds rows of the kind "evaluation" for one run and stage, as columns."""

    def __init__(self, run: Run, scale: Scale, stage: str, dtype: str) -> None:
        self.train_length = run.train_length(scale)
        self._constant = {
            "run": run.name(scale),
            "size": run.size,
            "arm": run.arm,
            "train_length": self.train_length,
            "seed": run.seed,
            "stage": stage,
            "dtype": dtype,
        }

    def measured(self, variant: str, found: Measurement) -> list[Rows]:
        """Return one row per loss and per far mass of `found`."""
        counts_N = np.array([end - first for first, end in found.bins])
        parts = [self._rows(variant, "loss", found.length, found.loss, counts_N, block=0, window=1, bin=2)]
        for w, value_LH in found.far_head.items():
            value_KW = found.far[w]
            counts = value_LH.size * w, value_KW.size * w
            parts += [
                self._rows(variant, "far_mass", found.length, value_KW, counts[0], w, block=0, window=1),
                self._rows(variant, "far_mass_head", found.length, value_LH, counts[1], w, layer=0, head=1),
            ]
        return parts

    def exponents(self, model: Transformer) -> Rows:
        """Return the exponent census: one row per layer and head of an arm that has exponents."""
        found = [row for row in model.position_report() if row[2] == "exponent"]
        heads = 1 + max((head for _, head, _, _ in found), default=0)
        value_LH = np.array([value for _, _, _, value in found]).reshape(-1, heads)
        return self._rows("plain", "exponent", 0, value_LH, 1, layer=0, head=1)

    def _rows(
        self, variant: str, quantity: str, length: int, value: np.ndarray, count: Any, far_window: int = -1, **axes: int
    ) -> Rows:
        """Columns of `value.size` rows. `axes` names the axis of `value` that a place runs along; others are -1."""
        texts = {**self._constant, "variant": variant, "quantity": quantity, "length": length, "far_window": far_window}
        place = np.indices(value.shape)
        absent = np.array(-1)
        numbers = {key: place[axes[key]] if key in axes else absent for key in _PLACES}
        return {
            **{key: [text] * value.size for key, text in texts.items()},
            **{
                key: np.broadcast_to(number, value.shape).ravel()
                for key, number in {**numbers, "value": value, "count": count}.items()
            },
        }


def write_evaluation(
    parts: Iterable[Rows],
    out: Path,
    stage: str,
    checkpoint: Checkpoint,
    shards: Path,
    code: str,
    parameters: Mapping[str, Any],
    startup: float,
) -> None:
    """Write the rows with the checkpoint's status and the run card in the file's metadata, and timings beside it.

    startup: CPU seconds before the stage began.
    """
    rows: dict[str, list[Any]] = {name: [] for name in SCHEMAS[KIND].names}
    for part in parts:
        for name, values in part.items():
            rows[name].extend(values.tolist() if isinstance(values, np.ndarray) else values)
    inputs = {CARD: checkpoint.folder / CARD, "shards": shards / "card.json"}
    run = {key: checkpoint.card["parameters"][key] for key in ("run", "scale", "arm")}
    card = runcard.card(stage, inputs=inputs, outputs={}, parameters={**run, **parameters}, code=code)
    write_table(rows, out, KIND, {"status": checkpoint.status, "card": canonical_json(card).decode()})
    timing = {
        "startup_cpu_seconds": startup,
        "cpu_seconds": time.process_time(),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    write_json(out.with_name(f"{out.stem}.timing.json"), timing)
