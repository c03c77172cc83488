"""Softmax attention with an additive log-prior: three ways to the same output.

Shape legend: B batch, H heads, T tokens, R query rows of a block, S key columns of a block, D head dim. Logits are
q.k / sqrt(D) + b; the bias b is float32 at least and is added outside the scaling, never in the dtype of a
half-precision q.

`whole` is plain PyTorch and materialises T x T: the reference, and the fastest to train with at short windows.
`blocked` holds one block of query rows at a time, forward and backward: for long windows. `fused` is PyTorch's kernel,
where there is no log-prior.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_priors.precision import wide, wide_product
from causal_priors.priors.base import BoundPrior

# Logits held at once, in numbers: 4 MB in float32 on a CPU, which a core's share of the cache holds; 512 MB on a GPU.
BLOCK_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 27}
# More query rows than this waste work above the diagonal, fewer waste it on the way.
BLOCK_ROWS = 32, 128


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def positions(start: int, stop: int, device: torch.device) -> Tensor:
    """Positions start .. stop - 1. One object per span, so that log-priors recognise a block asked for before."""
    return torch.arange(start, stop, device=device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _future(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-inf where a key lies in the future of the last `rows` of `columns` queries, else 0."""
    return torch.full((rows, columns), -math.inf, dtype=dtype, device=device).triu(columns - rows + 1)


def masked_bias(prior: BoundPrior | None, block: range, q_BHTD: Tensor) -> Tensor:
    """Bias of a block of query rows against keys 0 .. block.stop - 1, -inf at future keys: [B or 1, H or 1, R, S]."""
    dtype = torch.float64 if q_BHTD.dtype == torch.float64 else torch.float32
    future_RS = _future(len(block), block.stop, dtype, q_BHTD.device)
    if prior is None:
        return future_RS[None, None]
    i_R = positions(block.start, block.stop, q_BHTD.device)
    return prior(i_R, positions(0, block.stop, q_BHTD.device)) + future_RS


def whole(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None) -> Tensor:
    """Attention output [B, H, T, D] by materialising all logits."""
    bias = masked_bias(prior, range(q_BHTD.shape[2]), q_BHTD)
    logits_BHTT = (wide(q_BHTD) / math.sqrt(q_BHTD.shape[-1])) @ wide(k_BHTD).transpose(-1, -2)
    return torch.softmax(logits_BHTT + bias, dim=-1).to(v_BHTD.dtype) @ v_BHTD


def fused(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
    """Attention output without a log-prior, by PyTorch's own kernel."""
    return F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)


def blocked(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior) -> Tensor:
    """Attention output [B, H, T, D] with memory for one block of rows; a gradient reaches all of `prior.tensors()`."""
    out_BHTD: Tensor = _Blocked.apply(q_BHTD, k_BHTD, v_BHTD, prior, *prior.tensors())  # type: ignore[no-untyped-call]
    return out_BHTD


def some_rows(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, rows: range) -> Tensor:
    """Attention output [B, H, R, D] of the query rows `rows` alone; no gradients."""
    per_row = q_BHTD.shape[0] * q_BHTD.shape[1] * rows.stop
    blocks = row_blocks(rows, per_row, q_BHTD.device)
    return torch.cat([_block_output(q_BHTD, k_BHTD, v_BHTD, prior, block) for block in blocks], dim=2)


def row_blocks(rows: range, numbers_per_row: int, device: torch.device) -> Iterator[range]:
    """Cut the query rows `rows` into blocks that hold about BLOCK_NUMBERS numbers each."""
    least, most = BLOCK_ROWS
    step = max(least, min(most, BLOCK_NUMBERS[device.type] // numbers_per_row))
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(start + step, rows.stop))


class _Blocked(torch.autograd.Function):
    """Row blocks forward; backward recomputes each block's weights and differentiates its bias on the spot."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, prior: BoundPrior, *tensors: Tensor) -> Tensor:
        ctx.prior = prior
        batch, heads, length, _ = q.shape
        out = torch.empty(q.shape[:3] + v.shape[3:], dtype=v.dtype, device=q.device)
        for block in row_blocks(range(length), batch * heads * length, q.device):
            out[:, :, block.start : block.stop] = _block_output(q, k, v, prior, block)
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out = ctx.saved_tensors
        batch, heads, length, head_dim = q.shape
        (grad_out,) = grads
        scale = 1 / math.sqrt(head_dim)
        isolated = ctx.prior.isolated()
        leaves = isolated.tensors()
        grad_q, grad_k, grad_v = (torch.zeros_like(wide(part)) for part in (q, k, v))
        grad_leaves = [torch.zeros_like(leaf) for leaf in leaves]
        delta_BHT1 = (wide(grad_out) * wide(out)).sum(-1, keepdim=True)
        for block in row_blocks(range(length), heads * length, q.device):
            seen, mine = slice(0, block.stop), slice(block.start, block.stop)
            with torch.enable_grad():
                bias = masked_bias(isolated, block, q)
            grad_bias = torch.zeros_like(bias) if leaves else None
            items = max(1, BLOCK_NUMBERS[q.device.type] // (heads * len(block) * block.stop))
            for first in range(0, batch, items):
                some = slice(first, first + items)
                part = bias if bias.shape[0] == 1 else bias[some]
                k_S, v_S = k[some, :, seen], v[some, :, seen]
                q_R, grad_R = q[some, :, mine], grad_out[some, :, mine]
                weights = torch.softmax(wide_product(q_R * scale, k_S) + part.detach(), dim=-1)
                grad_v[some, :, seen] += weights.to(v.dtype).transpose(-1, -2) @ grad_R
                slope = (wide_product(grad_R, v_S) - delta_BHT1[some, :, mine]).mul_(weights)
                if grad_bias is not None:
                    target = grad_bias if bias.shape[0] == 1 else grad_bias[some]
                    target += slope.sum(0, keepdim=True) if bias.shape[0] == 1 else slope
                slope = slope.to(q.dtype)
                grad_q[some, :, mine] = (slope @ k_S) * scale
                grad_k[some, :, seen] += slope.transpose(-1, -2) @ (q_R * scale)
            if leaves:
                found = torch.autograd.grad(bias, leaves, grad_bias, allow_unused=True)
                for total, grad in zip(grad_leaves, found, strict=True):
                    if grad is not None:
                        total += grad
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), None, *grad_leaves


def _block_output(q: Tensor, k: Tensor, v: Tensor, prior: BoundPrior | None, block: range) -> Tensor:
    q_R, k_S, v_S = q[:, :, block.start : block.stop], k[:, :, : block.stop], v[:, :, : block.stop]
    bias = masked_bias(prior, block, q)
    if q_R.dtype == bias.dtype:
        return F.scaled_dot_product_attention(q_R, k_S, v_S, attn_mask=bias)
    # Half precision: the fused kernel wants the bias in the dtype of q, which would round it.
    logits = wide_product(q_R * (1 / math.sqrt(q_R.shape[-1])), k_S) + bias
    return torch.softmax(logits, dim=-1).to(v_S.dtype) @ v_S
