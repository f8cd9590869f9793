"""DualPipe: microbatches from both ends, forward and backward overlapped (arXiv:2412.19437)."""

from __future__ import annotations

from gangsaw.schedule.actions import Row, Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo
from gangsaw.schedule.program import Program


def overlapped_row(half: int, halves: int, m: int, stages: tuple[int, int]) -> Row:
    """The program of a rank `half` of `halves` from the entrance, m microbatches a direction.

    `stages` are those of the direction that enters here and of the one that leaves here.
    """
    behind = halves - half - 1
    program = Program(stages)
    for _ in range(2 * behind):
        program.forward(0)
    for _ in range(half + 1):
        program.forward(0)
        program.forward(1)
    for _ in range(behind):
        program.backward(1, split=True)
        program.weight()
        program.forward(1)
    for i in range(m - 2 * halves + half + 1):
        if i == 0 and behind == 0:
            program.forward(0)
            program.backward(1)
        else:
            program.both(forward=0, backward=1)
        program.both(forward=1, backward=0)
    for _ in range(behind):
        program.backward(1)
        program.both(forward=1, backward=0)
    _drain(program, half, behind)
    return program.row(m)


def _drain(program: Program, half: int, behind: int) -> None:
    """The last backwards; from the middle on their weight gradients fill the waits."""
    split = False
    middle = (half + 1) // 2
    for i in range(half + 1):
        split = split or (i == middle and half % 2 == 1)
        program.backward(1, split=split)
        split = split or (i == middle and half % 2 == 0)
        program.backward(0, split=split)
    for _ in range(behind):
        program.weight()
        program.backward(0, split=split)
    for _ in range(half + 1):
        program.weight()


def make(p: int, m: int, v: int) -> Schedule:
    """Two copies of the model: stage i of the first on rank i, of the second on rank p - 1 - i."""
    rows = []
    for rank in range(p):
        mirror = p - 1 - rank
        first, second = rank, p + mirror
        entering, leaving = (first, second) if rank < p // 2 else (second, first)
        half = min(rank, mirror)
        rows.append(overlapped_row(half, p // 2, m // 2, (entering, leaving)))
    return from_rows("dualpipe", rows, 2 * p, m // 2, pipes=2)


def _refuse(p: int, m: int, v: int) -> str:
    if v != 1:
        return f"vpp={v}: DualPipe holds one stage of each direction a rank. Legal: 1"
    if p % 2:
        return f"pp={p}: DualPipe needs an even number of ranks. Legal here: {p - 1}, {p + 1}"
    if m % 2 or m < 2 * p:
        return (
            f"num_microbatches={m}: DualPipe needs an even number of at least 2 pp = {2 * p}"
            " (half enters at each end)"
        )
    return ""


INFO = ScheduleInfo(
    name="dualpipe",
    aliases=("dual-pipe",),
    title="DualPipe",
    make=make,
    refuse=_refuse,
    condition="p even, m even and >= 2p, two copies of the weights",
    bubble="(p/2-1)(FB + Bf - 3W), FB an overlapped pair, Bf = B+W",
    in_flight="p+1",
    transfers="2(p-1)",
    weights=2.0,
    splits_backward=True,
    fixed_chunks=1,
    source="arXiv:2412.19437; deepseek-ai/DualPipe",
)
