"""The operator by blocks of rows in PyTorch: exact, differentiated implicitly, memory linear in T.

Shape legend: N problems (B batch x H heads), T tokens, D head dim, R rows and S keys of a block (keys 0 .. last row).

Forward: blocks in order, carrying log C; each block is solved by Newton (newton.py) and accumulates P V.
Backward: blocks in reverse, carrying E * C (bounded, where E alone would overflow); no T x T tensor is kept. The
carries at block starts are recomputed from the stored potentials, never subtracted backwards (that cancels); KEPT of them
are kept at a time, so that this costs one more pass over the scores for every factor KEPT in the number of blocks.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .newton import BlockSolver, Factors
from .prior import LogPriorLike, NoBias, as_bias

# Carries kept at a time at each level of the backward pass.
KEPT = 16


def rows_per_block(length: int) -> int:
    """Rows solved together."""
    return min(length, 32)


class Problem:
    """Scores by the block: q (scaled), k and the log-prior."""

    def __init__(self, q_NTD: Tensor, k_NTD: Tensor, bias: NoBias, batch: int, solver: BlockSolver) -> None:
        self.q_NTD, self.k_NTD, self.bias, self.batch, self.solver = q_NTD, k_NTD, bias, batch, solver

    def by_head(self, block_NRS: Tensor) -> Tensor:
        """View [N, R, S] as [B, H, R, S]."""
        return block_NRS.view(self.batch, -1, *block_NRS.shape[1:])

    def scores(self, start: int, stop: int) -> Tensor:
        """Scores of rows start..stop against keys 0..stop [N, R, S], minus infinity above the diagonal."""
        q_NRD, k_NSD = self.q_NTD[:, start:stop], self.k_NTD[:, :stop]
        scores_NRS = self.solver.scratch.get("scores", len(q_NRD), stop - start, stop)
        torch.bmm(q_NRD, k_NSD.mT, out=scores_NRS)
        self.bias.add_to(self.by_head(scores_NRS), start)
        scores_NRS[:, :, start:] += self.solver.closed(stop - start)
        return scores_NRS

    def solve(self, rows: int, length: int) -> Iterator[tuple[int, int, Factors]]:
        """Solve rows 0..length in order; yields (start, stop, factors). The factors live until the next block."""
        carry_NS = self.q_NTD.new_empty(len(self.q_NTD), 0)
        last_N1: Tensor | None = None
        waiting = [(start, min(start + rows, length)) for start in range(0, length, rows)][::-1]
        while waiting:
            start, stop = waiting.pop()
            solved = self.solver.solve(self.scores(start, stop), carry_NS, last_N1)
            if solved is None:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            carry_NS, last_N1 = solved.carry_out(), solved.a_NR[:, -1:]
            yield start, stop, solved

    def carry_after(self, start: int, stop: int, carry_NS: Tensor, a_NT: Tensor) -> Tensor:
        """Carry log C after rows start..stop, from the carry before them and the known potentials."""
        scores_NRS = self.scores(start, stop)
        scores_NRS += a_NT[:, start:stop, None]
        gained_NS = torch.logsumexp(scores_NRS, 1)
        gained_NS[:, :start] = torch.logaddexp(gained_NS[:, :start], carry_NS)
        return gained_NS


def _apply(solved: Factors, values_NSD: Tensor) -> Tensor:
    """P V for a block; leaves P, up to its row factor, where G was."""
    plan_NRS = solved.mass_NRS.mul_(solved.weight_NRS)
    out_NRD = torch.bmm(plan_NRS, values_NSD)
    return out_NRD if solved.row_NR is None else out_NRD.mul_(solved.row_NR[:, :, None])


def _flat(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D] as contiguous [N, T, D], in float32 or wider."""
    wide = x_BHTD if x_BHTD.dtype == torch.float64 else x_BHTD.float()
    return wide.reshape(-1, *x_BHTD.shape[-2:]).contiguous()


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, bias: NoBias, strength: float, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch, heads, length, width = q_BHTD.shape
        q_NTD = _flat(q_BHTD) * width**-0.5
        k_NTD, v_NTD = _flat(k_BHTD), _flat(v_BHTD)
        problem = Problem(q_NTD, k_NTD, bias, batch, BlockSolver(q_NTD, strength))
        out_NTD = torch.empty_like(v_NTD)
        a_NT = q_NTD.new_empty(len(q_NTD), length)
        borders, marks = [0], {}
        rows = rows_per_block(length)
        every = -(-length // (rows * KEPT)) * rows
        for start, stop, solved in problem.solve(rows, length):
            if start and start // every != borders[-2] // every:
                marks[start] = solved.carry_NS
            a_NT[:, start:stop] = solved.a_NR
            out_NTD[:, start:stop] = _apply(solved, v_NTD[:, :stop])
            borders.append(stop)
        ctx.save_for_backward(q_NTD, k_NTD, v_NTD, out_NTD, a_NT, *marks.values())
        ctx.marks, ctx.borders, ctx.bias, ctx.strength = tuple(marks), borders, bias, strength
        ctx.shapes = q_BHTD.shape, v_BHTD.shape, q_BHTD.dtype, k_BHTD.dtype, v_BHTD.dtype
        a_BHT = a_NT.view(batch, heads, length)
        ctx.mark_non_differentiable(a_BHT)
        return out_NTD.view(v_BHTD.shape).to(v_BHTD.dtype), a_BHT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_BHTD: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q_NTD, k_NTD, v_NTD, out_NTD, a_NT, *marks = ctx.saved_tensors
        q_shape, v_shape, q_type, k_type, v_type = ctx.shapes
        ctx.bias.reset()
        problem = Problem(q_NTD, k_NTD, ctx.bias, q_shape[0], BlockSolver(q_NTD, ctx.strength))
        sweep = _Reverse(problem, v_NTD, out_NTD, a_NT, _flat(dout_BHTD))
        sweep.run(ctx.borders, a_NT[:, :0], dict(zip(ctx.marks, marks, strict=True)))
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

    def run(self, borders: list[int], carry_NS: Tensor, marks: dict[int, Tensor]) -> None:
        """All blocks between the borders, last to first, from the carry at the first; marks: carries known at some."""
        if len(borders) == 2:
            self._block(borders[0], borders[1], carry_NS)
            return
        if not marks:
            marks = self._carries(borders, carry_NS)
        starts = [borders[0], *marks]
        carries = [carry_NS, *marks.values()]
        for start, stop, carry in reversed(list(zip(starts, [*starts[1:], borders[-1]], carries, strict=True))):
            self.run([border for border in borders if start <= border <= stop], carry, {})

    def _carries(self, borders: list[int], carry_NS: Tensor) -> dict[int, Tensor]:
        """At most KEPT carries, evenly spread over the borders."""
        group = -(-(len(borders) - 1) // KEPT)
        marks = {}
        for index in range(1, len(borders) - 1):
            carry_NS = self.problem.carry_after(borders[index - 1], borders[index], carry_NS, self.a_NT)
            if index % group == 0:
                marks[borders[index]] = carry_NS
        return marks

    def _block(self, start: int, stop: int, carry_NS: Tensor) -> None:
        problem, solver, strength = self.problem, self.problem.solver, self.problem.solver.strength
        rows = stop - start
        f = solver.factors(problem.scores(start, stop), carry_NS, self.a_NT[:, start:stop])
        ahead_RX, _, identity_RR = solver.constants(rows)
        behind_XR = torch.cat([ahead_RX[:, 1:], ahead_RX[:1, :1].expand(1, rows)])
        shape_NRS = f.mass_NRS.shape
        overlap_NRX = torch.bmm(f.weight_NRS, f.rows_NXS.mT)
        # Row sums of P: one, up to the rounding of a. Dividing by them keeps that rounding out of r.
        norm_NR1 = (overlap_NRX * ahead_RX).sum(-1, keepdim=True).reciprocal_()
        dout_NRD = self.dout_NTD[:, start:stop] * norm_NR1
        # Y = (dP - delta - r) P / C, first without r; its last row is what later rows pull on this block's columns.
        y_NXS = solver.scratch.get("y", shape_NRS[0], rows + 1, stop)
        y_NRS = y_NXS[:, :-1]
        torch.div(self.pull_NT[:, :stop], f.mass_NRS[:, -1], out=y_NXS[:, -1])
        dp_NRS = torch.bmm(dout_NRD, self.v_NTD[:, :stop].mT, out=solver.scratch.get("scaled", *shape_NRS))
        dp_NRS -= self.delta_NT[:, start:stop, None] * norm_NR1
        torch.mul(dp_NRS, f.weight_NRS, out=y_NRS)
        # (I - strength A)^T r = row sums of P (dP - delta) - strength * (what row k's mass does to the rows behind).
        pulls_NXX = torch.bmm(y_NXS, f.rows_NXS.mT)
        right_NR = (pulls_NXX[:, :-1] * ahead_RX).sum(-1) - strength * (pulls_NXX[:, :, 1:] * behind_XR).sum(1)
        jacobian_NRR = identity_RR - (strength * norm_NR1) * overlap_NRX[:, :, 1:]
        r_NR1 = torch.linalg.solve_triangular(jacobian_NRR.mT, right_NR[:, :, None], upper=True)
        y_NRS.addcmul_(f.weight_NRS, r_NR1 * norm_NR1, value=-1)
        pull_NRS = torch.bmm(behind_XR.mT.expand(shape_NRS[0], -1, -1), y_NXS, out=dp_NRS)
        torch.mul(pull_NRS[:, 0], f.rows_NXS[:, 0], out=self.pull_NT[:, :stop])
        dscores_NRS = torch.mul(y_NRS, f.mass_NRS, out=solver.scratch.get("scores", *shape_NRS))
        dscores_NRS.addcmul_(pull_NRS, f.rows_NXS[:, 1:], value=-strength)
        problem.bias.accumulate(problem.by_head(dscores_NRS), start)
        self.dq_NTD[:, start:stop] = torch.bmm(dscores_NRS, problem.k_NTD[:, :stop])
        self.dk_NTD[:, :stop].baddbmm_(dscores_NRS.mT, problem.q_NTD[:, start:stop])
        self.dv_NTD[:, :stop].baddbmm_(f.mass_NRS.mul_(f.weight_NRS).mT, dout_NRD)


def attention(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and potentials [B, H, T]."""
    dtype = torch.float64 if q_BHTD.dtype == torch.float64 else torch.float32
    batch, heads, length, _ = q_BHTD.shape
    bias = as_bias(log_prior, (batch, heads, length), dtype)
    out: tuple[Tensor, Tensor] = _Blocked.apply(q_BHTD, k_BHTD, v_BHTD, bias, strength, *bias.tensors)
    return out


@torch.no_grad()
def forward_with_carry(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, log_prior: LogPriorLike, strength: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and log C after the last row [B, H, T]: the state that decoding goes on from."""
    batch, heads, length, width = q_BHTD.shape
    q_NTD, k_NTD, v_NTD = _flat(q_BHTD) * width**-0.5, _flat(k_BHTD), _flat(v_BHTD)
    bias = as_bias(log_prior, (batch, heads, length), q_NTD.dtype)
    problem = Problem(q_NTD, k_NTD, bias, batch, BlockSolver(q_NTD, strength))
    out_NTD, carry_NT = torch.empty_like(v_NTD), q_NTD.new_empty(0)
    for start, stop, solved in problem.solve(rows_per_block(length), length):
        carry_NT = solved.carry_out() if stop == length else carry_NT
        out_NTD[:, start:stop] = _apply(solved, v_NTD[:, :stop])
    return out_NTD.view(v_BHTD.shape).to(v_BHTD.dtype), carry_NT.view(batch, heads, length)


@torch.no_grad()
def plan_rows(q_BHTD: Tensor, k_BHTD: Tensor, log_prior: LogPriorLike, strength: float, rows_R: Tensor) -> Tensor:
    """Rows of the plan P [B, H, R, T], in the order asked for; every row's potential is solved first, by the block."""
    batch, heads, length, width = q_BHTD.shape
    q_NTD, k_NTD = _flat(q_BHTD) * width**-0.5, _flat(k_BHTD)
    bias = as_bias(log_prior, (batch, heads, length), q_NTD.dtype)
    problem = Problem(q_NTD, k_NTD, bias, batch, BlockSolver(q_NTD, strength))
    plan_NRT = q_NTD.new_zeros(len(q_NTD), len(rows_R), length)
    last = int(rows_R.max()) + 1
    for start, stop, solved in problem.solve(rows_per_block(length), last):
        (asked,) = torch.nonzero((rows_R >= start) & (rows_R < stop), as_tuple=True)
        inside = rows_R[asked] - start
        part_NRS = solved.mass_NRS[:, inside] * solved.weight_NRS[:, inside]
        plan_NRT[:, asked, :stop] = part_NRS if solved.row_NR is None else part_NRS * solved.row_NR[:, inside, None]
    return plan_NRT.view(batch, heads, len(rows_R), length)
