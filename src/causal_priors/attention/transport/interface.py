"""The one door to the operator: checks, the choice of an implementation, and the rows of the plan.

Shape legend: B batch, H heads, T tokens, D head dim, R rows asked for.
"""

import importlib.util
import logging
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from . import blocked, reference, sweeps
from .prior import LogPriorLike, distance_form, materialised

log = logging.getLogger(__name__)

SOLVERS = ("exact", "sweeps")
IMPLEMENTATIONS = ("auto", "reference", "blocked", "triton")
TRITON_WIDTHS = (16, 128)


@dataclass(frozen=True)
class Choice:
    """The implementation that `impl="auto"` takes for given inputs, and why."""

    name: str
    reason: str


def check_strength(strength: float) -> float:
    """Refuse a balancing strength outside [0, 1)."""
    if isinstance(strength, Tensor):
        raise TypeError("strength is a tensor: give a number; the operator is not differentiated by its strength")
    if math.isnan(strength):
        raise ValueError("strength is NaN: give a number in [0, 1)")
    if strength < 0:
        raise ValueError(f"strength = {strength}: a negative strength rewards keys for mass they have; use [0, 1)")
    if strength >= 1:
        raise ValueError(
            f"strength = {strength}: at 1 the causal mask leaves the identity as the only plan, and the row equation "
            "loses its unique solution; use [0, 1)"
        )
    return float(strength)


def check_inputs(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor | None = None) -> None:
    """Refuse tensors that are not [B, H, T, D] of one float type."""
    named = {"q": q_BHTD, "k": k_BHTD} | ({} if v_BHTD is None else {"v": v_BHTD})
    for name, x in named.items():
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: it must be [B, H, T, D]")
        if not x.is_floating_point() or x.dtype == torch.float16:
            raise TypeError(f"{name} is {x.dtype}: use float32, bfloat16 or float64")
        if x.dtype != q_BHTD.dtype:
            raise TypeError(f"{name} is {x.dtype} but q is {q_BHTD.dtype}: use one dtype")
    if k_BHTD.shape != q_BHTD.shape:
        raise ValueError(f"q is {tuple(q_BHTD.shape)} but k is {tuple(k_BHTD.shape)}: they must agree")
    if v_BHTD is not None and v_BHTD.shape[:3] != q_BHTD.shape[:3]:
        raise ValueError(f"q is {tuple(q_BHTD.shape)} but v is {tuple(v_BHTD.shape)}: B, H and T must agree")
    if q_BHTD.shape[2] == 0 or q_BHTD.shape[3] == 0:
        raise ValueError(f"q is {tuple(q_BHTD.shape)}: T and D must be at least 1")


def why_not_triton(q_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike) -> str | None:
    """The reason why the kernels cannot take these inputs; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if q_BHTD.dtype == torch.float64:
        return "the kernels compute in float32"
    if q_BHTD.shape[-1] != v_BHTD.shape[-1]:
        return "the kernels want q and v of one head dim"
    if not TRITON_WIDTHS[0] <= q_BHTD.shape[-1] <= TRITON_WIDTHS[1]:
        return f"the kernels want a head dim from {TRITON_WIDTHS[0]} to {TRITON_WIDTHS[1]}"
    if log_prior is not None and (isinstance(log_prior, Tensor) or distance_form(log_prior) is None):
        return "the kernels fuse log-priors of distance alone (log, linear, none)"
    return None


def choose(q_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, solver: str = "exact") -> Choice:
    """What `impl="auto"` takes."""
    if solver == "sweeps":
        return Choice("reference", "sweeps are an ablation with one implementation, whole matrices in PyTorch")
    if not q_BHTD.is_cuda:
        return Choice("blocked", "no GPU tensor")
    obstacle = why_not_triton(q_BHTD, v_BHTD, log_prior)
    return Choice("triton", "GPU tensor and a fused log-prior") if obstacle is None else Choice("blocked", obstacle)


@cache
def _report(choice: Choice) -> None:
    log.info("transport attention: impl=auto takes %s (%s)", choice.name, choice.reason)


def transport_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_prior: LogPriorLike = None,
    strength: float,
    solver: str = "exact",
    iterations: int | None = None,
    impl: str = "auto",
    return_potentials: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal optimal-transport attention: sum_j P[i,j] v[j] with the plan P of `reference.py`.

    q, k: [B, H, T, D]; v: [B, H, T, any]. Scores are q.k / sqrt(D) + log_prior, computed in float32 (float64 for
    float64 inputs); the output has v's shape and dtype. log_prior: None, a tensor broadcastable to [B, H, T, T], or an
    object as in `prior.py`; gradients reach q, k, v and the log-prior. strength in [0, 1); 0 is softmax.

    solver: "exact", or "sweeps" with `iterations` whole-matrix sweeps (the ablation). impl: "auto" logs its choice once
    (`choose` tells it beforehand); a named implementation that cannot take the inputs refuses, it never hands over to
    another. return_potentials: also return a [B, H, T], which carries no gradient under the exact solver.

    Raises ValueError or TypeError with the reason for inputs it cannot take.
    """
    strength = check_strength(strength)
    check_inputs(q, k, v)
    if solver not in SOLVERS:
        raise ValueError(f"solver = {solver!r}: choose one of {', '.join(SOLVERS)}")
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl = {impl!r}: choose one of {', '.join(IMPLEMENTATIONS)}")
    if (solver == "sweeps") != (iterations is not None):
        raise ValueError(f"iterations = {iterations} with solver = {solver!r}: sweeps need a number, exact takes none")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations = {iterations}: at least one sweep")
    if impl == "auto":
        choice = choose(q, v, log_prior, solver)
        _report(choice)
        impl = choice.name
    if solver == "sweeps" and impl != "reference":
        raise ValueError(f"impl = {impl!r} has no sweeps: use impl='reference' or 'auto'")
    out, potentials = _run(impl, q, k, v, log_prior, strength, iterations)
    return (out, potentials) if return_potentials else out


def _run(
    impl: str, q: Tensor, k: Tensor, v: Tensor, log_prior: LogPriorLike, strength: float, iterations: int | None
) -> tuple[Tensor, Tensor]:
    if impl == "blocked":
        return blocked.attention(q, k, v, log_prior, strength)
    if impl == "triton":
        obstacle = why_not_triton(q, v, log_prior)
        if obstacle is not None:
            raise ValueError(f"impl = 'triton': {obstacle}; use impl='blocked'")
        from . import triton_attention

        return triton_attention.attention(q, k, v, log_prior, strength)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    bias = materialised(log_prior, (q.shape[0], q.shape[1], q.shape[2]), q.device)
    q, k, values = q.to(wide), k.to(wide), v.to(wide)
    if iterations is None:
        out, potentials = reference.attention(q, k, values, bias, strength)
    else:
        out, potentials = sweeps.attention(q, k, values, bias, strength, iterations)
    return out.to(v.dtype), potentials


def plan_rows(q: Tensor, k: Tensor, log_prior: LogPriorLike, strength: float, rows: Tensor) -> Tensor:
    """Rows of the exact plan P [B, H, R, T] for the query positions in `rows` (int64 [R]); no gradients.

    Solves the potentials of all rows up to the last one asked for, by the block; nothing of size T x T is held.
    """
    check_inputs(q, k)
    plan_BHRT: Tensor
    plan_BHRT, _ = blocked.plan_rows(q, k, None, log_prior, check_strength(strength), _check_rows(rows, q.shape[2]))
    return plan_BHRT


def output_and_plan_rows(
    q: Tensor, k: Tensor, v: Tensor, log_prior: LogPriorLike, strength: float, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention output [B, H, T, D] of every row, and `plan_rows`, from one solution; no gradients."""
    check_inputs(q, k, v)
    plan_BHRT, out_BHTD = blocked.plan_rows(q, k, v, log_prior, check_strength(strength), _check_rows(rows, q.shape[2]))
    return out_BHTD, plan_BHRT


def _check_rows(rows: Tensor, length: int) -> Tensor:
    if rows.dim() != 1 or len(rows) == 0 or rows.is_floating_point():
        raise ValueError(f"rows has shape {tuple(rows.shape)} and dtype {rows.dtype}: give integers [R], at least one")
    if int(rows.min()) < 0 or int(rows.max()) >= length:
        raise ValueError(f"rows run from {int(rows.min())} to {int(rows.max())}: they must lie in 0..{length - 1}")
    return rows
