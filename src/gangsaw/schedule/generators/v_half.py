"""V-Half: a V of two chunks that holds half of what 1F1B holds (arXiv:2405.15362)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.building_block import Offsets, block, block_row
from gangsaw.schedule.generators.base import ScheduleInfo, two_chunks

OFFSETS = Offsets(forward_0=2, forward_1=1, backward_1=2, backward_0=1)


def make(p: int, m: int, v: int) -> Schedule:
    """The building block with offsets that sum to three on each arm of the V."""
    built = block(p, OFFSETS)
    return from_rows("v-half", [block_row(r, p, m, built) for r in range(p)], 2 * p, m)


INFO = ScheduleInfo(
    name="v-half",
    aliases=("vhalf",),
    title="V-Half",
    make=make,
    refuse=two_chunks,
    condition="two chunks a rank, split backward",
    bubble="about half of 1F1B's",
    in_flight="about p/2",
    transfers="2(2p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=2,
    source="arXiv:2405.15362",
)
