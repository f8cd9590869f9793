"""What listed plans cost with tails and failures, and whether that changes their order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gangsaw.errors import InputError
from gangsaw.read.reliability import load_reliability
from gangsaw.search.day_law import LAW_ERROR, step_law
from gangsaw.search.estimate import Evaluated
from gangsaw.search.goodput import best_goodput
from gangsaw.search.ranking import words_of
from gangsaw.spec.reliability import Reliability
from gangsaw.spec.result import Goal, PlanResult

CANDIDATES = 40
"""Distinct plans, fastest first, among which another goal than time chooses."""


class Outlook(NamedTuple):
    """A step with tails, and the share of the wall time that failures and checkpoints leave.

    `goodput_frac` is 0 where failures come faster than any checkpoint is safe.
    """

    mean_s: float
    p95_over_p50: float
    goodput_frac: float

    @property
    def expected_s(self) -> float | None:
        """Wall time of one step of progress; None where there is no progress."""
        return self.mean_s / self.goodput_frac if self.goodput_frac > 0.0 else None


@lru_cache(maxsize=1)
def _shipped() -> Reliability:
    return load_reliability()


def outlook_of(ev: Evaluated, figures: Reliability | None = None) -> Outlook:
    """Tails by their laws, failures on the best checkpoint tier with cold spares at hand."""
    figures = figures or _shipped()
    law = step_law(ev, figures)
    try:
        good = best_goodput(ev, figures, law.mean_s)
    except InputError:
        good = 0.0
    return Outlook(law.mean_s, law.p95_s / law.p50_s, good)


def value_of(ev: Evaluated, seen: Outlook, goal: Goal) -> float:
    """What a goal makes of a plan; less is better.

    Cost and expected cost are by the devices' time, which is their money at one price an hour.
    """
    devices, expected = ev.plan.devices, seen.expected_s
    return {
        "time": ev.cost.step,
        "cost": ev.cost.step * devices,
        "expected": float("inf") if expected is None else expected * devices,
        "predictability": seen.p95_over_p50,
    }[goal]


Row = tuple[Evaluated, tuple[str, ...], PlanResult]


def by_goal(rows: Sequence[Row], goal: Goal) -> list[Row]:
    """Rows in the order of a goal, best first; equal ones as they come."""
    if goal == "time":
        return list(rows)
    values = [value_of(row[0], outlook_of(row[0]), goal) for row in rows]
    return [rows[i] for i in sorted(range(len(rows)), key=lambda i: values[i])]


def with_outlook(
    results: Sequence[PlanResult], plans: Sequence[Evaluated], goal: Goal = "time"
) -> tuple[list[PlanResult], tuple[str, ...]]:
    """The results with their expected step, and notes on what that changes."""
    seen = [outlook_of(ev) for ev in plans]
    out = []
    for result, one in zip(results, seen, strict=True):
        money = None
        if one.expected_s is not None and result.bill.usd > 0.0:
            money = result.bill.usd_per_million_tokens * one.expected_s / result.step_time_s
        changed: dict[str, object] = {
            "expected_step_s": one.expected_s,
            "expected_usd_per_million_tokens": money,
            "p95_over_p50": one.p95_over_p50,
            "goodput_frac": one.goodput_frac,
        }
        out.append(result.model_copy(update=changed))
    return out, order_notes(plans, seen, goal)


def order_notes(
    plans: Sequence[Evaluated], seen: Sequence[Outlook], goal: Goal = "time"
) -> tuple[str, ...]:
    """Whether tails and failures change the order of the list, and by how much."""
    notes: list[str] = []
    if any(one.expected_s is None for one in seen):
        notes.append(
            "failures come faster than any checkpoint is safe: such a run never ends;"
            " gangsaw tail shows rates and tiers"
        )
    if goal != "time":
        notes.append(f"ordered by {goal}, of the {CANDIDATES} fastest choices that fit")
    values = [value_of(ev, one, "expected") for ev, one in zip(plans, seen, strict=True)]
    times = [value_of(ev, one, "cost") for ev, one in zip(plans, seen, strict=True)]
    if len(plans) < 2 or any(one.expected_s is None for one in seen):
        return tuple(notes)
    before = sorted(range(len(plans)), key=lambda i: times[i])
    after = sorted(range(len(plans)), key=lambda i: values[i])
    if before == after:
        notes.append("tails and failures do not change the order of these plans")
        return tuple(notes)
    order = ", ".join(str(i + 1) for i in after)
    text = f"with tails and failures the order is {order}"
    first = after[0]
    if first != before[0]:
        gain = values[before[0]] / values[first] - 1.0
        text += (
            f": plan {first + 1} ({words_of(plans[first].plan)}) is {100 * gain:.1f} % cheaper than"
            f" plan {before[0] + 1}"
        )
        if gain < LAW_ERROR:
            text += f", which is within the {100 * LAW_ERROR:.1f} % that these laws are sure of"
    notes.append(text)
    return tuple(notes)
