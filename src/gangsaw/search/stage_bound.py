"""Lower bounds of the simulated step over all layouts of a layer sequence.

A rank cannot begin before the first forward has come down to it, works m times on its stages, and
what it made last still goes up to stage 0. With one stage a rank the layout that makes the worst
of these least is found exactly (dynamic programming over stages and cuts); with several the cuts
are relaxed, but a rank still holds whole layers. And a chain of actions that a simulation found
critical lasts on every layout; the layout on which a mean of chains is shortest bounds them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.schedule.actions import I64, B, F, I, Schedule
from gangsaw.simulate.rerun import Chain

MOST_STAGES = 64
BISECTIONS = 40
ROUNDS = 40
"""Weightings of chains that are tried."""
SHARPNESS = 400.0
"""How strongly a chain that is longer than another by a share of the step is preferred to it."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """What is laid out, in seconds of a microbatch: [3] are F, I and W.

    `layers` [L, 3] in order, `first` and `last` what the ends put on the outer stages, `each` what
    every stage has besides. `hop_s` is a transfer, which keeps its sender where `blocking`.
    """

    layers: Array
    first: Array
    last: Array
    each: Array
    hop_s: float
    blocking: bool

    @property
    def private(self) -> bool:
        """Whether no transfer waits for a link that is busy: its sender waited for it before."""
        return self.blocking or self.hop_s == 0.0

    @property
    def items(self) -> Array:
        """[L + 2, 3]: the layers with the ends before and behind them; a stage has one or more."""
        return np.concatenate(([self.first], self.layers, [self.last]))


def floor_s(what: Sequence, schedule: Schedule, below_s: float) -> float:
    """No layout is faster than this; at most `below_s`."""
    bound = relaxed_s(what, schedule, below_s)
    if schedule.chunks == 1 and schedule.stages <= MOST_STAGES and bound < below_s:
        bound = max(bound, exact_s(what, schedule))
    return min(bound, below_s)


def relaxed_s(what: Sequence, schedule: Schedule, below_s: float) -> float:
    """The least T at which the ranks have room for all layers, whole ones, by bisection."""
    ranks = [_Rank.of(what, schedule, rank) for rank in range(schedule.ranks)]
    split = schedule.splits_backward
    cost = [what.layers.sum(axis=1)]
    room = [np.array([r.head_s + r.whole_s for r in ranks])]
    if split:
        cost.append(what.layers[:, :2].sum(axis=1))
        room.append(np.array([r.head_s + r.passed_s + r.tail_s for r in ranks]))
    else:
        room[0] += np.array([r.tail_s for r in ranks])

    def possible(step_s: float) -> bool:
        for layer_s, taken_s in zip(cost, room, strict=True):
            free = np.maximum(0.0, step_s - taken_s) / schedule.microbatches * (1 + 1e-12)
            if free.sum() < layer_s.sum() * (1 - 1e-12):
                return False
            for kind in np.unique(layer_s):
                if np.floor(free / kind + 1e-9).sum() < np.count_nonzero(layer_s >= kind):
                    return False
        return True

    low, high = 0.0, below_s
    if not possible(high):
        return below_s
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


@dataclass(frozen=True)
class _Rank:
    """Least seconds of a rank in a step besides layers: to come down to it, and up from it.

    `whole_s`: what it does itself, m times; `passed_s`: without weight gradients.
    """

    head_s: float
    tail_s: float
    whole_s: float
    passed_s: float

    @classmethod
    def of(cls, what: Sequence, schedule: Schedule, rank: int) -> _Rank:
        mine = np.flatnonzero(schedule.rank_of == rank)
        front, m, stages = int(mine.min()), schedule.microbatches, schedule.stages
        back = 2 if schedule.splits_backward else 3
        least = what.layers.min(axis=0)
        least_back = what.layers[:, 1:back].sum(axis=1).min()
        head = tail = 0.0
        if front > 0:
            head = what.first[0] + (front - 1) * least[0] + front * what.each[0]
            tail = what.first[1:back].sum() + (front - 1) * least_back
            tail += front * what.each[1:back].sum()
        own = len(mine) * what.each
        if front == 0:
            own = own + what.first
        if stages - 1 in mine:
            own = own + what.last
        crosses = schedule.rank_of[1:] != schedule.rank_of[:-1]
        ways = front if bool(np.all(crosses[:front])) else 0
        sent = np.count_nonzero(np.append(crosses, False)[mine])
        sent += np.count_nonzero(np.append(False, crosses)[mine])
        held = (m * sent - 1) * what.hop_s if what.blocking and sent else 0.0
        return cls(
            head + ways * what.hop_s, tail + ways * what.hop_s, m * own.sum() + held,
            m * own[:2].sum() + held,
        )  # fmt: skip


def exact_s(what: Sequence, schedule: Schedule) -> float:
    """The least worst stage over all cuts, one stage a rank, none without an item.

    A stage is bounded by its own work behind the way down to it, with the way up behind it, and
    from its first backward on: that comes when a microbatch has been all the way down and up to
    it; all backwards and the forwards that stand behind it in the row are still to do.
    """
    m, stages = schedule.microbatches, schedule.stages
    items = what.items
    n = len(items)
    sums = np.concatenate(([[0.0, 0.0, 0.0]], np.cumsum(items, axis=0)))
    back = sums[:, 1] if schedule.splits_backward else sums[:, 1] + sums[:, 2]
    each_b = what.each[1] if schedule.splits_backward else what.each[1] + what.each[2]
    each_f, hop = float(what.each[0]), what.hop_s
    down, whole = sums[:, 0], sums.sum(axis=1)
    occupied = hop if what.blocking else 0.0
    late = late_forwards(schedule)
    rest = np.full(n + 1, np.inf)
    rest[n] = 0.0
    for stage in range(stages - 1, -1, -1):
        first = np.arange(n + 1)[:, None]
        last = np.arange(n + 1)[None, :]
        own_f = down[last] - down[first] + each_f
        own_b = back[last] - back[first] + each_b
        own = whole[last] - whole[first] + what.each.sum()
        on, above = (1.0 if stage < stages - 1 else 0.0), (1.0 if stage > 0 else 0.0)
        head = down[first] + stage * (each_f + hop)
        tail = back[first] + stage * (each_b + hop)
        held = max(0.0, m * (on + above) - 1.0) * occupied
        alone = head + m * own + held
        passed = head + m * (own_f + own_b) + tail + held
        turn = down[n] + back[n] - back[last] + stages * each_f + (stages - 1) * hop
        turn = turn + (stages - 1 - stage) * (each_b + hop)
        held = (late[stage] * on + max(0.0, (m - 1.0) * above)) * occupied
        turned = turn + late[stage] * own_f + m * own_b + held + tail
        stage_s = np.maximum(np.maximum(alone, passed), turned)
        stage_s = np.where(last > first, stage_s, np.inf)
        rest = np.minimum.reduce(np.maximum(stage_s, rest[None, :]), axis=1)
    return float(rest[0])


def late_forwards(schedule: Schedule) -> list[int]:
    """Forwards of each stage behind the first backward of its rank; 0 with several chunks."""
    late = [0] * schedule.stages
    if schedule.chunks == 1:
        for rank in range(schedule.ranks):
            row = schedule.rank_row(rank)
            first = int(np.argmax((row.kind == I) | (row.kind == B)))
            late[int(row.stage[0])] = int(np.count_nonzero(row.kind[first:] == F))
    return late


def chains_s(what: Sequence, chains: list[Chain], enough_s: float) -> float:
    """No layout is faster than this, from chains that last on every layout; at most `enough_s`."""
    pairs = [on_stages(what, each) for each in chains]
    weigh, fixed = np.stack([w for w, _ in pairs]), np.array([f for _, f in pairs])
    return max(each.least_s for each in means_of(what.items, weigh, fixed, enough_s))


def on_stages(what: Sequence, chain: Chain) -> tuple[Array, float]:
    """How often a chain runs each stage's F, I and W [3, stages], and its seconds on no layer."""
    count = chain.counts
    weigh = np.stack([count[0], count[1] + count[3], count[2] + count[3]])
    return weigh, chain.other_s + float((weigh * what.each[:, None]).sum())


class Mean(NamedTuple):
    """A mean of chains: seconds of its shortest layout, how often it runs F, I, W of each stage
    [3, stages], and its seconds on no layer.
    """

    least_s: float
    weigh: Array
    fixed_s: float


def means_of(items: Array, weigh: Array, fixed: Array, enough_s: float) -> list[Mean]:
    """Means of chains `weigh` [K, 3, stages], `fixed` [K], whose shortest layouts are long.

    The largest of the chains is at least any mean of them, and the layout on which a mean is
    shortest is found exactly. Means are shifted towards the chains that are long there (Lagrangian
    dual by multiplicative weights); ends when `enough_s` is reached.
    """
    share, total = np.full(len(fixed), 1.0 / len(fixed)), np.zeros(len(fixed))
    found = []
    for _ in range(ROUNDS):
        mean, rest = np.einsum("k,kts->ts", share, weigh), float(share @ fixed)
        shortest, edges = shortest_s(items, mean)
        found.append(Mean(shortest + rest, mean, rest))
        if shortest + rest >= enough_s or len(fixed) == 1:
            break
        stage = np.add.reduceat(items, edges, axis=0)
        total += fixed + np.einsum("kts,st->k", weigh, stage)
        shifted = np.exp(SHARPNESS * (total - total.max()) / enough_s)
        share = shifted / shifted.sum()
    return found


def shortest_s(items: Array, weigh: Array) -> tuple[float, I64]:
    """The least sum of the items' seconds, weighed [3, stages] by their stage, and its cuts.

    Stages are consecutive and not empty; the cuts are the first item of each.
    """
    n, stages = len(items), weigh.shape[1]
    sums = np.concatenate((np.zeros((1, stages)), np.cumsum(items @ weigh, axis=0)))
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    cuts = np.zeros((stages, n + 1), np.int64)
    for stage in range(stages):
        open_s = least - sums[:, stage]
        lowest = np.minimum.accumulate(open_s)
        here = np.where(open_s <= lowest, np.arange(n + 1), 0)
        cuts[stage, 1:] = np.maximum.accumulate(here)[:-1]
        least = np.full(n + 1, np.inf)
        least[1:] = lowest[:-1] + sums[1:, stage]
    edges, at = np.zeros(stages, np.int64), n
    found = float(least[n])
    for stage in range(stages - 1, -1, -1):
        at = int(cuts[stage, at])
        edges[stage] = at
    return found, edges
