"""What `threshold` answers: crossings of pairs, the map, robustness, shocks, what tiers carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.search.parameters import Case, Objective, Parameter
from gangsaw.search.robust import (
    Robustness,
    Shock,
    TierCarries,
    robustness,
    shocks,
    tier_carries,
)
from gangsaw.search.threshold import (
    PhaseResult,
    ThresholdResult,
    legal_grid,
    phase,
    range_of,
    thresholds,
)
from gangsaw.spec.base import Document
from gangsaw.spec.result import PlanDoc

MAP_POINTS = 100


class ThresholdAnswer(Document):
    """The whole answer of `threshold`."""

    model: str
    cluster: str
    plans: dict[str, PlanDoc]
    pairs: tuple[ThresholdResult, ...] = Field(description="each pair of plans")
    phase: PhaseResult | None = None
    robustness: Robustness | None = None
    shocks: tuple[Shock, ...] = ()
    tiers: tuple[TierCarries, ...] = ()


@dataclass(frozen=True)
class Question:
    """What is asked of a list of plans."""

    over: Parameter
    objective: Objective = "time"
    low: float | None = None
    high: float | None = None
    against: Parameter | None = None
    robust: bool = False
    seed: int = 0
    points: int = MAP_POINTS


def threshold_answer(cases: Sequence[Case], asked: Question) -> ThresholdAnswer:
    """Answer `asked` for two plans or more. Raises InputError for one plan, or wrong ranges."""
    from gangsaw.search.estimate import counts_of, plan_doc

    if len(cases) < 2:
        raise InputError("a threshold needs two plans: name two plan files or more")
    pairs = tuple(
        thresholds(a, b, asked.over, asked.objective, asked.low, asked.high)
        for a, b in combinations(cases, 2)
    )
    found = None
    if asked.against is not None:
        low, high = range_of(cases[0], asked.over, asked.low, asked.high)
        below, above = range_of(cases[0], asked.against, None, None)
        found = phase(
            cases,
            asked.over,
            asked.against,
            asked.objective,
            legal_grid(cases, asked.over, low, high, asked.points),
            legal_grid(cases, asked.against, below, above, asked.points),
        )
    return ThresholdAnswer(
        model=cases[0].job.model.name,
        cluster=cases[0].job.cluster.name,
        plans={c.name: plan_doc(c.plan, counts_of(c.job, c.plan)) for c in cases},
        pairs=pairs,
        phase=found,
        robustness=robustness(cases, asked.objective, seed=asked.seed) if asked.robust else None,
        shocks=shocks(cases) if asked.robust else (),
        tiers=tier_carries(cases[0].job),
    )
