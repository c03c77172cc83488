"""Change a trained checkpoint's log-prior beyond its training length, and measure before and after on the same blocks.

`cap` stops the prior's decay beyond L, `repair` makes it geometric there; both leave every pair with d <= L as it was
(arms.md, part A). So nothing may move at window length L, nor at positions 1..L of a longer window; on a CPU this stage
checks, bit for bit, that nothing does.
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
# Blocks that are also measured at window length L, where an edit must change nothing.
_CHECKED = 8


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
    and `edit` at window length 8L. A diverged run gives an empty table whose metadata says so. Raises
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
        short, long = table.train_length, FULL_BLOCK * table.train_length
        before = measure(model, blocks, long, short), measure(model, blocks[:_CHECKED], short, short)
        model.edit(edit)
        after = measure(model, blocks, long, short), measure(model, blocks[:_CHECKED], short, short)
        if device == "cpu":
            _check_untouched(before, after, f"{run.name(scale)}: {edit}")
        parts = [*table.measured("plain", before[0]), *table.measured(edit, after[0])]
    write_evaluation(parts, out, "intervene", checkpoint, shards, code, {"edit": edit, "packed": allow_packed})


def _check_untouched(
    before: tuple[Measurement, Measurement], after: tuple[Measurement, Measurement], what: str
) -> None:
    """Compare what no pair beyond L enters: positions 1..L of the long windows, all of the short ones."""
    pairs = [(before[0].loss[..., 0], after[0].loss[..., 0]), (before[1].loss, after[1].loss)]
    pairs += [(before[1].far[w], after[1].far[w]) for w in before[1].far]
    if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        raise AssertionError(f"{what} moved numbers of positions that no pair beyond L enters")
