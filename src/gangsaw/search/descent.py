"""Better stage layouts from critical paths: a descent on the step that is simulated.

Each simulated layout has a critical path, and no layout is faster than that chain of actions
would be on its own stages. The chains found so far therefore bound every other layout from below
(a cutting-plane model, Kelley, J. SIAM 8, 1960). The descent walks down on the model, one layer
from one stage to another at a time, simulates where it arrives, and adds that layout's chain;
after a miss it walks shorter. It ends when no single move can be faster by the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.simulate.rerun import Chain, Rerun

Counts = tuple[int, ...]
TOLERANCE = 1e-3
"""A layout within this share of the lower bound counts as the best: no other gains more."""
LONGEST_WALK = 8
SIDEWAYS = 6
"""Moves that may lead nowhere before the way is given up."""
LOOKED_AT = 12
"""Moves whose bound is made exact in each step of a walk."""
ENDS = 32
"""Stages that layers are taken from, and as many that they are given to, in each step."""
MOST_CHAINS = 64
SHRINKS = 0.2
"""By how much of the rest of the step a single move may shorten it."""
LEAST_GAIN = 1e-6


class Layouts(Protocol):
    """What a descent asks about layouts: items of each stage, in stage order."""

    @property
    def least(self) -> Counts:
        """Fewest items of each stage."""

    @property
    def layer_s(self) -> Array:
        """[4] seconds that a typical layer adds to its stage's F, I, W and B."""

    def times(self, counts: Counts) -> Array:
        """[4, stages] seconds of each stage."""

    def rest_s(self, counts: Counts) -> float:
        """Seconds of the step that are not in the pipeline."""

    def fits(self, counts: Counts) -> bool:
        """Whether every rank can hold its stages."""


@dataclass(frozen=True)
class Descent:
    """The best layout found, its pipeline's seconds and those of the whole step, how many were
    simulated, whether no move is left, and the critical paths met.
    """

    counts: Counts
    makespan_s: float
    step_s: float
    simulated: int
    settled: bool
    chains: list[Chain]


class _Model:
    """The chains found, and what each lasts on the layout that is looked at."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self.chains: list[Chain] = []
        self.slope: Array = np.zeros((0, 0))
        self.counts: Array = np.zeros((0, 0))
        self.other_s: Array = np.zeros(0)

    def add(self, chain: Chain) -> None:
        """Take in a chain; the oldest leave when there are too many."""
        self.chains = [*self.chains[-MOST_CHAINS + 1 :], chain]
        layer = self.layouts.layer_s
        self.slope = np.stack([layer @ each.counts for each in self.chains])
        self.counts = np.stack([each.counts.ravel() for each in self.chains])
        self.other_s = np.array([each.other_s for each in self.chains])

    def lasts(self, counts: Sequence[Counts]) -> Array:
        """[layouts, chains] seconds of each chain on each layout: a lower bound each."""
        times = np.stack([self.layouts.times(each).ravel() for each in counts])
        found: Array = times @ self.counts.T + self.other_s
        return found

    def moves(self, counts: Counts, lasts: Array, below_s: float) -> list[Counts]:
        """Layouts one layer away that the chains leave room below `below_s`, best first."""
        # Only chains that can be the longest after one move.
        near = lasts + self.slope.max(axis=1) >= lasts.max() - self.slope.max()
        slope, now = self.slope[near], lasts[near]
        free = np.flatnonzero(np.array(counts) > np.array(self.layouts.least))
        longest = slope[int(np.argmax(now))]
        source = free[np.argsort(-longest[free], kind="stable")[:ENDS]]
        target = np.argsort((now[:, None] + slope).max(axis=0), kind="stable")[:ENDS]
        gain = now[:, None] - slope[:, source]
        bound = (gain[:, :, None] + slope[:, target][:, None, :]).max(axis=0)
        bound[source[:, None] == target[None, :]] = np.inf
        flat = bound.ravel()
        some = np.flatnonzero(flat < below_s)
        order = some[np.argsort(flat[some], kind="stable")]
        found = []
        for each in order[:LOOKED_AT].tolist():
            row, column = divmod(each, len(target))
            moved = list(counts)
            moved[int(source[row])] -= 1
            moved[int(target[column])] += 1
            found.append(tuple(moved))
        return found


def descend(layouts: Layouts, rerun: Rerun, start: Counts, floor_s: float, budget: int) -> Descent:
    """From `start`, layouts that fit and are faster, until none is, or `budget` are simulated.

    `floor_s`: no step is faster than this; within `TOLERANCE` of it the descent ends.
    """
    model = _Model(layouts)
    seen: dict[Counts, float] = {}

    def simulate(counts: Counts) -> float:
        seen[counts] = rerun.makespan_s(layouts.times(counts))
        model.add(rerun.critical(seen[counts]))
        return seen[counts] + layouts.rest_s(counts)

    best, best_s = start, simulate(start)
    reach, settled = LONGEST_WALK, True
    while best_s > floor_s * (1 + TOLERANCE):
        if len(seen) >= budget:
            settled = False
            break
        arrived = _walk(model, layouts, best, best_s, reach, seen)
        if arrived is None:
            break
        found_s = simulate(arrived)
        if found_s < best_s * (1 - LEAST_GAIN):
            best, best_s = arrived, found_s
            reach = min(LONGEST_WALK, 2 * reach)
        else:
            reach = max(1, reach // 2)
    return Descent(best, seen[best], best_s, len(seen), settled, model.chains)


def _walk(
    model: _Model, layouts: Layouts, start: Counts, start_s: float, reach: int,
    seen: dict[Counts, float],
) -> Counts | None:  # fmt: skip
    """Where at most `reach` moves down the model lead; None where no move goes down."""
    here, below_s = start, start_s * (1 - LEAST_GAIN)
    for _ in range(reach):
        found = _best_move(model, layouts, here, below_s, seen)
        if found is None or found[0] >= below_s:
            break
        below_s, here = found[0] * (1 - LEAST_GAIN), found[1]
    if here != start:
        return here
    # Two stages that hold the step up need a layer less each: down only with the second move.
    tried = dict(seen)
    for _ in range(SIDEWAYS):
        found = _best_move(model, layouts, here, np.inf, tried)
        if found is None:
            return None
        if found[0] < below_s:
            return found[1]
        here = found[1]
        tried[here] = found[0]
    return None


def _best_move(
    model: _Model, layouts: Layouts, here: Counts, below_s: float, seen: dict[Counts, float]
) -> tuple[float, Counts] | None:
    """The move with the lowest bound, and where equal with the lower chains on average."""
    # Fewer parameters on the fullest rank may be worth a slower pipeline.
    pipe_s = below_s - (1.0 - SHRINKS) * layouts.rest_s(here)
    moves = model.moves(here, model.lasts([here])[0], pipe_s)
    moves = [each for each in moves if each not in seen and layouts.fits(each)]
    if not moves:
        return None
    rests = np.array([layouts.rest_s(each) for each in moves])
    chains = model.lasts(moves)
    bounds = chains.max(axis=1) + rests
    best = int(np.lexsort((chains.mean(axis=1), np.round(bounds, 12)))[0])
    return float(bounds[best]), moves[best]
