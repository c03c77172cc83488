"""Attention weights themselves, a few query rows at a time, and the far mass measured on them.

Shape legend: B batch, H heads, T tokens, R query rows, S keys seen, D head dim. Far mass at window w is the attention
mass on keys at distance d >= w, averaged over the last w queries (arms.md, end of Part A). Evaluation only, hence a
module of its own: training does not depend on it.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention.dispatch import attend
from causal_priors.attention.softmax import masked_bias, positions, row_blocks
from causal_priors.priors.base import BoundPrior


def attention_rows(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, asked: range
) -> Tensor:
    """Attention weights [B, H, R, S] of the query rows `asked` against keys 0 .. asked.stop - 1."""
    if transport is not None:
        seen = slice(0, asked.stop)
        values = k_BHTD[:, :, seen, :0]
        return _transported(q_BHTD[:, :, seen], k_BHTD[:, :, seen], values, prior, transport, asked.start)[1]
    q_BHRD = q_BHTD[:, :, asked.start : asked.stop] / math.sqrt(q_BHTD.shape[-1])
    logits_BHRS = q_BHRD @ k_BHTD[:, :, : asked.stop].transpose(-1, -2) + masked_bias(prior, asked, q_BHTD)
    return torch.softmax(logits_BHRS, dim=-1)


def _transported(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport, first: int
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] of all rows; rows of the plan from `first` on [B, H, T - first, T]."""
    # Inside the function, so that the code digest of an arm without transport does not cover the operator.
    from causal_priors.attention.transport import output_and_plan_rows, transport_attention

    length, device = q_BHTD.shape[2], q_BHTD.device
    if transport.solver == "exact":
        rows_R = positions(first, length, device)
        return output_and_plan_rows(q_BHTD, k_BHTD, v_BHTD, prior, transport.strength, rows_R)
    # A fixed number of sweeps is whole matrices in any case: what it does to one-hot values is its plan.
    one_hot_TT = torch.eye(length, dtype=q_BHTD.dtype, device=device)
    plan_BHTT = transport_attention(
        q_BHTD,
        k_BHTD,
        one_hot_TT.expand(*q_BHTD.shape[:2], -1, -1),
        log_prior=prior,
        strength=transport.strength,
        solver=transport.solver,
        iterations=transport.iterations,
    )
    assert isinstance(plan_BHTT, Tensor)
    return plan_BHTT @ v_BHTD, plan_BHTT[:, :, first:]


def attend_measuring(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTD: Tensor,
    prior: BoundPrior | None,
    transport: Transport | None,
    windows: Sequence[int],
) -> tuple[Tensor, dict[int, Tensor]]:
    """Attention output [B, H, T, D], and far mass [B, H] for each of `windows` (tokens): 0 where no key is that far.

    The weights of the last rows, which far mass needs, also make their output; earlier rows take the fast way.
    """
    batch, heads, length, _ = q_BHTD.shape
    first = length - min(max(windows), length)
    totals = {w: q_BHTD.new_zeros(batch, heads) for w in windows}
    out_BHTD = torch.empty_like(v_BHTD)
    for asked, weights_BHRS in _late_weights(q_BHTD, k_BHTD, v_BHTD, prior, transport, first, out_BHTD):
        for w in windows:
            # The last w rows of the window, and the keys that are at least w away from the last of them.
            rows, seen = range(max(asked.start, length - w), asked.stop), max(asked.stop - w, 0)
            if not rows:
                continue
            i_R = positions(rows.start, rows.stop, q_BHTD.device)[:, None]
            far_RS = i_R - positions(0, seen, q_BHTD.device) >= w
            totals[w] += (weights_BHRS[:, :, rows.start - asked.start :, :seen] * far_RS).sum((-2, -1))
    return out_BHTD, {w: total / min(w, length) for w, total in totals.items()}


def _late_weights(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTD: Tensor,
    prior: BoundPrior | None,
    transport: Transport | None,
    first: int,
    out_BHTD: Tensor,
) -> Iterator[tuple[range, Tensor]]:
    """Fill `out_BHTD`; yield the weights [B, H, R, S] of the rows from `first` on, some at a time."""
    batch, heads, length, _ = q_BHTD.shape
    if transport is not None:
        # A row of a plan depends on all earlier rows: the whole is solved once, for output and weights.
        out_BHTD[:], plan_BHRT = _transported(q_BHTD, k_BHTD, v_BHTD, prior, transport, first)
        yield range(first, length), plan_BHRT
        return
    if first:
        early = slice(0, first)
        out_BHTD[:, :, early] = attend(q_BHTD[:, :, early], k_BHTD[:, :, early], v_BHTD[:, :, early], prior, None)
    for block in row_blocks(length - first, batch * heads * length, q_BHTD.device):
        asked = range(first + block.start, first + block.stop)
        weights_BHRS = attention_rows(q_BHTD, k_BHTD, prior, None, asked)
        out_BHTD[:, :, asked.start : asked.stop] = weights_BHRS.to(v_BHTD.dtype) @ v_BHTD[:, :, : asked.stop]
        yield asked, weights_BHRS
