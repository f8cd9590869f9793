"""V-Min: a V of two chunks that holds a third of what 1F1B holds (arXiv:2405.15362)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.building_block import Offsets, block, block_row
from gangsaw.schedule.generators.base import ScheduleInfo, two_chunks

OFFSETS = Offsets(forward_0=1, forward_1=1, backward_1=1, backward_0=1)


def make(p: int, m: int, v: int) -> Schedule:
    """The building block in which every visit moves one rank a unit."""
    built = block(p, OFFSETS)
    return from_rows("v-min", [block_row(r, p, m, built) for r in range(p)], 2 * p, m)


INFO = ScheduleInfo(
    name="v-min",
    aliases=("vmin",),
    title="V-Min",
    make=make,
    refuse=two_chunks,
    condition="two chunks a rank, split backward; degrades when F, B and W differ",
    bubble="about two thirds of 1F1B's",
    in_flight="about p/3",
    transfers="2(2p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=2,
    source="arXiv:2405.15362",
)
