"""Interleaved zero bubble: interleaved 1F1B whose weight gradients fill the drain."""

from __future__ import annotations

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, any_chunks
from gangsaw.schedule.weave import looped, rounds, weave


def make(p: int, m: int, v: int) -> Schedule:
    """Interleaved with one warm-up forward a rank instead of two, weight gradients r behind."""
    largest = int(rounds(m, p)[0])
    rows = [
        weave(
            looped(r, p, v, m, reverse=False),
            looped(r, p, v, m, reverse=True),
            warmup=(v - 1) * largest + (p - 1 - r),
            weight_lag=r,
        )
        for r in range(p)
    ]
    return from_rows("izb", rows, p * v, m)


INFO = ScheduleInfo(
    name="izb",
    aliases=("interleavedzerobubble", "interleaved-zero-bubble", "scheduleinterleavedzerobubble"),
    title="Interleaved zero bubble",
    make=make,
    refuse=any_chunks,
    condition="split backward (torch wants m a multiple of its rounds)",
    bubble="(p-1)(F+B-W)/v at m >= 2p",
    in_flight="p",
    transfers="2(pv-1)",
    weights=1.0,
    splits_backward=True,
    fixed_chunks=0,
    source="arXiv:2401.10241; torch.distributed.pipelining",
)
