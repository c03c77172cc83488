"""Attention weights themselves, a few query rows at a time, and the far mass measured on them.

Shape legend: B batch, H heads, T tokens, R query rows, S keys seen, D head dim. Far mass at window w is the attention
mass on keys at distance d >= w, averaged over the last w queries (arms.md, end of Part A). Evaluation only, hence a
module of its own: training does not depend on it.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention.softmax import masked_bias, row_blocks
from causal_priors.priors.base import BoundPrior


def logits(q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, asked: range) -> Tensor:
    """Logits [B, H, R, S] of the query rows `asked` against keys 0 .. asked.stop - 1, -inf at future keys."""
    q_BHRD = q_BHTD[:, :, asked.start : asked.stop] / math.sqrt(q_BHTD.shape[-1])
    return q_BHRD @ k_BHTD[:, :, : asked.stop].transpose(-1, -2) + masked_bias(prior, asked, q_BHTD)


class AttentionRows:
    """Rows of the attention matrix of one window: call with a range of queries for weights [B, H, R, S].

    S = the end of the range: keys beyond are in the future. Ranges must be asked in rising order where `transport` is
    set, since a row of the transport plan depends on all earlier rows.
    """

    def __init__(
        self, q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None = None
    ) -> None:
        self.q_BHTD, self.k_BHTD, self.prior, self.transport = q_BHTD, k_BHTD, prior, transport
        if transport is not None:
            self._begin_transport(transport)

    def __call__(self, asked: range) -> Tensor:
        """Weights [B, H, R, S] of the query rows `asked`."""
        if self.transport is None:
            return torch.softmax(logits(self.q_BHTD, self.k_BHTD, self.prior, asked), dim=-1)
        self._advance(asked.start)
        received_BHRS, plan_BHRS = self._received(asked)
        self._keep(received_BHRS[:, :, -1], asked.stop)
        weights = torch.exp(plan_BHRS - self.transport.strength * received_BHRS)
        return torch.where(plan_BHRS == -math.inf, 0.0, weights)

    def _begin_transport(self, transport: Transport) -> None:
        from causal_priors.attention.transport import transport_attention

        _, self.potential_BHT = transport_attention(
            self.q_BHTD,
            self.k_BHTD,
            self.k_BHTD,
            log_prior=self.prior,
            strength=transport.strength,
            solver=transport.solver,
            iterations=transport.iterations,
            return_potentials=True,
        )
        # Log of the mass that each key has received from the rows before `self.done`.
        self.carry_BHT = torch.full_like(self.potential_BHT, -math.inf)
        self.done = 0

    def _advance(self, start: int) -> None:
        batch, heads, length, _ = self.q_BHTD.shape
        for block in row_blocks(start - self.done, batch * heads * length):
            rows = range(self.done, self.done + len(block))
            self._keep(self._received(rows)[0][:, :, -1], rows.stop)

    def _received(self, asked: range) -> tuple[Tensor, Tensor]:
        """Log C[j](i) and S[i, j] + a[i] for the rows `asked`, which follow on `self.done`."""
        plan_BHRS = logits(self.q_BHTD, self.k_BHTD, self.prior, asked)
        plan_BHRS = plan_BHRS + self.potential_BHT[:, :, asked.start : asked.stop, None]
        before_BH1S = self.carry_BHT[:, :, None, : asked.stop]
        return torch.cat((before_BH1S, plan_BHRS), dim=2).logcumsumexp(dim=2)[:, :, 1:], plan_BHRS

    def _keep(self, received_BHS: Tensor, stop: int) -> None:
        self.carry_BHT[:, :, :stop] = received_BHS
        self.done = stop


def attention_rows(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, asked: range
) -> Tensor:
    """Attention weights [B, H, R, T] of the query rows `asked`, zero at future keys."""
    weights_BHRS = AttentionRows(q_BHTD, k_BHTD, prior, transport)(asked)
    return F.pad(weights_BHRS, (0, k_BHTD.shape[2] - asked.stop))


def far_mass(
    q_BHTD: Tensor, k_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None, windows: Sequence[int]
) -> dict[int, Tensor]:
    """Far mass [B, H] for each of `windows` (tokens); 0 where no key is that far."""
    batch, heads, length, _ = q_BHTD.shape
    attention = AttentionRows(q_BHTD, k_BHTD, prior, transport)
    totals = {w: q_BHTD.new_zeros(batch, heads) for w in windows}
    start = max(length - max(windows), 0)
    for block in row_blocks(length - start, batch * heads * length):
        asked = range(start + block.start, start + block.stop)
        weights_BHRS = attention(asked)
        i_R = torch.arange(asked.start, asked.stop, device=q_BHTD.device)[:, None]
        j_S = torch.arange(asked.stop, device=q_BHTD.device)
        for w in windows:
            counted_RS = (i_R - j_S >= w) & (i_R >= length - w)
            totals[w] += (weights_BHRS * counted_RS).sum((-2, -1))
    return {w: total / min(w, length) for w, total in totals.items()}
