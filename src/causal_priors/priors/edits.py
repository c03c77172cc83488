"""Cap and repair: what happens to a trained model if its log-prior stops, or starts, decaying beyond training length.

Shape legend: H heads, R query rows, S key columns. Both wrap any log-prior, path sums included, work on any block of
rows and columns, leave every pair with d <= L bit for bit as it was (those entries are the inner prior's own values),
and change nothing but the bias. Evaluation only.
"""

from typing import Any

import torch
from torch import Tensor

from causal_priors.priors.base import LogPrior, PriorContext, Score


class Edit(LogPrior):
    """A log-prior seen through a change beyond lag `length` (tokens)."""

    def __init__(self, inner: LogPrior, length: int) -> None:
        super().__init__(inner.geometry, torch.Generator())
        self.inner = inner
        self.length = length

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> Any:
        """Those of the inner prior."""
        return self.inner.tokens(x_BTC, q_BHTD, k_BHTD)

    def parameters_report(self) -> dict[str, list[float]]:
        """That of the inner prior."""
        return self.inner.parameters_report()


class Cap(Edit):
    """cap(b, L)[i, j] = b[i, max(j, i - L)]: the prior stops decaying beyond L."""

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B or 1, H, R, S]."""
        bias_BHRS: Tensor = self.inner(context)
        beyond_RS = context.i_R[:, None] - context.j_S[None, :] > self.length
        if not beyond_RS.any():
            return bias_BHRS
        # Row i needs the one value b[i, i - L]: the diagonal of the block of rows i against columns i - L.
        edge_R = (context.i_R - self.length).clamp_min(0)
        edge_BHR = self.inner(PriorContext(context.i_R, edge_R, context.tokens)).diagonal(dim1=-2, dim2=-1)
        return torch.where(beyond_RS, edge_BHR[..., None], bias_BHRS)

    def score(self, context: PriorContext) -> Score | None:
        """That of the inner prior, at the nearer of j and i - L."""
        inner, length = self.inner.score(context), self.length
        return None if inner is None else lambda b, h, i, j: inner(b, h, i, torch.maximum(j, i - length))

    def summable(self) -> bool:
        """Never: the tail is constant."""
        return False


class Repair(Edit):
    """repair(b, L)[i, j] = b[i, j] - max(0, d - L) / L: the prior decays geometrically beyond L."""

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B or 1, H, R, S]."""
        bias_BHRS: Tensor = self.inner(context)
        excess_RS = (context.distance_RS(bias_BHRS.dtype) - self.length).clamp_min(0)
        return bias_BHRS - excess_RS / self.length

    def score(self, context: PriorContext) -> Score | None:
        """That of the inner prior, less the excess."""
        inner, length = self.inner.score(context), self.length
        return None if inner is None else lambda b, h, i, j: inner(b, h, i, j) - (i - j - length).clamp_min(0) / length

    def summable(self) -> bool | None:
        """Always, if the inner prior never rises with distance or is summable by itself; else unknown."""
        return True if self.inner.non_increasing or self.inner.summable() else None


EDITS: dict[str, type[Edit]] = {"cap": Cap, "repair": Repair}
