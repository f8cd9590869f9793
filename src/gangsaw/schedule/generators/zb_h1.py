"""ZB-H1: 1F1B with the weight gradients moved into the drain (arXiv:2401.10241, section 2)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, one_chunk
from gangsaw.schedule.weave import straight, weave


def make(p: int, m: int, v: int) -> Schedule:
    """The warm-up of 1F1B; rank r is r weight gradients behind, so every rank holds p at most."""
    rows = [weave(straight(r, m), straight(r, m), warmup=p - 1 - r, weight_lag=r) for r in range(p)]
    return from_rows("zb-h1", rows, p, m)


INFO = ScheduleInfo(
    name="zb-h1",
    aliases=("zbh1", "zb1p-h1"),
    title="ZB-H1",
    make=make,
    refuse=one_chunk,
    condition="the framework splits the backward",
    bubble="(p-1)(F+B-W)",
    in_flight="p",
    transfers="2(p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=1,
    source="arXiv:2401.10241",
)
