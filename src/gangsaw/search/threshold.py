"""Where plans change rank over one parameter: root finding on the same estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from pydantic import Field
from scipy.optimize import brentq

from gangsaw.errors import InputError
from gangsaw.search.line import (
    MANY,
    MONEY_ONLY,
    SURE,
    At,
    legal_grid,
    line_of,
    range_of,
    step_of,
)
from gangsaw.search.parameters import Case, Objective, Parameter
from gangsaw.spec.base import Document

POINTS = 97
"""Points of the grid between which crossings are looked for: two closer than a step hide."""


class Crossing(Document):
    """A value at which the order of two plans changes."""

    value: float
    objective: float = Field(description="of both plans there (a jump: of the better one)")
    better_below: str
    better_above: str
    kind: Literal["crossing", "jump"] = Field(
        description="jump: the objective itself steps there, as at whole values"
    )


class CurvePoint(Document):
    """Objective of each plan at one value; None: the plan is not legal there."""

    value: float
    objective: tuple[float | None, ...]
    fits: tuple[bool | None, ...] = ()


class FitLimit(Document):
    """Last value of the range at which a plan fits, and the first at which it does not."""

    plan: str
    fits_at: float
    fails_at: float


class ThresholdResult(Document):
    """All crossings of two plans over a range, with the curves."""

    parameter: str
    unit: str
    objective: str
    plans: tuple[str, str]
    low: float
    high: float
    now: float
    crossings: tuple[Crossing, ...]
    better_throughout: str | None = Field(None, description="where there is no crossing")
    factor_to_nearest: float | None = Field(
        None, description="nearest crossing over the present value"
    )
    fit_limits: tuple[FitLimit, ...] = ()
    curve: tuple[CurvePoint, ...]


class Stretch(Document):
    """A part of the range, and the best plan of the list there; None: none is legal and fits."""

    low: float
    high: float
    plan: str | None


@dataclass(frozen=True)
class Curves:
    """Each case at each value of the grid."""

    over: Parameter
    objective: Objective
    low: float
    high: float
    values: tuple[float, ...]
    cases: tuple[Case, ...]
    lines: tuple[tuple[At | None, ...], ...]


def objective_at(case: Case, over: Parameter, value: float, objective: Objective) -> float | None:
    """The objective with the parameter set; None where the plan is not legal."""
    try:
        return over.at(case, value).value(objective)
    except InputError:
        return None


def home_of(cases: Sequence[Case]) -> Case:
    """The first case on the cluster that is asked about."""
    return next((c for c in cases if not c.elsewhere), cases[0])


def curves_of(
    cases: Sequence[Case],
    over: Parameter,
    objective: Objective = "time",
    low: float | None = None,
    high: float | None = None,
    points: int = POINTS,
) -> Curves:
    """Every case along the range, each evaluated once."""
    low, high = range_of(home_of(cases), over, low, high)
    low = max(1.0, low) if over.whole else low
    values = legal_grid(cases, over, low, high, points)
    fast = len(values) * len(cases) >= MANY
    lines = tuple(tuple(line_of(c, over, values, objective, fast)) for c in cases)
    return Curves(over, objective, low, high, values, tuple(cases), lines)


def thresholds(
    a: Case,
    b: Case,
    over: Parameter,
    objective: Objective = "time",
    low: float | None = None,
    high: float | None = None,
    points: int = POINTS,
) -> ThresholdResult:
    """All values in the range at which `a` and `b` change rank.

    The gap of the two objectives is scanned on a grid of equal ratios and each change of sign is
    bisected: by Brent's method, or over the values that a whole parameter can have. Plans that are
    not legal at a value have no objective there. Raises InputError when the range holds no value
    at which both are legal.
    """
    result = pair_of(curves_of((a, b), over, objective, low, high, points), 0, 1)
    if result is None:
        raise InputError(
            f"{over.name}: {a.name} and {b.name} are never legal together in the range"
        )
    return result


def pairs_of(curves: Curves) -> tuple[ThresholdResult, ...]:
    """Every pair of plans that is legal together somewhere."""
    found = (pair_of(curves, i, j) for i, j in combinations(range(len(curves.cases)), 2))
    return tuple(r for r in found if r is not None)


def pair_of(curves: Curves, i: int, j: int) -> ThresholdResult | None:
    """Two of the plans; None where they are never legal together."""
    over, a, b = curves.over, curves.cases[i], curves.cases[j]
    curve = [
        _point(value, pair, over.memory)
        for value, pair in zip(
            curves.values, zip(curves.lines[i], curves.lines[j], strict=True), strict=True
        )
    ]
    legal = [p for p in curve if None not in p.objective]
    if not legal:
        return None
    crossings = [
        _refined(a, b, over, curves.objective, p, q)
        for p, q in pairwise(legal)
        if _gap(p) * _gap(q) < 0
    ]
    now = over.get(home_of((a, b)))
    nearest = min((c.value / now for c in crossings if now > 0), key=_distance, default=None)
    return ThresholdResult(
        parameter=over.name,
        unit=over.unit,
        objective=curves.objective,
        plans=(a.name, b.name),
        low=curves.low,
        high=curves.high,
        now=now,
        crossings=tuple(crossings),
        better_throughout=None if crossings else (a.name if _gap(legal[0]) <= 0 else b.name),
        factor_to_nearest=nearest,
        fit_limits=tuple(_fit_limits((a.name, b.name), curve)),
        curve=tuple(curve),
    )


def _point(value: float, pair: Sequence[At | None], memory: bool) -> CurvePoint:
    """A point of the curve of two plans; whether they fit only where the parameter changes it."""
    return CurvePoint(
        value=value,
        objective=tuple(None if at is None else at.objective for at in pair),
        fits=tuple(None if at is None else at.fit is not None for at in pair) if memory else (),
    )


def _distance(factor: float) -> float:
    """How far a factor lies from one."""
    return abs(math.log(factor))


def _gap(point: CurvePoint) -> float:
    """Objective of the first plan less that of the second; chosen so that both are legal."""
    first, second = point.objective
    return (first or 0.0) - (second or 0.0)


def _refined(
    a: Case, b: Case, over: Parameter, objective: Objective, p: CurvePoint, q: CurvePoint
) -> Crossing:
    """The crossing between two neighbouring points of the curve."""
    names = (a.name, b.name) if _gap(p) < 0 else (b.name, a.name)
    if over.whole:
        p, q = _bisected(a, b, over, objective, p, q)
        best = min(x for x in q.objective if x is not None)
        return Crossing(
            value=q.value,
            objective=best,
            better_below=names[0],
            better_above=names[1],
            kind="jump",
        )

    def gap(value: float) -> float:
        return over.at(a, value).value(objective) - over.at(b, value).value(objective)

    at = float(brentq(gap, p.value, q.value, xtol=1e-12 * q.value, rtol=1e-12))
    both = [over.at(c, at).value(objective) for c in (a, b)]
    jump = abs(both[0] - both[1]) > 1e-6 * max(both)
    return Crossing(
        value=at,
        objective=min(both),
        better_below=names[0],
        better_above=names[1],
        kind="jump" if jump else "crossing",
    )


def _bisected(
    a: Case, b: Case, over: Parameter, objective: Objective, p: CurvePoint, q: CurvePoint
) -> tuple[CurvePoint, CurvePoint]:
    """Neighbouring legal values of a whole parameter between which the order changes."""
    step = step_of((a, b), over)
    while q.value - p.value > step:
        middle = float(round((p.value + q.value) / 2 / step) * step)
        if not p.value < middle < q.value:
            break
        pair = tuple(objective_at(c, over, middle, objective) for c in (a, b))
        if None in pair:
            break
        point = CurvePoint(value=middle, objective=pair)
        p, q = (point, q) if _gap(p) * _gap(point) > 0 else (p, point)
    return p, q


def _fit_limits(names: tuple[str, str], curve: Sequence[CurvePoint]) -> list[FitLimit]:
    """Where each plan starts or stops to fit."""
    out = []
    for index, name in enumerate(names):
        known = [(p.value, p.fits[index]) for p in curve if p.fits and p.fits[index] is not None]
        for (v0, f0), (v1, f1) in pairwise(known):
            if f0 != f1:
                fits, fails = (v0, v1) if f0 else (v1, v0)
                out.append(FitLimit(plan=name, fits_at=fits, fails_at=fails))
    return out


def winner_of(column: Sequence[At | None]) -> tuple[int, float]:
    """Place of the best plan and the next one's objective over its own, less one.

    Of those that surely fit, else of those that only may; -1 where none does.
    """
    for grade in (SURE, SURE + 1):
        order = sorted(
            (at.objective, i) for i, at in enumerate(column) if at is not None and at.fit == grade
        )
        if order:
            return order[0][1], order[1][0] / order[0][0] - 1 if len(order) > 1 else 0.0
    return -1, 0.0


def best_over(curves: Curves, pairs: Sequence[ThresholdResult]) -> tuple[Stretch, ...]:
    """Which plan of the list is best where: the range cut at the crossings of the winners."""
    names = [c.name for c in curves.cases]
    winners = [winner_of(column)[0] for column in zip(*curves.lines, strict=True)]
    out: list[Stretch] = []
    start, best = curves.values[0], winners[0]
    for (v0, w0), (v1, w1) in pairwise(zip(curves.values, winners, strict=True)):
        if w0 == w1:
            continue
        cut = v1
        if min(w0, w1) >= 0:
            both = {names[w0], names[w1]}
            found = [
                c.value for r in pairs if set(r.plans) == both for c in r.crossings
                if v0 <= c.value <= v1
            ]  # fmt: skip
            cut = found[0] if found else v1
        out.append(Stretch(low=start, high=cut, plan=names[best] if best >= 0 else None))
        start, best = cut, w1
    last = names[best] if best >= 0 else None
    return (*out, Stretch(low=start, high=curves.values[-1], plan=last))


def rank_changes(over: Parameter, cases: Sequence[Case]) -> bool:
    """Whether the parameter can change the order of plans at all.

    Prices and failures move every plan on one cluster alike.
    """
    alike = {(c.elsewhere, c.job.cluster.devices, c.money) for c in cases}
    return over.name not in MONEY_ONLY or len(alike) > 1
