"""ZB-H2: enough forwards in flight that no rank waits (arXiv:2401.10241, section 2)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, one_chunk
from gangsaw.schedule.weave import straight, weave


def make(p: int, m: int, v: int) -> Schedule:
    """2(p - r) - 2 warm-up forwards on rank r, weight gradients 2r behind: 2p - 1 in flight.

    Ranks start one after the other and end one after the other: the bubble vanishes only where
    the next step starts without waiting for all ranks.
    """
    rows = [
        weave(straight(r, m), straight(r, m), warmup=2 * (p - 1 - r), weight_lag=2 * r)
        for r in range(p)
    ]
    return from_rows("zb-h2", rows, p, m)


INFO = ScheduleInfo(
    name="zb-h2",
    aliases=("zbh2",),
    title="ZB-H2",
    make=make,
    refuse=one_chunk,
    condition="split backward; an optimizer step without global synchronisation; m >= 2p-1",
    bubble="(p-1)(F+B-2W) of the period",
    in_flight="2p-1",
    transfers="2(p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=1,
    source="arXiv:2401.10241",
)
