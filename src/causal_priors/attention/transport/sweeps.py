"""The ablation: a fixed number of whole-matrix sweeps, unrolled by autograd. What a naive implementation does.

Shape legend: B batch, H heads, T tokens, D head dim.

A sweep is a <- -logsumexp_j(S - strength * log C(a)), started from softmax. It contracts by the strength, so K sweeps
are off by about strength ** K: a different operator for every K, and far from the exact one near strength one.
"""

import torch
from torch import Tensor

from .reference import scores


def plan(scores_BHTT: Tensor, strength: float, iterations: int) -> tuple[Tensor, Tensor]:
    """Row-stochastic plan [B, H, T, T] and potentials [B, H, T] after `iterations` sweeps."""
    length = scores_BHTT.shape[-1]
    above = torch.ones(length, length, dtype=torch.bool, device=scores_BHTT.device).triu(1)
    # Finite where masked: the gradient of a running logsumexp over minus infinities is not a number.
    floor = torch.finfo(scores_BHTT.dtype).min / 4
    masked_BHTT = scores_BHTT.masked_fill(above, floor)
    a_BHT = -torch.logsumexp(masked_BHTT, -1)
    for _ in range(iterations):
        carry_BHTT = torch.logcumsumexp(masked_BHTT + a_BHT[..., None], -2)
        logits_BHTT = (scores_BHTT - strength * carry_BHTT).masked_fill(above, floor)
        a_BHT = -torch.logsumexp(logits_BHTT, -1)
    if iterations == 0:
        logits_BHTT = masked_BHTT
    return torch.exp(logits_BHTT + a_BHT[..., None]).masked_fill(above, 0), a_BHT


def attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, bias_BHTT: Tensor | None, strength: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and potentials [B, H, T] after `iterations` sweeps."""
    plan_BHTT, a_BHT = plan(scores(q_BHTD, k_BHTD, bias_BHTT), strength, iterations)
    return plan_BHTT @ v_BHTD, a_BHT
