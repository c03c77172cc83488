"""The causal optimal-transport operator, row by row: this file is its definition.

Shape legend: B batch, H heads, T tokens, D head dim, J keys visible to a row (J = i + 1).

    P[i,j] = exp(S[i,j] + a[i]) * C[j](i) ** -strength        for j <= i, with sum_j P[i,j] = 1,
    C[j](i) = sum_{k=j..i} exp(S[k,j] + a[k])

Every other implementation answers to this one. It materialises P, works in the dtype it is given (float64 for truth),
and is differentiated by plain autograd: a row's potential is found without a graph, then moved by one Newton step whose
value is zero but whose derivative is that of the implicit equation.
"""

import math

import torch
from torch import Tensor

from .scalar import residual, solve_row


def plan(scores_BHTT: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Plan P [B, H, T, T] and potentials a [B, H, T] from scores (entries above the diagonal are not read)."""
    length = scores_BHTT.shape[-1]
    carry_BHJ = scores_BHTT.new_zeros((*scores_BHTT.shape[:2], 0))
    rows, potentials = [], []
    for i in range(length):
        scores_BHJ = scores_BHTT[:, :, i, : i + 1]
        carry_BHJ = torch.nn.functional.pad(carry_BHJ, (0, 1), value=-math.inf)
        a_BH = solve_row(scores_BHJ, carry_BHJ, strength)
        value_BH, slope_BH, _ = residual(a_BH, scores_BHJ, carry_BHJ, strength)
        # Newton at the root: no change of value, and the implicit gradient -dF / slope.
        a_BH = a_BH - (value_BH - value_BH.detach()) / slope_BH.detach()
        carry_BHJ = torch.logaddexp(carry_BHJ, scores_BHJ + a_BH[..., None])
        row_BHJ = torch.exp(scores_BHJ + a_BH[..., None] - strength * carry_BHJ)
        rows.append(torch.nn.functional.pad(row_BHJ, (0, length - i - 1)))
        potentials.append(a_BH)
    return torch.stack(rows, -2), torch.stack(potentials, -1)


def scores(q_BHTD: Tensor, k_BHTD: Tensor, bias_BHTT: Tensor | None) -> Tensor:
    """Content scores q.k / sqrt(D) plus the log-prior, [B, H, T, T]."""
    content = q_BHTD @ k_BHTD.mT / math.sqrt(q_BHTD.shape[-1])
    return content if bias_BHTT is None else content + bias_BHTT


def attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, bias_BHTT: Tensor | None, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and potentials [B, H, T]."""
    plan_BHTT, a_BHT = plan(scores(q_BHTD, k_BHTD, bias_BHTT), strength)
    return plan_BHTT @ v_BHTD, a_BHT
