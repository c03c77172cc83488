"""Negative controls of the bias swap: what the measurement shows where there is no decay to stop or to start.

A trained checkpoint without a log-prior is given b = 0 and measured at window length 8L four times on the same blocks:
as it is ("plain"); under `cap`, which has nothing to change there ("identity"); under a change of the cap's size with a
random sign for each pair beyond L ("sham"); and under the same made fair to the weights ("sham-even"). "identity" must
move nothing, to the last bit. Exploratory: no verdict looks at these tables, whose rows are of a stage of their own.
"""

from pathlib import Path

import numpy as np
import torch

from causal_priors.arms import Arm
from causal_priors.errors import refuse
from causal_priors.evaluate import FULL_BLOCK, Rows, Table, load_blocks, measure, write_evaluation
from causal_priors.model import Transformer
from causal_priors.priors.base import LogPrior
from causal_priors.priors.control import Flat, Sham, head_keys
from causal_priors.priors.edits import Cap
from causal_priors.runs import Run
from causal_priors.scale import Scale
from causal_priors.train.checkpoint import FINISHED, as_device, read_checkpoint
from causal_priors.train.determinism import settle

STAGE = "control"
# Half the time of the interventions' float64 on a CPU. No finer arithmetic is needed: what moves here moves by thousands
# of float32's registered resolution (1e-5 nats), and "identity" repeats the same operations on the same numbers.
DTYPE = "float32"
VARIANTS = ("plain", "identity", "sham", "sham-even")


def control_stage(
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
) -> None:
    """Measure `VARIANTS` on the checkpoint in `folder` and write the table `out`.

    The table is of kind "evaluation", stage "control", in the scale's intervention dtype. A diverged run gives an empty
    table whose metadata says so. Raises `UserError` for an arm with a log-prior, and a missing or damaged checkpoint.
    """
    if arm.log_prior is not None:
        remedy = "its controls are cap and repair themselves; choose an arm without one"
        raise refuse(f"is for arms without a log-prior, which {arm.key} has", key="stage", value=STAGE, remedy=remedy)
    startup = settle(device)
    checkpoint = read_checkpoint(run, scale, arm, folder)
    parts: list[Rows] = []
    if checkpoint.status == FINISHED:
        blocks = load_blocks(run, scale, shards, allow_packed)
        model = checkpoint.model(run, scale, arm)
        table = Table(run, scale, STAGE, DTYPE)
        near = []
        for variant in VARIANTS:
            give_prior(model, variant, run.seed)
            length = FULL_BLOCK * table.train_length
            found = measure(as_device(model, device, DTYPE), blocks, [length], table.train_length)[length]
            parts += table.measured(variant, found)
            near.append(found.loss[..., 0])
        # Positions 1..L see no pair beyond L, whatever a variant does there.
        if device == "cpu" and not all(np.array_equal(near[0], other, equal_nan=True) for other in near):
            raise AssertionError(
                f"{run.name(scale)}: a control moved numbers of positions that no pair beyond L enters"
            )
    write_evaluation(parts, out, STAGE, checkpoint, shards, code, {"packed": allow_packed}, startup)


def give_prior(model: Transformer, variant: str, seed: int) -> None:
    """Give every layer of a model without log-priors the one that `variant` stands for. seed: of the run."""
    for layer, block in enumerate(model.layers):
        flat = Flat(block.geometry, torch.Generator())
        block.log_prior = _prior(variant, flat, model.train_length, head_keys(seed, layer, block.geometry.heads))


def _prior(variant: str, flat: Flat, length: int, keys_H: np.ndarray) -> LogPrior:
    if variant == "plain":
        return flat
    return Cap(flat, length) if variant == "identity" else Sham(flat, length, keys_H, even=variant == "sham-even")
