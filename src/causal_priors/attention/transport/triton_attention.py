"""The Triton implementation: launches the kernels and ties them into autograd.

Shape legend: N problems (B batch x H heads), T tokens, D head dim, M carries kept.

No autotuning: the tiles follow from the head dim by a fixed table, so the same call gives the same bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernels.backward import backward as backward_kernel
from .kernels.forward import forward as forward_kernel
from .prior import KINDS, LogPriorLike, distance_form

ROWS = 16
# Head dim up to -> (keys of a tile, warps).
TILES = {32: (64, 4), 64: (64, 4), 128: (32, 4)}


def launch_options(length: int, width: int) -> dict[str, Any]:
    """Tile sizes and the spacing of the kept carries: about sqrt(T / ROWS) of them, and as many recomputed at a time."""
    keys, warps = next(tiles for limit, tiles in TILES.items() if width <= limit)
    blocks = -(-length // ROWS)
    every = ROWS * max(1, round(blocks**0.5))
    return {
        "T": length,
        "D": width,
        "EVERY": every,
        "MARKS": max(1, -(-length // every) - 1),
        "R": ROWS,
        "BN": min(keys, max(16, 1 << (length - 1).bit_length())),
        "BD": max(16, 1 << (width - 1).bit_length()),
        "num_warps": warps,
        "num_stages": 1,
    }


class _Triton(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BHTD: Tensor,
        k_BHTD: Tensor,
        v_BHTD: Tensor,
        coefficient_H: Tensor | None,
        kind: int,
        strength: float,
    ) -> tuple[Tensor, Tensor]:
        batch, heads, length, width = q_BHTD.shape
        q, k, v = q_BHTD.contiguous(), k_BHTD.contiguous(), v_BHTD.contiguous()
        options = launch_options(length, width) | {
            "HEADS": heads,
            "scale": width**-0.5,
            "strength": strength,
            "KIND": kind,
        }
        wide: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
        out = torch.empty(v.shape, **wide)
        a_BHT = torch.empty(batch, heads, length, **wide)
        marks = torch.empty(batch * heads, options["MARKS"], length, **wide)
        weight_H = (
            torch.zeros(heads, **wide) if coefficient_H is None else coefficient_H.detach().to(**wide).contiguous()
        )
        carry = torch.empty_like(a_BHT)
        forward_kernel[(batch * heads,)](q, k, v, weight_H, out, a_BHT, carry, marks, **options)
        ctx.save_for_backward(q, k, v, weight_H, out, a_BHT, marks)
        ctx.options, ctx.coefficient_dtype = options, None if coefficient_H is None else coefficient_H.dtype
        ctx.mark_non_differentiable(a_BHT)
        return out.to(v_BHTD.dtype), a_BHT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_BHTD: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weight_H, out, a_BHT, marks = ctx.saved_tensors
        options, problems = ctx.options, q.shape[0] * q.shape[1]
        wide: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
        dq, dk, dv = torch.empty(q.shape, **wide), torch.zeros(k.shape, **wide), torch.zeros(v.shape, **wide)
        dweight_N = torch.zeros(problems, **wide)
        carries = torch.empty(problems, options["EVERY"] // ROWS, options["T"], **wide)
        pull = torch.zeros_like(a_BHT)
        inputs = (q, k, v, weight_H, out, a_BHT, marks, dout_BHTD.contiguous())
        backward_kernel[(problems,)](*inputs, dq, dk, dv, dweight_N, carries, pull, **options)
        dcoefficient_H = None
        if ctx.coefficient_dtype is not None:
            dcoefficient_H = dweight_N.view(-1, options["HEADS"]).sum(0).to(ctx.coefficient_dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dcoefficient_H, None, None


def attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and potentials [B, H, T]."""
    form = distance_form(log_prior)
    coefficient_H = None if form is None else form[1]
    kind = 0 if form is None else 1 + list(KINDS).index(form[0])
    out: tuple[Tensor, Tensor] = _Triton.apply(q_BHTD, k_BHTD, v_BHTD, coefficient_H, kind, strength)  # type: ignore[no-untyped-call]
    return out
