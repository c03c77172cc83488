"""Cross entropy against a tied embedding, without the waste of the general one.

Shape legend: N tokens, C width, V vocabulary. At micro the loss head takes a third of a step, much of it in writing
N x V tensors. Here one such tensor exists, which turns in place from logits into exponentials into slopes. Where even
that would be large, tokens are walked in pieces, and backward computes each piece again.
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


def _logits(x_NC: Tensor, embedding_VC: Tensor) -> Tensor:
    logits_NV = F.linear(x_NC, embedding_VC)
    return logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, embedding_VC: Tensor, targets_N: Tensor) -> Tensor:
        ctx.save_for_backward(x_NC, embedding_VC, targets_N)
        ctx.step, ctx.kept = max(1, LOGIT_NUMBERS // embedding_VC.shape[0]), None
        losses = []
        for x, targets in zip(torch.split(x_NC, ctx.step), torch.split(targets_N, ctx.step), strict=True):
            logits = _logits(x, embedding_VC)
            loss = logits.amax(-1) - logits.gather(-1, targets[:, None])[:, 0]
            exponentials, total = _exponentiate(logits)
            losses.append(loss + total[:, 0].log())
            if len(x) == len(x_NC) and any(ctx.needs_input_grad):
                ctx.kept = exponentials, total
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_NC, embedding_VC, targets_N = ctx.saved_tensors
        grad_x, grad_embedding = torch.empty_like(x_NC), torch.zeros_like(embedding_VC)
        # Given away at once: the slopes overwrite it, so a second backward must compute it again.
        kept, ctx.kept = ctx.kept, None
        for start in range(0, len(x_NC), ctx.step):
            part = slice(start, start + ctx.step)
            slope, total = kept or _exponentiate(_logits(x_NC[part], embedding_VC))
            grad_N1 = grads[0][part, None].to(slope.dtype)
            slope.mul_(grad_N1 / total).scatter_add_(-1, targets_N[part, None], -grad_N1)
            slope = slope.to(x_NC.dtype)
            grad_x[part] = slope @ embedding_VC.to(x_NC.dtype)
            grad_embedding += slope.T @ x_NC[part]
        return grad_x, grad_embedding, None


def _exponentiate(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite logits by exp(logit - max of its row); return them and their sums [N, 1]."""
    logits_NV.sub_(logits_NV.amax(-1, keepdim=True)).exp_()
    return logits_NV, logits_NV.sum(-1, keepdim=True)
