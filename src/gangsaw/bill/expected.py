"""Goodput beyond Young and Daly: asynchronous saves, restarts of several kinds, the exact optimum.

Failures are Poisson with mean time M and strike at any moment, restarts included. Work runs in
intervals tau, each followed by a blocking save of d; the save is safe s after that (s = 0 where
it blocks until it is safe).

A failure goes back to the last safe save. Between two safe saves lie L = tau + d seconds; after a
failure R + L + s seconds without another one lead to the next. The expected time between safe
saves is therefore M e^((R + s)/M) (e^(L/M) - 1): Daly's equation 20 (2006, FGCS 22(3)) with s
added to the restart. It holds for s <= L: a save is safe before the next one begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gangsaw.bill.goodput import expected_wall_s
from gangsaw.errors import InputError

_NEWTON = 60
"""Newton's steps at most; five or six are enough."""


def optimum_interval_s(block_s: float, mtbf_s: float, safe_after_s: float = 0.0) -> float:
    """Seconds of work between saves that make the expected time least; exact.

    The zero of the derivative of (e^((tau + d)/M) - 1)/tau is tau = M (1 + W(-e^(-1 - d/M))), W
    the principal branch of Lambert's function; Young and Daly approximate it. Restarts do not
    move it. Never less than what keeps one save safe before the next begins. Newton's steps on
    1 - tau/M = e^(-(tau + d)/M), which is concave, so they come down to the root from anywhere.
    """
    if block_s <= 0.0 and safe_after_s <= 0.0:
        raise InputError("saves that cost nothing have no best interval: state their time")
    wait = block_s / mtbf_s
    share = math.sqrt(2.0 * wait)
    for _ in range(_NEWTON if block_s > 0.0 else 0):
        slope = math.expm1(-(share + wait))
        change = (share + slope) / slope
        share += change
        if abs(change) <= 1e-14 * share:
            break
    return max(mtbf_s * share, safe_after_s - block_s, 1e-9 * mtbf_s)


def effective_restart_s(restarts: Sequence[tuple[float, float]], mtbf_s: float) -> float:
    """The one restart time that stands for several kinds, exact: -M ln sum p e^(-R/M).

    `restarts`: probability and seconds of each kind; each failure draws one, restarts that fail
    draw again. From A = M (1 - q)/q with q = e^(-L/M) E e^(-R/M), as in the module's text.
    """
    total = math.fsum(p for p, _ in restarts)
    if total <= 0.0:
        raise InputError("no failure of any kind: there is nothing to restart from")
    shortest = min(r for _, r in restarts)
    mean = math.fsum(p / total * math.exp(-(r - shortest) / mtbf_s) for p, r in restarts)
    return shortest - mtbf_s * math.log(mean)


def goodput_frac(
    block_s: float, safe_after_s: float, interval_s: float, mtbf_s: float, restart_s: float
) -> float:
    """Share of the wall time that is work done once; `safe_after_s` counts from the save's begin.

    0 where failures come so fast that no save is ever reached.
    """
    delay_s = max(0.0, safe_after_s - block_s)
    try:
        wall_s = expected_wall_s(interval_s, block_s, interval_s, mtbf_s, restart_s + delay_s)
    except InputError:
        return 0.0
    return interval_s / wall_s


def expected_lost_s(block_s: float, safe_after_s: float, interval_s: float) -> float:
    """Expected work lost by one failure, to first order in interval over mean time to failure.

    Half an interval and its save, and what was not yet safe.
    """
    return 0.5 * (interval_s + block_s) + max(0.0, safe_after_s - block_s)
