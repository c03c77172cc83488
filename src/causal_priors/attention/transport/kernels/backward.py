"""Backward kernel: the implicit sweep of operator.md, last block first, with dP shifted by its mean under P.

Shape legend: T tokens, D head dim (BD: its power of two), R query rows of a block, S = BN keys of a tile.
"""

# The compiler types these functions.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from .tiles import GROWTH, inverse_times, last_received, overlap, pick_row, receive, scores_tile


@triton.jit
def backward(
    q_ptr,
    k_ptr,
    v_ptr,
    coefficient_ptr,
    out_ptr,
    a_ptr,
    marks_ptr,
    dout_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    dcoefficient_ptr,
    carries_ptr,
    pull_ptr,
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
    """Gradients by the implicit sweep, last block first; dk, dv and pull (E * C) start as zeros."""
    problem = tl.program_id(0).to(tl.int64)
    q_ptr += problem * T * D
    k_ptr += problem * T * D
    v_ptr += problem * T * D
    out_ptr += problem * T * D
    dout_ptr += problem * T * D
    dq_ptr += problem * T * D
    dk_ptr += problem * T * D
    dv_ptr += problem * T * D
    a_ptr += problem * T
    pull_ptr += problem * T
    marks_ptr += problem * MARKS * T
    carries_ptr += problem * (EVERY // R) * T
    coefficient = 0.0
    if KIND != 0:
        coefficient = tl.load(coefficient_ptr + problem % HEADS)
    rows_R = tl.arange(0, R)
    d_D = tl.arange(0, BD)
    eye_RR = rows_R[:, None] == rows_R[None, :]
    below_RR = rows_R[:, None] < rows_R[None, :]
    dcoefficient = 0.0
    spans = (T + EVERY - 1) // EVERY
    for back in range(0, spans):
        base = (spans - 1 - back) * EVERY
        end = tl.minimum(base + EVERY, T)
        blocks = (end - base + R - 1) // R
        # The carries before each block of the span, from the one that was kept.
        for at in range(0, base, BN):
            j_S = at + tl.arange(0, BN)
            kept_S = tl.load(marks_ptr + (base // EVERY - 1) * T + j_S, mask=j_S < base, other=0.0)
            tl.store(carries_ptr + j_S, kept_S, mask=j_S < base)
        tl.debug_barrier()
        for block in range(0, blocks - 1):
            start = base + block * R
            i_R = start + rows_R
            there_RD = (i_R[:, None] < T) & (d_D[None, :] < D)
            q_RD = tl.load(q_ptr + i_R[:, None] * D + d_D[None, :], mask=there_RD, other=0.0).to(tl.float32) * scale
            a_R = tl.load(a_ptr + i_R, mask=i_R < T, other=0.0)
            for at in range(0, start + R, BN):
                s_RS, seen_RS, k_SD, j_S, lag_RS = scores_tile(
                    q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD
                )
                carry_S = tl.load(carries_ptr + block * T + j_S, mask=j_S < start, other=float("-inf"))
                logits_RS = tl.where(seen_RS, s_RS + a_R[:, None], float("-inf"))
                top_S = tl.maximum(tl.max(logits_RS, 0), carry_S)
                safe_S = tl.where(top_S == float("-inf"), 0.0, top_S)
                gained_S = tl.exp(carry_S - safe_S) + tl.sum(tl.exp(logits_RS - safe_S[None, :]), 0)
                after_S = safe_S + tl.log(tl.where(j_S < start + R, gained_S, 1.0))
                tl.store(carries_ptr + (block + 1) * T + j_S, after_S, mask=j_S < start + R)
            tl.debug_barrier()
        for turn in range(0, blocks):
            block = blocks - 1 - turn
            start = base + block * R
            stop = tl.minimum(start + R, T)
            i_R = start + rows_R
            alive_R = i_R < T
            there_RD = alive_R[:, None] & (d_D[None, :] < D)
            rows_RD = i_R[:, None] * D + d_D[None, :]
            q_RD = tl.load(q_ptr + rows_RD, mask=there_RD, other=0.0).to(tl.float32) * scale
            dout_RD = tl.load(dout_ptr + rows_RD, mask=there_RD, other=0.0).to(tl.float32)
            out_RD = tl.load(out_ptr + rows_RD, mask=there_RD, other=0.0).to(tl.float32)
            a_R = tl.load(a_ptr + i_R, mask=alive_R, other=0.0)
            mean_R = tl.sum(dout_RD * out_RD, 1)
            sum_R = tl.zeros((R,), tl.float32)
            dsum_R = tl.zeros((R,), tl.float32)
            pulled_R = tl.zeros((R,), tl.float32)
            a_RR = tl.zeros((R, R), tl.float32)
            b_RR = tl.zeros((R, R), tl.float32)
            for at in range(0, stop, BN):
                s_RS, seen_RS, k_SD, j_S, lag_RS = scores_tile(
                    q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD
                )
                carry_S = tl.load(carries_ptr + block * T + j_S, mask=j_S < start, other=float("-inf"))
                pull_S = tl.load(pull_ptr + j_S, mask=j_S < stop, other=0.0)
                logits_RS = s_RS + a_R[:, None]
                received_RS, reference_S, entries_RS, narrow = receive(logits_RS, seen_RS, carry_S, start, j_S, R, BN)
                plan_RS = tl.where(seen_RS, tl.exp(logits_RS - strength * received_RS), 0.0)
                there_SD = (j_S[:, None] < stop) & (d_D[None, :] < D)
                v_SD = tl.load(v_ptr + j_S[:, None] * D + d_D[None, :], mask=there_SD, other=0.0).to(tl.float32)
                d_RS = plan_RS * (tl.dot(dout_RD, tl.trans(v_SD), input_precision="ieee") - mean_R[:, None])
                sum_R += tl.sum(plan_RS, 1)
                dsum_R += tl.sum(d_RS, 1)
                after_S = last_received(received_RS, seen_RS, carry_S)
                share_RS = tl.where(seen_RS, tl.exp(tl.minimum(logits_RS - after_S[None, :], 0.0)), 0.0)
                pulled_R += tl.sum(share_RS * pull_S[None, :], 1)
                a_RR += overlap(plan_RS, logits_RS, seen_RS, received_RS, reference_S, entries_RS, narrow, R)
                b_RR += overlap(d_RS, logits_RS, seen_RS, received_RS, reference_S, entries_RS, narrow, R)
            # Dividing by the row sums keeps the rounding of a out of r.
            norm_R = 1.0 / tl.where(alive_R, sum_R, 1.0)
            behind_R = tl.sum(tl.where(rows_R[:, None] >= rows_R[None, :], b_RR * norm_R[:, None], 0.0), 0)
            right_R = dsum_R * norm_R - strength * (behind_R + pulled_R)
            a_RR = a_RR * (strength * norm_R)[:, None]
            slope_R = 1.0 - tl.sum(tl.where(eye_RR, a_RR, 0.0), 1)
            steps_RR = tl.where(below_RR, tl.trans(a_RR) / slope_R[:, None], 0.0)
            r_R = inverse_times(steps_RR, right_R / slope_R, R)
            dq_RD = tl.zeros((R, BD), tl.float32)
            for at in range(0, stop, BN):
                s_RS, seen_RS, k_SD, j_S, lag_RS = scores_tile(
                    q_RD, k_ptr, at, start, T, D, coefficient, KIND, R, BN, BD
                )
                carry_S = tl.load(carries_ptr + block * T + j_S, mask=j_S < start, other=float("-inf"))
                pull_S = tl.load(pull_ptr + j_S, mask=j_S < stop, other=0.0)
                logits_RS = s_RS + a_R[:, None]
                received_RS, reference_S, entries_RS, narrow = receive(logits_RS, seen_RS, carry_S, start, j_S, R, BN)
                plan_RS = tl.where(seen_RS, tl.exp(logits_RS - strength * received_RS), 0.0) * norm_R[:, None]
                there_SD = (j_S[:, None] < stop) & (d_D[None, :] < D)
                keys_SD = j_S[:, None] * D + d_D[None, :]
                v_SD = tl.load(v_ptr + keys_SD, mask=there_SD, other=0.0).to(tl.float32)
                dp_RS = tl.dot(dout_RD, tl.trans(v_SD), input_precision="ieee")
                d_RS = plan_RS * (dp_RS - mean_R[:, None] - r_R[:, None])
                after_S = last_received(received_RS, seen_RS, carry_S)
                share_S = tl.exp(tl.minimum(reference_S - after_S, 0.0))
                scaled_RS = d_RS * tl.exp(tl.minimum(reference_S[None, :] - received_RS, GROWTH))
                pulls_RS = tl.cumsum(tl.where(seen_RS, scaled_RS, 0.0), 0, reverse=True) + (pull_S * share_S)[None, :]
                first_S = pick_row(pulls_RS, rows_R, 0)
                pulls_RS = pulls_RS * entries_RS
                if not narrow:
                    # E * C from the last row up: C only grows, so every ratio is at most one.
                    first_S = pull_S
                    later_S = after_S
                    for turned in range(0, R):
                        r = R - 1 - turned
                        mine_S = pick_row(received_RS, rows_R, r)
                        sees_S = pick_row(tl.where(seen_RS, 1.0, 0.0), rows_R, r) > 0
                        ratio_S = tl.exp(tl.minimum(mine_S - later_S, 0.0))
                        first_S = tl.where(sees_S, first_S * ratio_S + pick_row(d_RS, rows_R, r), first_S)
                        later_S = tl.where(sees_S, mine_S, later_S)
                        share_S = tl.exp(tl.minimum(pick_row(logits_RS, rows_R, r) - mine_S, 0.0))
                        pulls_RS = tl.where(rows_R[:, None] == r, (first_S * share_S)[None, :], pulls_RS)
                    first_S = first_S * tl.exp(tl.minimum(carry_S - later_S, 0.0))
                ds_RS = d_RS - strength * tl.where(seen_RS, pulls_RS, 0.0)
                tl.debug_barrier()
                tl.store(pull_ptr + j_S, first_S, mask=j_S < start)
                if KIND != 0:
                    dcoefficient -= tl.sum(tl.sum(ds_RS * lag_RS, 1), 0)
                dq_RD += tl.dot(ds_RS, k_SD, input_precision="ieee")
                dk_SD = tl.load(dk_ptr + keys_SD, mask=there_SD, other=0.0)
                dv_SD = tl.load(dv_ptr + keys_SD, mask=there_SD, other=0.0)
                dk_SD += tl.dot(tl.trans(ds_RS), q_RD, input_precision="ieee")
                dv_SD += tl.dot(tl.trans(plan_RS), dout_RD, input_precision="ieee")
                tl.store(dk_ptr + keys_SD, dk_SD, mask=there_SD)
                tl.store(dv_ptr + keys_SD, dv_SD, mask=there_SD)
            tl.store(dq_ptr + rows_RD, dq_RD * scale, mask=there_RD)
            tl.debug_barrier()
    if KIND != 0:
        tl.store(dcoefficient_ptr + problem, dcoefficient)
