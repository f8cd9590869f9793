"""The event loop itself, on arrays, run interpreted or compiled. It knows nothing of models.

Every rank has a compute stream that runs its row in order, and a stream for gathers and
reductions. What an action needs and makes are slots: an action starts when its rank is free and
its input slot is filled; its output slot is filled when it ends, or when its transfer over a
link arrives. With private links the order in which ranks are served does not change any time, so
ranks run as far as they can; where ranks share a link, or receives are actions of their own, the
action that ends first is served first, equal ends by rank.
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
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    W,
)

UNKNOWN = -1.0
NOBODY = -1
GATHERED = -2
"""Cause of an action that waited for a gather."""
TAKES, MAKES, LINK, TARGET = range(4)
"""Rows of `Program.whole`: first slot taken, first slot made (microbatch 0), link, rank."""
LASTS, OCCUPIES, LATE = range(3)
"""Rows of `Program.real`: seconds of the action, of its link, of arriving later."""


class Program(NamedTuple):
    """The schedule, and what each action kind means on each stage.

    row [ranks + 1], kind, stage, microbatch, pair [actions] as in `schedule.actions`; `whole`
    int32 [4, kinds x stages] and `real` float64 [3, kinds x stages], at kind x stages + stage.
    """

    row: I64
    kind: I8
    stage: I32
    microbatch: I32
    pair: I8
    whole: I32
    real: Array
    stages: int
    overlap_frac: float
    blocking: bool


class State(NamedTuple):
    """By rank: at, free, side_free; by link: link_free; by slot: when it is filled (UNKNOWN: not
    yet), by which action, and when the first side came to a written-out transfer; by stage: when
    gathered; `queue` [2 ranks + 1]: height, then ranks to serve, then whether each is in it.
    """

    at: I64
    free: Array
    side_free: Array
    link_free: Array
    ready: Array
    origin: I32
    met: Array
    gathered: Array
    queue: I64


class Result(NamedTuple):
    """By action: start, end; start and arrival of its transfer (or UNKNOWN); seconds that a
    blocking send held its rank; the action whose result it waited for (NOBODY, GATHERED).
    """

    start: Array
    end: Array
    sent: Array
    arrived: Array
    held: Array
    cause: I32


@kernel
def wake(rank: int, queue: I64) -> None:
    """Put a rank among those to serve."""
    ranks = len(queue) // 2
    if queue[1 + ranks + rank] == 0:
        queue[1 + ranks + rank] = 1
        queue[0] += 1
        queue[queue[0]] = rank


@kernel
def pop(queue: I64) -> int:
    """Take the rank that was put last; -1 when there is none."""
    height = queue[0]
    if height == 0:
        return -1
    rank = int(queue[height])
    queue[0] = height - 1
    queue[1 + len(queue) // 2 + rank] = 0
    return rank


@kernel
def filled(i: int, cell: int, microbatch: I32, whole: I32, ready: Array) -> float:
    """When the input of action i is there: 0 without input, UNKNOWN while it is not."""
    slot = whole[TAKES, cell]
    if slot < 0:
        return 0.0
    return float(ready[slot + microbatch[i]])


@kernel
def deliver(
    i: int, cell: int, issue: float, p: Program, s: State, sent: Array, arrived: Array
) -> float:
    """Fill the slot that action i makes, over its link if it has one; when the link is free."""
    slot = p.whole[MAKES, cell] + p.microbatch[i]
    link = p.whole[LINK, cell]
    s.origin[slot] = i
    wake(p.whole[TARGET, cell], s.queue)
    if link < 0:
        s.ready[slot] = issue
        return issue
    start = max(issue, s.link_free[link])
    done = start + p.real[OCCUPIES, cell]
    s.link_free[link] = done
    sent[i] = start
    arrived[i] = done + p.real[LATE, cell]
    s.ready[slot] = arrived[i]
    return float(done)


@kernel
def aside(i: int, rank: int, p: Program, s: State, out: Result) -> None:
    """An action that is not compute: a send, a receive, a gather, a drop, a reduction.

    A written-out transfer starts when both its sides have come to it; gathers and reductions
    are issued when the row reaches them and run on the rank's other stream.
    """
    kind, stage = int(p.kind[i]), p.stage[i]
    cell = kind * p.stages + stage
    now = s.free[rank]
    out.start[i] = now
    out.end[i] = now
    if kind < UNSHARD:
        slot = p.whole[MAKES, cell] + p.microbatch[i]
        sends = kind in (SEND_F, SEND_B)
        if sends:
            s.origin[slot] = i
        if s.met[slot] < 0.0:
            s.met[slot] = now
            return
        sender = s.origin[slot]
        done = deliver(
            sender, int(p.kind[sender]) * p.stages + p.stage[sender], max(s.met[slot], now), p, s,
            out.sent, out.arrived,
        )  # fmt: skip
        if p.blocking and sends:
            out.held[i] = done - now
            s.free[rank] = done
    elif kind != RESHARD:
        out.start[i] = max(now, s.side_free[rank])
        out.end[i] = out.start[i] + p.real[LASTS, cell]
        s.side_free[rank] = out.end[i]
        if kind == UNSHARD:
            s.gathered[stage] = out.end[i]


@kernel
def next_end(rank: int, p: Program, s: State) -> float:
    """When the rank's next action would end; UNKNOWN while it cannot start, or has ended."""
    i = s.at[rank]
    if i >= p.row[rank + 1]:
        return UNKNOWN
    if p.kind[i] > B:
        return float(s.free[rank])
    begin = s.free[rank]
    lasts = 0.0
    for j in range(i, i + (2 if p.pair[i] == PAIR_FIRST else 1)):
        cell = int(p.kind[j]) * p.stages + p.stage[j]
        when = filled(j, cell, p.microbatch, p.whole, s.ready)
        if when < 0.0:
            return UNKNOWN
        begin = max(begin, when, s.gathered[p.stage[j]])
        lasts = together(lasts, p.real[LASTS, cell], p.overlap_frac)
    return float(begin + lasts)


@kernel
def together(one: float, two: float, overlap_frac: float) -> float:
    """Seconds of two actions of which `overlap_frac` of the shorter is hidden."""
    return max(one, two) + (1.0 - overlap_frac) * min(one, two)


@kernel
def first_to_end(ends: Array, p: Program, s: State) -> int:
    """The rank whose next action ends first, lowest rank where equal; -1 when all are done."""
    rank = pop(s.queue)
    while rank >= 0:
        ends[rank] = next_end(rank, p, s)
        rank = pop(s.queue)
    best = -1
    for rank in range(len(ends)):
        if ends[rank] >= 0.0 and (best < 0 or ends[rank] < ends[best]):
            best = rank
    return best


@kernel
def run(by_time: bool, p: Program, s: State, out: Result) -> None:
    """The whole program; `s.at` shows afterwards how far each rank came."""
    row, kind, stage, microbatch, pair = p.row, p.kind, p.stage, p.microbatch, p.pair
    whole, real, free, ready, origin = p.whole, p.real, s.free, s.ready, s.origin
    gathered, queue = s.gathered, s.queue
    starts, ends, sent, arrived, cause = out.start, out.end, out.sent, out.arrived, out.cause
    ranks = len(row) - 1
    nexts = np.full(ranks, UNKNOWN)
    for rank in range(ranks - 1, -1, -1):
        wake(rank, queue)
    rank = first_to_end(nexts, p, s) if by_time else pop(queue)
    while rank >= 0:
        i = s.at[rank]
        stop = row[rank + 1]
        while i < stop:
            if kind[i] > B:
                aside(i, rank, p, s, out)
                i += 1
                if by_time:
                    break
                continue
            width = 2 if pair[i] == PAIR_FIRST else 1
            begin, source, lasts = free[rank], NOBODY, 0.0
            for j in range(i, i + width):
                cell = int(kind[j]) * p.stages + stage[j]
                when = filled(j, cell, microbatch, whole, ready)
                if when < 0.0:
                    begin = UNKNOWN
                    break
                if when > begin:
                    begin, source = when, origin[whole[TAKES, cell] + microbatch[j]]
                if gathered[stage[j]] > begin:
                    begin, source = gathered[stage[j]], GATHERED
                lasts = together(lasts, real[LASTS, cell], p.overlap_frac)
            if begin < 0.0:
                break
            finish = begin + lasts
            free[rank] = finish
            for j in range(i, i + width):
                starts[j], ends[j], cause[j] = begin, finish, source
                cell = int(kind[j]) * p.stages + stage[j]
                if kind[j] != W and whole[MAKES, cell] >= 0:
                    done = deliver(j, cell, finish, p, s, sent, arrived)
                    if p.blocking and done > free[rank]:
                        out.held[j] = done - free[rank]
                        free[rank] = done
            i += width
            if by_time:
                break
        s.at[rank] = i
        if by_time:
            wake(rank, queue)
            rank = first_to_end(nexts, p, s)
        else:
            rank = pop(queue)


@kernel
def critical_counts(rank_of: I32, p: Program, out: Result, counts: Array) -> None:
    """Add to `counts` [4, stages] the actions F, I, W, B on the chain that ends last.

    The chain goes from an action to the one whose result it waited for, else to the one before it
    on its rank; what it lasts beside these actions are transfers. Gathers are not followed.
    """
    at = int(np.argmax(out.end))
    while at >= 0:
        if p.pair[at] == PAIR_SECOND:
            at -= 1
        for j in range(at, at + (2 if p.pair[at] == PAIR_FIRST else 1)):
            if p.kind[j] <= B:
                counts[p.kind[j], p.stage[j]] += 1.0
        source = out.cause[at]
        if source >= 0:
            at = source
        elif at > p.row[rank_of[p.stage[at]]]:
            at -= 1
        else:
            at = -1
