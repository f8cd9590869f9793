"""GPipe: all forwards, then all backwards (arXiv:1811.06965)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, one_chunk
from gangsaw.schedule.weave import straight, weave


def make(p: int, m: int, v: int) -> Schedule:
    """m forwards, then m backwards on every rank."""
    rows = [weave(straight(r, m), straight(r, m), warmup=m) for r in range(p)]
    return from_rows("gpipe", rows, p, m)


INFO = ScheduleInfo(
    name="gpipe",
    aliases=("schedulegpipe",),
    title="GPipe",
    make=make,
    refuse=one_chunk,
    condition="none",
    bubble="(p-1)(F+B+W)",
    in_flight="m",
    transfers="2(p-1)",
    weights=1.0,
    splits_backward=False,
    fixed_chunks=1,
    source="arXiv:1811.06965",
)
