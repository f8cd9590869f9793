"""What makes a schedule legal: every action once, in a possible order, on one rank, no deadlock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gangsaw.errors import InputError
from gangsaw.jit import compiled, kernel
from gangsaw.schedule.actions import (
    I32,
    I64,
    KIND_NAMES,
    PAIR_FIRST,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    B,
    F,
    I,
    Schedule,
    W,
    action_text,
)

COMPILE_FROM_ACTIONS = 20_000
"""Above this many actions compiled code is worth its start-up."""

Bits = NDArray[np.uint16]


def check(schedule: Schedule) -> None:
    """Raise InputError with line and reason unless the schedule is legal.

    Each forward and each backward (B, or I and W) exactly once a stage and microbatch; B and I
    after F, W after I; a stage on one rank; sends and receives complete when any is written out;
    no rank waits for ever.
    """
    _check_placement(schedule)
    _check_counts(schedule)
    _check_order(schedule)
    if schedule.has_transfers:
        _check_transfers(schedule)
    stuck = progress(schedule)
    if np.any(stuck < schedule.row[1:]):
        raise InputError(f"{schedule.name}: deadlock: {explain(schedule, stuck)}")


def _check_placement(schedule: Schedule) -> None:
    ranks = schedule.rank_index()
    wrong = np.flatnonzero(schedule.rank_of[schedule.stage] != ranks)
    if len(wrong):
        at = int(wrong[0])
        stage = int(schedule.stage[at])
        raise InputError(
            f"{schedule.name} line {int(ranks[at]) + 1}: stage {stage} is also on line"
            f" {int(schedule.rank_of[stage]) + 1}; a stage belongs to one rank"
        )
    missing = np.flatnonzero(schedule.rank_of < 0)
    if len(missing):
        raise InputError(
            f"{schedule.name}: stage {int(missing[0])} has no action on any of"
            f" {schedule.ranks} lines, but stage {schedule.stages - 1} has (line"
            f" {int(schedule.rank_of[-1]) + 1})"
        )
    if schedule.stages % schedule.pipes:
        raise InputError(f"{schedule.name}: {schedule.stages} stages in {schedule.pipes} pipes")


def _keys(schedule: Schedule, kind: int) -> tuple[I64, I64]:
    """Positions of the actions of a kind, and their stage x microbatches + microbatch."""
    at = np.flatnonzero(schedule.kind == kind)
    key = schedule.stage[at].astype(np.int64) * schedule.microbatches + schedule.microbatch[at]
    return at, key


def _check_counts(schedule: Schedule) -> None:
    cells = schedule.stages * schedule.microbatches
    counts = {}
    for kind in (F, I, W, B):
        at, key = _keys(schedule, kind)
        count = np.bincount(key, minlength=cells)
        counts[kind] = count
        if count.max(initial=0) > 1:
            twice = int(np.flatnonzero(count > 1)[0])
            second = at[np.flatnonzero(key == twice)[1]]
            raise InputError(f"{_where(schedule, int(second))} stands twice; once is legal")
    for name, bad in (
        ("F is missing", counts[F] == 0),
        ("neither B nor I and W are there", (counts[B] + counts[I]) == 0),
        ("both B and I are there; B, or I and W", (counts[B] + counts[I]) > 1),
        ("I and W belong together, one is missing", counts[I] != counts[W]),
    ):
        if bad.any():
            stage, microbatch = divmod(int(np.flatnonzero(bad)[0]), schedule.microbatches)
            line = int(schedule.rank_of[stage]) + 1
            raise InputError(
                f"{schedule.name} line {line}: stage {stage} microbatch {microbatch}: {name}"
            )


def _check_order(schedule: Schedule) -> None:
    cells = schedule.stages * schedule.microbatches
    place = {}
    for kind in (F, I, W, B):
        at, key = _keys(schedule, kind)
        place[kind] = np.full(cells, -1, np.int64)
        place[kind][key] = at
    for early, late in ((F, B), (F, I), (I, W)):
        wrong = (place[late] >= 0) & (place[late] < place[early])
        if wrong.any():
            first = int(place[late][np.flatnonzero(wrong)[0]])
            raise InputError(
                f"{_where(schedule, first)} stands before its {KIND_NAMES[early]}; the order is"
                " F, then B, or F, I, W"
            )
    pairs = np.flatnonzero(schedule.pair == PAIR_FIRST)
    same = (schedule.stage[pairs] == schedule.stage[pairs + 1]) & (
        schedule.microbatch[pairs] == schedule.microbatch[pairs + 1]
    )
    if same.any():
        first = int(pairs[np.flatnonzero(same)[0]])
        raise InputError(f"{_where(schedule, first)} overlaps its own backward")


def crossings(schedule: Schedule) -> NDArray[np.bool_]:
    """For each stage, whether its output goes to another rank; bool [stages]."""
    per_pipe = schedule.stages // schedule.pipes
    stage = np.arange(schedule.stages)
    last = (stage + 1) % per_pipe == 0
    following = np.where(last, stage, np.minimum(stage + 1, schedule.stages - 1))
    crosses = schedule.rank_of[following] != schedule.rank_of[stage]
    onward: NDArray[np.bool_] = np.logical_and(crosses, ~last)
    return onward


def _check_transfers(schedule: Schedule) -> None:
    cross = crossings(schedule)
    m = schedule.microbatches
    onward = np.repeat(cross, m)
    back = np.repeat(np.concatenate(([False], cross[:-1])), m)
    for kind, needed in ((SEND_F, onward), (RECV_F, back), (SEND_B, back), (RECV_B, onward)):
        key = _keys(schedule, kind)[1]
        count = np.bincount(key, minlength=schedule.stages * m)
        if np.any(count != needed):
            cell = int(np.flatnonzero(count != needed)[0])
            stage, microbatch = divmod(cell, m)
            raise InputError(
                f"{schedule.name} line {int(schedule.rank_of[stage]) + 1}:"
                f" {action_text(kind, stage, microbatch)} stands {int(count[cell])} times,"
                f" {int(needed[cell])} needed"
            )


def _where(schedule: Schedule, at: int) -> str:
    rank = int(np.searchsorted(schedule.row, at, side="right")) - 1
    text = action_text(
        int(schedule.kind[at]), int(schedule.stage[at]), int(schedule.microbatch[at])
    )
    return f"{schedule.name} line {rank + 1} action {at - int(schedule.row[rank]) + 1}: {text}"


@kernel
def _has(done: Bits, key: int, kind: int) -> bool:
    """Whether the action of that kind has run; bit k of `done` is action kind k."""
    return bool((done[key] >> kind) & 1)


@kernel
def _ready(
    kind: int, stage: int, key: int, m: int, per_pipe: int, explicit: bool, rank_of: I32, done: Bits
) -> bool:
    """Whether everything that the action needs has run."""
    if kind == F:
        if stage % per_pipe == 0:
            return True
        if explicit and rank_of[stage - 1] != rank_of[stage]:
            return _has(done, key, RECV_F)
        return _has(done, key - m, F)
    if kind in (I, B):
        if (stage + 1) % per_pipe == 0:
            return True
        if explicit and rank_of[stage + 1] != rank_of[stage]:
            return _has(done, key, RECV_B)
        return _has(done, key + m, I) or _has(done, key + m, B)
    if kind == SEND_F:
        return _has(done, key, F)
    if kind == SEND_B:
        return _has(done, key, I) or _has(done, key, B)
    if kind == RECV_F:
        return _has(done, key - m, SEND_F)
    if kind == RECV_B:
        return _has(done, key + m, SEND_B)
    return True


@kernel
def _advance(
    row: I64,
    kind: NDArray[np.int8],
    stage: I32,
    microbatch: I32,
    pair: NDArray[np.int8],
    rank_of: I32,
    m: int,
    per_pipe: int,
    explicit: bool,
) -> I64:
    """How far each rank gets when all run in order; int64 [ranks], row[r + 1] when it ends."""
    ranks = len(row) - 1
    done = np.zeros(len(rank_of) * m, np.uint16)
    at = row[:-1].copy()
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while at[rank] < row[rank + 1]:
                i = at[rank]
                count = 2 if pair[i] == PAIR_FIRST else 1
                free = True
                for j in range(i, i + count):
                    key = stage[j] * m + max(microbatch[j], 0)
                    free = free and _ready(
                        kind[j], stage[j], key, m, per_pipe, explicit, rank_of, done
                    )
                if not free:
                    break
                for j in range(i, i + count):
                    if microbatch[j] >= 0:
                        done[stage[j] * m + microbatch[j]] |= np.uint16(1 << kind[j])
                at[rank] = i + count
                moved = True
    return at


def progress(schedule: Schedule) -> I64:
    """How far each rank gets, int64 [ranks]; row[1:] everywhere when nothing deadlocks."""
    run = compiled(_advance) if schedule.actions >= COMPILE_FROM_ACTIONS else _advance
    result: I64 = run(
        schedule.row,
        schedule.kind,
        schedule.stage,
        schedule.microbatch,
        schedule.pair,
        schedule.rank_of,
        schedule.microbatches,
        schedule.stages // schedule.pipes,
        schedule.has_transfers,
    )
    return result


def explain(schedule: Schedule, stuck: I64) -> str:
    """Which rank waits for what, in one line: the circle of waiting ranks, found from `stuck`."""
    waits = {}
    for rank in range(schedule.ranks):
        if stuck[rank] < schedule.row[rank + 1]:
            at = int(stuck[rank])
            need = _blocker(schedule, at, stuck)
            if need is not None:
                waits[rank] = (at, *need)
    if not waits:
        return "no rank can start"
    rank = min(waits)
    seen: list[int] = []
    while rank in waits and rank not in seen:
        seen.append(rank)
        rank = waits[rank][1]
    circle = seen[seen.index(rank) :] if rank in seen else seen
    parts = []
    for each in circle:
        at, owner, text = waits[each]
        mine = action_text(
            int(schedule.kind[at]), int(schedule.stage[at]), int(schedule.microbatch[at])
        )
        place = at - int(schedule.row[each]) + 1
        parts.append(
            f"rank {each} (line {each + 1} action {place}, {mine}) waits for {text} of rank {owner}"
        )
    return "; ".join(parts[:6]) + (f"; and {len(parts) - 6} more" if len(parts) > 6 else "")


def _blocker(schedule: Schedule, at: int, stuck: I64) -> tuple[int, str] | None:
    """The rank and action that the action `at` waits for, None when it waits for nothing."""
    per_pipe = schedule.stages // schedule.pipes
    count = 2 if schedule.pair[at] == PAIR_FIRST else 1
    for j in range(at, at + count):
        kind, stage = int(schedule.kind[j]), int(schedule.stage[j])
        microbatch = int(schedule.microbatch[j])
        wanted: tuple[tuple[int, ...], int] | None = None
        explicit = schedule.has_transfers
        if kind == F and stage % per_pipe:
            crosses = schedule.rank_of[stage - 1] != schedule.rank_of[stage]
            wanted = ((RECV_F,), stage) if explicit and crosses else ((F,), stage - 1)
        elif kind in (I, B) and (stage + 1) % per_pipe:
            crosses = schedule.rank_of[stage + 1] != schedule.rank_of[stage]
            wanted = ((RECV_B,), stage) if explicit and crosses else ((I, B), stage + 1)
        elif kind in (SEND_F, SEND_B):
            wanted = ((F,) if kind == SEND_F else (I, B), stage)
        elif kind == RECV_F:
            wanted = ((SEND_F,), stage - 1)
        elif kind == RECV_B:
            wanted = ((SEND_B,), stage + 1)
        if wanted is None:
            continue
        kinds, source = wanted
        owner = int(schedule.rank_of[source])
        hits = np.flatnonzero(
            np.isin(schedule.kind, kinds)
            & (schedule.stage == source)
            & (schedule.microbatch == microbatch)
        )
        if len(hits) and hits[0] >= stuck[owner]:
            return owner, action_text(int(schedule.kind[hits[0]]), source, microbatch)
    return None
