"""Taking the rows and columns that a question to a log-prior names.

Nearly every question asks for a run of neighbouring positions; a slice of those costs nothing, where gathering them
costs as much as the rest of a small prior. Shape legend: T tokens, X positions asked for.
"""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=32)
def run_of(position_X: Tensor) -> range | None:
    """The run that consecutive positions make, or None. Remembered by identity: callers reuse their positions."""
    first = int(position_X[0])
    run = torch.arange(first, first + len(position_X), device=position_X.device)
    return range(first, first + len(position_X)) if torch.equal(position_X, run) else None


def take(value_T: Tensor, position_X: Tensor, first: int = 0) -> Tensor:
    """The entries of the last axis at these positions, where entry 0 stands for position `first`: [..., X]."""
    run = run_of(position_X)
    if run is None:
        return value_T.index_select(-1, position_X - first)
    if len(run) == value_T.shape[-1]:
        return value_T
    return value_T[..., run.start - first : run.stop - first]
