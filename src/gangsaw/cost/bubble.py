"""Time of one step along the pipeline, in closed form, for every schedule.

Symbols: p ranks of the pipe, v chunks a rank, m microbatches a step; f, b, w the forward, the
input-gradient and the weight-gradient time of one microbatch on one rank (all its chunks
together), t the time of one stage-to-stage transfer. Sources: GPipe arXiv:1811.06965, 1F1B and
interleaved arXiv:2104.04473, breadth-first arXiv:2211.05953, zero bubble arXiv:2401.10241, V
schedules arXiv:2405.15362, DualPipe arXiv:2412.19437 and its repository's table.
"""

from __future__ import annotations

from gangsaw.cost.types import (
    AUTO,
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
from gangsaw.jit import inlined, kernel

V_SHARE = 0.5
"""Share of the idle time that a rank slower than the others keeps in V schedules, fitted."""


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


@inlined
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
    if schedule == AUTO:  # never slower than a named schedule that fits: stated as this one
        schedule = float(IZB)
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
    # Ranks behind the slowest one: its fill and drain, as in m max + (sum - max).
    f_fill = max(0.0, f_sum - f_max)
    b_fill = max(0.0, b_sum - b_max)
    w_fill = w_max * (f_fill + b_fill) / max(f_max + b_max, 1e-300)
    idle = split_idle_s(schedule, p, v, f_fill, b_fill, w_fill)
    # One microbatch's way down and up with the others behind it: few microbatches.
    mean = (f_sum + b_sum) / p
    share = mean / max(f_max + b_max, 1e-300)
    chain = f_sum + b_sum + w_max + (m - 1.0) * mean
    if schedule in (ZB_H1, IZB):
        chain = f_sum + b_sum + (w_max + (m - 1.0) * mean) / v
        work += max(0.0, p - m) * w_max * share
    elif schedule != ZB_H2:
        # The V's first rank is also its last: what it has more than others goes into its waits.
        period = v_period_s(schedule, p, f_sum / p, b_sum / p, w_max * share)
        return max(chain, m * period + idle, work + V_SHARE * idle) + hops
    return max(chain, work + idle) + hops


@kernel
def v_period_s(schedule: float, p: float, f: float, b: float, w: float) -> float:
    """Seconds a microbatch in the steady state of a V schedule, with ranks of equal f, b, w.

    V-Half and V-Min hold so few microbatches that ranks run in lock-step: unequal f, b and w then
    cost time in every period. Read off the event loop's gradients, exact there.
    """
    period = f + b + w
    if schedule == V_HALF and p > 2.0:
        period = max(period, 2.0 * b + 0.5 * f)
    elif schedule == V_MIN and p > 2.0:
        period = max(period, 3.0 * f, 3.0 * b)
    elif schedule == V_MIN:
        period = max(period, 2.0 * max(f, b) + 0.5 * min(f, b) + 0.5 * w)
    return period


@kernel
def split_idle_s(
    schedule: float, p: float, v: float, f_fill: float, b_fill: float, w_fill: float
) -> float:
    """Idle seconds of a rank of the schedules that split the backward, at m of p or more.

    `f_fill, b_fill, w_fill` are (p - 1) times a rank's f, b and w. ZB-H1, ZB-H2 and DualPipe are
    the published forms, with w filling no more than a forward left open in ZB-H1. ZB-V with a
    flush keeps its skew; V-Half and V-Min are fitted to the event loop at b of 1 to 2 f.
    """
    if schedule == ZB_H1:
        return f_fill + b_fill - min(w_fill, f_fill)
    if schedule == ZB_H2:
        return max(0.0, f_fill + b_fill - 2.0 * w_fill)
    if schedule == IZB:
        return (f_fill + b_fill - min(w_fill, f_fill)) / v
    if schedule == ZB_V:
        return max(0.5 * f_fill, 0.5 * b_fill, b_fill - w_fill)
    if schedule == V_HALF:
        return 0.65 * f_fill + 1.4 * b_fill - 0.4 * w_fill
    if schedule == V_MIN:
        return 1.05 * f_fill + 0.85 * b_fill + 0.05 * w_fill
    if schedule == DUALPIPE:
        return (p / 2.0 - 1.0) / (p - 1.0) * max(0.0, f_fill + 2.0 * b_fill - w_fill)
    if schedule == DUALPIPE_V:
        return max(0.0, f_fill + 2.0 * b_fill - w_fill) / 2.0
    return f_fill + b_fill + w_fill
