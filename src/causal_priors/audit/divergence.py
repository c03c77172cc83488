"""Whether a run ended as its card says: after all of its steps, or diverged at the step that its losses say.

A verdict does not count on a run that diverged, so who dislikes a finished run could declare it diverged, and the reverse.
Training ends at the first step whose loss or gradient is no number, or whose loss runs away (train/loop.py); that step is
the last row of the losses, and no step of the card.
"""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd

from causal_priors.audit.evidence import RUN_CARD, RunCard
from causal_priors.audit.findings import Link

FINISHED = "finished"
# A loss this many times that of a uniform guess has diverged. The same number as in train/loop.py, which needs torch.
RUNAWAY = 4.0
_DIVERGED = re.compile(r"diverged at step (0|[1-9]\d{0,17})")


def check_status(link: Link, card: RunCard, steps: int, again: str) -> None:
    """Compare the status with the number of steps that the card counts; a run has `steps` of them."""
    status, done = card.content["status"], card.content.get("steps")
    if status == FINISHED:
        link.expect(done == steps, card.file, f"finished after other than {steps} steps", again)
        return
    match = _DIVERGED.fullmatch(status)
    if link.expect(match is not None, card.file, f"has the status {status[:40]!r}, which no run has", again) and match:
        fits = done == int(match[1]) < steps
        link.expect(fits, card.file, f"{status}, but counts {done} steps of {steps}", again)


def check_losses(link: Link, path: Path, frame: pd.DataFrame, card: RunCard, vocabulary: int, again: str) -> None:
    """Compare what training logged with the status, the number of steps and the last loss on the card."""
    status, steps = card.content["status"], card.content.get("steps")
    finished = status == FINISHED
    rows = steps if finished or not isinstance(steps, int) else steps + 1
    if not link.expect(len(frame) == rows, path, f"has {len(frame)} steps, {RUN_CARD} says {steps} ({status})", again):
        return
    loss, norm = (frame[key].to_numpy(np.float64) for key in ("loss", "grad_norm"))
    astray = ~np.isfinite(loss) | ~np.isfinite(norm) | (loss > RUNAWAY * math.log(vocabulary))
    where = np.flatnonzero(astray).tolist()
    told = f"diverged at step {where[0]}" if where else "no step of it diverged"
    fits = where == ([] if finished else [len(frame) - 1])
    link.expect(fits, path, f"says that {told}, {RUN_CARD} says {status}", again)
    finite = loss[np.isfinite(loss)]
    last = float(finite[-1]) if len(finite) else None
    same = last == card.content.get("final_loss")
    link.expect(same, path, f"ends with a loss of {last}, {RUN_CARD} says another", again)
