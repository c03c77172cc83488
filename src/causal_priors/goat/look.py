"""A forward pass that keeps what experiment 0006 looks at: the last residual stream and the last rows of attention.

Shape legend: B windows, T tokens, C width, H heads, R last query rows, S keys (S = T). Log weights are float64 and
computed from float32 logits; where a row of a transport plan holds a zero, it counts as float32's smallest number.
A prior is folded into query and key where that is faster (fold.py); a caller says so where `folded` is true.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention.dispatch import attend
from causal_priors.attention.softmax import masked_bias, positions
from causal_priors.goat.fold import faster, folded_attention
from causal_priors.model import Block, Transformer
from causal_priors.priors.base import BoundPrior


@dataclass(frozen=True)
class Rows:
    """Last rows of one layer: log weights [B, H, R, S], and for softmax the same of the log-prior alone (content 0).

    content_range: largest minus smallest content logit of the row [B, H, R]; None, like `prior`, under transport.
    """

    log_weights: Tensor
    prior: Tensor | None
    content_range: Tensor | None

    def far_mass(self, window: int) -> Tensor:
        """Mass on keys at distance >= `window`, mean over the rows [B, H]."""
        rows, keys = self.log_weights.shape[-2:]
        i_R = torch.arange(keys - rows, keys)
        far_RS = i_R[:, None] - torch.arange(keys) >= window
        return (self.log_weights.exp() * far_RS).sum(-1).mean(-1)


@torch.inference_mode()
def look(model: Transformer, ids_BT: Tensor, rows: int, wide: bool = False) -> tuple[Tensor, list[Rows]]:
    """Return the normed last residual stream [B, T, C], and the last `rows` rows of each layer's attention.

    wide: solve a transport in float64. Few symbols, often repeated, make columns whose sums are too wide for float32,
    where the solver's steps cycle until it gives up and takes float64 after all.
    """
    x_BTC: Tensor = model.embedding(ids_BT)
    found = []
    for block in model.layers:
        q_BHTD, k_BHTD, v_BHTD, prior = block.place(*block.content(x_BTC))
        mixed_BHTD, kept = _attend(block, q_BHTD, k_BHTD, v_BHTD, prior, rows, wide)
        x_BTC = block.finish(x_BTC, mixed_BHTD)
        found.append(kept)
    final_BTC: Tensor = model.final_norm(x_BTC)
    return final_BTC, found


@torch.inference_mode()
def log_probabilities(model: Transformer, final_BTC: Tensor) -> Tensor:
    """Log-probabilities of every next token [B, T, V], float64."""
    return torch.log_softmax((final_BTC @ model.embedding.weight.T).double(), dim=-1)


def folded(model: Transformer, length: int) -> bool:
    """Does `look` fold this model's log-priors at `length` tokens?"""
    block = model.layers[0]
    prior = None if block.log_prior is None else BoundPrior(block.log_prior)
    return block.arm.transport is None and faster(prior, length)


def margin(log_weights_BHRS: Tensor) -> Tensor:
    """Margin in nats of key 0 over the others of its row, in the sense of log-mean-exp: ln p0 / (1 - p0) + ln i."""
    rows, keys = log_weights_BHRS.shape[-2:]
    others_BHR = log_weights_BHRS[..., 1:].logsumexp(-1)
    count_R = torch.arange(keys - rows, keys, dtype=torch.float64)
    return log_weights_BHRS[..., 0] - others_BHR + count_R.log()


def bound_slack(rows: Rows) -> Tensor:
    """By how much key 0's weight stays inside pi e^-D .. pi e^D in nats [B, H, R]; D: range of the content logits.

    pi is the prior's own weight (arms.md B.10). Negative values are impossible but for rounding.
    """
    assert rows.prior is not None
    assert rows.content_range is not None
    return rows.content_range - (rows.log_weights[..., 0] - rows.prior[..., 0]).abs()


def _attend(
    block: Block, q: Tensor, k: Tensor, v: Tensor, prior: BoundPrior | None, rows: int, wide: bool
) -> tuple[Tensor, Rows]:
    length = q.shape[2]
    asked = range(length - rows, length)
    if block.arm.transport is not None:
        if wide:
            mixed, kept = _transported(q.double(), k.double(), v.double(), prior, block.arm.transport, asked)
            return mixed.to(v.dtype), kept
        return _transported(q, k, v, prior, block.arm.transport, asked)
    if prior is not None and faster(prior, length):
        mixed = folded_attention(q, k, v, prior)
    else:
        mixed = attend(q, k, v, prior, None)
    content = (q[:, :, asked.start :] / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    bias = masked_bias(prior, asked, q).double()
    future = torch.isneginf(bias)
    highest = content.masked_fill(future, -math.inf).amax(-1)
    lowest = content.masked_fill(future, math.inf).amin(-1)
    log_prior = torch.log_softmax(bias, dim=-1).expand(content.shape)
    weights = torch.log_softmax(content.double() + bias, dim=-1)
    return mixed, Rows(weights, log_prior, (highest.double() - lowest.double()))


def _transported(
    q: Tensor, k: Tensor, v: Tensor, prior: BoundPrior | None, transport: Transport, asked: range
) -> tuple[Tensor, Rows]:
    # Inside the function, so that the code digest of an arm without transport does not cover the operator.
    from causal_priors.attention.transport import output_and_plan_rows

    rows_R = positions(asked.start, asked.stop, q.device)
    mixed, plan = output_and_plan_rows(q, k, v, prior, transport.strength, rows_R)
    future = torch.arange(asked.stop) > rows_R[:, None]
    weights = plan.clamp_min(torch.finfo(plan.dtype).tiny).double().log().masked_fill(future, -math.inf)
    return mixed, Rows(weights, None, None)
