"""Breadth-first looped pipeline: every chunk runs all microbatches at once (arXiv:2211.05953)."""

from __future__ import annotations

import numpy as np

from gangsaw.schedule.actions import Schedule, from_rows
from gangsaw.schedule.generators.base import ScheduleInfo, any_chunks
from gangsaw.schedule.weave import Sequence2, weave


def make(p: int, m: int, v: int) -> Schedule:
    """All forwards chunk by chunk, then all backwards, last chunk and last microbatch first."""
    rows = [weave(_forward(r, p, v, m), _backward(r, p, v, m), warmup=m * v) for r in range(p)]
    return from_rows("bfs", rows, p * v, m)


def _forward(rank: int, p: int, v: int, m: int) -> Sequence2:
    stages = np.repeat(np.arange(v, dtype=np.int32) * p + rank, m)
    return stages.astype(np.int32), np.tile(np.arange(m, dtype=np.int32), v)


def _backward(rank: int, p: int, v: int, m: int) -> Sequence2:
    stages, microbatches = _forward(rank, p, v, m)
    return stages[::-1], microbatches[::-1]


INFO = ScheduleInfo(
    name="bfs",
    aliases=("loopedbfs", "looped-bfs", "breadth-first", "scheduleloopedbfs"),
    title="Breadth-first",
    make=make,
    refuse=any_chunks,
    condition="none",
    bubble="(p-1)(F+B+W)/v at m >= p",
    in_flight="m",
    transfers="2(pv-1)",
    weights=1.0,
    splits_backward=False,
    fixed_chunks=0,
    source="arXiv:2211.05953",
)
