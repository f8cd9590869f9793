"""What the curves of the report show: sweeps as plain series, and where two curves cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gangsaw.spec.result import Fits


@dataclass(frozen=True)
class MicrobatchPoint:
    """The chosen cut with the same batch in `num_microbatches` parts of `mbs` sequences."""

    num_microbatches: int
    mbs: int
    step_time_s: float
    peak_bytes: float
    fits: Fits


@dataclass(frozen=True)
class MicrobatchSweep:
    """Step time and memory against the microbatch count, ascending."""

    points: tuple[MicrobatchPoint, ...]
    chosen: int
    capacity_bytes: float


@dataclass(frozen=True)
class PlanCurve:
    """Step time of one plan at each bandwidth of a sweep."""

    name: str
    step_time_s: tuple[float, ...]


@dataclass(frozen=True)
class Crossing:
    """Where the chosen plan and another change rank."""

    at: float
    step_time_s: float
    faster_below: str
    faster_above: str


@dataclass(frozen=True)
class BandwidthSweep:
    """Step time of the chosen plan (first curve) and its rivals against link bandwidth.

    `bytes_per_s` is that of one device in one direction on `tier`, ascending; `now_bytes_per_s`
    is what the cluster has.
    """

    tier: str
    bytes_per_s: tuple[float, ...]
    now_bytes_per_s: float
    curves: tuple[PlanCurve, ...]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True)
class ReportSweeps:
    """The sweeps of a report, None where the job has nothing to sweep; and the pipeline, drawn.

    `timeline_svg` is a drawing; a longer pipeline comes as `timeline_page`, a page of its own to be
    framed, `timeline_ranks` rows high; where there is neither, `no_timeline` says why.
    """

    microbatches: MicrobatchSweep | None = None
    bandwidth: BandwidthSweep | None = None
    timeline_svg: str = ""
    timeline_page: str = ""
    timeline_ranks: int = 0
    no_timeline: str = ""


def crossings(x: Sequence[float], first: PlanCurve, other: PlanCurve) -> tuple[Crossing, ...]:
    """Points at which the two curves cross, found between neighbouring x.

    Time falls with bandwidth as a + b / x, so between two samples both curves are taken as
    straight lines in 1 / x; where they really are, the crossing is exact.
    """
    found = []
    gaps = [a - b for a, b in zip(first.step_time_s, other.step_time_s, strict=True)]
    for i in range(1, len(x)):
        before, after = gaps[i - 1], gaps[i]
        if before == 0.0 or before * after > 0.0 or math.isnan(before * after):
            continue
        share = before / (before - after)
        inverse = 1.0 / x[i - 1] + share * (1.0 / x[i] - 1.0 / x[i - 1])
        at = 1.0 / inverse
        time_s = first.step_time_s[i - 1] + share * (
            first.step_time_s[i] - first.step_time_s[i - 1]
        )
        below, above = (first, other) if before < 0 else (other, first)
        if after == 0.0:
            continue
        found.append(Crossing(at, time_s, below.name, above.name))
    return tuple(found)


def log_space(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` values from low to high, evenly spaced in the logarithm."""
    ratio = math.log(high / low) / (count - 1)
    return tuple(low * math.exp(ratio * i) for i in range(count))
