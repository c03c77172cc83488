"""The operator by blocks of rows in PyTorch: exact, differentiated implicitly, memory linear in T.

Shape legend: N problems (B batch x H heads), T tokens, D head dim, R rows and S keys of a block (keys 0 .. last row).

Forward: blocks in order, carrying log C; each block is solved by Newton (newton.py) and accumulates P V.
Backward: blocks in reverse, carrying E * C (bounded, where E alone would overflow); no T x T tensor is kept. The
carries at block starts are recomputed from the stored potentials, never subtracted backwards (that cancels). KEPT of
them are kept at a time: this costs one more pass over the scores for every factor KEPT in the number of blocks.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .newton import BlockSolver, Solved
from .prior import LogPriorLike, NoBias, as_bias

# Carries kept at a time at each level of the backward pass.
KEPT = 16
ROWS_FORWARD, ROWS_BACKWARD = 32, 32


class Problem:
    """Scores by the block: q (scaled), k and the log-prior."""

    def __init__(
        self, q_BHTD: Tensor, k_BHTD: Tensor, bias: NoBias, strength: float, scaled: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.batch = q_BHTD.shape[0]
        if scaled is None:
            scaled = _flat(q_BHTD) * q_BHTD.shape[-1] ** -0.5, _flat(k_BHTD)
        self.q_NTD, self.k_NTD = scaled
        self.bias, self.solver = bias, BlockSolver(self.q_NTD, strength)

    def by_head(self, block_NRS: Tensor) -> Tensor:
        """View [N, R, S] as [B, H, R, S]."""
        return block_NRS.view(self.batch, -1, *block_NRS.shape[1:])

    def scores(self, start: int, stop: int) -> Tensor:
        """Scores of rows start..stop against keys 0..stop [N, R, S], minus infinity above the diagonal."""
        q_NRD, k_NSD = self.q_NTD[:, start:stop], self.k_NTD[:, :stop]
        scores_NRS = self.solver.scratch.get("scores", (len(q_NRD), stop - start, stop))
        torch.bmm(q_NRD, k_NSD.mT, out=scores_NRS)
        self.bias.add_to(self.by_head(scores_NRS), start)
        scores_NRS[:, :, start:] += self.solver.constants(stop - start).closed_RR
        return scores_NRS

    def solve(self, length: int) -> Iterator[tuple[int, int, Solved, Tensor]]:
        """Solve rows 0..length in order: (start, stop, solved, log C after them). All of it lives until the next."""
        carry_NT = self.q_NTD.new_empty(len(self.q_NTD), length)
        last_N1: Tensor | None = None
        start, rows = 0, ROWS_FORWARD
        while start < length:
            # Blocks end at multiples of ROWS_FORWARD, also after one that had to be halved.
            stop = min(start + rows, start - start % ROWS_FORWARD + ROWS_FORWARD, length)
            solved = self.solver.solve(self.scores(start, stop), carry_NT[:, :stop], last_N1)
            if solved is None:
                rows = (stop - start) // 2
                continue
            last_N1 = solved.a_NR[:, -1:]
            yield start, stop, solved, carry_NT[:, :stop]
            start, rows = stop, min(2 * rows, ROWS_FORWARD)

    def carry_after(self, start: int, stop: int, carry_NS: Tensor, a_NT: Tensor) -> Tensor:
        """Carry log C after rows start..stop, from the carry before them and the known potentials."""
        scores_NRS = self.scores(start, stop)
        scores_NRS += a_NT[:, start:stop, None]
        gained_NS = torch.logsumexp(scores_NRS, 1)
        torch.logaddexp(gained_NS[:, :start], carry_NS, out=gained_NS[:, :start])
        return gained_NS


def _flat(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D] as contiguous [N, T, D], in float32 or wider."""
    wide = x_BHTD if x_BHTD.dtype == torch.float64 else x_BHTD.float()
    return wide.flatten(0, 1).contiguous()


def _apply(solved: Solved, values_NSD: Tensor) -> Tensor:
    """P V for a block."""
    return torch.bmm(solved.plan_NRS, values_NSD).div_(solved.sums_NR[:, :, None])


def _mark_every(length: int) -> int:
    """Rows between the carries that the forward pass keeps."""
    return -(-length // (ROWS_BACKWARD * KEPT)) * ROWS_BACKWARD


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, bias: NoBias, strength: float, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        length = q_BHTD.shape[2]
        problem, v_NTD = Problem(q_BHTD, k_BHTD, bias, strength), _flat(v_BHTD)
        out_NTD = torch.empty_like(v_NTD)
        a_NT = v_NTD.new_empty(len(v_NTD), length)
        marks, every = [], _mark_every(length)
        for start, stop, solved, carry_NS in problem.solve(length):
            a_NT[:, start:stop] = solved.a_NR
            out_NTD[:, start:stop] = _apply(solved, v_NTD[:, :stop])
            if stop % every == 0 and stop < length:
                marks.append(carry_NS.clone())
        ctx.save_for_backward(problem.q_NTD, problem.k_NTD, v_NTD, out_NTD, a_NT, *marks)
        ctx.bias, ctx.strength = bias, strength
        ctx.shapes = q_BHTD.shape, v_BHTD.shape, q_BHTD.dtype, k_BHTD.dtype, v_BHTD.dtype
        a_BHT = a_NT.view(q_BHTD.shape[:3])
        ctx.mark_non_differentiable(a_BHT)
        return out_NTD.view(v_BHTD.shape).to(v_BHTD.dtype), a_BHT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_BHTD: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q_NTD, k_NTD, v_NTD, out_NTD, a_NT, *marks = ctx.saved_tensors
        q_shape, v_shape, q_type, k_type, v_type = ctx.shapes
        ctx.bias.reset()
        problem = Problem(dout_BHTD, dout_BHTD, ctx.bias, ctx.strength, (q_NTD, k_NTD))
        sweep = _Reverse(problem, v_NTD, out_NTD, a_NT, _flat(dout_BHTD))
        sweep.run(marks)
        dq_BHTD = sweep.dq_NTD.mul_(q_shape[-1] ** -0.5).view(q_shape).to(q_type)
        dk_BHTD, dv_BHTD = sweep.dk_NTD.view(q_shape).to(k_type), sweep.dv_NTD.view(v_shape).to(v_type)
        return dq_BHTD, dk_BHTD, dv_BHTD, None, None, *ctx.bias.gradients()


class _Reverse:
    """The backward sweep (operator.md, implicit differentiation), with dP shifted by its mean under P.

    The shift takes delta[i] = sum_j P dP out of dP and out of r: the r that remains is small, and less cancels.
    """

    def __init__(self, problem: Problem, v_NTD: Tensor, out_NTD: Tensor, a_NT: Tensor, dout_NTD: Tensor) -> None:
        self.problem, self.v_NTD, self.a_NT, self.dout_NTD = problem, v_NTD, a_NT, dout_NTD
        self.delta_NT = (dout_NTD * out_NTD).sum(-1)
        self.dq_NTD, self.dk_NTD = torch.empty_like(problem.q_NTD), torch.zeros_like(problem.k_NTD)
        self.dv_NTD = torch.zeros_like(v_NTD)
        # E[j] * C[j] of the rows after the current block.
        self.pull_NT = torch.zeros_like(a_NT)

    def run(self, marks: list[Tensor]) -> None:
        """All rows, last to first; marks: the carries that the forward pass kept."""
        length = self.a_NT.shape[1]
        every = _mark_every(length)
        for index in reversed(range(len(marks) + 1)):
            start = index * every
            self._span(start, min(start + every, length), marks[index - 1] if index else self.a_NT[:, :0])

    def _span(self, start: int, stop: int, carry_NS: Tensor) -> None:
        """Rows start..stop: block by block if KEPT blocks cover them, else by KEPT spans."""
        every = -(-(stop - start) // (ROWS_BACKWARD * KEPT)) * ROWS_BACKWARD
        starts, carries = [start], [carry_NS]
        for at in range(start, stop - ROWS_BACKWARD, ROWS_BACKWARD):
            carry_NS = self.problem.carry_after(at, at + ROWS_BACKWARD, carry_NS, self.a_NT)
            if (at + ROWS_BACKWARD - start) % every == 0:
                starts.append(at + ROWS_BACKWARD)
                carries.append(carry_NS)
        while starts:
            start = starts.pop()
            (self._block if every == ROWS_BACKWARD else self._span)(start, stop, carries.pop())
            stop = start

    def _block(self, start: int, stop: int, carry_NS: Tensor) -> None:
        problem, strength = self.problem, self.problem.solver.strength
        f = problem.solver.factors(problem.scores(start, stop), carry_NS, self.a_NT[:, start:stop])
        if f is None:
            middle = (start + stop) // 2
            self._block(middle, stop, problem.carry_after(start, middle, carry_NS, self.a_NT))
            self._block(start, middle, carry_NS)
            return
        scratch, small, shape_NRS, dtype = (
            f.solver.scratch,
            f.solver.constants(stop - start),
            f.mass_NRS.shape,
            f.mass_NRS.dtype,
        )
        overlap_NXR = torch.bmm(f.rows_NXS, f.weight_NRS.mT)
        # Row sums of P: one, up to the rounding of a. Dividing by them keeps that rounding out of r.
        norm_NR = (overlap_NXR * small.ahead_XR).sum(1).reciprocal_()
        dout_NRD = self.dout_NTD[:, start:stop] * norm_NR[:, :, None]
        # Y = (dP - delta - r) P / C, first without r; its last row is what later rows pull on this block's columns.
        y_NXS = scratch.get("y", f.rows_NXS.shape)
        y_NRS = y_NXS[:, :-1]
        torch.div(self.pull_NT[:, :stop].to(dtype), f.mass_NRS[:, -1], out=y_NXS[:, -1])
        dp_NRS = torch.bmm(dout_NRD, self.v_NTD[:, :stop].to(dtype).mT, out=scratch.get("scaled", shape_NRS))
        dp_NRS -= (self.delta_NT[:, start:stop] * norm_NR)[:, :, None]
        torch.mul(dp_NRS, f.weight_NRS, out=y_NRS)
        # (I - strength A)^T r = row sums of P (dP - delta) - strength * (what row k's mass does to the rows behind).
        pulls_NXX = torch.bmm(f.rows_NXS, y_NXS.mT)
        right_NR = (pulls_NXX[:, :, :-1] * small.ahead_XR).sum(1)
        right_NR -= strength * (pulls_NXX[:, 1:] * small.behind_RX).sum(2)
        jacobian_NRR = torch.addcmul(small.identity_RR, overlap_NXR[:, 1:], norm_NR[:, None], value=-strength)
        r_NR = torch.linalg.solve_triangular(jacobian_NRR, right_NR[:, :, None], upper=True)[:, :, 0]
        y_NRS.addcmul_(f.weight_NRS, (r_NR * norm_NR)[:, :, None], value=-1)
        pull_NRS = torch.bmm(small.behind_RX.expand(shape_NRS[0], -1, -1), y_NXS, out=dp_NRS)
        self.pull_NT[:, :stop] = pull_NRS[:, 0] * f.rows_NXS[:, 0]
        dscores_NRS = y_NRS.mul_(f.mass_NRS).addcmul_(pull_NRS, f.rows_NXS[:, 1:], value=-strength)
        # Out of the wider type, if it was one, and contiguous.
        dscores_NRS = problem.solver.scratch.get("scores", shape_NRS).copy_(dscores_NRS)
        problem.bias.accumulate(problem.by_head(dscores_NRS), start)
        self.dq_NTD[:, start:stop] = torch.bmm(dscores_NRS, problem.k_NTD[:, :stop])
        self.dk_NTD[:, :stop].baddbmm_(dscores_NRS.mT, problem.q_NTD[:, start:stop])
        plan_NRS, kind = f.mass_NRS.mul_(f.weight_NRS), self.dv_NTD.dtype
        self.dv_NTD[:, :stop].baddbmm_(plan_NRS.to(kind).mT, dout_NRD.to(kind))


def attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and potentials [B, H, T]."""
    bias = _bias(q_BHTD, log_prior)
    out: tuple[Tensor, Tensor] = _Blocked.apply(q_BHTD, k_BHTD, v_BHTD, bias, strength, *bias.tensors)  # type: ignore[no-untyped-call]
    return out


def _bias(q_BHTD: Tensor, log_prior: LogPriorLike) -> NoBias:
    batch, heads, length, _ = q_BHTD.shape
    dtype = torch.float64 if q_BHTD.dtype == torch.float64 else torch.float32
    return as_bias(log_prior, (batch, heads, length), dtype)


@torch.no_grad()
def forward_with_carry(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and log C after the last row [B, H, T]: the state that decoding goes on from."""
    problem, v_NTD = Problem(q_BHTD, k_BHTD, _bias(q_BHTD, log_prior), strength), _flat(v_BHTD)
    out_NTD = torch.empty_like(v_NTD)
    carry_NT = out_NTD.new_empty(0)
    for start, stop, solved, carry_NS in problem.solve(q_BHTD.shape[2]):
        out_NTD[:, start:stop] = _apply(solved, v_NTD[:, :stop])
        carry_NT = carry_NS
    return out_NTD.view(v_BHTD.shape).to(v_BHTD.dtype), carry_NT.reshape(q_BHTD.shape[:3])


@torch.no_grad()
def plan_rows(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor | None, log_prior: LogPriorLike, strength: float, rows_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows of the plan P [B, H, R, T], in the order asked for; with v, also the output [B, H, T, D] of all rows."""
    problem = Problem(q_BHTD, k_BHTD, _bias(q_BHTD, log_prior), strength)
    batch, heads, length, _ = q_BHTD.shape
    v_BHTD = q_BHTD[..., :0] if v_BHTD is None else v_BHTD
    v_NTD = _flat(v_BHTD)
    out_NTD = torch.empty_like(v_NTD)
    plan_NRT = problem.q_NTD.new_zeros(batch * heads, len(rows_R), length)
    for start, stop, solved, _carry in problem.solve(length if v_NTD.shape[-1] else int(rows_R.max()) + 1):
        (asked,) = torch.nonzero((rows_R >= start) & (rows_R < stop), as_tuple=True)
        inside = rows_R[asked] - start
        plan_NRT[:, asked, :stop] = solved.plan_NRS[:, inside] / solved.sums_NR[:, inside, None]
        if v_NTD.shape[-1]:
            out_NTD[:, start:stop] = _apply(solved, v_NTD[:, :stop])
    return plan_NRT.view(batch, heads, len(rows_R), length), out_NTD.view(v_BHTD.shape).to(v_BHTD.dtype)
