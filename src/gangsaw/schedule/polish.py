"""Improving an order by small moves: an action earlier or later in its row, kept if not slower."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.jit import compiled, kernel
from gangsaw.schedule.actions import I64, B, F, I, Row, Schedule, W, from_rows
from gangsaw.schedule.auto import INF, UNKNOWN, Job


@kernel
def order_makespan_s(
    order: I64, row: I64, job: Job, ready: Array, starts: Array, free: Array, at: I64
) -> float:
    """Seconds of a fixed order; INF when it deadlocks. `order` [actions, 3]: kind, stage, mb.

    `ready` [2, stages, m], `starts` [actions], `free` and `at` [ranks] are room to work in.
    """
    last = len(job.rank_of) - 1
    ranks = len(free)
    ready[:] = UNKNOWN
    ready[0, 0, :] = 0.0
    free[:] = 0.0
    at[:] = row[:-1]
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            now = free[rank]
            i = at[rank]
            while i < row[rank + 1]:
                kind, stage, k = order[i, 0], order[i, 1], order[i, 2]
                if kind == F:
                    when = ready[0, stage, k]
                elif kind == W:
                    when = now
                else:
                    when = ready[1, stage, k]
                if when < 0.0:
                    break
                now = max(now, when)
                starts[i] = now
                if kind == F:
                    now += job.forward_s[stage]
                    if stage == last:
                        ready[1, stage, k] = now
                    else:
                        ready[0, stage + 1, k] = now + job.hop_s[stage]
                elif kind == W:
                    now += job.weight_s[stage]
                else:
                    now += job.backward_s[stage]
                    if kind == B:
                        now += job.weight_s[stage]
                    if stage > 0:
                        ready[1, stage - 1, k] = now + job.hop_s[stage - 1]
                i += 1
            moved = moved or i > at[rank]
            at[rank] = i
            free[rank] = now
    for rank in range(ranks):
        if at[rank] < row[rank + 1]:
            return INF
    return float(np.max(free))


@kernel
def move(order: I64, source: int, target: int) -> None:
    """Take the action at `source` to `target`, the ones between step aside."""
    kind, stage, k = order[source, 0], order[source, 1], order[source, 2]
    step = 1 if target > source else -1
    i = source
    while i != target:
        order[i] = order[i + step]
        i += step
    order[target, 0], order[target, 1], order[target, 2] = kind, stage, k


@kernel
def legal_row(order: I64, first: int, end: int, rank: int, job: Job, place: I64) -> bool:
    """F before B, or I before W, in positions first to end, and never above the rank's room.

    `place` [stages, m] is room to work in: how far each microbatch is on each stage.
    """
    place[:] = 0
    level = 0.0
    limit = job.room_bytes[rank] * (1.0 + 1e-12)
    for i in range(first, end):
        kind, stage, k = order[i, 0], order[i, 1], order[i, 2]
        held = job.held_bytes[stage]
        if kind == F:
            level += held
            if level > limit:
                return False
            place[stage, k] = 1
        elif kind == W:
            if place[stage, k] != 2:
                return False
            level -= held * (1.0 - job.release_frac)
        else:
            if place[stage, k] != 1:
                return False
            place[stage, k] = 2
            level -= held if kind == B else held * job.release_frac
    return True


@kernel
def climb(order: I64, row: I64, job: Job, tries: int, reach: int, seed: int) -> float:
    """Random moves of up to `reach` places, kept when the order is legal and not slower.

    Half of the moves begin in front of a wait. Changes `order`; returns its makespan.
    """
    stages, ranks = len(job.rank_of), len(row) - 1
    ready = np.empty((2, stages, job.m))
    starts, free = np.zeros(len(order)), np.zeros(ranks)
    at = np.zeros(ranks, np.int64)
    place = np.zeros((stages, job.m), np.int64)
    best = order_makespan_s(order, row, job, ready, starts, free, at)
    state = seed * 2654435761 % 4294967296 + 1
    for _ in range(tries):
        state = (state * 1664525 + 1013904223) % 4294967296
        source = (state >> 8) % len(order)
        rank = job.rank_of[order[source, 1]]
        state = (state * 1664525 + 1013904223) % 4294967296
        if (state >> 16) % 2 == 0:
            # The next action that waits: it, or one behind it, may come sooner.
            i = source
            while i + 1 < row[rank + 1] and not waits(i, order, job, starts):
                i += 1
            source = i
        state = (state * 1664525 + 1013904223) % 4294967296
        shift = 1 + (state >> 8) % reach
        target = source + shift if (state >> 20) % 2 == 0 else source - shift
        target = min(max(target, row[rank]), row[rank + 1] - 1)
        if target == source:
            continue
        move(order, source, target)
        if legal_row(order, row[rank], row[rank + 1], rank, job, place):
            found = order_makespan_s(order, row, job, ready, starts, free, at)
            if found <= best:
                best = found
                continue
        move(order, target, source)
    order_makespan_s(order, row, job, ready, starts, free, at)
    return best


@kernel
def waits(i: int, order: I64, job: Job, starts: Array) -> bool:
    """Whether the rank stands idle between action i and the next one."""
    kind, stage = order[i, 0], order[i, 1]
    lasts = job.weight_s[stage]
    if kind == F:
        lasts = job.forward_s[stage]
    elif kind == I:
        lasts = job.backward_s[stage]
    elif kind == B:
        lasts = job.backward_s[stage] + job.weight_s[stage]
    return bool(starts[i + 1] > starts[i] + lasts * (1.0 + 1e-9))


def polish(schedule: Schedule, job: Job, tries: int, reach: int = 6, seed: int = 1) -> Schedule:
    """The schedule after `tries` random moves; never slower without link contention."""
    order: NDArray[np.int64] = np.stack(
        (schedule.kind, schedule.stage, schedule.microbatch), axis=1
    ).astype(np.int64)
    compiled(climb)(order, schedule.row, job, tries, reach, seed)
    rows = [Row.of(*order[schedule.row[r] : schedule.row[r + 1]].T) for r in range(schedule.ranks)]
    return from_rows("auto", rows, schedule.stages, schedule.microbatches)
