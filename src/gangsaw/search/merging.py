"""Plans that no prediction can tell apart share a row of the list.

A row with a merit (fastest, cheapest, safest, simplest) stays a row of its own: that it is chosen
for. Any other plan goes under the fastest row that it cannot be told from; of plans without a
merit that are tied with each other the simplest stands for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gangsaw.search.estimate import Evaluated
from gangsaw.search.probability import Chances
from gangsaw.search.ranking import complexity, words_of
from gangsaw.spec.result import LikePlan, PlanResult

Row = tuple[Evaluated, tuple[str, ...], PlanResult]


class Group(NamedTuple):
    """Places in the list: the row, and the plans under it, fastest first."""

    row: int
    like: tuple[int, ...]


def merged(rows: Sequence[Row], chances: Chances) -> list[Group]:
    """The rows in order of step time, each with what cannot be told from it."""
    groups: dict[int, list[int]] = {}
    for i, (_, labels, _) in enumerate(rows):
        home = next((j for j in groups if j in chances.tied[i]), None)
        if labels or home is None:
            groups[i] = [i]
        else:
            groups[home].append(i)
    out = []
    for first, places in groups.items():
        row = first
        if not rows[first][1]:
            row = min(places, key=lambda i: (complexity(rows[i][0].plan), i))
        out.append(Group(row, tuple(i for i in places if i != row)))
    return sorted(out, key=lambda g: g.row)


def alone(rows: Sequence[Row]) -> list[Group]:
    """Each row for itself: where another goal than time decides, ties in time do not."""
    return [Group(i, ()) for i in range(len(rows))]


TOLD_BY = ("mbs", "schedule", "vpp", "recompute", "zero")


def differences(other: Row, row: Row) -> str:
    """A plan in a few words: its degrees, and what else is not as in the plan of the row."""
    mine, its = other[2].plan, row[2].plan
    parts = [f"{n} {getattr(mine, n)}" for n in TOLD_BY if getattr(mine, n) != getattr(its, n)]
    return " ".join([words_of(other[0].plan), *parts])


def like_plan(row: Row, other: Row, best_prob_frac: float) -> LikePlan:
    """A plan that shares the row of another, in short."""
    _, _, result = other
    return LikePlan(
        plan=result.plan,
        step_time_s=result.step_time_s,
        step_time_lo_s=result.step_time_lo_s,
        step_time_hi_s=result.step_time_hi_s,
        best_prob_frac=best_prob_frac,
        peak_bytes=result.memory.peak_bytes,
        usd_per_million_tokens=result.bill.usd_per_million_tokens,
        differs=differences(other, row),
    )


def with_chances(
    plans: Sequence[PlanResult], rows: Sequence[Row], groups: Sequence[Group], chances: Chances
) -> list[PlanResult]:
    """The rows with their chance to be the fastest, what is like them, and ties between rows."""
    number = {group.row: n for n, group in enumerate(groups, start=1)}
    out = []
    for plan, group in zip(plans, groups, strict=True):
        tied = [number[j] for j in chances.tied[group.row] if j in number]
        why = plan.why
        if tied:
            why += f"; cannot be told from {', '.join(map(str, tied))} in time"
        like = tuple(
            like_plan(rows[group.row], rows[j], chances.best_prob_frac[j]) for j in group.like
        )
        changed = {
            "best_prob_frac": chances.best_prob_frac[group.row],
            "group_prob_frac": sum(chances.best_prob_frac[j] for j in (group.row, *group.like)),
            "like": like,
            "why": why,
        }
        out.append(plan.model_copy(update=changed))
    return out
