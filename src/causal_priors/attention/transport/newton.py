"""A block of query rows: Newton for its potentials, and the factors that forward and backward passes are made of.

Shape legend: N problems (batch x heads), R rows of the block, S keys visible to its last row (the last R of them are
the block's own), X = R + 1 rows of the block with the carry in front.

What is unusual: one exponential per score and block, whatever the number of Newton steps. Each key has a reference m[j]
(its carry log C; the diagonal entry for the block's own keys), and E[k,j] = exp(S[k,j] + a0[k] - m[j]) is computed once.
With row factors u = exp(a - a0) a Newton step is then two matrix products and one power:

    G = [1 | tril(u)] [carry; E]          C[j](i) = G[i,j] exp(m[j])
    M = E * exp((1 - strength) m) * G ** -(1 + strength)
    A = M [carry; E]^T                    row sums and the Jacobian both come out of A

An entry that underflows beside the mass of its column is negligible for every strength; beside its row it would not be.
A column that grows by more than `WIDEST` inside a block would lose its first rows, so such a block is refused and the
caller halves it; single rows are solved with a bracket (scalar.py) and cannot fail.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .scalar import solve_row

WIDEST = 1e15
# Steps in a itself are fastest but may cycle at strengths near one; after these many, the damped kind, which do not.
LOG_STEPS = 6
MOST_STEPS = 40


class Workspace:
    """Named scratch memory, reused from block to block: fresh pages cost more than the arithmetic done on them."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """An uninitialised contiguous tensor; it lives until the same name is asked for again."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._like.new_empty(size)
            self._buffers[name] = buffer
        return buffer[:size].view(shape)


@dataclass
class Factors:
    """A solved block. P[i,j] = row[i] M[i,j] G[i,j], where row makes the sums one."""

    a_NR: Tensor
    row_NR: Tensor | None  # None: all ones
    reference_NS: Tensor
    carry_NS: Tensor
    rows_NXS: Tensor  # [carry; E]
    mass_NRS: Tensor  # G
    weight_NRS: Tensor  # M

    def carry_out(self) -> Tensor:
        """Carry log C after the block's last row [N, S]."""
        return self.reference_NS + torch.log(self.mass_NRS[:, -1])


def power_(mass: Tensor, strength: float, out: Tensor) -> Tensor:
    """Write mass ** -(1 + strength) to `out`: square roots where they do, else one logarithm and one exponential."""
    if strength == 0.0:
        return torch.reciprocal(mass, out=out)
    if strength == 0.5:
        return torch.rsqrt(mass, out=out).pow_(3)
    if strength == 0.75:
        return torch.sqrt(mass, out=out).sqrt_().div_(mass).div_(mass)
    return torch.log(mass, out=out).mul_(-(1 + strength)).exp_()


class BlockSolver:
    """Solves blocks of at most R rows. Holds the scratch memory and the triangular constants."""

    def __init__(self, like: Tensor, strength: float) -> None:
        self.strength = strength
        self.scratch = Workspace(like)
        self.tolerance = 16 * torch.finfo(like.dtype).eps
        self._like = like
        self._constants: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._closed: dict[int, Tensor] = {}

    def constants(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """[1 | tril] of shape [R, R + 1], the strict upper triangle of ones, the identity."""
        if rows not in self._constants:
            ones = self._like.new_ones(rows, rows)
            ahead = torch.cat([self._like.new_ones(rows, 1), ones.tril()], 1)
            self._constants[rows] = ahead, ones.triu(1), torch.diag(self._like.new_ones(rows))
        return self._constants[rows]

    def closed(self, rows: int) -> Tensor:
        """What masks a block's own keys: 0 up to the diagonal, minus infinity above it."""
        if rows not in self._closed:
            self._closed[rows] = torch.full_like(self.constants(rows)[1], -torch.inf).triu(1)
        return self._closed[rows]

    def solve(self, scores_NRS: Tensor, carry_NS: Tensor, last_N1: Tensor | None) -> Factors | None:
        """Potentials and factors of a block; None if the block has to be split.

        scores: minus infinity above the diagonal. carry_NS: log C of the S - R keys before the block. last_N1:
        potential of the row before it (None at the start).
        """
        rows, seen = scores_NRS.shape[1], carry_NS.shape[1]
        if rows == 1:
            empty = torch.nn.functional.pad(carry_NS, (0, 1), value=-torch.inf)
            a_N1 = solve_row(scores_NRS[:, 0], empty, self.strength)[:, None]
            return self.factors(scores_NRS, carry_NS, a_N1)
        own_NR = scores_NRS[:, :, seen:].diagonal(dim1=1, dim2=2)
        guess_NR = own_NR + last_N1 if last_N1 is not None else torch.zeros_like(own_NR)
        frozen_NRS = torch.add(
            scores_NRS,
            torch.cat([carry_NS, guess_NR], 1)[:, None],
            alpha=-self.strength,
            out=self.scratch.get("weight", *scores_NRS.shape),
        )
        a_NR = frozen_NRS.amax(-1).neg_()
        reference_NS = torch.cat([carry_NS, own_NR + a_NR], 1)
        rows_NXS, scaled_NRS = self._exponentials(scores_NRS, a_NR, reference_NS, seen)
        # The row sums under the carry from before the block: a start off by how much the carry grows inside it.
        u_NR = scaled_NRS.sum(-1).reciprocal_()
        return self._iterate(a_NR, u_NR, reference_NS, carry_NS, rows_NXS, scaled_NRS)

    def factors(self, scores_NRS: Tensor, carry_NS: Tensor, a_NR: Tensor) -> Factors:
        """The factors of a block whose potentials are known."""
        rows, seen = scores_NRS.shape[1], carry_NS.shape[1]
        if rows == 1:
            padded = torch.nn.functional.pad(carry_NS, (0, 1), value=-torch.inf)
            reference_NS = torch.maximum(padded, scores_NRS[:, 0] + a_NR)
        else:
            own_NR = scores_NRS[:, :, seen:].diagonal(dim1=1, dim2=2)
            reference_NS = torch.cat([carry_NS, own_NR + a_NR], 1)
        rows_NXS, scaled_NRS = self._exponentials(scores_NRS, a_NR, reference_NS, seen)
        if rows == 1:
            rows_NXS[:, 0, :seen] = torch.exp(carry_NS - reference_NS[:, :seen])
        ahead_RX, above_RR, _ = self.constants(rows)
        mass_NRS = self.scratch.get("mass", *scores_NRS.shape)
        torch.bmm(ahead_RX.expand(len(a_NR), -1, -1), rows_NXS, out=mass_NRS)
        mass_NRS[:, :, seen:] += above_RR
        weight_NRS = power_(mass_NRS, self.strength, self.scratch.get("weight", *scores_NRS.shape))
        weight_NRS *= scaled_NRS
        return Factors(a_NR, None, reference_NS, carry_NS, rows_NXS, mass_NRS, weight_NRS)

    def _exponentials(self, scores_NRS: Tensor, a_NR: Tensor, reference_NS: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """[carry; E] of shape [N, R + 1, S], and E scaled by exp((1 - strength) m)."""
        problems, rows, keys = scores_NRS.shape
        rows_NXS = self.scratch.get("rows", problems, rows + 1, keys)
        rows_NXS[:, 0, :seen] = 1
        rows_NXS[:, 0, seen:] = 0
        entries_NRS = rows_NXS[:, 1:]
        torch.sub(scores_NRS, reference_NS[:, None], out=entries_NRS)
        entries_NRS += a_NR[:, :, None]
        entries_NRS.exp_()
        column_NS = torch.exp((1 - self.strength) * reference_NS)
        scaled_NRS = self.scratch.get("scaled", problems, rows, keys)
        return rows_NXS, torch.mul(entries_NRS, column_NS[:, None], out=scaled_NRS)

    def _iterate(
        self, a_NR: Tensor, u_NR: Tensor, reference_NS: Tensor, carry_NS: Tensor, rows_NXS: Tensor, scaled_NRS: Tensor
    ) -> Factors | None:
        rows, seen = a_NR.shape[1], carry_NS.shape[1]
        ahead_RX, above_RR, identity_RR = self.constants(rows)
        mass_NRS = self.scratch.get("mass", *scaled_NRS.shape)
        weight_NRS = self.scratch.get("weight", *scaled_NRS.shape)
        overlap_NRX = self.scratch.get("overlap", len(a_NR), rows, rows + 1)
        factor_NRX = self.scratch.get("factor", len(a_NR), rows, rows + 1)
        residual = torch.inf
        for step in range(MOST_STEPS):
            factor_NRX[:, :, :1] = 1
            torch.mul(ahead_RX[:, 1:], u_NR[:, None], out=factor_NRX[:, :, 1:])
            torch.bmm(factor_NRX, rows_NXS, out=mass_NRS)
            mass_NRS[:, :, seen:] += above_RR
            power_(mass_NRS, self.strength, weight_NRS)
            weight_NRS *= scaled_NRS
            torch.bmm(weight_NRS, rows_NXS.mT, out=overlap_NRX)
            shares_NRX = overlap_NRX * factor_NRX
            sums_NR = shares_NRX.sum(-1).mul_(u_NR)
            error_NR = sums_NR.log()
            before, residual = residual, float(error_NR.abs().max())
            if not residual < torch.inf:
                return None
            # At the noise floor of the sums a further step gains nothing.
            if residual <= self.tolerance or (residual <= 64 * self.tolerance and residual > before / 8):
                break
            jacobian_NRR = identity_RR - shares_NRX[:, :, 1:] * (self.strength * u_NR / sums_NR)[:, :, None]
            if step < LOG_STEPS:
                step_NR1 = torch.linalg.solve_triangular(jacobian_NRR, -error_NR[:, :, None], upper=False)
                u_NR = u_NR * step_NR1[:, :, 0].exp()
            else:
                gap_NR = torch.where(error_NR < 0, torch.expm1(-error_NR), -error_NR)
                step_NR = torch.linalg.solve_triangular(jacobian_NRR, gap_NR[:, :, None], upper=False)[:, :, 0]
                u_NR = u_NR * torch.where(step_NR > 0, 1 + step_NR, step_NR.exp())
        else:
            return None
        if not float(mass_NRS[:, -1].max()) < WIDEST:
            return None
        return Factors(a_NR + u_NR.log(), u_NR / sums_NR, reference_NS, carry_NS, rows_NXS, mass_NRS, weight_NRS)
