"""Attention weights themselves, a few query rows at a time, and the far mass measured on them.

Shape legend: B batch, H heads, T tokens, R query rows, S keys seen, D head dim. Far mass at window w is the attention
mass on keys at distance d >= w, averaged over the last w queries (arms.md, end of Part A). No query looks ahead, so one
pass over a window also gives the far mass of every window that it begins with. Evaluation only, hence a module of its
own: training does not depend on it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention.dispatch import attend
from causal_priors.attention.softmax import masked_bias, positions, row_blocks, some_rows
from causal_priors.priors.base import BoundPrior


def attention_rows(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, asked: range
) -> Tensor:
    """Attention weights [B, H, R, S] of the query rows `asked` against keys 0 .. asked.stop - 1."""
    if transport is not None:
        seen = slice(0, asked.stop)
        values = k_BHTD[:, :, seen, :0]
        rows_R = positions(asked.start, asked.stop, q_BHTD.device)
        return _transported(q_BHTD[:, :, seen], k_BHTD[:, :, seen], values, prior, transport, rows_R)[1]
    q_BHRD = q_BHTD[:, :, asked.start : asked.stop] / math.sqrt(q_BHTD.shape[-1])
    logits_BHRS = q_BHRD @ k_BHTD[:, :, : asked.stop].transpose(-1, -2) + masked_bias(prior, asked, q_BHTD)
    return torch.softmax(logits_BHRS, dim=-1)


def attend_measuring(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTD: Tensor,
    prior: BoundPrior | None,
    transport: Transport | None,
    far: Sequence[tuple[int, int]],
) -> tuple[Tensor, dict[tuple[int, int], Tensor]]:
    """Attention output [B, H, T, D], and the far mass [B, H] of each (n, w) of `far`, in tokens.

    That of (n, w) is the mass on keys at distance d >= w, mean over the last w of the first n queries, 0 where no key is
    that far. The weights that it needs also make their rows' output; other rows take the fast way.
    """
    batch, heads = q_BHTD.shape[:2]
    totals = {pair: q_BHTD.new_zeros(batch, heads) for pair in far}
    spans = _spans(range(max(n - w, 0), n) for n, w in far if w < n)
    out_BHTD = torch.empty_like(v_BHTD)
    for asked, weights_BHRS in _weights(q_BHTD, k_BHTD, v_BHTD, prior, transport, spans, out_BHTD):
        for n, w in far:
            # The rows of this block that count, and the keys that are at least w away from the last of them.
            rows = range(max(asked.start, n - w), min(asked.stop, n))
            seen = max(rows.stop - w, 0)
            if not rows or not seen:
                continue
            i_R = positions(rows.start, rows.stop, q_BHTD.device)[:, None]
            far_RS = i_R - positions(0, seen, q_BHTD.device) >= w
            weights_BHRS_here = weights_BHRS[:, :, rows.start - asked.start : rows.stop - asked.start, :seen]
            totals[n, w] += (weights_BHRS_here * far_RS).sum((-2, -1))
    return out_BHTD, {(n, w): total / min(w, n) for (n, w), total in totals.items()}


def _spans(rows: Iterable[range]) -> list[range]:
    """Cover `rows` by disjoint spans in order."""
    spans: list[range] = []
    for some in sorted(rows, key=lambda some: some.start):
        if spans and some.start <= spans[-1].stop:
            spans[-1] = range(spans[-1].start, max(spans[-1].stop, some.stop))
        else:
            spans.append(some)
    return spans


def _weights(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTD: Tensor,
    prior: BoundPrior | None,
    transport: Transport | None,
    spans: Sequence[range],
    out_BHTD: Tensor,
) -> Iterator[tuple[range, Tensor]]:
    """Fill `out_BHTD`; yield the weights [B, H, R, S] of the rows in `spans`, some at a time."""
    batch, heads, length, _ = q_BHTD.shape
    if transport is not None and not spans:
        out_BHTD[:] = attend(q_BHTD, k_BHTD, v_BHTD, prior, transport)
        return
    if transport is not None:
        # A row of a plan depends on all earlier rows: the whole is solved once, for output and weights.
        rows_R = torch.cat([positions(span.start, span.stop, q_BHTD.device) for span in spans])
        out_BHTD[:], plan_BHRT = _transported(q_BHTD, k_BHTD, v_BHTD, prior, transport, rows_R)
        plans = torch.split(plan_BHRT, [len(span) for span in spans], dim=2)
        yield from zip(spans, plans, strict=True)
        return
    done = 0
    for span in (*spans, range(length, length)):
        if done < span.start:
            out_BHTD[:, :, done : span.start] = _output(q_BHTD, k_BHTD, v_BHTD, prior, range(done, span.start))
        for block in row_blocks(span, batch * heads * length, q_BHTD.device):
            weights_BHRS = attention_rows(q_BHTD, k_BHTD, prior, None, block)
            out_BHTD[:, :, block.start : block.stop] = weights_BHRS.to(v_BHTD.dtype) @ v_BHTD[:, :, : block.stop]
            yield block, weights_BHRS
        done = span.stop


def _output(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, rows: range) -> Tensor:
    """Output [B, H, R, D] of some rows, whose weights nobody asks for."""
    seen = slice(0, rows.stop)
    if rows.start:
        return some_rows(q_BHTD, k_BHTD, v_BHTD, prior, rows)
    return attend(q_BHTD[:, :, seen], k_BHTD[:, :, seen], v_BHTD[:, :, seen], prior, None)


def _transported(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport, rows_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] of all rows, and the plan's rows `rows_R` [B, H, R, T]."""
    # Inside the function, so that the code digest of an arm without transport does not cover the operator.
    from causal_priors.attention.transport import output_and_plan_rows, transport_attention

    if transport.solver == "exact":
        return output_and_plan_rows(q_BHTD, k_BHTD, v_BHTD, prior, transport.strength, rows_R)
    # A fixed number of sweeps is whole matrices in any case: what it does to one-hot values is its plan.
    one_hot_TT = torch.eye(q_BHTD.shape[2], dtype=q_BHTD.dtype, device=q_BHTD.device)
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
    return plan_BHTT @ v_BHTD, plan_BHTT[:, :, rows_R]
