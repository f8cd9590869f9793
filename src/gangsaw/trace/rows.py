"""Rows of a timeline in the making, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.simulate.timeline import CAUSE_OF, COMPUTE, IDLE, Timeline

Numbers = NDArray[np.integer] | int


class Rows(NamedTuple):
    """Columns of equal length; see simulate.timeline.Timeline."""

    rank: NDArray[np.int32]
    stream: NDArray[np.int8]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    start_s: Array
    end_s: Array
    cause: NDArray[np.int8]
    bytes: Array

    @classmethod
    def of(
        cls,
        rank: int,
        stream: Numbers,
        start_s: Array,
        end_s: Array,
        *,
        kind: Numbers,
        cause: Numbers,
        stage: Numbers = -1,
        microbatch: Numbers = -1,
        moved: Array | float = 0.0,
    ) -> Rows:
        """Columns of the given values; a single one stands for all rows."""
        count = len(start_s)
        return cls(
            np.full(count, rank, np.int32),
            np.broadcast_to(np.asarray(stream, np.int8), (count,)).copy(),
            np.broadcast_to(np.asarray(kind, np.int8), (count,)).copy(),
            np.broadcast_to(np.asarray(stage, np.int32), (count,)).copy(),
            np.broadcast_to(np.asarray(microbatch, np.int32), (count,)).copy(),
            start_s,
            end_s,
            np.broadcast_to(np.asarray(cause, np.int8), (count,)).copy(),
            np.broadcast_to(np.asarray(moved, np.float64), (count,)).copy(),
        )


def closed(parts: Sequence[Rows], ranks: int, end_s: float) -> list[Rows]:
    """`parts` with an idle row on each rank from time 0 and to `end_s`, where it is not there.

    What is missing in front of a rank's first row and behind its last is waiting for the ranks
    that began earlier or ended later: straggler.
    """
    result = list(parts)
    for rank in range(ranks):
        spans = [
            (p.start_s, p.end_s)
            for p in parts
            if len(p.rank) and p.rank[0] == rank and p.stream[0] == COMPUTE
        ]
        low = min((float(s.min()) for s, _ in spans), default=end_s)
        high = max((float(e.max()) for _, e in spans), default=end_s)
        edges = [(a, b) for a, b in ((0.0, low), (high, end_s)) if b > a]
        if edges:
            start, end = (np.asarray(x) for x in zip(*edges, strict=True))
            result.append(
                Rows.of(rank, COMPUTE, start, end, kind=IDLE, cause=CAUSE_OF["straggler"])
            )
    return result


def join(parts: Sequence[Rows], ranks: int, name: str) -> Timeline:
    """All rows as one measured timeline, in order of rank, stream and start."""
    rank = np.concatenate([p.rank for p in parts])
    stream = np.concatenate([p.stream for p in parts])
    start_s = np.concatenate([p.start_s for p in parts])
    order = np.lexsort((start_s, stream, rank))
    return Timeline(
        ranks=ranks,
        rank=rank[order],
        stream=stream[order],
        kind=np.concatenate([p.kind for p in parts])[order],
        stage=np.concatenate([p.stage for p in parts])[order],
        microbatch=np.concatenate([p.microbatch for p in parts])[order],
        start_s=start_s[order],
        end_s=np.concatenate([p.end_s for p in parts])[order],
        cause=np.concatenate([p.cause for p in parts])[order],
        bytes=np.concatenate([p.bytes for p in parts])[order],
        peer=np.full(len(rank), -1, np.int32),
        name=name,
        measured=True,
    )
