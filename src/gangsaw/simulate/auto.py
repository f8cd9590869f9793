"""`--schedule auto`: the best of synthesised orders and named schedules for given stage times."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.schedule.actions import I32, F, Schedule
from gangsaw.schedule.auto import Job, lower_bound_s, orders
from gangsaw.schedule.building_block import block_schedules
from gangsaw.schedule.generators import INFOS
from gangsaw.schedule.polish import polish
from gangsaw.simulate.loop import execute
from gangsaw.simulate.times import StageMemory, StageTimes, Transfers

POLISHED = 3
"""How many of the best orders are improved by small moves."""
ROUNDS = 3
POLISH_WORK = 20_000_000
"""Actions walked through in the first round of improving."""


KEPT_ANSWERS = 8
_ANSWERS: dict[bytes, AutoResult] = {}
"""What was synthesised last, by what was asked: a plan's step, its memory and its picture ask the
same."""


@dataclass(frozen=True, eq=False)
class AutoResult:
    """What was chosen: the schedule, its time, the bound that no order can beat, and the rest.

    `named_s` has the seconds of each named schedule that fits; `gap_frac` is how far the choice
    is above the bound.
    """

    schedule: Schedule
    makespan_s: float
    lower_bound_s: float
    named_s: dict[str, float]
    peak_bytes: Array

    @property
    def gap_frac(self) -> float:
        """Distance to the lower bound, as a fraction of it."""
        return self.makespan_s / self.lower_bound_s - 1.0


def loop_map(ranks: int, chunks: int) -> I32:
    """Rank of each stage when chunks loop over the ranks."""
    return np.tile(np.arange(ranks, dtype=np.int32), chunks)


def v_map(ranks: int) -> I32:
    """Rank of each of two chunks a rank in the shape of a V."""
    down = np.arange(ranks, dtype=np.int32)
    return np.concatenate((down, down[::-1]))


def synthesise(
    rank_of: I32,
    microbatches: int,
    times: StageTimes,
    memory: StageMemory,
    limit_bytes: Array,
    transfers: Transfers | None = None,
    split: bool = True,
    rounds: int = 60,
) -> AutoResult:
    """The fastest order found for stages on ranks as `rank_of` says, under `limit_bytes` [ranks].

    Never slower than a named schedule for the same map that keeps the limit. Without `split`
    the backward stays whole. The last few answers are kept. Raises InputError where one microbatch
    does not fit.
    """
    asked = pickle.dumps(
        (rank_of, microbatches, times, memory, limit_bytes, transfers, split, rounds)
    )
    if asked not in _ANSWERS:
        found = _synthesise(
            rank_of, microbatches, times, memory, limit_bytes, transfers, split, rounds
        )
        if len(_ANSWERS) >= KEPT_ANSWERS:
            del _ANSWERS[next(iter(_ANSWERS))]
        _ANSWERS[asked] = found
    return _ANSWERS[asked]


def _synthesise(
    rank_of: I32,
    microbatches: int,
    times: StageTimes,
    memory: StageMemory,
    limit_bytes: Array,
    transfers: Transfers | None,
    split: bool,
    rounds: int,
) -> AutoResult:
    job = _job(rank_of, microbatches, times, memory, limit_bytes, transfers, split)
    ranks = len(limit_bytes)
    candidates = [schedule for _, schedule in orders(job, rounds, keep=4)]
    if split and np.array_equal(rank_of, v_map(ranks)):
        candidates += block_schedules(ranks, microbatches)
    candidates += _named(job, ranks, microbatches)
    tried: list[tuple[float, Schedule, Array]] = []
    named_s = {}
    for schedule in candidates:
        run = execute(schedule, times, transfers, memory=memory)
        peak = run.memory.peak if run.memory is not None else np.zeros(ranks)
        if np.all(peak <= limit_bytes * (1 + 1e-9)):
            tried.append((run.makespan_s, schedule, peak))
            if schedule.name != "auto":
                named_s[schedule.name] = run.makespan_s
    if not tried:
        raise InputError("schedule=auto: no order of these stages keeps the memory limit")
    bound = lower_bound_s(job) * (1.0 - 0.5 * times.overlap_frac)
    tried.sort(key=lambda each: each[0])
    best = _improved(
        tried, bound, min(named_s.values(), default=np.inf), job, times, transfers, memory
    )
    return AutoResult(in_turn(best[1]), best[0], bound, named_s, best[2])


def in_turn(schedule: Schedule) -> Schedule:
    """The same schedule with microbatches numbered as they come to the last stage.

    Microbatches are alike, so no time changes; torch's runtime files losses in that order.
    """
    last = (schedule.kind == F) & (schedule.stage == schedule.stages - 1)
    number = np.empty(schedule.microbatches, np.int32)
    number[schedule.microbatch[last]] = np.arange(schedule.microbatches, dtype=np.int32)
    return replace(schedule, microbatch=number[schedule.microbatch])


def _improved(
    tried: list[tuple[float, Schedule, Array]],
    bound_s: float,
    named_s: float,
    job: Job,
    times: StageTimes,
    transfers: Transfers | None,
    memory: StageMemory,
) -> tuple[float, Schedule, Array]:
    """The best order after small moves; more rounds while it only equals a named schedule."""
    best = tried[0]
    starts = [schedule for _, schedule, _ in tried[:POLISHED] if not np.any(schedule.pair)]
    for effort in range(ROUNDS):
        for schedule in starts if effort == 0 else [best[1]]:
            if best[0] <= bound_s * (1 + 1e-6) or np.any(schedule.pair):
                break
            share = POLISH_WORK / schedule.actions / POLISHED
            tries = int(np.clip(share * (1 + 2 * effort), 100, 20_000 * (1 + effort)))
            better = polish(schedule, job, tries, reach=6 + 4 * effort, seed=1 + effort)
            run = execute(better, times, transfers, memory=memory)
            if run.makespan_s < best[0] and run.memory is not None:
                best = run.makespan_s, better, run.memory.peak
        if best[0] < named_s * (1 - 1e-9) or best[0] <= 1.02 * bound_s:
            break
    return best


def _job(
    rank_of: I32,
    m: int,
    times: StageTimes,
    memory: StageMemory,
    limit_bytes: Array,
    transfers: Transfers | None,
    split: bool,
) -> Job:
    stages = len(rank_of)
    hop = np.zeros(stages)
    if transfers is not None:
        crosses = np.append(rank_of[1:] != rank_of[:-1], False)
        seconds = transfers.bytes_each / transfers.bytes_per_s + transfers.latency_s
        hop = np.where(crosses, seconds, 0.0)
    room = np.asarray(limit_bytes, np.float64) - memory.static_bytes
    for rank in range(len(room)):
        mine = rank_of == rank
        need = memory.activation_bytes[mine].sum() + memory.working_bytes[mine].max()
        if need > room[rank] * (1 + 1e-12):
            raise InputError(
                f"rank {rank}: one microbatch needs {need:.4g} bytes of activations, the limit"
                f" leaves {room[rank]:.4g}"
            )
        room[rank] -= memory.working_bytes[mine].max()
    return Job(
        np.asarray(rank_of, np.int32), m, times.forward_s, times.backward_s, times.weight_s, hop,
        memory.activation_bytes, float(memory.input_release_frac), room, 1.0 if split else 0.0,
    )  # fmt: skip


def _named(job: Job, ranks: int, m: int) -> list[Schedule]:
    """Named schedules whose stages lie as the job's do."""
    chunks = len(job.rank_of) // ranks
    found = []
    for info in INFOS.values():
        if info.weights > 1 or (info.splits_backward and job.split < 0.5):
            continue
        if info.refuse(ranks, m, chunks):
            continue
        schedule = info.make(ranks, m, chunks)
        if np.array_equal(schedule.rank_of, job.rank_of):
            found.append(schedule)
    return found
