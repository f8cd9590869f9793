"""What `threshold` answers: crossings of pairs, the map, robustness, shocks, what tiers carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.search.line import legal_grid, range_of
from gangsaw.search.parameters import Case, Objective, Parameter
from gangsaw.search.phase import PhaseResult, phase
from gangsaw.search.robust import (
    FITS,
    Robustness,
    Shock,
    TierCarries,
    grade_of,
    rankable,
    robustness,
    shocks,
    tier_carries,
)
from gangsaw.search.threshold import (
    Stretch,
    ThresholdResult,
    best_over,
    curves_of,
    home_of,
    pairs_of,
    rank_changes,
)
from gangsaw.spec.base import Document
from gangsaw.spec.result import PlanDoc

MAP_POINTS = 100


class ThresholdAnswer(Document):
    """The whole answer of `threshold`."""

    model: str
    cluster: str
    plans: dict[str, PlanDoc]
    clusters: dict[str, str] = Field(
        default_factory=dict, description="of plans on another cluster, by name"
    )
    fits: dict[str, Literal["yes", "risky", "no"]] = Field(
        default_factory=dict, description="memory at the present values, by name"
    )
    best: tuple[Stretch, ...] = Field((), description="which plan of the list is best where")
    pairs: tuple[ThresholdResult, ...] = Field(
        description="each pair of plans that is legal together somewhere"
    )
    phase: PhaseResult | None = None
    robustness: Robustness | None = None
    shocks: tuple[Shock, ...] = ()
    tiers: tuple[TierCarries, ...] = ()
    notes: tuple[str, ...] = ()


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
    curves = curves_of(cases, asked.over, asked.objective, asked.low, asked.high)
    pairs = pairs_of(curves)
    if not pairs:
        names = ", ".join(c.name for c in cases)
        raise InputError(
            f"{asked.over.name} from {curves.low:g} to {curves.high:g}: no two of {names} are ever"
            " legal together"
        )
    home = home_of(cases)
    found = None
    if asked.against is not None:
        low, high = range_of(home, asked.over, asked.low, asked.high)
        below, above = range_of(home, asked.against, None, None)
        found = phase(
            cases,
            asked.over,
            asked.against,
            asked.objective,
            legal_grid(cases, asked.over, low, high, asked.points),
            legal_grid(cases, asked.against, below, above, asked.points),
        )
    ranked = rankable(cases) if asked.robust else ()
    return ThresholdAnswer(
        model=home.job.model.name,
        cluster=f"{home.job.cluster.name}:{home.job.cluster.devices}",
        plans={c.name: plan_doc(c.plan, counts_of(c.job, c.plan)) for c in cases},
        clusters={
            c.name: f"{c.job.cluster.name}:{c.job.cluster.devices}" for c in cases if c.elsewhere
        },
        fits=_fits(cases),
        best=best_over(curves, pairs),
        pairs=pairs,
        phase=found,
        robustness=robustness(ranked, asked.objective, seed=asked.seed) if asked.robust else None,
        shocks=shocks(cases) if asked.robust else (),
        tiers=tier_carries(home.job),
        notes=_notes(cases, ranked, asked),
    )


def _fits(cases: Sequence[Case]) -> dict[str, Literal["yes", "risky", "no"]]:
    """Whether each plan fits at the present values; one that is not legal now is left out."""
    found: dict[str, Literal["yes", "risky", "no"]] = {}
    for case in cases:
        try:
            found[case.name] = FITS[grade_of(case)]
        except InputError:
            continue
    return found


def _notes(cases: Sequence[Case], ranked: Sequence[Case], asked: Question) -> tuple[str, ...]:
    """What a reader must know before the ranking."""
    notes = []
    if not rank_changes(asked.over, cases):
        notes.append(
            f"{asked.over.name} moves all plans on one cluster alike, so their order cannot change;"
            " compare with a plan on another cluster: PLAN@CLUSTER"
        )
    left = [c.name for c in cases if c not in ranked]
    if asked.robust and left:
        notes.append(
            f"the draws leave out {', '.join(left)}: {'it fits' if len(left) == 1 else 'they fit'}"
            " less surely than the others"
        )
    return tuple(notes)
