"""Change a trained checkpoint's log-prior beyond its training length, and measure before and after on the same blocks.

`cap` stops the prior's decay beyond L, `repair` makes it geometric there; both leave every pair with d <= L as it was
(arms.md, part A). So nothing may move at window length L, nor at positions 1..L of a longer window; on a CPU this stage
checks, bit for bit, that nothing does.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from causal_priors.arms import Arm
from causal_priors.errors import refuse
from causal_priors.evaluate import FULL_BLOCK, Measurement, Rows, Table, load_blocks, measure, write_evaluation
from causal_priors.model import Transformer
from causal_priors.runs import EDITS, Run
from causal_priors.scale import Scale
from causal_priors.train.checkpoint import FINISHED, as_device, read_checkpoint
from causal_priors.train.determinism import settle

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
    factors: Sequence[int] = (FULL_BLOCK,),
) -> None:
    """Measure `edit` ("cap" | "repair") on the checkpoint in `folder` and write the table `out`.

    The table is of kind "evaluation", stage "intervene", in the scale's intervention dtype, with the variants "plain"
    and `edit` at window lengths `factors` times L (the registered tests need 8). A diverged run gives an empty table
    whose metadata says so. Raises `UserError` for an unknown edit, an arm without a log-prior, and a missing or damaged
    checkpoint.
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
    startup = settle(device)
    parameters = {"edit": edit, "packed": allow_packed, "factors": list(factors)}
    checkpoint = read_checkpoint(run, scale, arm, folder)
    parts: list[Rows] = []
    if checkpoint.status == FINISHED:
        blocks = load_blocks(run, scale, shards, allow_packed)
        dtype = scale.intervention_dtype
        model = as_device(checkpoint.model(run, scale, arm), device, dtype)
        table = Table(run, scale, "intervene", dtype)
        short = table.train_length
        lengths = [factor * short for factor in factors]
        before = _measure(model, blocks, lengths, short)
        model.edit(edit)
        after = _measure(model, blocks, lengths, short)
        if device == "cpu":
            _check_untouched(before, after, f"{run.name(scale)}: {edit}")
        for variant, found in (("plain", before), (edit, after)):
            for measurement in found[:-1]:
                parts += table.measured(variant, measurement)
    write_evaluation(parts, out, "intervene", checkpoint, shards, code, parameters, startup)


def _measure(model: Transformer, blocks: np.ndarray, lengths: Sequence[int], short: int) -> list[Measurement]:
    """Measurements at `lengths`, and last one of some blocks at L = `short`."""
    found = measure(model, blocks, lengths, short)
    return [*found.values(), measure(model, blocks[:_CHECKED], [short], short)[short]]


def _check_untouched(before: Sequence[Measurement], after: Sequence[Measurement], what: str) -> None:
    """Compare what no pair beyond L enters: positions 1..L of every window, and all of the last pass, at length L."""
    pairs = [(one.loss[..., 0], other.loss[..., 0]) for one, other in zip(before, after, strict=True)]
    pairs += [(before[-1].far[w], after[-1].far[w]) for w in before[-1].far]
    if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        raise AssertionError(f"{what} moved numbers of positions that no pair beyond L enters")
