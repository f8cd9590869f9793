"""How much longer a run takes than its work: checkpoints, failures, and the best interval."""

from __future__ import annotations

import math

from gangsaw.errors import InputError
from gangsaw.units import HOUR_S

_HOPELESS = 30.0
"""Intervals of this many mean times to failure would need e^30 tries: the run never ends."""


def job_mtbf_s(device_mtbf_h: float, devices: int) -> float:
    """Mean seconds between failures of a synchronous job: any device stops all of them.

    Independent devices with a constant rate. Jobs of RSC-1 met 3.2 to 3.7 times the failures of the
    rate that its own projection uses (arXiv:2410.21680), so the mean time of the cluster at hand is
    worth stating.
    """
    return device_mtbf_h * HOUR_S / devices


def daly_interval_s(block_s: float, mtbf_s: float) -> float:
    """Best seconds of work between two saves (Daly 2006, FGCS 22(3), equation 37).

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for d < 2M, else M; d the blocking time
    of a save, M the mean time between failures. With d = 0 saving is free and the answer 0.
    """
    if block_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = block_s / (2.0 * mtbf_s)
    return (
        math.sqrt(2.0 * block_s * mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - block_s
    )


def young_interval_s(block_s: float, mtbf_s: float) -> float:
    """Best interval to first order: sqrt(2 d M) (Young 1974, CACM 17(9))."""
    return math.sqrt(2.0 * block_s * mtbf_s)


def expected_wall_s(
    work_s: float, block_s: float, interval_s: float, mtbf_s: float, restart_s: float
) -> float:
    """Expected seconds to finish `work_s` of work (Daly 2006, equation 20).

    M e^(R/M) (e^((tau + d)/M) - 1) W / tau: failures are Poisson with mean time M, strike during
    work, saves and restarts alike, and lose what was done since the last save. Raises InputError
    where an interval is so long against M that no save is ever reached.
    """
    segment = (interval_s + block_s) / mtbf_s
    if segment > _HOPELESS or restart_s / mtbf_s > _HOPELESS:
        raise InputError(
            f"a failure every {mtbf_s:.3g} s leaves no room for {interval_s:.3g} s of work,"
            f" a save of {block_s:.3g} s and a restart of {restart_s:.3g} s: shorter intervals,"
            " fewer devices or a longer mean time to failure are needed"
        )
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(segment) * work_s / interval_s
    if not math.isfinite(wall_s):
        raise InputError(f"a failure every {mtbf_s:.3g} s: the run never ends")
    return wall_s
