"""Adding what a compute-only schedule leaves out: gathers and reductions of sharded weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gangsaw.schedule.actions import (
    NO_MICROBATCH,
    PAIR_SECOND,
    REDUCE_GRAD,
    RESHARD,
    UNSHARD,
    B,
    Row,
    Schedule,
    W,
    from_rows,
)


def with_reduction(schedule: Schedule) -> Schedule:
    """A reduction of each stage's gradients behind its last whole or weight backward."""
    ends = np.flatnonzero((schedule.kind == B) | (schedule.kind == W))
    last = np.zeros(schedule.stages, np.int64)
    np.maximum.at(last, schedule.stage[ends], ends)
    return _insert(schedule, last + 1, np.arange(schedule.stages), REDUCE_GRAD)


def _insert(schedule: Schedule, at: np.ndarray, stage: np.ndarray, kind: int) -> Schedule:
    """Actions of one kind without microbatch put in front of the positions `at`.

    A position between the two of a pair moves behind it.
    """
    inside = at < schedule.actions
    second = np.zeros(len(at), bool)
    second[inside] = schedule.pair[at[inside]] == PAIR_SECOND
    at = at + second
    order = np.argsort(at, kind="stable")
    at, stage = at[order], stage[order]
    ranks = schedule.rank_of[stage]
    shift = np.concatenate(([0], np.cumsum(np.bincount(ranks, minlength=schedule.ranks))))
    return replace(
        schedule,
        row=schedule.row + shift,
        kind=np.insert(schedule.kind, at, kind),
        stage=np.insert(schedule.stage, at, stage),
        microbatch=np.insert(schedule.microbatch, at, NO_MICROBATCH),
        pair=np.insert(schedule.pair, at, 0),
    )


def with_gathers(schedule: Schedule, active: int = 3) -> Schedule:
    """Weights gathered before a stage runs and dropped when others need the room.

    At every action the next `active` different stages of the rank are held; the rule that torch's
    pipelining uses for fully sharded weights.
    """
    rows = [_gathered(schedule.rank_row(rank), active) for rank in range(schedule.ranks)]
    return from_rows(schedule.name, rows, schedule.stages, schedule.microbatches, schedule.pipes)


def _gathered(row: Row, active: int) -> Row:
    stages = row.stage.tolist()
    if len(set(stages)) <= active:
        first = list(dict.fromkeys(stages))
        n = len(first)
        return Row.of(
            np.concatenate((np.full(n, UNSHARD), row.kind, np.full(n, RESHARD))),
            np.concatenate((first, row.stage, first)),
            np.concatenate((np.full(n, -1), row.microbatch, np.full(n, -1))),
            np.concatenate((np.zeros(n, int), row.pair, np.zeros(n, int))),
        )
    upcoming = _upcoming(stages, active)
    held: list[int] = []
    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])

    def add(*action: int) -> None:
        for column, value in zip(columns, action, strict=True):
            column.append(value)

    for i, action in enumerate(zip(*(column.tolist() for column in row), strict=True)):
        if action[3] != PAIR_SECOND:
            wanted = upcoming[i]
            for stage in [s for s in held if s not in wanted]:
                held.remove(stage)
                add(RESHARD, stage, NO_MICROBATCH, 0)
            for stage in [s for s in wanted if s not in held]:
                held.append(stage)
                add(UNSHARD, stage, NO_MICROBATCH, 0)
        add(*action)
    for stage in held:
        add(RESHARD, stage, NO_MICROBATCH, 0)
    return Row.of(*columns)


def _upcoming(stages: list[int], active: int) -> list[tuple[int, ...]]:
    """For each action, the next `active` different stages, the nearest first."""
    result: list[tuple[int, ...]] = []
    near: tuple[int, ...] = ()
    for stage in reversed(stages):
        near = (stage, *(s for s in near if s != stage))[:active]
        result.append(near)
    return result[::-1]
