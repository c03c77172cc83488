"""Log-priors as the operator sees them: something that adds a block of biases and takes back a block of gradients.

Shape legend: B batch, H heads, T tokens, R query rows and S key columns of a block, N = B * H.

A caller may hand over None, a tensor broadcastable to [B, H, T, T], or an object `prior(i_R, j_S) -> [B or 1, H, R, S]`
with `tensors()` (what it may be differentiated by). Optional: `distance_form()` for biases that kernels may fuse, and
`isolated()`, which cuts per-token tensors from their history; without the cut a gradient would be counted twice, once
here and once by the graph that made those tensors.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

KINDS: dict[str, Callable[[Tensor], Tensor]] = {"log": torch.log1p, "linear": lambda distance: distance}


class DistanceLogPrior:
    """b[i, j] = -coefficient[h] * ln(1 + i - j) (kind "log") or -coefficient[h] * (i - j) (kind "linear").

    coefficient_H: one value a head, differentiable.
    """

    def __init__(self, kind: str, coefficient_H: Tensor) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind = {kind!r}: unknown distance prior; choose one of {', '.join(KINDS)}")
        if coefficient_H.dim() != 1:
            raise ValueError(f"coefficient_H has shape {tuple(coefficient_H.shape)}: give one value per head, [H]")
        self.kind = kind
        self.coefficient_H = coefficient_H

    def __call__(self, i_R: Tensor, j_S: Tensor) -> Tensor:
        """Biases [1, H, R, S]; pairs with j > i get the value of distance 0."""
        distance_RS = (i_R[:, None] - j_S[None, :]).clamp_min(0).to(self.coefficient_H.dtype)
        return -self.coefficient_H[None, :, None, None] * KINDS[self.kind](distance_RS)

    def tensors(self) -> tuple[Tensor, ...]:
        """What the biases may be differentiated by."""
        return (self.coefficient_H,)

    def distance_form(self) -> tuple[str, Tensor]:
        """("log" | "linear", coefficient [H])."""
        return self.kind, self.coefficient_H


class NoBias:
    """No log-prior."""

    tensors: tuple[Tensor, ...] = ()

    def add_to(self, scores_BHRS: Tensor, start: int) -> None:
        """Add the biases of rows start.. and columns 0.. in place."""

    def reset(self) -> None:
        """Forget all gradients: a graph may be walked more than once."""

    def accumulate(self, gradient_BHRS: Tensor, start: int) -> None:
        """Take the gradient of a block of biases."""

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Gradients of `tensors`, in their order."""
        return ()


class TensorBias(NoBias):
    """A bias given as one tensor, broadcastable to [B, H, T, T]."""

    def __init__(self, bias: Tensor, shape_BHT: tuple[int, int, int]) -> None:
        batch, heads, length = shape_BHT
        try:
            self.full = bias.detach().expand(batch, heads, length, length)
        except RuntimeError:
            raise ValueError(
                f"log_prior has shape {tuple(bias.shape)}: it must broadcast to [B, H, T, T] = "
                f"{[batch, heads, length, length]}"
            ) from None
        self.tensors = (bias,)
        self.reset()

    def reset(self) -> None:
        """Forget all gradients."""
        self._sum: Tensor | None = None

    def add_to(self, scores_BHRS: Tensor, start: int) -> None:
        """Add a view of the tensor."""
        rows, columns = scores_BHRS.shape[-2:]
        scores_BHRS += self.full[:, :, start : start + rows, :columns]

    def accumulate(self, gradient_BHRS: Tensor, start: int) -> None:
        """Sum over the broadcast dimensions as the blocks come in."""
        (bias,) = self.tensors
        if self._sum is None:
            self._sum = torch.zeros(bias.shape, dtype=gradient_BHRS.dtype, device=bias.device)
        target = self._sum.view((1,) * (4 - bias.dim()) + bias.shape)
        rows, columns = gradient_BHRS.shape[-2:]
        shared = [d for d in range(4) if target.shape[d] == 1]
        part = gradient_BHRS.sum(shared, keepdim=True) if shared else gradient_BHRS
        if target.shape[2] != 1:
            target = target[:, :, start : start + rows]
        if target.shape[3] != 1:
            target = target[..., :columns]
        target += part

    def gradients(self) -> tuple[Tensor | None, ...]:
        """One tensor, of the shape and dtype of the bias."""
        return (None if self._sum is None else self._sum.to(self.tensors[0].dtype),)


class DistanceBias(NoBias):
    """A bias of distance alone, from a table of T values."""

    def __init__(self, kind: str, coefficient_H: Tensor, length: int, dtype: torch.dtype) -> None:
        self.tensors = (coefficient_H,)
        distance = torch.arange(length, dtype=dtype, device=coefficient_H.device)
        self._table = KINDS[kind](distance)
        self._weight = -coefficient_H.detach().to(dtype)[:, None, None]
        self.reset()

    def reset(self) -> None:
        """Forget all gradients."""
        self._sum = torch.zeros_like(self._weight[:, 0, 0])

    def _shape_RS(self, rows: int, columns: int, start: int) -> Tensor:
        i_R = torch.arange(start, start + rows, device=self._table.device)
        j_S = torch.arange(columns, device=self._table.device)
        return self._table[(i_R[:, None] - j_S).clamp_min_(0)]

    def add_to(self, scores_BHRS: Tensor, start: int) -> None:
        """Look the distances up."""
        scores_BHRS.addcmul_(self._weight, self._shape_RS(scores_BHRS.shape[-2], scores_BHRS.shape[-1], start))

    def accumulate(self, gradient_BHRS: Tensor, start: int) -> None:
        """The coefficient gets -sum of gradient * f(distance)."""
        batch, heads, rows, columns = gradient_BHRS.shape
        shape = self._shape_RS(rows, columns, start).view(-1)
        self._sum -= (gradient_BHRS.reshape(batch, heads, -1) @ shape).sum(0)

    def gradients(self) -> tuple[Tensor | None, ...]:
        """One value a head."""
        return (self._sum.to(self.tensors[0].dtype),)


class BlockBias(NoBias):
    """A bias computed block by block by the caller's object, and differentiated block by block by autograd."""

    def __init__(self, prior: Any) -> None:
        tensors = tuple(prior.tensors())
        self.tensors = tensors
        if any(not tensor.is_leaf for tensor in tensors):
            if not hasattr(prior, "isolated"):
                raise TypeError(
                    f"{type(prior).__name__}.tensors() holds tensors with a history: give the log-prior a method "
                    "`isolated()` that returns it with those tensors cut off, or make them leaves"
                )
            prior = prior.isolated()
        self._prior = prior
        self._leaves = tuple(prior.tensors())
        self._wanted = [leaf for leaf in self._leaves if leaf.requires_grad]
        self.reset()

    def reset(self) -> None:
        """Forget all gradients."""
        self._sums: list[Tensor | None] = [None] * len(self._wanted)

    def _block(self, like_BHRS: Tensor, start: int) -> Tensor:
        rows, columns, device = like_BHRS.shape[-2], like_BHRS.shape[-1], like_BHRS.device
        i_R, j_S = torch.arange(start, start + rows, device=device), torch.arange(columns, device=device)
        block_BHRS: Tensor = self._prior(i_R, j_S)
        return block_BHRS

    def add_to(self, scores_BHRS: Tensor, start: int) -> None:
        """Ask for the block."""
        with torch.no_grad():
            scores_BHRS += self._block(scores_BHRS, start)

    def accumulate(self, gradient_BHRS: Tensor, start: int) -> None:
        """Rebuild the block with a graph and pull the gradient through it."""
        if not self._wanted:
            return
        with torch.enable_grad():
            block = self._block(gradient_BHRS, start)
        if not block.requires_grad:
            return
        if block.shape[0] == 1 and gradient_BHRS.shape[0] != 1:
            gradient_BHRS = gradient_BHRS.sum(0, keepdim=True)
        parts = torch.autograd.grad(block, self._wanted, gradient_BHRS.to(block.dtype), allow_unused=True)
        self._sums = [
            total if part is None else part if total is None else total + part
            for total, part in zip(self._sums, parts, strict=True)
        ]

    def gradients(self) -> tuple[Tensor | None, ...]:
        """In the order of the prior's `tensors()`."""
        sums = iter(self._sums)
        return tuple(next(sums) if leaf.requires_grad else None for leaf in self._leaves)


class BlockPrior(Protocol):
    """What a log-prior object must offer."""

    def __call__(self, i_R: Tensor, j_S: Tensor) -> Tensor:
        """Biases [B or 1, H, R, S] of these rows and columns; finite where j > i, where they are not used."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """What the biases may be differentiated by."""
        ...


LogPriorLike = None | Tensor | BlockPrior


def distance_form(log_prior: LogPriorLike) -> tuple[str, Tensor] | None:
    """("log" | "linear", coefficient [H]) if the prior depends on distance alone and says so."""
    form = getattr(log_prior, "distance_form", None)
    return None if form is None else form()


def as_bias(log_prior: LogPriorLike, shape_BHT: tuple[int, int, int], dtype: torch.dtype) -> NoBias:
    """Wrap a log-prior for block-wise use."""
    if log_prior is None:
        return NoBias()
    if isinstance(log_prior, Tensor):
        return TensorBias(log_prior, shape_BHT)
    form = distance_form(log_prior)
    if form is not None:
        kind, coefficient_H = form
        if kind not in KINDS:
            raise ValueError(f"distance_form() names {kind!r}: unknown kind; choose one of {', '.join(KINDS)}")
        if coefficient_H.shape != (shape_BHT[1],):
            raise ValueError(f"coefficient has shape {tuple(coefficient_H.shape)}: it must be [H] = [{shape_BHT[1]}]")
        return DistanceBias(kind, coefficient_H, shape_BHT[2], dtype)
    return BlockBias(log_prior)


def materialised(log_prior: LogPriorLike, shape_BHT: tuple[int, int, int], device: torch.device) -> Tensor | None:
    """The whole bias, differentiable, broadcastable to [B, H, T, T]: for the reference and the sweeps only."""
    if log_prior is None or isinstance(log_prior, Tensor):
        return log_prior
    every = torch.arange(shape_BHT[2], device=device)
    return log_prior(every, every)
