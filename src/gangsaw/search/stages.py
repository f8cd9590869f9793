"""Which layers go on which stage: the partition with the fastest simulated step.

The largest stage alone does not decide: with few microbatches the fill and drain count as well,
and with a schedule's own order a heavy stage costs more at one end than at the other. So the
partitions are walked through from the best lower bound upwards, each is simulated, and the walk
ends when the next bound is not better than the best step found (then it is proved), or when the
budget of simulations is used up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.schedule.actions import I32, B, F, I, Schedule
from gangsaw.search.partition import memory_ends, partition
from gangsaw.simulate.loop import execute
from gangsaw.simulate.times import StageTimes, Transfers

Counts = tuple[int, ...]
MAX_EXPANSIONS = 60_000
"""Partial partitions looked at before the walk gives up proving."""


@dataclass(frozen=True)
class LayerItem:
    """One layer of the sequence: seconds of a microbatch, bytes that it needs on its stage.

    `symbol` is Megatron's letter for it (E embedding, t transformer layer, m prediction layer,
    L loss), `module` its name in torchtitan's model. Its memory on a stage is static +
    in_flight[stage] x activation.
    """

    forward_s: float
    backward_s: float
    weight_s: float
    static_bytes: float = 0.0
    activation_bytes: float = 0.0
    symbol: str = "t"
    module: str = ""


@dataclass(frozen=True)
class StageMap:
    """A partition: items of each stage, the step it gives, and whether no other is faster."""

    counts: Counts
    step_s: float
    proved: bool
    simulated: int


@dataclass(frozen=True, eq=False)
class StageLimits:
    """Memory of each rank for its stages, and microbatches that each stage holds at its peak."""

    limit_bytes: Array
    in_flight: Array


def best_stages(
    items: Sequence[LayerItem],
    schedule: Schedule,
    limits: StageLimits | None = None,
    transfers: Transfers | None = None,
    budget: int = 400,
) -> StageMap:
    """The partition of `items` over the stages of `schedule` with the fastest simulated step.

    Raises InputError where no partition keeps the memory limits, or stages outnumber items.
    """
    if schedule.pipes != 1:
        raise InputError(f"{schedule.name}: stages of a two-way pipe are not partitioned here")
    if len(items) < schedule.stages:
        raise InputError(
            f"{len(items)} layers do not fill {schedule.stages} stages: at least one each"
        )
    walk = _Walk(items, schedule, limits)
    tried: dict[Counts, float] = {}

    def step_s(counts: Counts) -> float:
        if counts not in tried:
            tried[counts] = execute(schedule, stage_times(items, counts), transfers).makespan_s
        return tried[counts]

    with suppress(InputError):
        quick = quick_stages(items, schedule.stages, limits)
        if min(quick) > 0 and walk.fits_all(quick):
            step_s(quick)
    for bound, counts in walk.by_bound(lambda: min(tried.values(), default=np.inf)):
        if tried and bound >= min(tried.values()) * (1 - 1e-12):
            break
        if len(tried) >= budget:
            walk.complete = False
            break
        step_s(counts)
    if not tried:
        raise InputError("no partition of the layers keeps the stages' memory limits")
    best = min(tried, key=lambda counts: tried[counts])
    return StageMap(best, tried[best], walk.complete, len(tried))


def stage_times(items: Sequence[LayerItem], counts: Counts) -> StageTimes:
    """Seconds of each stage of a partition."""
    edges = np.concatenate(([0], np.cumsum(counts)))[:-1]
    table = np.array([(i.forward_s, i.backward_s, i.weight_s) for i in items])
    sums = np.add.reduceat(table, edges, axis=0)
    return StageTimes.of(len(counts), sums[:, 0], sums[:, 1], sums[:, 2])


class _Walk:
    """All partitions without empty stages, lowest bound first."""

    def __init__(
        self, items: Sequence[LayerItem], schedule: Schedule, limits: StageLimits | None
    ) -> None:
        self.n, self.stages = len(items), schedule.stages
        self.complete = True
        self.rank_of: I32 = schedule.rank_of
        self.ranks, self.m = schedule.ranks, schedule.microbatches
        forward = np.array([i.forward_s for i in items])
        backward = np.array([i.backward_s for i in items])
        weight = np.array([i.weight_s for i in items])
        self.whole = _prefix(forward + backward + weight)
        back = backward if schedule.splits_backward else backward + weight
        self.trip = _prefix(forward + back)
        self.down = _prefix(forward)
        self.back = self.trip - self.down
        self.late_forwards = late_forwards(schedule)
        self.limits = limits
        self.static = _prefix(np.array([i.static_bytes for i in items]))
        self.active = _prefix(np.array([i.activation_bytes for i in items]))

    def bytes_of(self, stage: int, first: int, last: int) -> float:
        """Bytes of a stage with items first to last - 1."""
        held = 0.0 if self.limits is None else float(self.limits.in_flight[stage])
        return float(
            self.static[last] - self.static[first] + held * (self.active[last] - self.active[first])
        )

    def by_bound(self, best_s: Callable[[], float]) -> Iterator[tuple[float, Counts]]:
        """Best-first, deeper first where equal; what cannot beat `best_s` is left out.

        A rank works m times on its stages, after the forwards of the stages in front of it have
        come down; and after its forwards and gradients, which weight gradients may follow, the
        last gradient goes up through the stages in front. `_after_turn` bounds it from the first
        backward on, which counts the fill behind the stage as well.
        What is not placed yet is bounded by its own best partition, each stage alone (`rest`).
        """
        rest = self._rest()
        heap: list[tuple[float, int, int, Counts]] = [(float(rest[0, 0]), 0, 0, ())]
        for _ in range(MAX_EXPANSIONS):
            if not heap:
                return
            bound, _, at, counts = heapq.heappop(heap)
            if bound >= best_s():
                return
            if len(counts) == self.stages:
                yield bound, counts
                continue
            stage = len(counts)
            after = self.stages - stage - 1
            lasts = range(at + 1, self.n - after + 1) if after else (self.n,)
            for last in lasts:
                longer = (*counts, last - at)
                low = max(bound, self._bound(longer), float(rest[stage + 1, last]))
                if low < best_s() and self._fits(longer):
                    heapq.heappush(heap, (low, -len(longer), last, longer))
        self.complete = False

    def _rest(self) -> Array:
        """rest[stage, at]: bound of stages `stage` on, when items `at` on are theirs."""
        n, stages = self.n, self.stages
        rest = np.full((stages + 1, n + 1), np.inf)
        rest[stages, n] = 0.0
        for stage in range(stages - 1, -1, -1):
            for at in range(stage, n):
                alone = self.m * (self.whole[at + 1 :] - self.whole[at]) + self.down[at]
                passed = self.m * (self.trip[at + 1 :] - self.trip[at]) + self.trip[at]
                turned = self._after_turn(stage, at)
                stage_s = np.maximum(np.maximum(alone, passed), turned)
                both = np.maximum(stage_s, rest[stage + 1, at + 1 :])
                rest[stage, at] = both.min()
        return rest

    def _after_turn(self, stage: int, at: int) -> Array:
        """Bound of a stage of items `at` to each later one, by its first backward.

        That comes when a microbatch has been all the way down and up to here; then all backwards
        and the forwards that stand behind it in the row are still to do, and the way up.
        """
        ends = slice(at + 1, None)
        own_f, own_b = self.down[ends] - self.down[at], self.back[ends] - self.back[at]
        begins = self.down[-1] + self.back[-1] - self.back[ends]
        left: Array = begins + self.late_forwards[stage] * own_f + self.m * own_b + self.back[at]
        return left

    def fits_all(self, counts: Counts) -> bool:
        """Whether a whole partition keeps every rank's limit."""
        return all(self._fits(counts[:k]) for k in range(1, len(counts) + 1))

    def _fits(self, counts: Counts) -> bool:
        if self.limits is None:
            return True
        rank = int(self.rank_of[len(counts) - 1])
        total, first = 0.0, 0
        for stage, count in enumerate(counts):
            if self.rank_of[stage] == rank:
                total += self.bytes_of(stage, first, first + count)
            first += count
        return total <= float(self.limits.limit_bytes[rank]) * (1 + 1e-12)

    def _bound(self, counts: Counts) -> float:
        work, passed = np.zeros(self.ranks), np.zeros(self.ranks)
        front = np.full(self.ranks, -1)
        first = 0
        for stage, count in enumerate(counts):
            rank = int(self.rank_of[stage])
            work[rank] += self.whole[first + count] - self.whole[first]
            passed[rank] += self.trip[first + count] - self.trip[first]
            front[rank] = first if front[rank] < 0 else front[rank]
            first += count
        some = front >= 0
        ends = np.maximum(
            self.m * work[some] + self.down[front[some]],
            self.m * passed[some] + self.trip[front[some]],
        )
        bound = float(np.max(ends, initial=0.0))
        rest = float(self.whole[-1] - self.whole[first])
        even = float(work.sum() + rest) / self.ranks
        return max(bound, self.m * even)


def late_forwards(schedule: Schedule) -> list[int]:
    """Forwards of each stage behind the first backward of its rank; 0 with several chunks."""
    late = [0] * schedule.stages
    if schedule.chunks == 1:
        for rank in range(schedule.ranks):
            row = schedule.rank_row(rank)
            first = int(np.argmax((row.kind == I) | (row.kind == B)))
            late[int(row.stage[0])] = int(np.count_nonzero(row.kind[first:] == F))
    return late


def _prefix(values: NDArray[np.float64]) -> Array:
    return np.concatenate(([0.0], np.cumsum(values)))


def quick_stages(
    items: Sequence[LayerItem], stages: int, limits: StageLimits | None = None
) -> Counts:
    """The partition with the smallest largest stage: exact and immediate, without simulation."""
    time = np.array([i.forward_s + i.backward_s + i.weight_s for i in items])
    far = np.zeros((0, 0))
    if limits is not None:
        held = np.array([i.static_bytes for i in items])
        held = held + np.array([i.activation_bytes for i in items]) * limits.in_flight.max()
        share = stages // len(limits.limit_bytes)
        far = memory_ends(_prefix(held), np.tile(limits.limit_bytes / share, share))
    counts = partition(_prefix(time), stages, 0.0, 0.0, far)
    if not counts.any():
        raise InputError("no partition of the layers keeps the stages' memory limits")
    return tuple(int(c) for c in counts)


def devices_saved(before_s: float, after_s: float, devices: int) -> float:
    """Devices that would be needed on top, without the better layout, for the same rate."""
    return devices * (before_s / after_s - 1.0)


def megatron_layout(items: Sequence[LayerItem], counts: Counts) -> str:
    """Megatron's pipeline layout: stages parted by `|`, repeated letters as `t*3`.

    Stages in order of the model, as `--pipeline-model-parallel-layout` takes them.
    """
    stages, first = [], 0
    for count in counts:
        letters = [item.symbol for item in items[first : first + count]]
        runs = [(letter, len(list(same))) for letter, same in groupby(letters)]
        stages.append("".join(x if k == 1 else f"{x}*{k}" for x, k in runs))
        first += count
    return "|".join(stages)


def torchtitan_modules(items: Sequence[LayerItem], counts: Counts) -> list[list[str]]:
    """Module names of each stage, as torchtitan's `module_fqns_per_model_part` takes them."""
    result, first = [], 0
    for count in counts:
        result.append([item.module for item in items[first : first + count] if item.module])
        first += count
    return result
