"""Attention weights themselves, a few query rows at a time, and the far mass measured on them.

Shape legend: B batch, H heads, T tokens, R query rows, S keys seen, D head dim. Far mass at window w is the attention
mass on keys at distance d >= w, averaged over the last w queries (arms.md, end of Part A). Evaluation only, hence a
module of its own: training does not depend on it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention.softmax import masked_bias, positions, row_blocks
from causal_priors.priors.base import BoundPrior


def attention_rows(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, asked: range
) -> Tensor:
    """Attention weights [B, H, R, S] of the query rows `asked` against keys 0 .. asked.stop - 1."""
    if transport is not None:
        return _plan_rows(q_BHTD, k_BHTD, prior, transport, asked)
    q_BHRD = q_BHTD[:, :, asked.start : asked.stop] / math.sqrt(q_BHTD.shape[-1])
    logits_BHRS = q_BHRD @ k_BHTD[:, :, : asked.stop].transpose(-1, -2) + masked_bias(prior, asked, q_BHTD)
    return torch.softmax(logits_BHRS, dim=-1)


def _plan_rows(q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport, asked: range) -> Tensor:
    # Inside the function, so that the code digest of an arm without transport does not cover the operator.
    from causal_priors.attention.transport import plan_rows, transport_attention

    q_BHSD, k_BHSD = q_BHTD[:, :, : asked.stop], k_BHTD[:, :, : asked.stop]
    if transport.solver == "exact":
        return plan_rows(q_BHSD, k_BHSD, prior, transport.strength, positions(asked.start, asked.stop, q_BHTD.device))
    # A fixed number of sweeps is whole matrices in any case: what it does to one-hot values is its plan.
    one_hot_SS = torch.eye(asked.stop, dtype=q_BHTD.dtype, device=q_BHTD.device)
    plan_BHSS = transport_attention(
        q_BHSD,
        k_BHSD,
        one_hot_SS.expand(*q_BHTD.shape[:2], -1, -1),
        log_prior=prior,
        strength=transport.strength,
        solver=transport.solver,
        iterations=transport.iterations,
    )
    assert isinstance(plan_BHSS, Tensor)
    return plan_BHSS[:, :, asked.start :]


def far_mass(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, windows: Sequence[int]
) -> dict[int, Tensor]:
    """Far mass [B, H] for each of `windows` (tokens); 0 where no key is that far."""
    batch, heads, length, _ = q_BHTD.shape
    totals = {w: q_BHTD.new_zeros(batch, heads) for w in windows}
    late = min(max(windows), length)
    # A row of a transport plan depends on all earlier rows: asked in pieces, they would be solved again for each.
    blocks = [range(late)] if transport else row_blocks(late, batch * heads * length, q_BHTD.device)
    for block in blocks:
        asked = range(length - late + block.start, length - late + block.stop)
        weights_BHRS = attention_rows(q_BHTD, k_BHTD, prior, transport, asked)
        i_R = positions(asked.start, asked.stop, q_BHTD.device)[:, None]
        j_S = positions(0, asked.stop, q_BHTD.device)
        for w in windows:
            counted_RS = (i_R - j_S >= w) & (i_R >= length - w)
            totals[w] += (weights_BHRS * counted_RS).sum((-2, -1))
    return {w: total / min(w, length) for w, total in totals.items()}
