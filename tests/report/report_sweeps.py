"""Sweeps of made-up plans with the shapes that real ones have."""

from gangsaw.report.series import (
    BandwidthSweep,
    MicrobatchPoint,
    MicrobatchSweep,
    PlanCurve,
    ReportSweeps,
    crossings,
    log_space,
)

GIB = 2.0**30


def microbatches():
    points = []
    for m in (1, 2, 4, 8, 16):
        mbs = 16 // m
        peak = (18 + 9 * mbs) * GIB
        points.append(
            MicrobatchPoint(
                num_microbatches=m, mbs=mbs, step_time_s=6.0 * (1 + 15 / (7 * m)) + 0.02 * m,
                peak_bytes=peak, fits="yes" if peak < 75 * GIB else "no",
            )
        )  # fmt: skip
    return MicrobatchSweep(points=tuple(points), chosen=16, capacity_bytes=79.1 * GIB)


def bandwidth():
    xs = log_space(3e9, 400e9, 25)
    first = PlanCurve("plan 1: TP 8 PP 16 DP 128", tuple(8.0 + 30e9 / x for x in xs))
    second = PlanCurve("plan 2: TP 8 PP 8 DP 256", tuple(8.3 + 21e9 / x for x in xs))
    third = PlanCurve("plan 3: TP 16 PP 8 DP 128", tuple(8.6 + 60e9 / x for x in xs))
    return BandwidthSweep(
        tier="fabric", bytes_per_s=xs, now_bytes_per_s=50e9, curves=(first, second, third),
        crossings=(*crossings(xs, first, second), *crossings(xs, first, third)),
    )  # fmt: skip


def sweeps():
    return ReportSweeps(microbatches=microbatches(), bandwidth=bandwidth())
