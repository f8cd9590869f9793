"""Interleaved 1F1B: v chunks a rank, microbatches in rounds of about p (arXiv:2104.04473)."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, any_chunks
from gangsaw.schedule.weave import looped, rounds, weave


def make(p: int, m: int, v: int) -> Schedule:
    """(v - 1) rounds and two a rank behind as warm-up, then turns.

    m need not be a multiple of p: the rounds are then a little larger than p, and unequal by one
    where they do not divide m. With m < p there is one round, and the pipe is not full.
    """
    largest = int(rounds(m, p)[0])
    rows = [
        weave(
            looped(r, p, v, m, reverse=False),
            looped(r, p, v, m, reverse=True),
            warmup=(v - 1) * largest + 2 * (p - 1 - r),
        )
        for r in range(p)
    ]
    return from_rows("interleaved", rows, p * v, m)


INFO = ScheduleInfo(
    name="interleaved",
    aliases=("interleaved1f1b", "interleaved-1f1b", "vpp", "scheduleinterleaved1f1b"),
    title="Interleaved 1F1B",
    make=make,
    refuse=any_chunks,
    condition="none (Megatron-LM wants m % p == 0; torch wants m a multiple of its rounds)",
    bubble="(p-1)(F+B+W)/v where p divides m",
    in_flight="p + (p-1)/v on rank 0",
    transfers="2(pv-1)",
    weights=1.0,
    splits_backward=False,
    fixed_chunks=0,
    source="arXiv:2104.04473",
)
