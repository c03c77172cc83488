"""Forward kernel: Newton for each block of rows, then P V.

Shape legend: T tokens, D head dim (BD: its power of two), R query rows of a block, S = BN keys of a tile.
"""

# The compiler types these functions.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from .tiles import inverse_times, last_received, overlap, pick, receive, scores_tile

# With this residual the next Newton step ends at the rounding of float32.
NEARLY = tl.constexpr(3e-4)
# Steps in a itself may cycle at strengths near one: if they do not halve the residual after these many, damped ones do.
LOG_STEPS = tl.constexpr(3)
MOST_STEPS = tl.constexpr(200)


@triton.jit
def forward(
    q_ptr,
    k_ptr,
    v_ptr,
    coefficient_ptr,
    out_ptr,
    a_ptr,
    carry_ptr,
    marks_ptr,
    T,
    D,
    HEADS,
    EVERY,
    MARKS,
    scale,
    strength,
    KIND: tl.constexpr,
    R: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    """Outputs (not a number where Newton did not converge), potentials, the carry before every EVERY-th row."""
    problem = tl.program_id(0).to(tl.int64)
    q_ptr += problem * T * D
    k_ptr += problem * T * D
    v_ptr += problem * T * D
    out_ptr += problem * T * D
    a_ptr += problem * T
    carry_ptr += problem * T
    marks_ptr += problem * MARKS * T
    coefficient = 0.0
    if KIND != 0:
        coefficient = tl.load(coefficient_ptr + problem % HEADS)
    rows_R = tl.arange(0, R)
    d_D = tl.arange(0, BD)
    eye_RR = rows_R[:, None] == rows_R[None, :]
    below_RR = rows_R[:, None] > rows_R[None, :]
    last = 0.0
    for start in range(0, T, R):
        i_R = start + rows_R
        alive_R = i_R < T
        there_RD = alive_R[:, None] & (d_D[None, :] < D)
        q_RD = tl.load(q_ptr + i_R[:, None] * D + d_D[None, :], mask=there_RD, other=0.0).to(tl.float32) * scale
        stop = tl.minimum(start + R, T)
        # Start: row sums under the carry from before the block; an own key's mass is guessed from the last potential.
        top_R = tl.full((R,), float("-inf"), tl.float32)
        sum_R = tl.zeros((R,), tl.float32)
        for at in range(0, stop, BN):
            s_RS, seen_RS, _k_SD, j_S, _lag_RS = scores_tile(q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD)
            carry_S = tl.load(carry_ptr + j_S, mask=j_S < start, other=0.0)
            own_S = tl.sum(tl.where(i_R[:, None] == j_S[None, :], s_RS, 0.0), 0) + last
            own_S = tl.where(start == 0, 0.0, own_S)
            logits_RS = s_RS - strength * tl.where(j_S < start, carry_S, own_S)[None, :]
            logits_RS = tl.where(seen_RS, logits_RS, float("-inf"))
            new_R = tl.maximum(top_R, tl.max(logits_RS, 1))
            safe_R = tl.where(alive_R, new_R, 0.0)
            sum_R = sum_R * tl.exp(top_R - safe_R) + tl.sum(tl.exp(logits_RS - safe_R[:, None]), 1)
            top_R = new_R
        a_R = tl.where(alive_R, -(top_R + tl.log(tl.where(alive_R, sum_R, 1.0))), 0.0)
        error = float("inf")
        damped = 0
        step = 0
        while (error > NEARLY) & (step < MOST_STEPS):
            sum_R = tl.zeros((R,), tl.float32)
            a_RR = tl.zeros((R, R), tl.float32)
            for at in range(0, stop, BN):
                s_RS, seen_RS, _k_SD, j_S, _lag_RS = scores_tile(
                    q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD
                )
                carry_S = tl.load(carry_ptr + j_S, mask=j_S < start, other=float("-inf"))
                logits_RS = s_RS + a_R[:, None]
                received_RS, reference_S, entries_RS, narrow = receive(logits_RS, seen_RS, carry_S, start, j_S, R, BN)
                plan_RS = tl.where(seen_RS, tl.exp(logits_RS - strength * received_RS), 0.0)
                sum_R += tl.sum(plan_RS, 1)
                a_RR += overlap(plan_RS, logits_RS, seen_RS, received_RS, reference_S, entries_RS, narrow, R)
            sum_R = tl.where(alive_R, sum_R, 1.0)
            residual_R = tl.log(sum_R)
            before = error
            error = tl.max(tl.abs(residual_R), 0)
            damped = tl.where((step >= LOG_STEPS) & (error > before / 2), 1, damped)
            # Damped: from below, Newton in exp(a); the row sums are concave there and cannot be overshot.
            low_R = residual_R < 0
            right_R = tl.where(low_R & (damped == 1), tl.exp(tl.where(low_R, -residual_R, 0.0)) - 1.0, -residual_R)
            a_RR = a_RR * (strength / sum_R)[:, None]
            slope_R = 1.0 - tl.sum(tl.where(eye_RR, a_RR, 0.0), 1)
            steps_RR = tl.where(below_RR, a_RR / slope_R[:, None], 0.0)
            step_R = inverse_times(steps_RR, right_R / slope_R, R)
            grow_R = tl.log(1.0 + tl.maximum(step_R, 0.0))
            step_R = tl.where((damped == 1) & (step_R > 0), grow_R, step_R)
            a_R = tl.where(alive_R, a_R + step_R, 0.0)
            step += 1
        sum_R = tl.zeros((R,), tl.float32)
        out_RD = tl.zeros((R, BD), tl.float32)
        for at in range(0, stop, BN):
            s_RS, seen_RS, _k_SD, j_S, _lag_RS = scores_tile(q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD)
            carry_S = tl.load(carry_ptr + j_S, mask=j_S < start, other=float("-inf"))
            logits_RS = s_RS + a_R[:, None]
            received_RS, reference_S, entries_RS, narrow = receive(logits_RS, seen_RS, carry_S, start, j_S, R, BN)
            plan_RS = tl.where(seen_RS, tl.exp(logits_RS - strength * received_RS), 0.0)
            sum_R += tl.sum(plan_RS, 1)
            there_SD = (j_S[:, None] < stop) & (d_D[None, :] < D)
            v_SD = tl.load(v_ptr + j_S[:, None] * D + d_D[None, :], mask=there_SD, other=0.0).to(tl.float32)
            out_RD += tl.dot(plan_RS, v_SD, input_precision="ieee")
            tl.debug_barrier()
            after_S = last_received(received_RS, seen_RS, carry_S)
            tl.store(carry_ptr + j_S, after_S, mask=j_S < stop)
            if (stop % EVERY == 0) & (stop < T):
                tl.store(marks_ptr + (stop // EVERY - 1) * T + j_S, after_S, mask=j_S < stop)
        # A block that did not converge must not pass for one that did.
        sum_R = tl.where(error > NEARLY, float("nan"), tl.where(alive_R, sum_R, 1.0))
        out_RD = out_RD / sum_R[:, None]
        tl.store(out_ptr + i_R[:, None] * D + d_D[None, :], out_RD, mask=there_RD)
        tl.store(a_ptr + i_R, a_R, mask=alive_R)
        last = pick(a_R, rows_R, R - 1)
        tl.debug_barrier()
