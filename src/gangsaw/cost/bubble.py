"""Time of one step along the pipeline, in closed form, for every schedule.

Symbols: p ranks of the pipe, v chunks a rank, m microbatches a step; f, b, w the forward, the
input-gradient and the weight-gradient time of one microbatch on one rank (all its chunks
together), t the time of one stage-to-stage transfer. Sources: GPipe arXiv:1811.06965, 1F1B and
interleaved arXiv:2104.04473, breadth-first arXiv:2211.05953, zero bubble arXiv:2401.10241, V
schedules arXiv:2405.15362, DualPipe arXiv:2412.19437 and its repository's table.
"""

from __future__ import annotations

from gangsaw.cost.types import (
    BFS,
    DUALPIPE,
    DUALPIPE_V,
    GPIPE,
    INTERLEAVED,
    IZB,
    ONE_F_ONE_B,
    V_HALF,
    V_MIN,
    ZB_H1,
    ZB_H2,
    ZB_V,
)
from gangsaw.jit import kernel


@kernel
def looped_phase_s(p: float, v: float, m: float, x_max: float, x_sum: float) -> float:
    """Seconds of one looped pass (all forwards, or all backwards) of m microbatches.

    `x_max` and `x_sum` are the largest and the summed time of a rank, v chunks together. A loop
    over the ranks lasts max(m, p) chunk times: with fewer microbatches than ranks the first rank
    waits for its own output to come round.
    """
    chunk = x_max / v
    fill = (x_sum - x_max) / v
    return (v - 1.0) * max(m * chunk, x_sum / v) + m * chunk + fill


@kernel
def one_f_one_b_s(p: float, m: float, x_max: float, x_sum: float, p2p_s: float) -> float:
    """Seconds of 1F1B: (m - 1) max + sum, and the transfers on the way.

    `x` is forward plus whole backward. The first rank sends p microbatches on their way before
    it needs the first one back, so p microbatches cost one more round trip of transfers. Exact
    for equal ranks; unequal ranks as arXiv:2104.04473 section 2 with the largest rank.
    """
    trip = x_sum + 2.0 * (p - 1.0) * p2p_s
    trips = (m - 1.0) // p
    rest = max(0.0, (m - 1.0) - trips * p - 1.0)
    waits = 2.0 * p2p_s * ((p - 1.0) * trips + rest)
    return trip + max((m - 1.0) * x_max, (m - 1.0) * x_sum / p + waits)


@kernel
def pipeline_s(
    schedule: float,
    p: float,
    v: float,
    m: float,
    f_max: float,
    b_max: float,
    w_max: float,
    f_sum: float,
    b_sum: float,
    p2p_s: float,
) -> float:
    """Seconds of one step along the pipeline: m microbatches, bubbles and exposed transfers.

    `f_max, b_max, w_max` are those of the slowest rank, `f_sum, b_sum` are summed over ranks; all
    are for one microbatch and all v chunks of a rank. b excludes w where the schedule splits the
    backward; for the others w may be 0 (b is the whole backward) or is added. `p2p_s` is the
    exposed part of one transfer. The first F starts at 0 and the step ends when the last rank is
    done, except for ZB-H2, whose premise is an optimizer step without global synchronisation: its
    time is the period at which every rank repeats.
    """
    work = m * (f_max + b_max + w_max)
    full = b_max + w_max
    full_sum = b_sum * (full / b_max) if b_max > 0.0 else b_sum
    hops = 2.0 * (p * v - 1.0) * p2p_s
    if p <= 1.0:
        return work
    if schedule == GPIPE:
        fill = (m - 1.0) * (f_max + full) + f_sum + full_sum
        return fill + hops
    if schedule == ONE_F_ONE_B:
        return one_f_one_b_s(p, m, f_max + full, f_sum + full_sum, p2p_s)
    if schedule in (BFS, INTERLEAVED):
        phases = looped_phase_s(p, v, m, f_max, f_sum) + looped_phase_s(p, v, m, full, full_sum)
        return phases + hops
    # Fill and drain of the mean rank; p - 1 of them.
    f_fill = f_sum * (p - 1.0) / p
    b_fill = b_sum * (p - 1.0) / p
    w_fill = (p - 1.0) * w_max
    # No schedule is faster than one microbatch's way down and up behind the others' work.
    chain = f_sum + b_sum + (m - 1.0) * (f_max + b_max) + w_max
    return max(chain, work + split_idle_s(schedule, p, v, f_fill, b_fill, w_fill)) + hops


@kernel
def split_idle_s(
    schedule: float, p: float, v: float, f_fill: float, b_fill: float, w_fill: float
) -> float:
    """Idle seconds a rank of the schedules that split the backward, at m large enough.

    `f_fill, b_fill, w_fill` are (p - 1) times a rank's f, b and w.
    """
    if schedule == ZB_H1:
        return max(0.0, f_fill + b_fill - w_fill)
    if schedule == ZB_H2:
        return max(0.0, f_fill + b_fill - 2.0 * w_fill)
    if schedule == IZB:
        return max(0.0, f_fill + b_fill - w_fill) / v
    if schedule == ZB_V:
        return f_fill / 2.0
    if schedule == V_HALF:
        return (f_fill + b_fill + w_fill) / 2.0
    if schedule == V_MIN:
        return 2.0 * (f_fill + b_fill + w_fill) / 3.0
    if schedule == DUALPIPE:
        return (p / 2.0 - 1.0) / (p - 1.0) * max(0.0, f_fill + 2.0 * b_fill - w_fill)
    if schedule == DUALPIPE_V:
        return max(0.0, f_fill + 2.0 * b_fill - w_fill) / 2.0
    return f_fill + b_fill + w_fill
