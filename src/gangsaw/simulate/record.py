"""From a finished run to its Timeline: work, the waits between it with their causes, transfers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.schedule.actions import (
    PAIR_FIRST,
    PAIR_SECOND,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
    Schedule,
)
from gangsaw.simulate.kernel import GATHERED
from gangsaw.simulate.loop import Run, execute
from gangsaw.simulate.timeline import (
    CAUSE_OF,
    COMPUTE,
    DP,
    IDLE,
    P2P,
    PAIR,
    MemoryCurve,
    Timeline,
)
from gangsaw.simulate.times import DataParallel, StageMemory, StageTimes, Transfers

Index = NDArray[np.int64]
_COLUMNS = {
    "rank": np.int32, "stream": np.int8, "kind": np.int8, "stage": np.int32,
    "microbatch": np.int32, "start_s": np.float64, "end_s": np.float64, "cause": np.int8,
    "bytes": np.float64, "peer": np.int32,
}  # fmt: skip
_MADE = frozenset((*_COLUMNS, "critical"))


class _Rows(NamedTuple):
    rank: NDArray[np.integer]
    stream: int
    kind: NDArray[np.integer] | int
    stage: NDArray[np.integer] | int
    microbatch: NDArray[np.integer] | int
    start_s: Array
    end_s: Array
    cause: NDArray[np.integer] | int
    bytes: Array | float = 0.0
    peer: NDArray[np.integer] | int = -1


def simulate(
    schedule: Schedule,
    times: StageTimes,
    transfers: Transfers | None = None,
    data: DataParallel | None = None,
    memory: StageMemory | None = None,
    interpreted: bool | None = None,
) -> Timeline:
    """The timeline of one step of a legal schedule.

    Streams, transfers, gathers, reductions and memory are as `times`, `transfers`, `data` and
    `memory` describe them. Ties: actions run in the order of their row; transfers share a link
    in order of issue, equal times by rank. Raises InputError for numbers that do not agree with
    the schedule, and for a deadlock, saying which rank waits for what.
    """
    return record(execute(schedule, times, transfers, data, memory, interpreted))


def record(run: Run) -> Timeline:
    """The timeline of a finished run. Its columns and its critical path are made when asked for."""
    timeline = object.__new__(_Recorded)
    timeline.__dict__.update(
        ranks=run.schedule.ranks, name=run.schedule.name, measured=False, memory=_memory(run),
        _run=run,
    )  # fmt: skip
    return timeline


class _Recorded(Timeline):
    """A timeline whose columns are made of the run at the first look at one."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        if name in _MADE and name not in object.__getattribute__(self, "__dict__"):
            self._make()
        return object.__getattribute__(self, name)

    def _make(self) -> None:
        run = self.__dict__.pop("_run")
        schedule = run.schedule
        ranks = schedule.rank_index()
        work = np.flatnonzero((schedule.kind <= B) & (schedule.pair != PAIR_SECOND))
        self.__dict__["critical"] = _critical(run, ranks, work)
        self.__dict__.update(_join(_parts(run, ranks, work)))

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the step to the end of the last rank."""
        run: Run | None = self.__dict__.get("_run")
        return super().makespan_s if run is None else run.makespan_s


def _parts(run: Run, ranks: NDArray[np.int32], work: Index) -> list[_Rows]:
    """Work, waits, transfers, and what runs beside."""
    schedule, result = run.schedule, run.result
    parts = [_work_rows(run, ranks, work), *_idle_rows(run, ranks, work)]
    parts.append(_transfer_rows(run, ranks))
    side = np.flatnonzero((schedule.kind == UNSHARD) | (schedule.kind == REDUCE_GRAD))
    parts.append(
        _Rows(
            ranks[side], DP, schedule.kind[side], schedule.stage[side], -1, result.start[side],
            result.end[side], CAUSE_OF["dp_comm"],
        )
    )  # fmt: skip
    return parts


def _join(parts: list[_Rows]) -> dict[str, Any]:
    total = sum(len(part.rank) for part in parts)
    columns: dict[str, Any] = {}
    for name, kind in _COLUMNS.items():
        column = np.empty(total, kind)
        at = 0
        for part in parts:
            column[at : at + len(part.rank)] = getattr(part, name)
            at += len(part.rank)
        columns[name] = column
    return columns


def _work_rows(run: Run, ranks: NDArray[np.int32], work: Index) -> _Rows:
    schedule, result = run.schedule, run.result
    kind = np.where(schedule.pair[work] == PAIR_FIRST, PAIR, schedule.kind[work])
    return _Rows(
        ranks[work], COMPUTE, kind, schedule.stage[work], schedule.microbatch[work],
        result.start[work], result.end[work], CAUSE_OF["compute"],
    )  # fmt: skip


def _idle_rows(run: Run, ranks: NDArray[np.int32], work: Index) -> list[_Rows]:
    """What lies between two actions of a rank, behind its last and before its first.

    A gap begins with the part that a blocking send holds, ends with the part that a transfer or
    gather delays the next action, and what is between is bubble.
    """
    result = run.result
    who = ranks[work]
    change = who[1:] != who[:-1]
    first, last = np.concatenate(([True], change)), np.concatenate((change, [True]))
    ended = np.concatenate(([0.0], result.end[work][:-1]))
    ended[first] = 0.0
    late = np.flatnonzero(result.start[work] > ended)
    held = np.where(first[late], 0.0, _held(run, work, late))
    ended, at = ended[late], work[late]
    begins = result.start[at]
    free = np.minimum(ended + held, begins)
    source = result.cause[at]
    gather = source == GATHERED
    moved = (source >= 0) & (result.arrived[source] >= 0.0)
    made = np.where(moved, result.end[source], np.where(gather, 0.0, begins))
    asks = np.minimum(np.maximum(free, made), begins)
    pp, dp, bubble = CAUSE_OF["pp_comm"], CAUSE_OF["dp_comm"], CAUSE_OF["bubble"]
    parts = [
        _gap(who[late], ended, free, np.full(len(late), pp)),
        _gap(who[late], free, asks, np.full(len(late), bubble)),
        _gap(who[late], asks, begins, np.where(gather, dp, pp)),
    ]
    end = np.full(len(run.free_s), run.makespan_s)
    tail = np.zeros(len(run.free_s))
    tail[who[last]] = result.end[work][last]
    own = np.maximum(run.free_s, tail)
    reduced = np.maximum(run.side_free_s, own)
    everyone = np.arange(len(end), dtype=np.int32)
    parts.append(_gap(everyone, tail, own, np.full(len(end), pp)))
    parts.append(_gap(everyone, own, reduced, np.full(len(end), dp)))
    parts.append(_gap(everyone, reduced, end, np.full(len(end), bubble)))
    return parts


def _held(run: Run, work: Index, late: Index) -> Array:
    """Seconds of blocking sends in front of the work actions `late`: of the one before each, of
    its pair, of the sends written out behind it.
    """
    held = run.result.held
    if not np.any(held):
        return np.zeros(len(late))
    sums: Array = np.add.reduceat(held, work)
    return sums[np.maximum(late - 1, 0)]


def _gap(rank: NDArray[np.integer], start: Array, end: Array, cause: NDArray[np.integer]) -> _Rows:
    some = end > start
    return _Rows(rank[some], COMPUTE, IDLE, -1, -1, start[some], end[some], cause[some])


def _transfer_rows(run: Run, ranks: NDArray[np.int32]) -> _Rows:
    schedule, result = run.schedule, run.result
    sent = np.flatnonzero(result.arrived >= 0.0)
    kind, stage = schedule.kind[sent], schedule.stage[sent]
    forward = (kind == F) | (kind == SEND_F)
    target = np.where(forward, stage + 1, stage - 1)
    boundary = np.where(forward, stage, target)
    return _Rows(
        ranks[sent], P2P, np.where(forward, SEND_F, SEND_B), stage, schedule.microbatch[sent],
        result.sent[sent], result.arrived[sent], CAUSE_OF["pp_comm"],
        run.transfer_bytes[boundary], schedule.rank_of[target],
    )  # fmt: skip


def _memory(run: Run) -> MemoryCurve | None:
    """The level behind each action: gained at the start of a forward, lost at the end of others."""
    if run.memory is None:
        return None
    schedule, result = run.schedule, run.result
    takes = (schedule.kind == F) | (schedule.kind == UNSHARD)
    when = np.where(takes, result.start, result.end)
    memory = run.memory
    return MemoryCurve(schedule.row, when, memory.after, memory.peak, memory.static)


def _critical(run: Run, ranks: NDArray[np.int32], work: Index) -> Index:
    """Rows of work on the chain that ends last: each waits for the one before it."""
    schedule, result = run.schedule, run.result
    if not len(work):
        return np.zeros(0, np.int64)
    row_of = np.full(schedule.actions, -1, np.int64)
    row_of[work] = np.arange(len(work))
    second = np.flatnonzero(schedule.pair == PAIR_SECOND)
    row_of[second] = row_of[second - 1]
    at = int(work[np.argmax(result.end[work])])
    chain = []
    while at >= 0:
        if schedule.pair[at] == PAIR_SECOND:
            at -= 1
        if row_of[at] >= 0:
            chain.append(int(row_of[at]))
        source = int(result.cause[at])
        if source >= 0 and schedule.kind[at] <= B:
            at = source
        else:
            at = at - 1 if at > int(schedule.row[ranks[at]]) else -1
    return np.asarray(chain[::-1], np.int64)
