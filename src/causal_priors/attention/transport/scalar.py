"""One row of the operator: a scalar equation, solved in the log domain with a bracket, so that it cannot fail.

Shape legend: `...` any batch (usually B, H), J keys j <= i visible to the row.

With C the mass from earlier rows, the row potential a is the root of

    F(a) = a + logsumexp_J(S - strength * log(C + exp(S + a))).

F rises with a slope in [1 - strength, 1], so the root is unique. Plain Newton may cycle when strength is near one (the
slope changes by a factor 1 / (1 - strength)); it is kept inside a bracket that shrinks.
"""

import torch
from torch import Tensor

MAX_STEPS = 200


def residual(a: Tensor, scores_J: Tensor, carry_J: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor]:
    """F(a), its slope, and the new carry log(C + exp(S + a)) [..., J]."""
    carry_J = torch.logaddexp(carry_J, scores_J + a[..., None])
    logits_J = scores_J - strength * carry_J
    norm = torch.logsumexp(logits_J, -1)
    share_J = torch.exp(scores_J + a[..., None] - carry_J)
    slope = 1 - strength * (torch.exp(logits_J - norm[..., None]) * share_J).sum(-1)
    return a + norm, slope, carry_J


@torch.no_grad()
def solve_row(scores_J: Tensor, carry_J: Tensor, strength: float) -> Tensor:
    """Potential a [...] of one query row.

    scores_J: scores of the visible keys, the newest last. carry_J: log of the mass each key has received so far; minus
    infinity for the newest.
    """
    # Both ends follow from the equation: F without the carries lies above F, F of the newest key alone lies below it.
    low = -torch.logsumexp((1 - strength) * scores_J, -1) / (1 - strength)
    high = -scores_J[..., -1]
    lowest = torch.finfo(carry_J.dtype).min
    a = torch.minimum(high, -torch.logsumexp(scores_J - strength * carry_J.clamp_min(lowest), -1))
    a = torch.where(a > low, a, low)
    previous = torch.full_like(a, torch.inf)
    resolution = 2 * torch.finfo(a.dtype).eps
    for _ in range(MAX_STEPS):
        value, slope, _ = residual(a, scores_J, carry_J, strength)
        low = torch.where(value <= 0, a, low)
        high = torch.where(value >= 0, a, high)
        newton = a - value / slope
        usable = (newton >= low) & (newton <= high) & (value.abs() <= previous / 2)
        previous = value.abs()
        after = torch.where(usable, newton, (low + high) / 2)
        after = torch.where(value == 0, a, after)
        moved = (after - a).abs() > resolution * (1 + a.abs())
        a = after
        if not moved.any():
            break
    return a
