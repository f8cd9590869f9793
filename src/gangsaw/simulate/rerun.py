"""One schedule run again and again on other stage times, as a search over layouts needs it.

What does not depend on the times (links, slots, order) is prepared once. A run also tells how
often each stage's actions lie on the critical path. The schedule is a fixed graph of actions, so
that chain is there whatever the times are: no layout is faster than the chain is on its own times
(unless the chain waited for a link that was busy, which it need not be on other times).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.jit import compiled
from gangsaw.schedule.actions import Schedule
from gangsaw.schedule.legal import explain
from gangsaw.simulate.kernel import LASTS, NOBODY, UNKNOWN, Program, critical_counts, run
from gangsaw.simulate.loop import links_of, new_result, new_state, tables_of
from gangsaw.simulate.times import StageTimes, Transfers

WORK = 4
"""Kinds of action that take a stage's time: F, I, W, B in the order of the grammar."""


class Chain(NamedTuple):
    """A critical path: how often each action is on it, [4, stages], and its other seconds."""

    counts: Array
    other_s: float


class Rerun:
    """A legal schedule without gathers and reductions, ready for any stage times."""

    def __init__(self, schedule: Schedule, transfers: Transfers | None = None) -> None:
        self.schedule, self.stages = schedule, schedule.stages
        nothing = StageTimes.of(schedule.stages, 0.0, 0.0, 0.0)
        links = links_of(schedule, transfers)
        whole, self._real = tables_of(schedule, nothing, transfers, None, links)
        self._lasts = self._real[LASTS].reshape(-1, schedule.stages)[:WORK]
        self._program = Program(
            schedule.row, schedule.kind, schedule.stage, schedule.microbatch, schedule.pair, whole,
            self._real, schedule.stages, 0.0, transfers is not None and transfers.blocking,
        )  # fmt: skip
        self._state = new_state(schedule, links[2])
        self._result = new_result(schedule.actions)
        self._by_time = schedule.has_transfers or (
            transfers is not None and transfers.links is not None
        )

    def makespan_s(self, times: Array) -> float:
        """Seconds of the step on stage times [4, stages]: F, I, W and the whole backward."""
        self._lasts[:] = times
        state = self._state
        state.at[:] = self.schedule.row[:-1]
        for each in (state.free, state.side_free, state.link_free, state.gathered, state.queue):
            each[:] = 0
        for each in (state.ready, state.met):
            each[:] = UNKNOWN
        state.origin[:] = NOBODY
        compiled(run)(self._by_time, self._program, state, self._result)
        if np.any(state.at < self.schedule.row[1:]):
            raise InputError(f"{self.schedule.name}: deadlock: {explain(self.schedule, state.at)}")
        return float(max(state.free.max(), state.side_free.max()))

    def critical(self, makespan_s: float) -> Chain:
        """The critical path of the last run, which took `makespan_s`."""
        counts = np.zeros((WORK, self.stages))
        compiled(critical_counts)(self.schedule.rank_of, self._program, self._result, counts)
        return Chain(counts, makespan_s - float((counts * self._lasts).sum()))
