"""The plans worth comparing where none is stated: those that the search finds, here and there.

What is best at present, the best of each kind, and what the search finds at the ends of the range
(and in the corners of a map), where another plan may lead. Of all these stay the best of each kind
and whatever wins somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gangsaw.errors import InputError, NoPlanFitsError
from gangsaw.search.estimate import Evaluated, evaluate
from gangsaw.search.families import FAMILIES, kind_of, survey
from gangsaw.search.line import MONEY_ONLY, legal_grid, range_of
from gangsaw.search.parameters import Case, Money, Objective, Parameter
from gangsaw.search.phase import phase
from gangsaw.search.ranking import choice_of, distinct, finish, fitting, words_of
from gangsaw.search.search import breadth_of
from gangsaw.search.space import Limits, capacity_bytes, narrower, search_all
from gangsaw.search.threshold import curves_of, winner_of
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

LISTED = 5
"""Fastest plans of different choices that enter the comparison, as `plan` lists them."""
COARSE = 13
"""Points of an axis on which it is seen who wins somewhere."""


@dataclass(frozen=True)
class Span:
    """A parameter and the range that is asked for; None: its default."""

    over: Parameter
    low: float | None = None
    high: float | None = None


def contenders(
    job: Job, money: Money, spans: Sequence[Span], objective: Objective = "time"
) -> list[Case]:
    """Cases to compare over one parameter or two, the best at present first.

    Raises InputError where one plan alone fits, NoPlanFitsError where none does.
    """
    found = survey(job, LISTED)
    if not found.listed and not any(b.found for b in found.best.values()):
        needs = "; ".join(f"{f}: {found.best[f].note}" for f in FAMILIES)
        raise NoPlanFitsError(
            f"no plan of {job.model.name} fits {job.cluster.name}:{job.cluster.devices} ({needs})"
        )
    kinds = [b.found for f in FAMILIES if (b := found.best[f]).found is not None]
    pool = [*found.listed, *(e for e in kinds if e is not None)]
    pool += [
        e for moved in _ends(Case("", job, Plan(), money), spans) if (e := _best_at(moved, job))
    ]
    keep = {id(e) for e in (*found.listed[:1], *kinds)}
    cases, kept, seen = [], [], set()
    for ev in pool:
        shape = (choice_of(ev.plan), ev.plan.vpp, ev.plan.zero, ev.counts)
        if shape in seen:
            continue
        seen.add(shape)
        cases.append(Case("", job, ev.plan.model_copy(update={"stages": ev.counts}), money))
        kept.append(id(ev) in keep)
    if len(cases) < 2:
        raise InputError(
            f"fewer than two plans of {job.model.name} fit {job.cluster.name}: state plan files"
        )
    cases = _named(cases)
    wins = _winners(cases, spans, objective)
    chosen = [c for i, c in enumerate(cases) if kept[i] or i in wins]
    return _named(chosen if len(chosen) > 1 else cases[:2])


def _named(cases: Sequence[Case]) -> list[Case]:
    """Cases named by their kind; further ones of a kind by their degrees as well."""
    out: list[Case] = []
    taken: set[str] = set()
    for case in cases:
        p = case.plan
        kind = kind_of(p.tp, p.cp, p.pp, p.dp, p.zero)
        chunks = f"x{p.vpp}" if p.vpp > 1 else ""
        long = f"{kind} {words_of(p)}".replace(f"PP{p.pp}", f"PP{p.pp}{chunks}")
        options = (kind, long, f"{long} {p.recompute}", *(f"{long} {n}" for n in range(2, 99)))
        name = next(n for n in options if n not in taken)
        taken.add(name)
        out.append(replace(case, name=name))
    return out


def _moving(spans: Sequence[Span]) -> list[Span]:
    """Spans along which the search may find another plan."""
    return [s for s in spans if s.over.name not in MONEY_ONLY and s.over.name != "microbatches"]


def _ends(base: Case, spans: Sequence[Span]) -> Iterator[Job]:
    """The job at the ends of one range, or in the four corners of two."""
    moving = _moving(spans)
    places: list[Case] = [base] if moving else []
    for span in moving:
        ends = range_of(base, span.over, span.low, span.high)
        further = []
        for place in places:
            for value in ends:
                try:
                    further.append(span.over.at(place, value))
                except InputError:
                    continue
        places = further
    for place in places:
        yield place.job


def _best_at(moved: Job, job: Job) -> Evaluated | None:
    """The best plan of a moved job, as a plan of the job itself; None where there is none."""
    searched = search_all(moved, {}, narrower(breadth_of(moved, Limits())))
    sure, maybe = fitting(searched, capacity_bytes(moved))
    places = distinct(searched, sure if sure.any() else maybe, 1)
    if not places:
        return None
    there = finish(searched, places[0])
    group, batch = there.plan.dp * there.plan.mbs, job.recipe.global_batch
    if batch % group:
        return None
    count = batch // group
    plan = there.plan.model_copy(update={"num_microbatches": count, "stages": there.counts})
    try:
        return evaluate(job, plan)
    except InputError:
        return None


def _winners(cases: Sequence[Case], spans: Sequence[Span], objective: Objective) -> set[int]:
    """Places of the cases that win somewhere, seen on a coarse grid."""
    first = spans[0]
    if len(spans) == 1:
        curves = curves_of(cases, first.over, objective, first.low, first.high, COARSE)
        return {winner_of(column)[0] for column in zip(*curves.lines, strict=True)}
    axes = []
    for span in spans:
        low, high = range_of(cases[0], span.over, span.low, span.high)
        axes.append(legal_grid(cases, span.over, low, high, COARSE))
    found = phase(cases, first.over, spans[1].over, objective, *axes)
    return {w for row in found.winner for w in row}
