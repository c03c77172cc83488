"""Negative controls for cap and repair: changes of a bias that say nothing about decay.

Shape legend: H heads, R query rows, S key columns. They are for arms without a log-prior, so they start from `Flat`,
b = 0, which gives such an arm the same code path as an arm that has one. `Cap` of it is an edit that changes nothing.
`Sham` is a change of the size of the cap's with a random sign for each pair beyond L. Evaluation only.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causal_priors.priors.base import Geometry, LogPrior, PriorContext
from causal_priors.priors.edits import Edit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Flat(LogPrior):
    """b = 0."""

    non_increasing = True

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__(geometry, generator)
        self.register_buffer("zero_H", torch.zeros(geometry.heads), persistent=False)

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [1, H, R, S]."""
        zero_H = self.get_buffer("zero_H")
        return zero_H[None, :, None, None].expand(1, -1, len(context.i_R), len(context.j_S))

    def summable(self) -> bool:
        """Never: it does not decay."""
        return False


class Sham(Edit):
    """sham(b, L)[i, j] = b[i, j] + s_ij ln((1 + d) / (1 + L)) for d = i - j > L, with fair signs s_ij.

    ln((1 + d) / (1 + L)) is what cap adds to b = -ln(1 + d), a log-prior of exponent 1 (up to ln 8 in a window of 8L).
    The signs are a function of the head's key, i and j alone. A fair sign of the bias is no fair sign of the weight:
    exp(b) grows by cosh(ln((1 + d) / (1 + L))) on average. `even` takes the logarithm of that off again, so that each
    weight is what it was on average.
    """

    def __init__(self, inner: LogPrior, length: int, keys_H: NDArray[np.uint64], even: bool = False) -> None:
        super().__init__(inner, length)
        self.keys_H, self.even = keys_H, even

    def forward(self, context: PriorContext) -> Tensor:
        """The bias [B or 1, H, R, S]."""
        bias_BHRS: Tensor = self.inner(context)
        distance_RS = context.distance_RS(bias_BHRS.dtype).clamp_min(self.length)
        size_RS = torch.log1p(distance_RS) - torch.log1p(torch.full_like(distance_RS, self.length))
        change_HRS = random_signs(self.keys_H, context.i_R, context.j_S).to(size_RS) * size_RS
        if self.even:
            change_HRS = change_HRS - size_RS.cosh().log()
        return bias_BHRS + change_HRS

    def summable(self) -> bool | None:
        """Unknown."""
        return None


def head_keys(seed: int, layer: int, heads: int) -> NDArray[np.uint64]:
    """One key per head of a layer, [H], from the run's seed."""
    words = [np.random.SeedSequence([seed, layer, head]).generate_state(1, np.uint64) for head in range(heads)]
    return np.concatenate(words)


def random_signs(keys_H: NDArray[np.uint64], i_R: Tensor, j_S: Tensor) -> Tensor:
    """Fair signs, int8 [H, R, S], of which any block can be asked for."""
    i, j = (positions.cpu().numpy().astype(np.uint64) for positions in (i_R, j_S))
    pair_RS = (i[:, None] << np.uint64(32)) | j
    negative_HRS = split_mix(keys_H[:, None, None], pair_RS) >> np.uint64(63)
    return torch.from_numpy(1 - 2 * negative_HRS.astype(np.int8)).to(i_R.device)


def split_mix(key: NDArray[np.uint64], number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Output `number` (1, 2, ...) of SplitMix64 seeded with `key` (Steele, Lea and Flood 2014); arrays broadcast."""
    state = key + number * _GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(state ^ (state >> np.uint64(31)))
