"""Log-priors of distance alone as modules: the log-distance family, KERPLE and ALiBi.

Shape legend: H heads, R query rows, S key columns. Parameters and biases are float32 (float64 after `model.double()`).
The arithmetic is `formulas`; here are parametrisations, initial values and one cache: the table of a whole square
window is the same for every layer and step, so training at a small scale pays for it once.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_priors.errors import refuse
from causal_priors.priors.base import Geometry, LogPrior, PriorContext, Score, score_of_distance
from causal_priors.priors.formulas import KERPLE, LINEAR, LOG, alibi_slopes, initial_exponents

EXPONENTS = ("free", "fixed", "above-one", "below-one", "margin")
# Larger blocks are computed each time: the memory would buy little.
REMEMBERED_PAIRS = 1 << 18


def _fresh_table(i_R: Tensor, j_S: Tensor, dtype: torch.dtype, log: bool) -> Tensor:
    distance_RS = PriorContext(i_R, j_S).distance_RS(dtype)
    return torch.log1p(distance_RS) if log else distance_RS


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _remembered_table(i_R: Tensor, j_S: Tensor, dtype: torch.dtype, log: bool) -> Tensor:
    return _fresh_table(i_R, j_S, dtype, log)


def _table(context: PriorContext, dtype: torch.dtype, log: bool = False) -> Tensor:
    """Table of d or ln(1 + d) of a block, remembered for callers that reuse positions: tensors hash by identity."""
    i_R, j_S = context.i_R, context.j_S
    if len(i_R) * len(j_S) <= REMEMBERED_PAIRS:
        return _remembered_table(i_R, j_S, dtype, log)
    return _fresh_table(i_R, j_S, dtype, log)


def inverse_softplus(values: Sequence[float]) -> Tensor:
    """The raw parameters whose softplus is `values` (float32)."""
    return torch.tensor([value + math.log(-math.expm1(-value)) for value in values], dtype=torch.float32)


class LogDistance(LogPrior):
    """b = -alpha_h ln(1 + d), one exponent per head and layer.

    exponents: `free` alpha = softplus(theta); `fixed` no parameters; `above-one` 1 + softplus(theta); `below-one`
    sigmoid(theta); `margin` 1 + margin + softplus(theta).
    """

    non_increasing = True

    def __init__(
        self, geometry: Geometry, generator: torch.Generator, exponents: str = "free", margin: float = 0.0
    ) -> None:
        super().__init__(geometry, generator)
        if exponents not in EXPONENTS:
            known = ", ".join(EXPONENTS)
            raise refuse("is not a kind of exponent", key="exponents", value=exponents, remedy=f"known kinds: {known}")
        self.exponents = exponents
        self.floor = {"above-one": 1.0, "margin": 1.0 + margin}.get(exponents, 0.0)
        start = initial_exponents(exponents, geometry.heads, margin)
        if exponents == "fixed":
            self.register_buffer("fixed_H", torch.tensor(start, dtype=torch.float32), persistent=False)
        elif exponents == "below-one":
            self.theta_H = nn.Parameter(torch.logit(torch.tensor(start, dtype=torch.float64)).float())
        else:
            self.theta_H = nn.Parameter(inverse_softplus([alpha - self.floor for alpha in start]))

    def exponent_H(self) -> Tensor:
        """The exponents alpha."""
        if self.exponents == "fixed":
            return self.get_buffer("fixed_H")
        if self.exponents == "below-one":
            return torch.sigmoid(self.theta_H)
        return F.softplus(self.theta_H) + self.floor

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [1, H, R, S]."""
        alpha_H = self.exponent_H()
        return (-alpha_H)[None, :, None, None] * _table(context, alpha_H.dtype, log=True)

    def score(self, context: PriorContext) -> Score:
        """Looked up by lag."""
        return score_of_distance(self, context)

    def distance_form(self) -> tuple[str, Tensor]:
        """("log", exponents): b = -alpha ln(1 + d)."""
        return "log", self.exponent_H()

    def parameters_report(self) -> dict[str, list[float]]:
        """The exponents."""
        return {"exponent": self.exponent_H().tolist()}

    def summable(self) -> bool:
        """Every alpha > 1."""
        return bool(LOG.summable({"exponent": self.exponent_H()}).all())


class Kerple(LogPrior):
    """b = -p_h ln(1 + a_h d) with p and a the softplus of free parameters; one set per layer.

    Initial values as in the source: p ~ U(0, 2), a ~ U(0, 1), neither below its clamp of .01.
    """

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        power_H = 2 * torch.rand(geometry.heads, generator=generator)
        rate_H = torch.rand(geometry.heads, generator=generator)
        self.power_raw_H = nn.Parameter(inverse_softplus(power_H.clamp_min(0.01).tolist()))
        self.rate_raw_H = nn.Parameter(inverse_softplus(rate_H.clamp_min(0.01).tolist()))

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [1, H, R, S]."""
        power, rate = (F.softplus(raw_H)[None, :, None, None] for raw_H in (self.power_raw_H, self.rate_raw_H))
        bias: Tensor = KERPLE.of_distance(_table(context, power.dtype), {"power": power, "rate": rate}, torch)
        return bias

    def score(self, context: PriorContext) -> Score:
        """Looked up by lag."""
        return score_of_distance(self, context)

    def parameters_report(self) -> dict[str, list[float]]:
        """p, which is the exponent of the tail, and a."""
        return {"exponent": F.softplus(self.power_raw_H).tolist(), "rate": F.softplus(self.rate_raw_H).tolist()}

    def summable(self) -> bool:
        """Every p > 1."""
        return bool(KERPLE.summable({"power": F.softplus(self.power_raw_H)}).all())


class ALiBi(LogPrior):
    """b = -m_h d with the fixed slopes of Press et al.; no parameters."""

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        slopes = torch.tensor(alibi_slopes(geometry.heads), dtype=torch.float32)
        self.register_buffer("slope_H", slopes, persistent=False)

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [1, H, R, S]."""
        slope_H = self.get_buffer("slope_H")
        slope = {"slope": slope_H[None, :, None, None]}
        bias: Tensor = LINEAR.of_distance(_table(context, slope_H.dtype), slope, torch)
        return bias

    def score(self, context: PriorContext) -> Score:
        """Looked up by lag."""
        return score_of_distance(self, context)

    def distance_form(self) -> tuple[str, Tensor]:
        """("linear", slopes): b = -m d."""
        return "linear", self.get_buffer("slope_H")

    def parameters_report(self) -> dict[str, list[float]]:
        """The slopes."""
        return {"slope": self.get_buffer("slope_H").tolist()}

    def summable(self) -> bool:
        """Every slope > 0."""
        return bool(LINEAR.summable({"slope": self.get_buffer("slope_H")}).all())
