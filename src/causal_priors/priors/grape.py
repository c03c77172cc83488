"""The additive GRAPE log-priors in their released code's form: key-gated slopes and the path integral.

Shape legend: B batch, H heads, T tokens, R query rows, S key columns, L path tokens, C model width, D head dim, P path
dim (8). The released code differs from its paper, and the code is what this study trains (arms.md B.8, B.9): both carry
the fixed ALiBi slopes m_h as multipliers, the key gate's direction has unit length, and the path integral's query
side is neither normalised nor rotated, so its biases depend on absolute position (modulo one turn of the rotation).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_priors.priors.base import Geometry, LogPrior, PriorContext, Score
from causal_priors.priors.formulas import alibi_slopes
from causal_priors.priors.positions import take

PATH_DIM = 8

# The source normalises by the machine epsilon; its float32 value holds in float64 too, so that both are one function.
_RMS_EPS = 2.0**-23
_UNIT_EPS = 1e-6


class _AlibiScaled(LogPrior):
    """A log-prior with the fixed ALiBi slopes as multipliers."""

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        self.register_buffer("slope_H", torch.tensor(alibi_slopes(geometry.heads)), persistent=False)


class GrapeA(_AlibiScaled):
    """b[i, j] = -(i - j) * m_h * softplus(omega_h) * softplus(u_h k_j / sqrt(D)), u_h at unit length.

    k is the content key, before any rotation.
    """

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        # softplus(omega) starts at 1.
        self.omega_H = nn.Parameter(torch.full((geometry.heads,), 1.0).expm1().log())
        direction_HD = torch.empty(geometry.heads, geometry.head_dim)
        self.u_HD = nn.Parameter(direction_HD.normal_(0.0, geometry.head_dim**-0.5, generator=generator))

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> Tensor:
        """Minus the slope that each key puts on its distance [B, H, T]."""
        unit_HD = F.normalize(self.u_HD, dim=-1, eps=_UNIT_EPS) * self.geometry.head_dim**-0.5
        with torch.autocast(k_BHTD.device.type, enabled=False):
            gate_BHT = F.softplus((k_BHTD.to(unit_HD.dtype) @ unit_HD[..., None]).squeeze(-1))
        return gate_BHT * (-self._scale_H())[:, None]

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B, H, R, S]."""
        minus_slope_BHS = take(context.tokens, context.j_S)
        return minus_slope_BHS[..., None, :] * context.distance_RS(minus_slope_BHS.dtype)

    def score(self, context: PriorContext) -> Score:
        """The key's slope times the lag."""
        minus_slope_BHT = context.tokens
        return lambda b, h, i, j: minus_slope_BHT[b, h, j] * (i - j)

    def _scale_H(self) -> Tensor:
        return F.softplus(self.omega_H) * self.get_buffer("slope_H")

    def parameters_report(self) -> dict[str, list[float]]:
        """Slope at rest: nats per token of distance to a key orthogonal to u (softplus(0) = ln 2)."""
        return {"slope": (self._scale_H() * F.softplus(torch.zeros_like(self.omega_H))).tolist()}


class GrapeAP(_AlibiScaled):
    """b[i, j] = sum of psi(i, l) over l = j+1 .. i, psi(i, l) = m_h ln sigmoid(p_i . rho_l(p_l / rms(p_l)) / P).

    p = W_p x, and rho_l turns every plane of a path vector by -l radians. psi depends on the query, so each row has
    running sums of its own: a block of rows costs rows x path tokens, and nothing is kept between blocks.
    """

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        weight_GC = torch.empty(geometry.heads * PATH_DIM, geometry.width)
        self.weight_GC = nn.Parameter(weight_GC.normal_(0.0, 0.5 * geometry.width**-0.5, generator=generator))

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Query vectors p / P [B, H, T, P], and turned unit key vectors from the last token back, after a zero row."""
        with torch.autocast(x_BTC.device.type, enabled=False):
            p_BTG = F.linear(x_BTC.to(self.weight_GC.dtype), self.weight_GC)
        p_BHTP = p_BTG.view(*p_BTG.shape[:-1], self.geometry.heads, PATH_DIM).transpose(1, 2)
        key_BHTP = turn_by_position(F.rms_norm(p_BHTP, (PATH_DIM,), eps=_RMS_EPS))
        return p_BHTP / PATH_DIM, F.pad(key_BHTP, (0, 0, 0, 1)).flip(-2)

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B, H, R, S]."""
        query_BHTP, back_BHTP = context.tokens
        i_R, j_S, length = context.i_R, context.j_S, query_BHTP.shape[-2]
        first, last = int(j_S.min()), max(int(i_R.max()), int(j_S.max()))
        # The path runs backwards from one token beyond the last position, which no row counts, to just above the first
        # column. Running sums from there make near pairs short sums, without the cancellation of (all up to i) minus
        # (all up to j).
        l_L = torch.arange(last + 1, first, -1, device=i_R.device)
        key_BHLP = back_BHTP[..., length - 1 - last : length - first, :]
        # ln sigmoid(inf) is 0, and so is its derivative.
        uncounted_RL = query_BHTP.new_zeros(len(i_R), len(l_L)).masked_fill_(l_L > i_R[:, None], torch.inf)
        logits_BHRL = (take(query_BHTP.mT, i_R).mT @ key_BHLP.mT).add_(uncounted_RL)
        path_BHRL = sums_from_the_end(F.logsigmoid(logits_BHRL))
        return take(path_BHRL, j_S, first) * self.get_buffer("slope_H")[:, None, None]


class _SumsFromTheEnd(torch.autograd.Function):
    """Running sums of the last axis in reverse order. It is its own adjoint, which saves autograd's three flips."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].cumsum(-1).flip(-1)


def sums_from_the_end(value: Tensor) -> Tensor:
    """out[n] = the sum of all value[m] with m < length - n, along the last axis: the whole sum first."""
    sums: Tensor = _SumsFromTheEnd.apply(value)  # type: ignore[no-untyped-call]
    return sums


def turn_by_position(value_BHTP: Tensor) -> Tensor:
    """Rotate each half-split plane of token t by -t radians: a rotary embedding of base 1 in the other sense."""
    t_T = torch.arange(value_BHTP.shape[-2], dtype=torch.float64, device=value_BHTP.device)
    cos_T1, sin_T1 = (table_T.to(value_BHTP.dtype)[:, None] for table_T in (t_T.cos(), t_T.sin()))
    first, second = value_BHTP.chunk(2, dim=-1)
    return torch.cat((first * cos_T1 + second * sin_T1, second * cos_T1 - first * sin_T1), dim=-1)
