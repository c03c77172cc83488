"""A block of query rows: Newton for its potentials, and the factors that the backward pass is made of.

Shape legend: N problems (batch x heads), R rows of the block, S keys visible to its last row (the last R of them are
the block's own), X = R + 1: the carry, then the rows of the block.

What is unusual: one exponential per score, whatever the number of Newton steps. Each key has a reference m[j] (its carry
log C; the diagonal entry for the block's own keys), and E[k,j] = exp(S[k,j] + a0[k] - m[j]) is computed once. With row
factors u = exp(a - a0) a Newton step is then two matrix products and one power:

    G = [1 | tril(u)] [carry; E]          C[j](i) = G[i,j] exp(m[j])
    M = E * exp((1 - strength) m) * G ** -(1 + strength)
    A = M [carry; E]^T                    row sums and the Jacobian both come out of A

An entry that underflows beside the mass of its column is negligible at every strength; beside its row it would not be.
A column that grows by more than `WIDEST` inside a block would lose its first rows. A float32 block that grows by more is
done in float64, whose range holds scores of +-50; a block that is too wide even there, or that Newton cannot solve, is
refused and the caller halves it; single rows are solved with a bracket (scalar.py) and cannot fail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .scalar import solve_row

# Such that the square of the growth, and its reciprocal, can still be written down.
WIDEST = {torch.float32: 2.0**62, torch.float64: 1e150}
# Steps in a itself are fastest but may cycle at strengths near one. If they do not halve the residual after these many,
# the block goes on with damped ones, which are slower but do not cycle.
LOG_STEPS = 3
# In float32 the rounding of wide sums can stand above the tolerance, and the steps then cycle around the solution for good.
# A residual that has not halved for this many steps is given up; on text no block that was solved took more than 4.
STALLED_STEPS = 16
MOST_STEPS = 200


class Workspace:
    """Named scratch memory, reused from block to block: fresh pages cost more than the arithmetic done on them."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def get(self, name: str, shape: Sequence[int]) -> Tensor:
        """An uninitialised contiguous tensor; it lives until the same name is asked for again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = self._like.new_empty(size)
        return buffer[:size].view(shape)


@dataclass
class Constants:
    """Small triangles of a block of R rows."""

    ahead_XR: Tensor  # ones, then the rows k <= i: what row i has behind it
    behind_RX: Tensor  # the rows i >= k, then a one for all later blocks
    above_RR: Tensor  # ones above the diagonal
    closed_RR: Tensor  # minus infinity above the diagonal
    identity_RR: Tensor


@cache
def constants(rows: int, dtype: torch.dtype, device: torch.device) -> Constants:
    """The triangles for this number of rows."""
    ones_RR = torch.ones(rows, rows, dtype=dtype, device=device)
    one_1R = ones_RR[:1]
    return Constants(
        torch.cat([one_1R, ones_RR.triu()]),
        torch.cat([ones_RR.triu(), one_1R.mT], 1),
        ones_RR.triu(1),
        torch.full_like(ones_RR, -torch.inf).triu(1),
        torch.diag(ones_RR[0]),
    )


@dataclass
class Solved:
    """Potentials of a block and its plan, whose rows sum to one after division by sums."""

    a_NR: Tensor
    plan_NRS: Tensor
    sums_NR: Tensor


@dataclass
class Factors:
    """A block with known potentials: P = M * G and W / C = E / G. The dtype is that of `solver`, maybe a wider one."""

    solver: "BlockSolver"
    rows_NXS: Tensor  # [carry; E]
    mass_NRS: Tensor  # G
    weight_NRS: Tensor  # M


def power(mass: Tensor, exponent: float, out: Tensor) -> Tensor:
    """Write mass ** -exponent to `out`: by square roots where they do, else by one logarithm and one exponential."""
    if exponent == 0.5:
        return torch.rsqrt(mass, out=out)
    if exponent == 0.75:
        torch.rsqrt(mass, out=out)
        return out.mul_(out.sqrt())
    if exponent == 1.0:
        return torch.reciprocal(mass, out=out)
    if exponent == 1.5:
        return torch.rsqrt(mass, out=out).pow_(3)
    if exponent == 1.75:
        return torch.sqrt(mass, out=out).sqrt_().div_(mass).div_(mass)
    return torch.log(mass, out=out).mul_(-exponent).exp_()


class BlockSolver:
    """Solves blocks of rows. Holds the scratch memory and the small triangles."""

    def __init__(self, like: Tensor, strength: float) -> None:
        self.strength = strength
        self.scratch = Workspace(like)
        self.tolerance = 16 * torch.finfo(like.dtype).eps
        # One more step from here ends below the tolerance: the residual falls quadratically, with a factor near .1.
        self.nearly = 3 * self.tolerance**0.5
        self._kind = like.dtype, like.device
        self._widest = WIDEST[like.dtype]
        self._like = like
        self._wider: BlockSolver | None = None

    def constants(self, rows: int) -> Constants:
        """The triangles for this number of rows."""
        return constants(rows, *self._kind)

    def solve(self, scores_NRS: Tensor, carry_NS: Tensor, last_N1: Tensor | None) -> Solved | None:
        """Potentials and plan of a block; None if the block has to be split, with nothing done.

        scores: minus infinity above the diagonal. carry_NS: log C of the keys before the block, overwritten with log C
        after it; what it holds for the block's own keys is not read. last_N1: potential of the row before (None at the
        start).
        """
        if scores_NRS.shape[1] == 1:
            return self._single(scores_NRS, carry_NS)
        solved = self._solve(scores_NRS, carry_NS, last_N1)
        if solved is not None or self.wider is None:
            return solved
        wide_NS, dtype = carry_NS.double(), carry_NS.dtype
        solved = self.wider._solve(scores_NRS.double(), wide_NS, None if last_N1 is None else last_N1.double())
        if solved is None:
            return None
        carry_NS.copy_(wide_NS)
        plan_NRS = solved.plan_NRS.div_(solved.sums_NR[:, :, None]).to(dtype)
        return Solved(solved.a_NR.to(dtype), plan_NRS, torch.ones_like(plan_NRS[:, :, 0]))

    @property
    def wider(self) -> "BlockSolver | None":
        """The solver to try next: float64 after float32."""
        if self._wider is None and self._like.dtype == torch.float32:
            self._wider = BlockSolver(self._like.new_empty(0, dtype=torch.float64), self.strength)
        return self._wider

    def _solve(self, scores_NRS: Tensor, carry_NS: Tensor, last_N1: Tensor | None) -> Solved | None:
        seen = scores_NRS.shape[2] - scores_NRS.shape[1]
        own_NR, own_carry_NR = scores_NRS[:, :, seen:].diagonal(dim1=1, dim2=2), carry_NS[:, seen:]
        # An own key has at least the mass of its own row; the potential of the row before stands in for that row's.
        torch.add(own_NR, last_N1, out=own_carry_NR) if last_N1 is not None else own_carry_NR.zero_()
        frozen_NRS = self.scratch.get("weight", scores_NRS.shape)
        torch.add(scores_NRS, carry_NS[:, None], alpha=-self.strength, out=frozen_NRS)
        a_NR = frozen_NRS.amax(-1).neg_()
        torch.add(own_NR, a_NR, out=own_carry_NR)
        rows_NXS, scaled_NRS = self._exponentials(scores_NRS, a_NR, carry_NS)
        # The row sums under the carry from before the block: a start off by how much the carry grows inside it.
        u_NR = scaled_NRS.sum(-1).reciprocal_()
        found = self._iterate(u_NR, rows_NXS, scaled_NRS)
        if found is None:
            return None
        last_NS = self.scratch.get("mass", scores_NRS.shape)[:, -1]
        if not float(last_NS.max()) < self._widest:
            return None
        carry_NS += last_NS.log()
        u_NR, plan_NRS, sums_NR = found
        return Solved(a_NR.add_(u_NR.log()), plan_NRS, sums_NR)

    def _single(self, scores_NRS: Tensor, carry_NS: Tensor) -> Solved:
        carry_NS[:, -1:] = -torch.inf
        scores_NS = scores_NRS[:, 0]
        a_N1 = solve_row(scores_NS, carry_NS, self.strength)[:, None]
        torch.logaddexp(carry_NS, scores_NS + a_N1, out=carry_NS)
        plan_NS = torch.exp(scores_NS + a_N1 - self.strength * carry_NS)
        return Solved(a_N1, plan_NS[:, None], plan_NS.sum(-1, keepdim=True))

    def factors(self, scores_NRS: Tensor, carry_NS: Tensor, a_NR: Tensor) -> Factors | None:
        """Factors of a block with known potentials; None if it has to be split. carry_NS: log C before the block."""
        problems, rows, keys = scores_NRS.shape
        seen = keys - rows
        reference_NS = self.scratch.get("reference", (problems, keys))
        reference_NS[:, :seen] = carry_NS
        torch.add(scores_NRS[:, :, seen:].diagonal(dim1=1, dim2=2), a_NR, out=reference_NS[:, seen:])
        if rows == 1:
            torch.maximum(reference_NS, scores_NRS[:, 0] + a_NR, out=reference_NS)
        rows_NXS, scaled_NRS = self._exponentials(scores_NRS, a_NR, reference_NS)
        if rows == 1:
            torch.exp(carry_NS - reference_NS[:, :seen], out=rows_NXS[:, 0, :seen])
        small = self.constants(rows)
        mass_NRS = self.scratch.get("mass", scores_NRS.shape)
        torch.bmm(small.ahead_XR.mT.expand(problems, -1, -1), rows_NXS, out=mass_NRS)
        mass_NRS[:, :, seen:] += small.above_RR
        if rows > 1 and not float(mass_NRS[:, -1].max()) < self._widest:
            if self.wider is None:
                return None
            return self.wider.factors(scores_NRS.double(), carry_NS.double(), a_NR.double())
        weight_NRS = power(mass_NRS, 1 + self.strength, self.scratch.get("weight", scores_NRS.shape))
        weight_NRS *= scaled_NRS
        return Factors(self, rows_NXS, mass_NRS, weight_NRS)

    def _exponentials(self, scores_NRS: Tensor, a_NR: Tensor, reference_NS: Tensor) -> tuple[Tensor, Tensor]:
        """[carry; E] of shape [N, R + 1, S], and E scaled by exp((1 - strength) m)."""
        problems, rows, keys = scores_NRS.shape
        rows_NXS = self.scratch.get("rows", (problems, rows + 1, keys))
        rows_NXS[:, 0, : keys - rows] = 1
        rows_NXS[:, 0, keys - rows :] = 0
        entries_NRS = rows_NXS[:, 1:]
        torch.sub(scores_NRS, reference_NS[:, None], out=entries_NRS)
        entries_NRS += a_NR[:, :, None]
        entries_NRS.exp_()
        column_NS = torch.exp((1 - self.strength) * reference_NS)
        return rows_NXS, torch.mul(entries_NRS, column_NS[:, None], out=self.scratch.get("scaled", scores_NRS.shape))

    def _iterate(self, u_NR: Tensor, rows_NXS: Tensor, scaled_NRS: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Newton from u. Returns u, the plan up to u, and its row sums up to u; leaves G in the scratch memory."""
        (problems, rows, keys), strength = scaled_NRS.shape, self.strength
        small = self.constants(rows)
        mass_NRS = self.scratch.get("mass", scaled_NRS.shape)
        weight_NRS = self.scratch.get("weight", scaled_NRS.shape)
        factor_NXR = self.scratch.get("factor", (problems, rows + 1, rows))
        shares_NXR = self.scratch.get("overlap", (problems, rows + 1, rows))
        factor_NXR[:, 0] = 1
        # Views, taken once: at small sizes their making costs as much as the arithmetic.
        factor_NRR, factor_NRX, own_NRR = factor_NXR[:, 1:], factor_NXR.mT, mass_NRS[:, :, keys - rows :]
        weight_NSR, shares_NRR = weight_NRS.mT, shares_NXR[:, 1:]
        residual, last_look, damped = torch.inf, False, False
        lowest, lowered = torch.inf, 0
        for step in range(MOST_STEPS):
            torch.mul(small.ahead_XR[1:], u_NR[:, :, None], out=factor_NRR)
            torch.bmm(factor_NRX, rows_NXS, out=mass_NRS)
            own_NRR += small.above_RR
            if last_look:
                # Expected to be the end: no Jacobian, and the plan itself instead of M.
                power(mass_NRS, strength, weight_NRS)
                weight_NRS *= scaled_NRS
                sums_NR = weight_NRS.sum(-1)
                if float((u_NR * sums_NR).log_().abs_().max()) <= self.tolerance:
                    return u_NR, weight_NRS, sums_NR
                weight_NRS /= mass_NRS
            else:
                power(mass_NRS, 1 + strength, weight_NRS)
                weight_NRS *= scaled_NRS
            torch.bmm(rows_NXS, weight_NSR, out=shares_NXR)
            shares_NXR *= factor_NXR
            sums_NR = shares_NXR.sum(1)
            error_NR = (u_NR * sums_NR).log_()
            before, residual = residual, float(error_NR.abs().max())
            if residual < lowest / 2:
                lowest, lowered = residual, step
            if not residual < torch.inf or step - lowered > STALLED_STEPS:
                return None
            # At the noise floor of the sums a further step gains nothing.
            if residual <= self.tolerance or (residual <= 64 * self.tolerance and residual > before / 8):
                weight_NRS *= mass_NRS
                return u_NR, weight_NRS, weight_NRS.sum(-1)
            last_look = residual <= self.nearly
            damped = damped or (step >= LOG_STEPS and residual > before / 2)
            jacobian_NRR = torch.addcdiv(small.identity_RR, shares_NRR, sums_NR[:, None], value=-strength).mT
            if damped:
                # From below, Newton in u: the row sums are concave in u, so it cannot overshoot.
                error_NR = torch.where(error_NR < 0, -torch.expm1(-error_NR), error_NR)
            step_NR = torch.linalg.solve_triangular(jacobian_NRR, error_NR[:, :, None], upper=False)[:, :, 0].neg_()
            u_NR = u_NR * (torch.where(step_NR > 0, 1 + step_NR, step_NR.exp()) if damped else step_NR.exp_())
        return None
