"""Cross entropy against a tied embedding, without the waste of the general one.

Shape legend: N tokens, C width, V vocabulary. At micro the loss head takes a quarter of a step, and what is not matrix
products goes into passes over N x V numbers. So there are few: logits turn into probabilities, those in place into
slopes, and the slopes at once into the gradient of x, but for the factor that only backward knows. Where N x V numbers
would be too many to keep, tokens are walked in pieces, and backward computes each piece again.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits held at once, in numbers: 256 MB in float32. At a small scale everything fits and nothing is recomputed.
LOGIT_NUMBERS = 1 << 26


def token_losses(x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Loss [N] in nats of each target, float32 at least."""
    losses_N: Tensor = _TokenLosses.apply(x_NC, embedding_VC, targets_N)  # type: ignore[no-untyped-call]
    return losses_N


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> Tensor:
        ctx.step = max(1, LOGIT_NUMBERS // embedding_VC.shape[0])
        losses: list[Tensor] = []
        kept: tuple[Tensor, ...] = ()
        for x, targets in zip(torch.split(x_NC, ctx.step), torch.split(targets_N, ctx.step), strict=True):
            loss, probabilities = _probabilities(x, embedding_VC, targets)
            losses.append(loss)
            if len(x) == len(x_NC) and any(ctx.needs_input_grad):
                kept = _slopes(probabilities, embedding_VC, targets, x.dtype)
        ctx.save_for_backward(x_NC, embedding_VC, targets_N, *kept)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_NC, embedding_VC, targets_N, *kept = ctx.saved_tensors
        grad_N1 = grads[0][:, None].to(x_NC.dtype)
        weighed_NC = x_NC * grad_N1
        if kept:
            # The product this way round is a tenth faster.
            return kept[1] * grad_N1, (weighed_NC.T @ kept[0]).T, None
        grad_x, grad_embedding = torch.empty_like(x_NC), torch.zeros_like(embedding_VC)
        for start in range(0, len(x_NC), ctx.step):
            part = slice(start, start + ctx.step)
            _, probabilities = _probabilities(x_NC[part], embedding_VC, targets_N[part])
            slope, unit = _slopes(probabilities, embedding_VC, targets_N[part], x_NC.dtype)
            grad_x[part] = unit * grad_N1[part]
            grad_embedding += slope.T @ weighed_NC[part]
        return grad_x, grad_embedding, None


def _probabilities(x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [N], and the probabilities [N, V] of every token."""
    logits_NV = F.linear(x_NC, embedding_VC)
    logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    short_N = logits_NV.amax(-1) - logits_NV.gather(-1, targets_N[:, None])[:, 0]
    probabilities_NV = torch.softmax(logits_NV, -1)
    # The likeliest token's probability is 1 / (sum of exp(logit - its logit)); the target's own may have become 0.
    return short_N - probabilities_NV.amax(-1).log(), probabilities_NV


def _slopes(
    probabilities_NV: Tensor, embedding_VC: Tensor, targets_N: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Derivatives of each token's loss by its logits [N, V], which overwrite the probabilities, and by its x [N, C]."""
    minus_N1 = probabilities_NV.new_full((len(targets_N), 1), -1.0)
    slope_NV = probabilities_NV.scatter_add_(-1, targets_N[:, None], minus_N1).to(dtype)
    # Not in half precision under autocast: gradients of backward are not either.
    with torch.autocast(slope_NV.device.type, enabled=False):
        return slope_NV, slope_NV @ embedding_VC.to(dtype)
