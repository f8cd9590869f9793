"""Replaying a recorded job with parts of it repaired: no delays, ideal, one stage, one operation.

What-if analysis as in 'Understanding Stragglers in Large Model Training Using What-if Analysis'
(arXiv:2505.05713). Each worker runs its recorded operations in their recorded order; operations
that began at the same moment were one call. A transfer or collective begins when its last
participant has come, so what it costs by itself is its end less the last begin, and the rest of
its recorded duration is waiting, which the replay finds anew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.schedule.actions import REDUCE_GRAD, SEND_B, SEND_F, UNSHARD, B, F
from gangsaw.simulate.document import Repair, ReplayResult
from gangsaw.simulate.timeline import (
    COMPUTE,
    IDLE,
    OTHER,
    P2P,
    ROW_KINDS,
    STREAM_NAMES,
    Timeline,
)

LOCAL = ("forward-compute", "backward-compute", "optimizer", "gc", "layernorm-grads-all-reduce")
"""Operations of one worker alone. The layer-norm reduction is inside a tensor-parallel group,
of which the record has one worker."""
DATA_PARALLEL = ("params-all-gather", "grads-reduce-scatter")
EVERYONE = ("optimizer-clip-main-grad",)
ENDS = ("embedding-grads-all-reduce",)
SENDS = ("forward-send", "backward-send")
RECEIVES = ("forward-recv", "backward-recv")
MOST_WORKERS = 256
"""Up to as many workers are repaired one by one where none is named."""
KNOWN = (*LOCAL, *DATA_PARALLEL, *EVERYONE, *ENDS, *SENDS, *RECEIVES)


@dataclass(frozen=True, eq=False)
class RecordedOps:
    """One row an operation. dp_rank, stage, step, sequence int [n]; operation names [n]; start_s
    and duration_s [n] within the step.
    """

    dp_rank: NDArray[np.int64]
    stage: NDArray[np.int64]
    step: NDArray[np.int64]
    operation: tuple[str, ...]
    sequence: NDArray[np.int64]
    start_s: Array
    duration_s: Array

    def __post_init__(self) -> None:
        unknown = sorted(set(self.operation) - set(KNOWN))
        if unknown:
            raise InputError(f"operation {unknown[0]!r} is not known. Legal: {', '.join(KNOWN)}")
        if not len(self.operation):
            raise InputError("the record has no operations")


@dataclass(frozen=True, eq=False)
class Call:
    """Operations that a worker began at the same moment: their numbers in the step."""

    ops: tuple[int, ...]


class StepReplay:
    """One recorded step, ready to be replayed with changed durations."""

    def __init__(self, record: RecordedOps, rows: NDArray[np.int64]) -> None:
        self.operation = [record.operation[i] for i in rows.tolist()]
        self.dp_rank, self.stage = record.dp_rank[rows], record.stage[rows]
        start, duration = record.start_s[rows], record.duration_s[rows]
        last = int(record.stage.max())
        self.meeting = [
            _meeting(name, int(d), int(s), int(k), last)
            for name, d, s, k in zip(
                self.operation, self.dp_rank, self.stage, record.sequence[rows], strict=True
            )
        ]
        self.programs = _programs(start, self.dp_rank, self.stage)
        self.parties: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, key in enumerate(self.meeting):
            if key is not None:
                self.parties[key].append(i)
        self.own_s = duration.copy()
        for ops in self.parties.values():
            end = float((start[ops] + duration[ops]).max())
            self.own_s[ops] = max(0.0, end - float(start[ops].max()))
        self.recorded_s = float((start + duration).max() - start.min())

    def play(self, own_s: Array) -> float:
        """Seconds of the step when every operation takes `own_s` [operations] by itself."""
        at = dict.fromkeys(self.programs, 0)
        free = dict.fromkeys(self.programs, 0.0)
        come: dict[tuple[object, ...], list[float]] = defaultdict(list)
        waiting: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        ready = list(self.programs)
        while ready:
            worker = ready.pop()
            program = self.programs[worker]
            while at[worker] < len(program):
                end = self._call(worker, program[at[worker]], own_s, free, come, waiting, ready)
                if end is None:
                    break
                free[worker] = end
                at[worker] += 1
        stuck = [worker for worker, program in self.programs.items() if at[worker] < len(program)]
        if stuck:
            raise InputError(
                f"replay: dp rank {stuck[0][0]} stage {stuck[0][1]} waits for ever at"
                f" {self.operation[self.programs[stuck[0]][at[stuck[0]]].ops[0]]}"
            )
        return max(free.values())

    def _call(
        self,
        worker: tuple[int, int],
        call: Call,
        own_s: Array,
        free: dict[tuple[int, int], float],
        come: dict[tuple[object, ...], list[float]],
        waiting: dict[tuple[object, ...], list[tuple[int, int]]],
        ready: list[tuple[int, int]],
    ) -> float | None:
        """End of a call, or None while a participant of one of its meetings is missing."""
        begin = free[worker]
        end = begin
        missing = False
        for i in call.ops:
            key = self.meeting[i]
            if key is None:
                end = max(end, begin + float(own_s[i]))
                continue
            arrived = come[key]
            mark = (key, worker)
            if mark not in come:
                come[mark] = [begin]
                arrived.append(begin)
                if len(arrived) == len(self.parties[key]):
                    ready.extend(waiting.pop(key, []))
            if len(arrived) < len(self.parties[key]):
                waiting[key].append(worker)
                missing = True
            else:
                end = max(end, max(arrived) + float(own_s[i]))
        return None if missing else end


def _meeting(name: str, dp: int, stage: int, sequence: int, last: int) -> tuple[object, ...] | None:
    """Who takes part: operations with the same key belong together; None alone."""
    if name in LOCAL:
        return None
    if name in DATA_PARALLEL:
        return (name, stage, sequence)
    if name in EVERYONE:
        return (name, sequence)
    if name in ENDS:
        return (name, dp, sequence) if stage in (0, last) else None
    way = name.split("-")[0]
    upper = stage
    if name == "forward-recv" or name == "backward-send":
        upper = stage - 1
    return (way, dp, upper, sequence)


def _programs(
    start: Array, dp_rank: NDArray[np.int64], stage: NDArray[np.int64]
) -> dict[tuple[int, int], list[Call]]:
    """Each worker's calls in order of their begin."""
    found: dict[tuple[int, int], list[Call]] = {}
    order = np.lexsort((np.arange(len(start)), start, stage, dp_rank))
    group: list[int] = []
    for i in order.tolist():
        worker = (int(dp_rank[i]), int(stage[i]))
        same = group and (
            start[group[0]] == start[i] and (int(dp_rank[group[0]]), int(stage[group[0]])) == worker
        )
        if not same and group:
            owner = (int(dp_rank[group[0]]), int(stage[group[0]]))
            found.setdefault(owner, []).append(Call(tuple(group)))
            group = []
        group.append(i)
    if group:
        owner = (int(dp_rank[group[0]]), int(stage[group[0]]))
        found.setdefault(owner, []).append(Call(tuple(group)))
    return found


class Replay:
    """A whole record: every step, and what an operation takes when nothing goes wrong."""

    def __init__(self, record: RecordedOps) -> None:
        self.steps = {
            int(step): StepReplay(record, np.flatnonzero(record.step == step))
            for step in np.unique(record.step)
        }
        self.ideal_s = _ideal(list(self.steps.values()))

    def recorded_s(self) -> float:
        """Mean step time as it ran."""
        return float(np.mean([step.recorded_s for step in self.steps.values()]))

    def no_delay_s(self) -> float:
        """Mean step time when every call is made as soon as it can be."""
        return float(np.mean([step.play(step.own_s) for step in self.steps.values()]))

    def repaired_s(self, chosen: Callable[[str, int, int], bool]) -> float:
        """Mean step time when the chosen operations (name, dp rank, stage) take their ideal."""
        return float(
            np.mean([step.play(self._mixed(step, chosen)) for step in self.steps.values()])
        )

    def _mixed(self, step: StepReplay, chosen: Callable[[str, int, int], bool]) -> Array:
        mixed = step.own_s.copy()
        asked: dict[tuple[str, int, int], bool] = {}
        whose = zip(step.operation, step.dp_rank.tolist(), step.stage.tolist(), strict=True)
        for i, key in enumerate(whose):
            if key not in asked:
                asked[key] = chosen(*key)
            if asked[key]:
                mixed[i] = self.ideal_s[key[0]]
        return mixed

    def ideal_step_s(self) -> float:
        """Mean step time when all operations take their ideal."""
        return self.repaired_s(lambda name, dp_rank, stage: True)

    def slowdown(self) -> float:
        """Step time without delays over the ideal one."""
        return self.no_delay_s() / self.ideal_step_s()

    def share_brought_back(self, chosen: Callable[[str, int, int], bool]) -> float:
        """Share of the time lost that repairing the chosen operations alone brings back."""
        ran, ideal = self.no_delay_s(), self.ideal_step_s()
        return (ran - self.repaired_s(chosen)) / (ran - ideal)


Chosen = Callable[[str, int, int], bool]
"""Whether an operation (name, dp rank, stage) is repaired."""


def part_of(text: str, replay: Replay) -> Chosen:
    """What `stage:N`, `worker:DP,STAGE` or `operation:NAME` chooses of a record.

    Raises InputError for what the record has not.
    """
    kind, _, rest = text.strip().lower().partition(":")
    stages, workers, operations = parts_of(replay)
    if kind == "stage" and rest.isdecimal() and int(rest) in stages:
        stage = int(rest)
        return lambda name, dp, st: st == stage
    if kind == "worker" and re.fullmatch(r"\d{1,9},\d{1,9}", rest):
        worker = tuple(int(n) for n in rest.split(","))
        if worker in workers:
            return lambda name, dp, st: (dp, st) == worker
    if kind == "operation" and rest in operations:
        return lambda name, dp, st: name == rest
    last = max(workers)
    raise InputError(
        f"--repair {text!r} is not in the record. Legal: stage:0 to stage:{max(stages)},"
        f" worker:0,0 to worker:{last[0]},{last[1]}, operation:NAME of {', '.join(operations)}"
    )


def parts_of(replay: Replay) -> tuple[list[int], list[tuple[int, int]], list[str]]:
    """Stages, workers and operation names of a record, in order."""
    workers: set[tuple[int, int]] = set()
    names: set[str] = set()
    for step in replay.steps.values():
        workers.update(zip(step.dp_rank.tolist(), step.stage.tolist(), strict=True))
        names.update(step.operation)
    return sorted({stage for _, stage in workers}), sorted(workers), sorted(names)


def what_if(replay: Replay, chosen: Sequence[str], shown_step: int) -> ReplayResult:
    """The record with parts repaired: those chosen together, else each part by itself."""
    stages, workers, operations = parts_of(replay)
    wanted = {"+".join(chosen): [part_of(text, replay) for text in chosen]} if chosen else {}
    if not chosen:
        each = [f"operation:{name}" for name in operations] + [f"stage:{n}" for n in stages]
        if len(workers) <= MOST_WORKERS:
            each += [f"worker:{dp},{stage}" for dp, stage in workers]
        wanted = {text: [part_of(text, replay)] for text in each}
    ran, no_delay, ideal = replay.recorded_s(), replay.no_delay_s(), replay.ideal_step_s()
    repairs = []
    for what, parts in wanted.items():
        step_s = replay.repaired_s(_any_of(parts))
        lost = no_delay - ideal
        back = (no_delay - step_s) / lost if lost > 0.0 else 0.0
        repairs.append(Repair(what=what, step_s=step_s, brought_back_frac=back))
    repairs.sort(key=lambda each: -each.brought_back_frac)
    return ReplayResult(
        steps=len(replay.steps), workers=len(workers), recorded_s=ran, no_delay_s=no_delay,
        ideal_s=ideal, slowdown_by_delay=ran / no_delay, slowdown=no_delay / ideal,
        shown_step=shown_step, repairs=tuple(repairs),
    )  # fmt: skip


def _any_of(parts: Sequence[Chosen]) -> Chosen:
    return lambda name, dp, st: any(part(name, dp, st) for part in parts)


def usual_step(replay: Replay) -> int:
    """The step whose recorded time is nearest to the mean."""
    mean = replay.recorded_s()
    return min(replay.steps, key=lambda step: (abs(replay.steps[step].recorded_s - mean), step))


def _ideal(steps: Sequence[StepReplay]) -> dict[str, float]:
    """By operation, over all workers and steps: the mean where it is work, else the median.

    Work is evened out by sharing it better; a transfer's slow cases are faults.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, own in zip(step.operation, step.own_s.tolist(), strict=True):
            values[name].append(own)
    return {
        name: float(np.mean(v) if name in LOCAL else np.median(v)) for name, v in values.items()
    }


_ROWS = {
    "forward-compute": (F, "compute"),
    "backward-compute": (B, "compute"),
    "optimizer": (OTHER, "optimizer"),
    "optimizer-clip-main-grad": (OTHER, "dp_comm"),
    "gc": (OTHER, "host"),
    "params-all-gather": (UNSHARD, "dp_comm"),
    "grads-reduce-scatter": (REDUCE_GRAD, "dp_comm"),
    "layernorm-grads-all-reduce": (OTHER, "tp_comm"),
    "embedding-grads-all-reduce": (OTHER, "pp_comm"),
}


def recorded_timeline(record: RecordedOps, step: int) -> Timeline:
    """One recorded step as a timeline: rank dp_rank x stages + stage, waits named by their call.

    Transfers are rows of the transfer stream; what a rank waits in them, in collectives, and
    between calls are rows of its compute stream. Raises InputError for a step not recorded.
    """
    rows = np.flatnonzero(record.step == step)
    if not len(rows):
        known = ", ".join(str(s) for s in np.unique(record.step)[:8])
        raise InputError(f"step {step} is not in the record. Legal: {known} ...")
    stages = int(record.stage.max()) + 1
    began = float(record.start_s[rows].min())
    ended = float((record.start_s[rows] + record.duration_s[rows]).max())
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i in rows.tolist():
        by_rank[int(record.dp_rank[i]) * stages + int(record.stage[i])].append(i)
    table: dict[str, list[object]] = {name: [] for name in _COLUMNS}
    for rank in sorted(by_rank):
        at = began
        for i in sorted(by_rank[rank], key=lambda i: (record.start_s[i], i)):
            start = float(record.start_s[i])
            end = start + float(record.duration_s[i])
            name = record.operation[i]
            moves = name in SENDS or name in RECEIVES
            kind, cause = _ROWS.get(name, (IDLE, "pp_comm"))
            if name in SENDS:
                way = SEND_F if name == "forward-send" else SEND_B
                peer = rank + (1 if way == SEND_F else -1)
                _put(table, rank, P2P, way, record, i, (start - began, end - began), cause, peer)
            if start > at:
                _put(table, rank, COMPUTE, IDLE, record, i, (at - began, start - began), "host", -1)
            begin = max(start, at)
            if end > begin:
                span = (begin - began, end - began)
                shown = IDLE if moves else kind
                _put(table, rank, COMPUTE, shown, record, i, span, cause, -1)
                at = end
        if ended > at:
            _put(table, rank, COMPUTE, IDLE, record, i, (at - began, ended - began), "bubble", -1)
    return Timeline.from_table(table, name=f"step {step}", measured=True)


_COLUMNS = (
    "rank", "stream", "kind", "stage", "microbatch", "start_s", "end_s", "cause", "peer",
)  # fmt: skip


def _put(
    table: dict[str, list[object]],
    rank: int,
    stream: int,
    kind: int,
    record: RecordedOps,
    i: int,
    span: tuple[float, float],
    cause: str,
    peer: int,
) -> None:
    """One row; only work has a stage and microbatch."""
    idle = kind == IDLE
    row = (
        rank, STREAM_NAMES[stream], ROW_KINDS[kind], -1 if idle else int(record.stage[i]),
        -1 if idle else int(record.sequence[i]), span[0], span[1], cause, peer,
    )  # fmt: skip
    for name, value in zip(_COLUMNS, row, strict=True):
        table[name].append(value)
