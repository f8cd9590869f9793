"""The best layout of unequal layers over several chunks, by branch and bound.

Every critical path met lasts on every layout, so it bounds each layout from below, and a layout's
stages can be bounded as they are cut off one after the other: what a chain lasts on the stages cut
so far, and the least it can last on the rest (dynamic programming over stages and cuts). Layouts
are looked at depth first, the lowest bound first; one that no chain rules out is simulated, its
critical path joins the bounds, and the search begins again with them (Land and Doig, Econometrica
28, 1960; cuts as in Kelley, J. SIAM 8, 1960). Where it ends nothing is left to be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.jit import compiled, kernel
from gangsaw.schedule.actions import I64
from gangsaw.search.descent import TOLERANCE, Counts
from gangsaw.search.stage_bound import Mean, Sequence, means_of, on_stages
from gangsaw.simulate.rerun import Chain

NODES = 60_000
"""Stages cut off at most, over all beginnings."""
MOST_CHAINS = 256
"""Critical paths taken over from the descent; its last ones."""
MEANS = 6
"""Means of chains that bound beside the chains themselves."""


@dataclass
class Branching:
    """Chains as bounds over the layouts of a sequence."""

    what: Sequence
    rest_s: float
    chains: list[Chain] = field(default_factory=list)
    nodes: int = 0
    seen: set[Counts] = field(default_factory=set)
    """Layouts that were simulated, or cannot be held: no answers."""

    def __post_init__(self) -> None:
        items = self.what.items
        self.sums = np.concatenate((np.zeros((1, 3)), np.cumsum(items, axis=0)))
        self._weigh: list[Array] = []
        self._fixed: list[float] = []
        self._least: list[Array] = []
        self._costs: list[Array] = []
        self._mean: list[tuple[Array, Array, float]] = []
        self._again = 1
        for chain in self.chains[-MOST_CHAINS:]:
            self.add(chain)

    def add(self, chain: Chain) -> None:
        """A chain, and the least it lasts on any last stages of any last items."""
        weigh, fixed_s = on_stages(self.what, chain)
        costs, least = self._tables(weigh)
        self._weigh.append(weigh)
        self._fixed.append(fixed_s)
        self._costs.append(costs)
        self._least.append(least)

    def _tables(self, weigh: Array) -> tuple[Array, Array]:
        """Seconds of the items before each cut [stages, items + 1], and the least of what is left
        behind it for each first stage left [stages + 1, items + 1]."""
        costs = (self.sums @ weigh).T
        stages, ends = costs.shape
        least = np.full((stages + 1, ends), np.inf)
        least[stages, -1] = 0.0
        for stage in range(stages - 1, -1, -1):
            behind = costs[stage] + least[stage + 1]
            lowest = np.minimum.accumulate(behind[::-1])[::-1]
            least[stage, :-1] = lowest[1:] - costs[stage, :-1]
        return costs, least

    def _means(self, enough_s: float) -> list[Mean]:
        """Means of the chains, those with the longest shortest layouts first."""
        items, weigh = self.what.items, np.stack(self._weigh)
        found = means_of(items, weigh, np.array(self._fixed), enough_s - self.rest_s)
        return sorted(found, key=lambda each: -each.least_s)

    def floor_s(self, step_s: float) -> float:
        """No step of any layout is shorter; by means of the chains, at most `step_s`."""
        return min(step_s, self.rest_s + self._means(step_s)[0].least_s)

    def next_layout(self, below_s: float) -> Counts | None:
        """A layout that no chain keeps from a step under `below_s`; None where there is none.

        Raises StopIteration when NODES are used up.
        """
        if len(self._fixed) >= self._again:
            self._again = 2 * len(self._fixed)
            means = self._means(below_s)[:MEANS]
            self._mean = [(*self._tables(each.weigh), each.fixed_s) for each in means]
        costs = np.stack([*(each[0] for each in self._mean), *self._costs])
        least = np.stack([*(each[1] for each in self._mean), *self._least])
        fixed = np.array([*(each[2] for each in self._mean), *self._fixed]) + self.rest_s
        seen = np.array(sorted(self.seen), np.int64).reshape(len(self.seen), costs.shape[1])
        nodes, path = compiled(first_below)(costs, least, fixed, below_s, seen, NODES - self.nodes)
        self.nodes += int(nodes)
        if self.nodes > NODES:
            raise StopIteration
        return self._counts(path) if path[-1] else None

    def _counts(self, path: I64) -> Counts:
        """Layers of each stage: the ends are items of the outer ones."""
        return tuple(int(c) for c in layers_of(path))


@kernel
def layers_of(path: I64) -> I64:
    """[stages] layers between cuts among items, of which the first and the last are ends."""
    counts = path[1:] - path[:-1]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


@kernel
def first_below(
    costs: Array, least: Array, fixed: Array, below_s: float, seen: I64, most: int
) -> tuple[int, I64]:
    """Nodes visited and the cuts [stages + 1] of a layout that all bounds leave below `below_s`.

    Depth first, the end of a stage with the lowest bound first. Zeros where there is none, or when
    more than `most` nodes were visited.
    """
    bounds, stages, ends = costs.shape
    path = np.zeros(stages + 1, np.int64)
    spent = np.zeros((stages + 1, bounds))
    spent[0] = fixed
    ways = np.zeros((stages, ends), np.int64)
    left = np.zeros(stages, np.int64)
    worth = np.zeros(ends)
    nodes, stage, fresh = 0, 0, True
    while stage >= 0:
        start = path[stage]
        if fresh:
            count = 0
            for cut in range(start + 1, ends):
                worst = -np.inf
                for k in range(bounds):
                    lasts = spent[stage, k] + costs[k, stage, cut] - costs[k, stage, start]
                    worst = max(worst, lasts + least[k, stage + 1, cut])
                    if worst >= below_s:
                        break
                if worst < below_s:
                    # The best last, by insertion.
                    at = count
                    while at > 0 and worth[at - 1] < worst:
                        worth[at], ways[stage, at] = worth[at - 1], ways[stage, at - 1]
                        at -= 1
                    worth[at], ways[stage, at] = worst, cut
                    count += 1
            left[stage] = count
        if left[stage] == 0:
            stage, fresh = stage - 1, False
            continue
        left[stage] -= 1
        cut = ways[stage, left[stage]]
        path[stage + 1] = cut
        if stage == stages - 1:
            counts = layers_of(path)
            known = False
            for row in range(len(seen)):
                if np.all(seen[row] == counts):
                    known = True
                    break
            if not known:
                return nodes, path
            fresh = False
            continue
        nodes += 1
        if nodes > most:
            break
        for k in range(bounds):
            spent[stage + 1, k] = spent[stage, k] + costs[k, stage, cut] - costs[k, stage, start]
        stage, fresh = stage + 1, True
    return nodes, np.zeros(stages + 1, np.int64)


@dataclass(frozen=True)
class Proof:
    """The best layout met, its step, how many were simulated, whether none can be better."""

    counts: Counts
    step_s: float
    simulated: int
    complete: bool


def branch(
    bounds: Branching,
    best: tuple[Counts, float],
    simulate: Callable[[Counts], tuple[float, Chain]],
    fits: Callable[[Counts], bool],
    budget: int,
) -> Proof:
    """From the best layout and its step, to the best of all that fit, within TOLERANCE.

    `simulate`: a layout's step and critical path; at most `budget` are.
    """
    counts, step_s = best
    bounds.seen.add(counts)
    many = 0
    while many < budget:
        try:
            found = bounds.next_layout(step_s * (1.0 - TOLERANCE))
        except StopIteration:
            return Proof(counts, step_s, many, complete=False)
        if found is None:
            return Proof(counts, step_s, many, complete=True)
        bounds.seen.add(found)
        if not fits(found):
            continue
        took_s, chain = simulate(found)
        many += 1
        bounds.add(chain)
        if took_s < step_s:
            counts, step_s = found, took_s
    return Proof(counts, step_s, many, complete=False)
