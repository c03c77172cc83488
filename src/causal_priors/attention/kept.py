"""Softmax attention for training at short windows on a CPU: every attention weight kept, nothing beyond the diagonal.

Shape legend: B batch, H heads, N = B x H, T tokens, R query rows of a block, S key columns that it sees, D head dim.
Query rows are walked in blocks, and a block sees no key beyond its last row: at many blocks that halves the work. What
PyTorch's fused kernel saves in memory it pays for in time, several times over in backward, where a head is narrow and
a window short; here backward takes the weights as forward left them. Bias gradients leave as one tensor.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from causal_priors.attention.softmax import positions
from causal_priors.priors.base import BoundPrior

# More rows waste work beyond the diagonal, fewer make the matrix products too small to be fast.
ROWS = 64


def kept(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None) -> Tensor:
    """Causal attention output [B, H, T, D]; a gradient reaches all that the log-prior depends on."""
    bias = None
    if prior is not None:
        position_T = positions(0, q_BHTD.shape[2], q_BHTD.device)
        bias = prior(position_T, position_T)
    out_BHTD: Tensor = _Kept.apply(q_BHTD, k_BHTD, v_BHTD, bias)  # type: ignore[no-untyped-call]
    return out_BHTD


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _future(start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-inf where a key of 0 .. stop - 1 lies in the future of a query of start .. stop - 1, else 0: [R, S]."""
    return torch.full((stop - start, stop), -math.inf, dtype=dtype, device=device).triu(start + 1)


def _blocks(length: int) -> list[slice]:
    return [slice(start, min(start + ROWS, length)) for start in range(0, length, ROWS)]


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        batch, heads, length, width = q.shape
        q_NTD = (q * (1 / math.sqrt(width))).reshape(-1, length, width)
        k_NTD, v_NTD = (part.reshape(-1, length, width) for part in (k, v))
        out_NTD = torch.empty_like(v_NTD, memory_format=torch.contiguous_format)
        every = []
        for rows in _blocks(length):
            q_NRD, key_NDS = q_NTD[:, rows], k_NTD[:, : rows.stop].mT
            future_RS = _future(rows.start, rows.stop, q.dtype, q.device)
            if bias is None:
                logits_NRS = torch.baddbmm(future_RS, q_NRD, key_NDS)
            else:
                logits_NRS = torch.bmm(q_NRD, key_NDS)
                bias_BHRS = bias[:, :, rows, : rows.stop]
                logits_BHRS = logits_NRS.view(batch, heads, -1, rows.stop)
                if len(bias) == 1:
                    logits_BHRS.add_(bias_BHRS + future_RS)
                else:
                    logits_BHRS.add_(bias_BHRS).add_(future_RS)
            every.append(torch.softmax(logits_NRS, -1))
            torch.bmm(every[-1], v_NTD[:, : rows.stop], out=out_NTD[:, rows])
        ctx.save_for_backward(q_NTD, k_NTD, v_NTD, *every)
        ctx.bias_shape = None if bias is None else bias.shape
        return out_NTD.view(q.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        q_NTD, k_NTD, v_NTD, *every = ctx.saved_tensors
        shape = grads[0].shape
        grad_out_NTD = grads[0].reshape(q_NTD.shape)
        grad_bias = grad_out_NTD.new_zeros(ctx.bias_shape) if ctx.needs_input_grad[3] else None
        grad_q, grad_k, grad_v = (torch.empty_like(q_NTD) for _ in range(3))
        # From the last rows, which see every key: to their products the others' are added.
        for rows, weights_NRS in zip(_blocks(shape[2])[::-1], every[::-1], strict=True):
            seen, grad_NRD = slice(0, rows.stop), grad_out_NTD[:, rows]
            slope_NRS = torch.bmm(grad_NRD, v_NTD[:, seen].mT)
            slope_NRS = torch._softmax_backward_data(slope_NRS, weights_NRS, -1, slope_NRS.dtype)
            if grad_bias is not None:
                slope_BHRS = slope_NRS.view(*shape[:2], -1, rows.stop)
                grad_bias[:, :, rows, seen] = slope_BHRS if len(grad_bias) > 1 else slope_BHRS.sum(0, keepdim=True)
            torch.bmm(slope_NRS, k_NTD[:, seen], out=grad_q[:, rows])
            if rows.stop == shape[2]:
                torch.bmm(weights_NRS.mT, grad_NRD, out=grad_v)
                torch.bmm(slope_NRS.mT, q_NTD[:, rows], out=grad_k)
            else:
                grad_v[:, seen].baddbmm_(weights_NRS.mT, grad_NRD)
                grad_k[:, seen].baddbmm_(slope_NRS.mT, q_NTD[:, rows])
        grad_q.mul_(1 / math.sqrt(shape[-1]))
        return grad_q.view(shape), grad_k.view(shape), grad_v.view(shape), grad_bias
