"""Cross entropy against a tied embedding, without the waste of the general one.

Shape legend: N tokens, C width, V vocabulary. At micro the loss head takes a quarter of a step, and what is not matrix
products goes into passes over N x V numbers. So there are few: logits turn into probabilities, those in place into
slopes, and the slopes at once into the gradient of x, but for the factor that only backward knows. Where N x V numbers
would be too many to keep, tokens are walked in pieces, and backward computes each piece again.
"""

from typing import Any

import torch
from torch import Tensor

from causal_priors.precision import full_precision, wide, wide_product

# Logits held at once, in numbers: 256 MB in float32. At a small scale everything fits and nothing is recomputed.
LOGIT_NUMBERS = 1 << 26


def token_losses(x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Loss [N] in nats of each target, float32 at least."""
    if torch.is_autocast_enabled(x_NC.device.type):
        # The products then take half precision and give float32.
        x_NC = x_NC.to(torch.get_autocast_dtype(x_NC.device.type))
    with full_precision(x_NC.device):
        losses_N: Tensor = _TokenLosses.apply(x_NC, embedding_VC, targets_N)  # type: ignore[no-untyped-call]
    return losses_N


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> Tensor:
        ctx.step = max(1, LOGIT_NUMBERS // embedding_VC.shape[0])
        rounded_VC = embedding_VC.to(x_NC.dtype)
        losses: list[Tensor] = []
        kept: tuple[Tensor, ...] = ()
        for x, targets in zip(torch.split(x_NC, ctx.step), torch.split(targets_N, ctx.step), strict=True):
            loss, probabilities = _probabilities(x, rounded_VC, targets)
            losses.append(loss)
            if len(x) == len(x_NC) and any(ctx.needs_input_grad):
                kept = _slopes(probabilities, rounded_VC, targets)
        ctx.save_for_backward(x_NC, embedding_VC, targets_N, *kept)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_NC, embedding_VC, targets_N, *kept = ctx.saved_tensors
        # The factors themselves are not rounded to half precision: that would scale every gradient.
        grad_N1, dtype = grads[0][:, None].to(wide(x_NC[:0]).dtype), x_NC.dtype
        weighed_NC = (x_NC * grad_N1).to(dtype)
        if kept:
            # The product this way round is a tenth faster.
            return (kept[1] * grad_N1).to(dtype), (weighed_NC.T @ kept[0]).T.to(embedding_VC.dtype), None
        grad_x, grad_embedding = torch.empty_like(x_NC), torch.zeros_like(embedding_VC)
        rounded_VC = embedding_VC.to(dtype)
        for start in range(0, len(x_NC), ctx.step):
            part = slice(start, start + ctx.step)
            _, probabilities = _probabilities(x_NC[part], rounded_VC, targets_N[part])
            slope, unit = _slopes(probabilities, rounded_VC, targets_N[part])
            grad_x[part] = unit * grad_N1[part]
            grad_embedding += slope.T @ weighed_NC[part]
        return grad_x, grad_embedding, None


def _probabilities(x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [N], and the probabilities [N, V] of every token."""
    logits_NV = wide_product(x_NC, embedding_VC)
    short_N = logits_NV.amax(-1) - logits_NV.gather(-1, targets_N[:, None])[:, 0]
    probabilities_NV = torch.softmax(logits_NV, -1)
    # The likeliest token's probability is 1 / (sum of exp(logit - its logit)); the target's own may have become 0.
    return short_N - probabilities_NV.amax(-1).log(), probabilities_NV


def _slopes(probabilities_NV: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of each token's loss by its logits [N, V], which overwrite the probabilities, and by its x [N, C]."""
    minus_N1 = probabilities_NV.new_full((len(targets_N), 1), -1.0)
    slope_NV = probabilities_NV.scatter_add_(-1, targets_N[:, None], minus_N1).to(embedding_VC.dtype)
    return slope_NV, slope_NV @ embedding_VC
