"""1F1B (PipeDream-flush): one forward, one backward by turns (arXiv:2104.04473, figure 3)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, one_chunk
from gangsaw.schedule.weave import straight, weave


def make(p: int, m: int, v: int) -> Schedule:
    """p - 1 - r forwards on rank r, then turns; fewer where m is smaller."""
    rows = [weave(straight(r, m), straight(r, m), warmup=p - 1 - r) for r in range(p)]
    return from_rows("1f1b", rows, p, m)


INFO = ScheduleInfo(
    name="1f1b",
    aliases=("1f1b-flush", "pipedream-flush", "schedule1f1b", "one-f-one-b"),
    title="1F1B",
    make=make,
    refuse=one_chunk,
    condition="none (torch's own class wants m >= p, its runtime does not)",
    bubble="(p-1)(F+B+W)",
    in_flight="min(m, p-r) on rank r",
    transfers="2(p-1)",
    weights=1.0,
    splits_backward=False,
    fixed_chunks=1,
    source="arXiv:2104.04473",
)
