"""Change a trained checkpoint's log-prior beyond its training length, and measure before and after on the same blocks.

`cap` stops the prior's decay beyond L, `repair` makes it geometric there; both leave every pair with d <= L as it was
(arms.md, part A), so at window length L nothing may move, bit for bit, and on a CPU this stage checks that it
does not.
"""

from pathlib import Path

import numpy as np

from causal_priors.arms import Arm
from causal_priors.errors import refuse
from causal_priors.evaluate import FULL_BLOCK, Measurement, Rows, Table, load_blocks, measure, write_evaluation
from causal_priors.runs import Run
from causal_priors.scale import Scale
from causal_priors.train.checkpoint import FINISHED, as_device, read_checkpoint
from causal_priors.train.determinism import settle

EDITS = ("cap", "repair")


def intervene_stage(
    run: Run,
    scale: Scale,
    arm: Arm,
    edit: str,
    folder: Path,
    shards: Path,
    out: Path,
    code: str,
    *,
    allow_packed: bool = False,
    device: str = "cpu",
) -> None:
    """Measure `edit` ("cap" | "repair") on the checkpoint in `folder` and write the table `out`.

    The table is of kind "evaluation", stage "intervene", in the scale's intervention dtype, with the variants "plain"
    and `edit` at window lengths L and 8L. A diverged run gives an empty table whose metadata says so. Raises
    `UserError` for an unknown edit, an arm without a log-prior, and a missing or damaged checkpoint.
    """
    if edit not in EDITS:
        raise refuse("is not an edit", key="edit", value=edit, remedy=f"known edits: {', '.join(EDITS)}")
    if arm.log_prior is None:
        raise refuse(
            f"cannot be applied to {arm.key}, which has no log-prior",
            key="edit",
            value=edit,
            remedy="choose another arm",
        )
    settle(device)
    checkpoint = read_checkpoint(run, scale, arm, folder)
    parts: list[Rows] = []
    if checkpoint.status == FINISHED:
        blocks = load_blocks(run, scale, shards, allow_packed)
        dtype = scale.intervention_dtype
        model = as_device(checkpoint.model(run, scale, arm), device, dtype)
        table = Table(run, scale, "intervene", dtype)
        lengths = (table.train_length, FULL_BLOCK * table.train_length)
        before = [measure(model, blocks, length, table.train_length) for length in lengths]
        model.edit(edit)
        after = [measure(model, blocks, length, table.train_length) for length in lengths]
        if device == "cpu":
            _check_untouched(before[0], after[0], edit, run.name(scale))
        for variant, passes in (("plain", before), (edit, after)):
            for found in passes:
                parts += table.measured(variant, found)
    write_evaluation(parts, out, "intervene", checkpoint, shards, code, {"edit": edit, "packed": allow_packed})


def _check_untouched(before: Measurement, after: Measurement, edit: str, name: str) -> None:
    same = np.array_equal(before.loss, after.loss, equal_nan=True)
    same = same and all(np.array_equal(before.far[w], after.far[w], equal_nan=True) for w in before.far)
    if not same:
        raise AssertionError(f"{name}: {edit} moved numbers at window length {before.length}, with no pair beyond L")
