"""The answer of `tail`: each plan on a bad day, the best at each percentile, and what changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gangsaw.errors import InputError
from gangsaw.search.bad_day import Wishes, failures_of
from gangsaw.search.estimate import Evaluated, plan_doc
from gangsaw.search.fabric_health import network_health
from gangsaw.search.keep_rows import keep_rows
from gangsaw.search.tail import Conditions, step_tail
from gangsaw.search.tail_docs import (
    OBJECTIVES,
    Objective,
    PlanTail,
    TailAnswer,
)
from gangsaw.spec.price import PriceBook

NOTES = (
    "the closed form is fitted to measured runs, which had some noise of their own: what ordinary"
    " jitter adds here is an upper estimate, what slow parts and failures add is not in it",
    "asynchronous and stale-weight pipelines (PipeDream, PipeDream-2BW, local SGD) wait for less"
    " but train on old weights: other trainings, not other schedules, and not compared here",
)


@dataclass(frozen=True)
class TailQuestion:
    """What is asked: the day, the wishes, and by what plans are ordered."""

    day: Conditions
    wishes: Wishes = field(default_factory=Wishes)
    objective: Objective = "mean"


def plan_tail(name: str, ev: Evaluated, asked: TailQuestion, book: PriceBook) -> PlanTail:
    """One plan on a bad day. Raises InputError where failures leave no progress."""
    day = asked.day
    step = step_tail(ev, day)
    failures = failures_of(ev, day.reliability, book, step.mean_s, asked.wishes, day.seed)
    if failures.goodput_frac <= 0.0:
        raise InputError(
            f"{name}: a failure every {failures.mtbf_s:.3g} s leaves no progress on any tier"
        )
    expected = step.mean_s / failures.goodput_frac
    job = ev.job
    usd = job.cluster.usd_per_device_hour * job.cluster.devices / 3600.0
    usd *= 1e6 / job.recipe.tokens_per_step
    return PlanTail(
        name=name,
        plan=plan_doc(ev.plan, ev.counts),
        step=step,
        failures=failures,
        network=network_health(
            ev, day.reliability, day.routing_of(job.cluster), step.percentiles[-1].step_s, day.seed
        ),
        keep=keep_rows(ev, day.reliability.storage.get("nvme")),
        expected_step_s=expected,
        usd_per_million_tokens=usd * expected,
        usd_per_million_tokens_mean=usd * ev.cost.step,
    )


def value_of(plan: PlanTail, objective: Objective) -> float:
    """What an objective makes of a plan; less is better."""
    p50, p95, p99 = (p.step_s for p in plan.step.percentiles)
    return {
        "mean": plan.step.mean_s,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "predictability": plan.step.p95_over_p50,
        "cost": plan.expected_step_s,
    }[objective]


def tail_answer(
    named: Sequence[tuple[str, Evaluated]], asked: TailQuestion, book: PriceBook
) -> TailAnswer:
    """Each plan, which is best by each objective, and whether the order is still that of the
    closed form."""
    plans = tuple(plan_tail(name, ev, asked, book) for name, ev in named)
    best = {"estimate": min(plans, key=lambda p: p.step.estimate_s).name}
    for objective in OBJECTIVES:
        best[objective] = min(plans, key=lambda p: value_of(p, objective)).name
    by_estimate = sorted(plans, key=lambda p: p.step.estimate_s)
    ordered = sorted(plans, key=lambda p: value_of(p, asked.objective))
    ev = named[0][1]
    return TailAnswer(
        model=ev.job.model.name,
        cluster=f"{ev.job.cluster.name}:{ev.job.cluster.devices}",
        objective=asked.objective,
        plans=plans,
        best=best,
        order=tuple(p.name for p in ordered),
        order_changes=[p.name for p in ordered] != [p.name for p in by_estimate],
        notes=NOTES,
    )
