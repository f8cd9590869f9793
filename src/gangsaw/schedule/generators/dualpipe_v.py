"""DualPipe-V: DualPipe cut in half, a V of two chunks a rank and one copy of the weights."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, two_chunks
from gangsaw.schedule.generators.dualpipe import overlapped_row


def make(p: int, m: int, v: int) -> Schedule:
    """Stages r and 2p - 1 - r on rank r."""
    rows = [overlapped_row(r, p, m, (r, 2 * p - 1 - r)) for r in range(p)]
    return from_rows("dualpipe-v", rows, 2 * p, m)


def _refuse(p: int, m: int, v: int) -> str:
    if m < 2 * p:
        return f"num_microbatches={m}: DualPipe-V needs at least 2 pp = {2 * p}"
    return two_chunks(p, m, v)


INFO = ScheduleInfo(
    name="dualpipe-v",
    aliases=("dualpipev", "scheduledualpipev"),
    title="DualPipe-V",
    make=make,
    refuse=_refuse,
    condition="two chunks a rank, m >= 2p",
    bubble="(p-1)(FB + Bf - 3W), all of one chunk",
    in_flight="p+1/2 of a whole rank: 2p+1 chunks",
    transfers="2(2p-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=2,
    source="deepseek-ai/DualPipe; torch.distributed.pipelining",
)
