"""Goat's log-prior: a Fourier series in the lag, a small network over the key's absolute position, and a slope.

Shape legend: H heads, R query rows, S key columns, F frequencies of one series, N hidden units. Nothing here depends on
the tokens, so the bias has no batch axis. What is unusual: only the series and the slope are relative; the network and
the bump on token 0 see absolute positions, so the whole is not shift-invariant. The source carries the slope as
softplus(rho) * j in the keys' precision, which bf16 cannot hold; here it multiplies i - j in float32. All content
dimensions are kept (A17).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_priors.priors.base import Geometry, LogPrior, PriorContext, Score
from causal_priors.priors.formulas import alibi_slopes

BASE = 10_000.0
HIDDEN = 4
SERIES_STD = 0.01
NETWORK_STD = 1e-3


def frequencies(count: int) -> list[float]:
    """Angular frequencies from 1 to 1/10,000 in radians per token, log-spaced; 1 alone if one is asked for."""
    return [BASE ** (-r / max(count - 1, 1)) for r in range(count)]


class Goat(LogPrior):
    """b[i, j] = K_h(i - j) + gain_h MLP(phi(j)) + bump_h [j = 0] - softplus(rho_h) (i - j), at its "seeded" start.

    K_h(d) = sum over r of alpha_hr cos(w_r d) + beta_hr sin(w_r d). phi(j) holds cos and sin of j at as many
    frequencies, j / L and ln(1 + j) / ln(1 + L), L the training length. Four frequencies each, two where heads are
    narrower than 32. One network per layer, shared by its heads. Starts near ALiBi.
    """

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        heads, count = geometry.heads, 4 if geometry.head_dim >= 32 else 2

        def normal(std: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).normal_(0.0, std, generator=generator))

        self.frequencies = frequencies(count)
        self.alpha_HF = normal(SERIES_STD, heads, count)
        self.beta_HF = nn.Parameter(torch.zeros(heads, count))
        self.hidden_weight_NI = normal(NETWORK_STD, HIDDEN, 2 * count + 2)
        self.hidden_bias_N = nn.Parameter(torch.zeros(HIDDEN))
        self.out_weight_1N = normal(NETWORK_STD, 1, HIDDEN)
        self.out_bias_1 = nn.Parameter(torch.zeros(1))
        self.gain_H = nn.Parameter(torch.ones(heads))
        self.bump_H = nn.Parameter(torch.zeros(heads))
        # softplus(rho) starts at the ALiBi slopes.
        self.rho_H = nn.Parameter(torch.tensor(alibi_slopes(heads), dtype=torch.float64).expm1().log().float())

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [1, H, R, S]."""
        with torch.autocast(context.i_R.device.type, enabled=False):
            return self._bias(context, self.key_lane(context.j_S))[None]

    def score(self, context: PriorContext) -> Score:
        """Series and slope looked up by lag, the rest by key."""
        series_HT = self.relative(PriorContext(context.i_R[-1:], context.i_R.flip(0)))[:, 0]
        lane_HT = self.key_lane(context.j_S)
        return lambda b, h, i, j: series_HT[h, (i - j).abs()] + lane_HT[h, j]

    def relative(self, context: PriorContext) -> Tensor:
        """The part that depends on the lag alone [H, R, S]."""
        lane_HS = self.gain_H.new_zeros(len(self.gain_H), len(context.j_S))
        return self._bias(context, lane_HS)

    def _bias(self, context: PriorContext, lane_HS: Tensor) -> Tensor:
        """Series and slope of the lag, plus a term per key."""
        dtype, alpha_HF1, beta_HF1 = lane_HS.dtype, self.alpha_HF[..., None], self.beta_HF[..., None]
        # cos w(i - j) and sin w(i - j) as products of the two positions' waves, counted from the block's first row, so
        # that equal lags give equal bits wherever the block stands.
        origin = context.i_R[0]
        cos_FR, sin_FR = self._waves(context.i_R - origin, dtype).chunk(2)
        query_H2FR = torch.cat((alpha_HF1 * cos_FR + beta_HF1 * sin_FR, alpha_HF1 * sin_FR - beta_HF1 * cos_FR), dim=1)
        key_H2FS = self._waves(context.j_S - origin, dtype).expand(len(lane_HS), -1, -1)
        bias_HRS = torch.baddbmm(lane_HS[:, None, :], query_H2FR.mT, key_H2FS)
        slope_H11 = F.softplus(self.rho_H)[:, None, None]
        return torch.addcmul(bias_HRS, slope_H11, context.distance_RS(dtype), value=-1)

    def key_lane(self, j_S: Tensor) -> Tensor:
        """The part that depends on the key's absolute position alone [H, S]."""
        dtype, length = self.gain_H.dtype, self.geometry.train_length
        exact_S = j_S.double()
        place_2S = torch.stack((exact_S / length, exact_S.log1p() / math.log1p(length))).to(dtype)
        phi_SI = torch.cat((self._waves(j_S, dtype), place_2S)).T
        hidden_SN = F.silu(F.linear(phi_SI, self.hidden_weight_NI, self.hidden_bias_N))
        sink_S = F.linear(hidden_SN, self.out_weight_1N, self.out_bias_1).squeeze(-1)
        return self.gain_H[:, None] * sink_S + self.bump_H[:, None] * (j_S == 0)

    def _waves(self, position_X: Tensor, dtype: torch.dtype) -> Tensor:
        """Cosines, then sines, of every frequency at integer positions [2F, X], angles in float64."""
        frequency_F = torch.tensor(self.frequencies, dtype=torch.float64, device=position_X.device)
        angle_FX = frequency_F[:, None] * position_X.double()
        return torch.cat((angle_FX.cos(), angle_FX.sin())).to(dtype)

    def parameters_report(self) -> dict[str, list[float]]:
        """The slopes and the bumps on token 0."""
        return {"slope": F.softplus(self.rho_H).tolist(), "bump": self.bump_H.tolist()}
