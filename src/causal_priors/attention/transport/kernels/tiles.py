"""What forward and backward kernels share: one tile of R query rows and S keys, in registers.

Shape legend: T tokens, D head dim (BD: its power of two), R query rows of a block, S = BN keys of a tile.

As in newton.py each key has a reference (its carry, or its own diagonal entry) against which the block's growth is
summed in plain numbers. Where a key grows by more than e^GROWTH the tile takes the branch that goes row by row in the
log domain.
"""

# The compiler types these functions.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

GROWTH = tl.constexpr(60.0)


@triton.jit
def pick_row(x_RS, rows_R, r):
    """Row r of a tile."""
    return tl.sum(tl.where(rows_R[:, None] == r, x_RS, 0.0), 0)


@triton.jit
def pick(x_R, rows_R, r):
    """Entry r of a column."""
    return tl.sum(tl.where(rows_R == r, x_R, 0.0), 0)


@triton.jit
def add_logs(x, y):
    """Logarithm of exp(x) + exp(y), minus infinity allowed."""
    top = tl.maximum(x, y)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return safe + tl.log(tl.exp(x - safe) + tl.exp(y - safe))


@triton.jit
def inverse_times(steps_RR, right_R, R: tl.constexpr):
    """(I - N)^-1 right for a strictly triangular N >= 0: the product of I + N^(2^m), in which nothing cancels."""
    power = 1
    while power < R:
        right_R += tl.sum(steps_RR * right_R[None, :], 1)
        steps_RR = tl.dot(steps_RR, steps_RR, input_precision="ieee")
        power *= 2
    return right_R


@triton.jit
def scores_tile(
    q_RD, k_ptr, at, start, T, D, coefficient, KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """Scores of a tile, which pairs are visible, the keys and their positions."""
    i_R = start + tl.arange(0, R)
    j_S = at + tl.arange(0, BN)
    d_D = tl.arange(0, BD)
    k_SD = tl.load(k_ptr + j_S[:, None] * D + d_D[None, :], mask=(j_S[:, None] < T) & (d_D[None, :] < D), other=0.0)
    k_SD = k_SD.to(tl.float32)
    scores_RS = tl.dot(q_RD, tl.trans(k_SD), input_precision="ieee")
    lag_RS = tl.maximum(i_R[:, None] - j_S[None, :], 0).to(tl.float32)
    if KIND == 1:
        lag_RS = tl.log(1.0 + lag_RS)
    if KIND != 0:
        scores_RS -= coefficient * lag_RS
    seen_RS = (j_S[None, :] <= i_R[:, None]) & (i_R[:, None] < T)
    return scores_RS, seen_RS, k_SD, j_S, lag_RS


@triton.jit
def receive(logits_RS, seen_RS, carry_S, start, j_S, R: tl.constexpr, BN: tl.constexpr):
    """What each key has received, log C [R, S]; the reference [S]; exp(logits - reference) [R, S]; whether it is narrow."""
    rows_R = tl.arange(0, R)
    own_RS = (start + rows_R)[:, None] == j_S[None, :]
    diagonal_S = tl.sum(tl.where(own_RS & seen_RS, logits_RS, 0.0), 0)
    reference_S = tl.where(j_S < start, carry_S, diagonal_S)
    above_RS = tl.where(seen_RS, logits_RS - reference_S[None, :], float("-inf"))
    narrow = tl.max(tl.max(above_RS, 1), 0) < GROWTH
    entries_RS = tl.exp(tl.minimum(above_RS, GROWTH))
    before_S = tl.where(j_S < start, 1.0, 0.0)
    mass_RS = before_S[None, :] + tl.cumsum(entries_RS, 0)
    received_RS = reference_S[None, :] + tl.log(tl.where(seen_RS, mass_RS, 1.0))
    if not narrow:
        running_S = carry_S
        for r in range(0, R):
            row_S = pick_row(tl.where(seen_RS, logits_RS, -1e30), rows_R, r)
            running_S = add_logs(running_S, row_S)
            received_RS = tl.where(rows_R[:, None] == r, running_S[None, :], received_RS)
    return tl.where(seen_RS, received_RS, 0.0), reference_S, entries_RS, narrow


@triton.jit
def overlap(x_RS, logits_RS, seen_RS, received_RS, reference_S, entries_RS, narrow, R: tl.constexpr):
    """sum_j x[i,j] W[k,j] / C[j](i) as [i, k]; entries k > i are not meant to be read."""
    rows_R = tl.arange(0, R)
    scaled_RS = x_RS * tl.exp(tl.minimum(reference_S[None, :] - received_RS, GROWTH))
    sums_RR = tl.dot(tl.where(seen_RS, scaled_RS, 0.0), tl.trans(entries_RS), input_precision="ieee")
    if not narrow:
        sums_RR = tl.zeros_like(sums_RR)
        for k in range(0, R):
            row_S = pick_row(tl.where(seen_RS, logits_RS, -1e30), rows_R, k)
            share_RS = tl.exp(tl.minimum(row_S[None, :] - received_RS, 0.0))
            column_R = tl.sum(tl.where(seen_RS & (rows_R[:, None] >= k), x_RS * share_RS, 0.0), 1)
            sums_RR = tl.where(rows_R[None, :] == k, column_R[:, None], sums_RR)
    return sums_RR


@triton.jit
def last_received(received_RS, seen_RS, carry_S):
    """Carry log C after the block: of the last row that is there, which has the most."""
    return tl.maximum(carry_S, tl.max(tl.where(seen_RS, received_RS, float("-inf")), 0))
