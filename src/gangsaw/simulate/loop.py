"""Running a schedule on stage times: `simulate` gives the Timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.jit import at_hand, compiled
from gangsaw.schedule.actions import (
    I32,
    I64,
    KIND_NAMES,
    PAIR_FIRST,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
    I,
    Schedule,
    W,
)
from gangsaw.schedule.legal import crossings, explain
from gangsaw.schedule.lower import with_gathers, with_reduction
from gangsaw.simulate.kernel import (
    LASTS,
    LATE,
    LINK,
    MAKES,
    NOBODY,
    OCCUPIES,
    TAKES,
    TARGET,
    UNKNOWN,
    Program,
    Result,
    State,
    run,
)
from gangsaw.simulate.times import DataParallel, StageMemory, StageTimes, Transfers

COMPILE_FROM_ACTIONS = 50_000
"""Above this many actions compiled code is worth its start-up, where it is not at hand."""

Tables = TypeVar("Tables", Program, State, Result)


@dataclass(frozen=True, eq=False)
class MemoryRun:
    """Bytes after each action and while it runs, [actions]; peak and base of each rank."""

    after: Array
    during: Array
    peak: Array
    static: Array


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: the program that ran (gathers and reductions added) and its raw arrays.

    `plain` where it was interpreted.
    """

    schedule: Schedule
    program: Program
    result: Result
    free_s: Array
    side_free_s: Array
    transfer_bytes: Array
    memory: MemoryRun | None
    plain: bool

    @property
    def makespan_s(self) -> float:
        """Seconds of the step, to the end of the last stream of the last rank."""
        return float(max(self.free_s.max(), self.side_free_s.max()))


def execute(
    schedule: Schedule,
    times: StageTimes,
    transfers: Transfers | None = None,
    data: DataParallel | None = None,
    memory: StageMemory | None = None,
    interpreted: bool | None = None,
) -> Run:
    """Run a legal schedule; `interpreted` forces the plain or the compiled loop.

    Raises InputError when the numbers of stages disagree, and when ranks wait for each other for
    ever (which rank for what).
    """
    if times.stages != schedule.stages:
        raise InputError(f"{times.stages} stage times for a schedule of {schedule.stages} stages")
    if data is not None:
        schedule = _with_data_parallel(schedule, data)
    links = links_of(schedule, transfers)
    tables = tables_of(schedule, times, transfers, data, links)
    program = Program(
        schedule.row, schedule.kind, schedule.stage, schedule.microbatch, schedule.pair, *tables,
        schedule.stages, float(times.overlap_frac), transfers is not None and transfers.blocking,
    )  # fmt: skip
    state = new_state(schedule, links[2])
    result = new_result(schedule.actions)
    by_time = schedule.has_transfers or (transfers is not None and transfers.links is not None)
    plain = interpreted
    if plain is None:
        plain = schedule.actions < COMPILE_FROM_ACTIONS and not at_hand(run)
    if plain:
        run(by_time, viewed(program), viewed(state), viewed(result))
    else:
        compiled(run)(by_time, program, state, result)
    if np.any(state.at < schedule.row[1:]):
        raise InputError(f"{schedule.name}: deadlock: {explain(schedule, state.at)}")
    moved = np.zeros(schedule.stages) if transfers is None else transfers.bytes_each
    held = None if memory is None else _memory(schedule, memory)
    return Run(
        schedule, program, result, state.free, state.side_free, moved, held, plain
    )  # fmt: skip


def viewed(tables: Tables) -> Tables:
    """The same memory as Python's own numbers: read one by one these take half as long."""
    fields = (memoryview(x) if isinstance(x, np.ndarray) else x for x in tables)  # type: ignore[arg-type]
    return type(tables)(*fields)  # type: ignore[arg-type]


def _with_data_parallel(schedule: Schedule, data: DataParallel) -> Schedule:
    if np.any(data.gather_s > 0) and not np.any(schedule.kind == UNSHARD):
        schedule = with_gathers(schedule, data.active_stages)
    if np.any(data.reduce_s > 0) and not np.any(schedule.kind == REDUCE_GRAD):
        schedule = with_reduction(schedule)
    return schedule


def links_of(schedule: Schedule, transfers: Transfers | None) -> tuple[I32, I32, int]:
    """Link of each boundary, forward and backward (-1: none), and the number of links."""
    cross = crossings(schedule)
    source = schedule.rank_of[:-1]
    target = schedule.rank_of[1:]
    ranks = schedule.ranks
    if transfers is not None and transfers.links is not None:
        table = np.asarray(transfers.links, np.int32)
        if table.shape != (ranks, ranks) or table.min() < 0:
            raise InputError(f"links: a table of {ranks} x {ranks} numbers from 0 is needed")
    else:
        table = np.arange(ranks * ranks, dtype=np.int32).reshape(ranks, ranks)
    forward = np.full(schedule.stages, -1, np.int32)
    backward = np.full(schedule.stages, -1, np.int32)
    if transfers is not None or schedule.has_transfers:
        forward[:-1] = np.where(cross[:-1], table[source, target], -1)
        backward[1:] = np.where(cross[:-1], table[target, source], -1)
    return forward, backward, int(table.max()) + 1


def tables_of(
    schedule: Schedule,
    times: StageTimes,
    transfers: Transfers | None,
    data: DataParallel | None,
    links: tuple[I32, I32, int],
) -> tuple[I32, Array]:
    """`Program.whole` and `Program.real`: slots, links and seconds by action kind and stage.

    Slot stage x m + k holds the input of the forward of microbatch k, and as many slots further
    that of the backward.
    """
    stages, m = schedule.stages, schedule.microbatches
    stage = np.arange(stages)
    per_pipe = stages // schedule.pipes
    first, last = stage % per_pipe == 0, (stage + 1) % per_pipe == 0
    into_f = np.where(first, -1, stage * m)
    into_b = np.where(last, -1, (stages + stage) * m)
    out_f = np.where(last, -1, (stage + 1) * m)
    out_b = np.where(first, -1, (stages + stage - 1) * m)
    after = np.append(schedule.rank_of[1:], -1)
    before = np.append(-1, schedule.rank_of[:-1])
    whole = np.full((4, len(KIND_NAMES), stages), -1, np.int32)
    real = np.zeros((3, len(KIND_NAMES), stages))
    real[LASTS, :4] = times.forward_s, times.backward_s, times.weight_s, times.whole_s
    if data is not None:
        real[LASTS, UNSHARD], real[LASTS, REDUCE_GRAD] = data.gather_s, data.reduce_s
    occupy, late = np.zeros(stages), np.zeros(stages)
    if transfers is not None:
        occupy, late = transfers.bytes_each / transfers.bytes_per_s, transfers.latency_s
    explicit = schedule.has_transfers
    for kinds, receive, takes, makes, link, target, boundary in (
        ((F,), RECV_F, into_f, out_f, links[0], after, stage),
        ((I, B), RECV_B, into_b, out_b, links[1], before, np.maximum(stage - 1, 0)),
    ):
        whole[TAKES, kinds] = takes
        senders = (SEND_F if receive == RECV_F else SEND_B, *kinds)
        whole[MAKES, senders], whole[LINK, senders], whole[TARGET, senders] = makes, link, target
        if explicit:
            whole[MAKES, kinds] = np.where(link >= 0, -1, makes)
            whole[MAKES, receive] = takes
        real[OCCUPIES, senders], real[LATE, senders] = occupy[boundary], late[boundary]
    return whole.reshape(4, -1), real.reshape(3, -1)


def _memory(schedule: Schedule, memory: StageMemory) -> MemoryRun:
    """Bytes while each action runs and after it; order alone decides, not time."""
    if len(memory.activation_bytes) != schedule.stages:
        raise InputError(
            f"activation_bytes: {len(memory.activation_bytes)} values for {schedule.stages} stages"
        )
    if len(memory.static_bytes) != schedule.ranks:
        raise InputError(
            f"static_bytes: {len(memory.static_bytes)} values for {schedule.ranks} ranks"
        )
    takes = np.zeros((len(KIND_NAMES), schedule.stages))
    gives = np.zeros((len(KIND_NAMES), schedule.stages))
    takes[F], gives[B] = memory.activation_bytes, memory.activation_bytes
    gives[I] = memory.activation_bytes * memory.input_release_frac
    gives[W] = memory.activation_bytes - gives[I]
    takes[UNSHARD], gives[RESHARD] = memory.gathered_bytes, memory.gathered_bytes
    # By cell of kind and stage: what an action leaves behind, and what it has on top meanwhile.
    left, on_top = takes - gives, gives.copy()
    on_top[: B + 1] += memory.working_bytes
    cell = schedule.kind * np.int32(schedule.stages)
    cell += schedule.stage
    level = left.ravel().take(cell)
    np.cumsum(level, out=level)
    begins = np.concatenate(([0.0], level))[schedule.row[:-1]]
    level += np.repeat(memory.static_bytes - begins, np.diff(schedule.row))
    during = on_top.ravel().take(cell)
    during += level
    first = np.flatnonzero(schedule.pair == PAIR_FIRST)
    both = np.maximum(during[first], during[first + 1])
    during[first], during[first + 1] = both, both
    peak = memory.static_bytes.copy()
    some = np.flatnonzero(np.diff(schedule.row))
    top = np.maximum.reduceat(during, schedule.row[some]) if len(some) else peak[some]
    peak[some] = np.maximum(peak[some], top)
    return MemoryRun(level, during, peak, memory.static_bytes)


def new_state(schedule: Schedule, links: int) -> State:
    """The state before the first action."""
    slots = 2 * schedule.stages * schedule.microbatches
    ranks = schedule.ranks
    at: I64 = schedule.row[:-1].copy()
    return State(
        at, np.zeros(ranks), np.zeros(ranks), np.zeros(links), np.full(slots, UNKNOWN),
        np.full(slots, NOBODY, np.int32), np.full(slots if schedule.has_transfers else 0, UNKNOWN),
        np.zeros(schedule.stages), np.zeros(2 * ranks + 1, np.int64),
    )  # fmt: skip


def new_result(actions: int) -> Result:
    """Nothing known of any action."""
    return Result(
        np.full(actions, UNKNOWN), np.full(actions, UNKNOWN), np.full(actions, UNKNOWN),
        np.full(actions, UNKNOWN), np.zeros(actions), np.full(actions, NOBODY, np.int32),
    )  # fmt: skip
