"""Rotations of queries and keys: RoPE, its YaRN stretch at evaluation, and GRAPE-M's learned frequencies.

Shape legend: B batch, H heads, T tokens, D head dim, M = D/2 planes. Channel m is paired with channel m + M (half
split) and both turn by +angle = position * theta_m. Angles are computed in float64, tables are kept in the dtype of the
rotation's arithmetic (float32 at least): an angle of 16k radians in float32 would be off by a thousandth.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from causal_priors.errors import refuse
from causal_priors.priors.base import Geometry


def rope_frequencies(head_dim: int, base: float) -> tuple[float, ...]:
    """theta_m = base^(-2m/D) for m < D/2, in radians a token (B.1)."""
    return tuple(base ** (-2 * m / head_dim) for m in range(head_dim // 2))


def yarn_temperature(stretch: float) -> float:
    """YaRN's factor on the cos and sin of both q and k, 0.1 ln s + 1; logits grow by its square (B.11)."""
    return 0.1 * math.log(stretch) + 1 if stretch > 1 else 1.0


def yarn_frequencies(
    frequencies: tuple[float, ...], base: float, train_length: int, stretch: float, ramp: str = "paper"
) -> tuple[float, ...]:
    """Frequencies after YaRN's static stretch s = n / L (B.11): kept in planes that turn often in L, else divided by s.

    ramp: `paper` is linear in the number of turns (1 to 32), `code` linear in the plane's index, as the reference code
    does it. s <= 1 changes nothing. Raises `UserError` for another ramp.
    """
    if ramp not in ("paper", "code"):
        raise refuse("is not a YaRN ramp", key="ramp", value=ramp, remedy="use paper or code")
    if stretch <= 1:
        return frequencies
    head_dim = 2 * len(frequencies)

    def plane(turns: float) -> float:
        return head_dim * math.log(train_length / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(math.floor(plane(32)), 0), float(min(math.ceil(plane(1)), head_dim - 1))
    if low == high:
        high += 0.001
    stretched = []
    for m, theta in enumerate(frequencies):
        turns = train_length * theta / (2 * math.pi)
        keep = (turns - 1) / (32 - 1) if ramp == "paper" else 1 - (m - low) / (high - low)
        keep = min(max(keep, 0.0), 1.0)
        stretched.append((1 - keep) * theta / stretch + keep * theta)
    return tuple(stretched)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _tables(
    frequencies: tuple[float, ...], temperature: float, rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    theta_M = torch.tensor(frequencies, dtype=torch.float64)
    angle_TM = torch.arange(rows, dtype=torch.float64)[:, None] * theta_M
    cos_TM, sin_TM = (angle_TM.cos() * temperature), (angle_TM.sin() * temperature)
    return cos_TM.to(dtype).to(device), sin_TM.to(dtype).to(device)


def _table_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def turn(x: Tensor, cos_TM: Tensor, sin_TM: Tensor) -> Tensor:
    """Rotate x [..., T, D] by tables [T, D/2]; contiguous, in the dtype of x. Differentiable by all three."""
    turned: Tensor = _Turn.apply(x, cos_TM, sin_TM)  # type: ignore[no-untyped-call]
    return turned


def heads(qkv_3BHTD: Tensor, tables: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key rotated by the tables (None: as they are), and value: each [B, H, T, D] and contiguous.

    One step from what a linear layer made, [B, T, 3, H, D] seen as [3, B, H, T, D], to what attention wants, and one
    back: the gradient comes in the layer's own order. Differentiable by the tables too.
    """
    if torch.compiler.is_compiling():
        return _plain_heads(qkv_3BHTD, tables)
    q, k, v = _Heads.apply(qkv_3BHTD, *(tables or (None, None)))  # type: ignore[no-untyped-call]
    return q, k, v


def _plain_heads(qkv_3BHTD: Tensor, tables: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """`heads` as the compiler wants it: it fuses and differentiates by itself."""
    q_BHTD, k_BHTD, v_BHTD = qkv_3BHTD.unbind()
    if tables is not None:
        q_BHTD, k_BHTD = (_plainly_turned(part, *tables) for part in (q_BHTD, k_BHTD))
    return q_BHTD.contiguous(), k_BHTD.contiguous(), v_BHTD.contiguous()


def _plainly_turned(x: Tensor, cos_TM: Tensor, sin_TM: Tensor) -> Tensor:
    first, second = x.to(cos_TM.dtype).chunk(2, -1)
    return torch.cat((first * cos_TM - second * sin_TM, second * cos_TM + first * sin_TM), -1).to(x.dtype)


class _Turn(torch.autograd.Function):
    """The gradient of a rotation is the rotation by the opposite angle: nothing of x is kept for constant tables."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos_TM: Tensor, sin_TM: Tensor) -> Tensor:
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:]) else None, cos_TM, sin_TM)
        return _turned(x, cos_TM, sin_TM)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        x, cos_TM, sin_TM = ctx.saved_tensors
        grad_x = _turned(grads[0], cos_TM, -sin_TM)
        return grad_x, *((None, None) if x is None else _table_gradients(x, grads[0], cos_TM.dtype))


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos_TM: Tensor | None, sin_TM: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(qkv if any(ctx.needs_input_grad[1:]) else None, cos_TM, sin_TM)
        out = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        if cos_TM is None or sin_TM is None:
            out.copy_(qkv)
        else:
            _turn_into(out[:2], qkv[:2], cos_TM, sin_TM)
            out[2] = qkv[2]
        return out[0], out[1], out[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        qkv, cos_TM, sin_TM = ctx.saved_tensors
        batch, count, length, width = grads[0].shape
        grad = grads[0].new_empty(batch, length, 3, count, width).permute(2, 0, 3, 1, 4)
        for part, given in zip(grad, grads, strict=True):
            if cos_TM is None or given is grads[2]:
                part.copy_(given)
            else:
                _turn_into(part, given, cos_TM, -sin_TM)
        if qkv is None:
            return grad, None, None
        return grad, *_table_gradients(qkv[:2], torch.stack(grads[:2]), cos_TM.dtype)


def _table_gradients(x: Tensor, grad: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    (first, second), (grad_first, grad_second) = (part.to(dtype).chunk(2, -1) for part in (x, grad))
    grad_cos = (grad_first * first + grad_second * second).flatten(0, -3).sum(0)
    grad_sin = (grad_second * first - grad_first * second).flatten(0, -3).sum(0)
    return grad_cos, grad_sin


def _turned(x: Tensor, cos_TM: Tensor, sin_TM: Tensor) -> Tensor:
    return _turn_into(torch.empty(x.shape, dtype=x.dtype, device=x.device), x, cos_TM, sin_TM)


def _turn_into(out: Tensor, x: Tensor, cos_TM: Tensor, sin_TM: Tensor) -> Tensor:
    """Write x, rotated, into `out`; in the precision of the tables."""
    if out.dtype != cos_TM.dtype:
        return out.copy_(_turned(x.to(cos_TM.dtype), cos_TM, sin_TM))
    (first, second), (out_first, out_second) = x.chunk(2, -1), out.chunk(2, -1)
    torch.mul(first, cos_TM, out=out_first)
    out_first.addcmul_(second, sin_TM, value=-1)
    torch.mul(second, cos_TM, out=out_second)
    out_second.addcmul_(first, sin_TM)
    return out


class RoPE(nn.Module):
    """Rotary position embedding (Su et al. 2021), no parameters; `stretch` turns YaRN on or off for evaluation."""

    def __init__(self, geometry: Geometry, generator: torch.Generator, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base
        self.train_length = geometry.train_length
        self.plain = rope_frequencies(geometry.head_dim, base)
        self.frequencies, self.temperature = self.plain, 1.0

    def stretch(self, length: int | None, ramp: str = "paper") -> None:
        """Use YaRN for windows of `length` tokens (static s = length / L); None returns to plain RoPE."""
        factor = 1.0 if length is None else length / self.train_length
        self.frequencies = yarn_frequencies(self.plain, self.base, self.train_length, factor, ramp)
        self.temperature = yarn_temperature(factor)

    def tables(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, D/2] for x [..., T, D], whose tokens stand at positions 0 .. T - 1."""
        length = x.shape[-2]
        # A power of two of rows, so that decoding token by token does not build a table a token.
        rows = 1 << (length - 1).bit_length()
        cos_TM, sin_TM = _tables(self.frequencies, self.temperature, rows, _table_dtype(x), x.device)
        return cos_TM[:length], sin_TM[:length]

    def forward(self, x: Tensor) -> Tensor:
        """Rotate x [..., T, D], whose tokens stand at positions 0 .. T - 1."""
        return turn(x, *self.tables(x))


class LearnedFrequencies(nn.Module):
    """GRAPE-M as trained in its source: RoPE with learned theta_m = exp(lambda_m / 16), one vector a layer (B.7.1)."""

    def __init__(self, geometry: Geometry, generator: torch.Generator, base: float = 10_000.0) -> None:
        super().__init__()
        start = [16 * math.log(theta) for theta in rope_frequencies(geometry.head_dim, base)]
        self.lambda_M = nn.Parameter(torch.tensor(start, dtype=torch.float32))

    def tables(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, D/2] for x [..., T, D], whose tokens stand at positions 0 .. T - 1."""
        i_T = torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)
        angle_TM = i_T[:, None] * torch.exp(self.lambda_M.double() / 16)
        dtype = _table_dtype(x)
        return angle_TM.cos().to(dtype), angle_TM.sin().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate x [..., T, D], whose tokens stand at positions 0 .. T - 1."""
        return turn(x, *self.tables(x))
