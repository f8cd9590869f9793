"""ZB-V: two chunks a rank in the shape of a V, split backward (arXiv:2401.10241, section 6)."""

from __future__ import annotations

from gangsaw.schedule.actions import Row, Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, two_chunks
from gangsaw.schedule.program import Program


def make(p: int, m: int, v: int) -> Schedule:
    """The order of the paper, which keeps p microbatches on every rank."""
    return from_rows("zb-v", [_row(r, p, m) for r in range(p)], 2 * p, m)


def _row(rank: int, p: int, m: int) -> Row:
    """Written for at least 2p - 1 microbatches; with fewer, what is too many is left out."""
    filled = max(2 * p - 1, m)
    program = Program((rank, 2 * p - 1 - rank))
    for _ in range(2 * (p - rank) - 1):
        program.forward(0)
    for _ in range(rank):
        program.forward(1)
        program.forward(0)
    for _ in range(p - rank):
        program.forward(1)
        program.backward(1, split=True)
        program.weight()
    while program.forwards[1] < program.forwards[0] or program.forwards[0] < filled:
        if program.forwards[0] < filled:
            program.forward(0)
        program.backward(0, split=True)
        program.weight()
        program.forward(1)
        program.backward(1, split=True)
        program.weight()
    for _ in range(rank):
        program.backward(0, split=True)
        program.backward(1, split=True)
    for _ in range(p - rank):
        program.backward(0, split=True)
        program.weight()
    program.weights_of(1)
    program.weights_of(0)
    return program.row(m)


INFO = ScheduleInfo(
    name="zb-v",
    aliases=("zbv", "zbvzerobubble", "schedulezbvzerobubble"),
    title="ZB-V",
    make=make,
    refuse=two_chunks,
    condition="two chunks a rank, split backward",
    bubble="0 of the period at F=B=W; (p-1)F/2 of skew with a flush",
    in_flight="p",
    transfers="2(2p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=2,
    source="arXiv:2401.10241",
)
