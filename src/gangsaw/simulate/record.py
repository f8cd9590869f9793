"""From a finished run to its Timeline: work, the waits between it with their causes, transfers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gangsaw.jit import compiled
from gangsaw.schedule.actions import UNSHARD, F, Schedule
from gangsaw.simulate.columns import (
    Columns,
    Finished,
    count_rows,
    idle_rows,
    last_chain,
    other_rows,
    work_rows,
)
from gangsaw.simulate.loop import Run, execute
from gangsaw.simulate.timeline import MemoryCurve, Timeline
from gangsaw.simulate.times import DataParallel, StageMemory, StageTimes, Transfers

Index = NDArray[np.int64]
_MADE = frozenset((*Columns._fields, "critical"))


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
        columns, critical = _columns(run)
        self.__dict__.update(columns._asdict())
        self.__dict__["critical"] = critical

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the step to the end of the last rank."""
        run: Run | None = self.__dict__.get("_run")
        return super().makespan_s if run is None else run.makespan_s


def _columns(run: Run) -> tuple[Columns, Index]:
    """All rows of a run, and which of them are the critical path."""
    program, result, rank_of = run.program, run.result, run.schedule.rank_of
    as_is = (lambda fn: fn) if run.plain else compiled
    work, waits, others = as_is(count_rows)(program, result)
    columns = Columns.empty(work + others + waits)
    row_of = np.empty(run.schedule.actions, np.int32)
    finished = Finished(run.free_s, run.side_free_s, run.makespan_s, run.transfer_bytes, rank_of)
    as_is(work_rows)(program, result, columns, row_of)
    as_is(other_rows)(work, program, result, finished, columns)
    rows = as_is(idle_rows)(work + others, program, result, finished, columns)
    chain: Index = np.empty(work, np.int64)
    first = as_is(last_chain)(program, result, rank_of, row_of, chain)
    return columns.upto(rows), chain[first:].copy()


def _memory(run: Run) -> MemoryCurve | None:
    """The level behind each action: gained at the start of a forward, lost at the end of others."""
    if run.memory is None:
        return None
    schedule, result = run.schedule, run.result
    takes = (schedule.kind == F) | (schedule.kind == UNSHARD)
    when = np.where(takes, result.start, result.end)
    memory = run.memory
    return MemoryCurve(schedule.row, when, memory.after, memory.peak, memory.static)
