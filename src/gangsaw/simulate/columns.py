"""The columns of a timeline from a finished run, in one pass over its actions.

Interpreted for small runs and compiled for large ones, as the event loop is: at a million actions
the two million rows cost less than the loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.jit import kernel
from gangsaw.schedule.actions import (
    I8,
    I32,
    I64,
    PAIR_FIRST,
    PAIR_SECOND,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
)
from gangsaw.simulate.kernel import GATHERED, Program, Result
from gangsaw.simulate.timeline import CAUSE_OF, COMPUTE, DP, IDLE, P2P, PAIR

COMPUTE_CAUSE, BUBBLE = CAUSE_OF["compute"], CAUSE_OF["bubble"]
PP_CAUSE, DP_CAUSE = CAUSE_OF["pp_comm"], CAUSE_OF["dp_comm"]


class Columns(NamedTuple):
    """Of a Timeline, by their names; a row of none of these kinds has -1 or 0."""

    rank: I32
    stream: I8
    kind: I8
    stage: I32
    microbatch: I32
    start_s: Array
    end_s: Array
    cause: I8
    bytes: Array
    peer: I32

    @classmethod
    def empty(cls, rows: int) -> Columns:
        """Room for `rows`; no bytes are moved and no stage, microbatch or peer is named."""
        return cls(
            np.empty(rows, np.int32), np.full(rows, COMPUTE, np.int8), np.empty(rows, np.int8),
            np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows), np.empty(rows),
            np.full(rows, COMPUTE_CAUSE, np.int8), np.zeros(rows), np.full(rows, -1, np.int32),
        )  # fmt: skip

    def upto(self, rows: int) -> Columns:
        """The first `rows`."""
        return type(self)._make(column[:rows] for column in self)


class Finished(NamedTuple):
    """What a run left beside `Result`: when each rank's streams ended and the step did; bytes of
    each boundary's transfer [stages]; the rank of each stage.
    """

    free_s: Array
    side_free_s: Array
    makespan_s: float
    bytes_each: Array
    rank_of: I32


@kernel
def count_rows(p: Program, r: Result) -> tuple[int, int, int]:
    """Rows of work, most rows of idle, and rows on other streams."""
    row, kind, pair, start, end, arrived = p.row, p.kind, p.pair, r.start, r.end, r.arrived
    work, waits, others = 0, 0, 0
    for rank in range(len(row) - 1):
        ended = 0.0
        for i in range(row[rank], row[rank + 1]):
            if arrived[i] >= 0.0 or kind[i] == UNSHARD or kind[i] == REDUCE_GRAD:
                others += 1
            if kind[i] <= B and pair[i] != PAIR_SECOND:
                work += 1
                if start[i] > ended:
                    waits += 3
                ended = end[i]
        waits += 3
    return work, waits, others


@kernel
def work_rows(p: Program, r: Result, c: Columns, row_of: I32) -> None:
    """Rows of work from row 0, in the order of the actions.

    `row_of` [actions] becomes the row of each action's work, -1 where it has none.
    """
    row, kind, stage, microbatch, pair = p.row, p.kind, p.stage, p.microbatch, p.pair
    start, end, made = r.start, r.end, c.kind
    ranks, stages, microbatches, starts, ends = c.rank, c.stage, c.microbatch, c.start_s, c.end_s
    at = 0
    for rank in range(len(row) - 1):
        for i in range(row[rank], row[rank + 1]):
            if kind[i] > B:
                row_of[i] = -1
                continue
            if pair[i] == PAIR_SECOND:
                row_of[i] = at - 1
                continue
            row_of[i] = at
            ranks[at] = rank
            made[at] = PAIR if pair[i] == PAIR_FIRST else kind[i]
            stages[at] = stage[i]
            microbatches[at] = microbatch[i]
            starts[at] = start[i]
            ends[at] = end[i]
            at += 1


@kernel
def other_rows(at: int, p: Program, r: Result, f: Finished, c: Columns) -> None:
    """Rows of other streams from row `at`: transfers, gathers and reductions."""
    row, kind, stage, microbatch, bytes_each = p.row, p.kind, p.stage, p.microbatch, f.bytes_each
    start, end, sent, arrived, rank_of = r.start, r.end, r.sent, r.arrived, f.rank_of
    ranks, stages, microbatches, starts, ends = c.rank, c.stage, c.microbatch, c.start_s, c.end_s
    made, stream, cause, moved, peer = c.kind, c.stream, c.cause, c.bytes, c.peer
    for rank in range(len(row) - 1):
        for i in range(row[rank], row[rank + 1]):
            sends = arrived[i] >= 0.0
            gathers = kind[i] == UNSHARD or kind[i] == REDUCE_GRAD
            if not (sends or gathers):
                continue
            ranks[at] = rank
            stages[at] = stage[i]
            if sends:
                forward = kind[i] == F or kind[i] == SEND_F
                target = stage[i] + 1 if forward else stage[i] - 1
                stream[at] = P2P
                made[at] = SEND_F if forward else SEND_B
                microbatches[at] = microbatch[i]
                starts[at] = sent[i]
                ends[at] = arrived[i]
                cause[at] = PP_CAUSE
                moved[at] = bytes_each[stage[i] if forward else target]
                peer[at] = rank_of[target]
            else:
                stream[at] = DP
                made[at] = kind[i]
                microbatches[at] = -1
                starts[at] = start[i]
                ends[at] = end[i]
                cause[at] = DP_CAUSE
            at += 1


@kernel
def idle(at: int, rank: int, start_s: float, end_s: float, cause: int, c: Columns) -> int:
    """A row of waiting, where there is any; the place of the next row."""
    if end_s <= start_s:
        return at
    c.rank[at] = rank
    c.kind[at] = IDLE
    c.stage[at] = -1
    c.microbatch[at] = -1
    c.start_s[at] = start_s
    c.end_s[at] = end_s
    c.cause[at] = cause
    return at + 1


@kernel
def wait(at: int, i: int, rank: int, left: tuple[float, float], r: Result, c: Columns) -> int:
    """What lies before action i: behind work that ended at left[0] and held its rank left[1] on.

    It begins with the part that a blocking send holds, ends with the part that a transfer or a
    gather delays the action, and what is between is bubble.
    """
    begins = r.start[i]
    free = min(left[0] + left[1], begins)
    source = r.cause[i]
    made, cause = begins, PP_CAUSE
    if source == GATHERED:
        made, cause = 0.0, DP_CAUSE
    elif source >= 0 and r.arrived[source] >= 0.0:
        made = r.end[source]
    asks = min(max(free, made), begins)
    at = idle(at, rank, left[0], free, PP_CAUSE, c)
    at = idle(at, rank, free, asks, BUBBLE, c)
    return int(idle(at, rank, asks, begins, cause, c))


@kernel
def idle_rows(at: int, p: Program, r: Result, f: Finished, c: Columns) -> int:
    """Rows of waiting from row `at`: before each action that waits, and behind the last of a
    rank. Returns the number of all rows.
    """
    row, kind, pair, start, end, held = p.row, p.kind, p.pair, r.start, r.end, r.held
    for rank in range(len(row) - 1):
        ended, kept = 0.0, 0.0
        for i in range(row[rank], row[rank + 1]):
            if kind[i] > B or pair[i] == PAIR_SECOND:
                kept += held[i]
                continue
            if start[i] > ended:
                at = wait(at, i, rank, (ended, kept), r, c)
            ended, kept = end[i], held[i]
        own = max(f.free_s[rank], ended)
        reduced = max(f.side_free_s[rank], own)
        at = idle(at, rank, ended, own, PP_CAUSE, c)
        at = idle(at, rank, own, reduced, DP_CAUSE, c)
        at = idle(at, rank, reduced, f.makespan_s, BUBBLE, c)
    return int(at)


@kernel
def last_chain(p: Program, r: Result, rank_of: I32, row_of: I32, chain: I64) -> int:
    """Rows of work on the chain that ends last, written from the end of `chain` [rows of work].

    Each waits for the one before it, else it follows it on its rank. Returns the place of the
    first.
    """
    at, latest = -1, -1.0
    for i in range(len(row_of)):
        if row_of[i] >= 0 and r.end[i] > latest:
            at, latest = i, r.end[i]
    place = len(chain)
    while at >= 0:
        if p.pair[at] == PAIR_SECOND:
            at -= 1
        if row_of[at] >= 0:
            place -= 1
            chain[place] = row_of[at]
        source = r.cause[at]
        if source >= 0 and p.kind[at] <= B:
            at = source
        elif at > p.row[rank_of[p.stage[at]]]:
            at -= 1
        else:
            at = -1
    return place
