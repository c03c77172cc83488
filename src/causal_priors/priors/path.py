"""Path log-priors with per-token costs: the Forgetting Transformer's gates and CABLE.

Shape legend: B batch, H heads, T tokens, R query rows, S key columns, C model width. Both sum a cost per token over the
path l = j+1 .. i: the query's own token counts, the key's does not, the diagonal is 0 and token 0's cost is never used.

What is unusual: the sum over a path is a difference of two running sums, and after thousands of tokens a float32
running sum has rounded away what nearby pairs differ by. So the running sum is formed in float64 and kept as two
float32 parts, whose differences are as accurate as summing each path by itself, at float32's speed and memory.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_priors.priors.base import Geometry, LogPrior, PriorContext, Score
from causal_priors.priors.positions import take

INITIAL_STD = 0.02


class RunningSum(NamedTuple):
    """Sums of a per-token quantity up to and including each token: high + low, low None where float64 needs no help."""

    high_BHT: Tensor
    low_BHT: Tensor | None

    @classmethod
    def of(cls, cost_BHT: Tensor) -> "RunningSum":
        """Sum float32 or float64 costs over the last axis."""
        sum_BHT = cost_BHT.cumsum(-1, dtype=torch.float64)
        if cost_BHT.dtype == torch.float64:
            return cls(sum_BHT, None)
        high_BHT = sum_BHT.to(cost_BHT.dtype)
        # The low part is what `high` rounded away: the gradient goes through `high` alone, whose derivative is 1.
        return cls(high_BHT, (sum_BHT.detach() - high_BHT.detach()).to(cost_BHT.dtype))

    def between(self, i_R: Tensor, j_S: Tensor) -> Tensor:
        """Sum over l = j+1 .. i for each pair, [B, H, R, S]; minus the sum over i+1 .. j where j > i."""
        path_BHRS = _rows(self.high_BHT, i_R) - _columns(self.high_BHT, j_S)
        if self.low_BHT is not None:
            path_BHRS.add_(_rows(self.low_BHT, i_R)).sub_(_columns(self.low_BHT, j_S))
        return path_BHRS

    def score(self) -> Score:
        """`between` for one pair."""
        row_BHT, column_BHT, low_BHT = self.high_BHT, self.high_BHT.clone(), self.low_BHT
        if low_BHT is None:
            return lambda b, h, i, j: row_BHT[b, h, i] - column_BHT[b, h, j]
        return lambda b, h, i, j: row_BHT[b, h, i] - column_BHT[b, h, j] + low_BHT[b, h, i] - low_BHT[b, h, j]


def _rows(value_BHT: Tensor, i_R: Tensor) -> Tensor:
    return take(value_BHT, i_R)[..., :, None]


def _columns(value_BHT: Tensor, j_S: Tensor) -> Tensor:
    return take(value_BHT, j_S)[..., None, :]


class TokenGates(LogPrior):
    """A linear map with biases from the normed layer input to `per_head` numbers per head and token.

    Weights start at N(0, .02), biases at 0, as in both sources.
    """

    def __init__(self, geometry: Geometry, generator: torch.Generator, per_head: int) -> None:
        super().__init__(geometry, generator)
        weight_GC = torch.empty(per_head * geometry.heads, geometry.width)
        self.weight_GC = nn.Parameter(weight_GC.normal_(0.0, INITIAL_STD, generator=generator))
        self.bias_G = nn.Parameter(torch.zeros(per_head * geometry.heads))

    def gates(self, x_BTC: Tensor) -> Tensor:
        """The numbers [B, per_head * H, T], in the parameters' precision under autocast too."""
        with torch.autocast(x_BTC.device.type, enabled=False):
            gates_BTG = F.linear(x_BTC.to(self.weight_GC.dtype), self.weight_GC, self.bias_G)
        return gates_BTG.transpose(1, 2).contiguous()


class ForgetGate(TokenGates):
    """b[i, j] = sum of ln sigmoid(w_h x_l + b_h) over l = j+1 .. i (Lin et al. 2025, FoX without its Pro additions)."""

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator, per_head=1)

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> RunningSum:
        """Running sums of the log gates."""
        return RunningSum.of(F.logsigmoid(self.gates(x_BTC)))

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B, H, R, S]."""
        sums: RunningSum = context.tokens
        return sums.between(context.i_R, context.j_S)

    def score(self, context: PriorContext) -> Score:
        """The same from the running sums."""
        sums: RunningSum = context.tokens
        return sums.score()

    def parameters_report(self) -> dict[str, list[float]]:
        """Slope at rest: nats per token of a token whose normed input is 0."""
        return {"slope": (-F.logsigmoid(self.bias_G)).tolist()}


class Cable(TokenGates):
    """b[i, j] = -softplus(w_s x_i + b_s) * sum of relu(w_c x_l + b_c) over l = j+1 .. i (CABLE, final paper).

    The sign makes distance a penalty: the formula as printed would reward it.
    """

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator, per_head=2)

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[RunningSum, Tensor]:
        """Running sums of the costs, and minus the query's slope [B, H, T]."""
        cost_BHT, slope_BHT = self.gates(x_BTC).chunk(2, dim=1)
        return RunningSum.of(F.relu(cost_BHT)), -F.softplus(slope_BHT)

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B, H, R, S]."""
        costs: RunningSum = context.tokens[0]
        return _rows(context.tokens[1], context.i_R) * costs.between(context.i_R, context.j_S)

    def score(self, context: PriorContext) -> Score:
        """The same from the running sums."""
        costs, minus_slope_BHT = context.tokens
        path = costs.score()
        return lambda b, h, i, j: minus_slope_BHT[b, h, i] * path(b, h, i, j)

    def parameters_report(self) -> dict[str, list[float]]:
        """Slope at rest: nats per token of a path whose normed inputs are 0."""
        cost_H, slope_H = self.bias_G.chunk(2)
        return {"slope": (F.relu(cost_H) * F.softplus(slope_H)).tolist()}
