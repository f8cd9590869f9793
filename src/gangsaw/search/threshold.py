"""Where two plans change rank: root finding on the same estimate over one parameter, and a map
of which plan wins over two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field
from scipy.optimize import brentq

from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.legal import check_plan
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.types import Device, Net
from gangsaw.errors import InputError
from gangsaw.jit import compiled
from gangsaw.search.estimate import counts_of
from gangsaw.search.parameters import Case, Objective, Parameter, fits_memory, outer_tier
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


class PhaseResult(Document):
    """Which plan wins where over two parameters. Rows are values of y, columns of x."""

    x: str
    y: str
    x_unit: str
    y_unit: str
    objective: str
    plans: tuple[str, ...]
    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    winner: tuple[tuple[int, ...], ...] = Field(
        description="index of the plan; -1: none is legal and fits"
    )
    lead: tuple[tuple[float, ...], ...] = Field(description="second best over best, less one")
    share: tuple[float, ...] = Field(description="of the map, won by each plan")


def grid(low: float, high: float, points: int, whole: bool = False) -> tuple[float, ...]:
    """Values from `low` to `high` in equal ratios; whole ones without repetition."""
    if not (0 < low < high and math.isfinite(high)):
        raise InputError(f"range {low!r} to {high!r}: two positive numbers, the smaller first")
    values = [low * (high / low) ** (i / (points - 1)) for i in range(points)]
    values[-1] = high
    if whole:
        return tuple(sorted({float(round(v)) for v in values if round(v) >= 1}))
    return tuple(values)


def objective_at(case: Case, over: Parameter, value: float, objective: Objective) -> float | None:
    """The objective with the parameter set; None where the plan is not legal."""
    try:
        return over.at(case, value).value(objective)
    except InputError:
        return None


def range_of(case: Case, over: Parameter, low: float | None, high: float | None) -> tuple[
    float, float
]:  # fmt: skip
    """The range asked for, or the parameter's default around the present value."""
    if low is None or high is None:
        now = over.get(case)
        if now <= 0:
            raise InputError(f"{over.name} is {now!r} now: state the range, as --range 0.05:0.5")
        low = now * over.span[0] if low is None else low
        high = now * over.span[1] if high is None else high
    return low, high


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
    low, high = range_of(a, over, low, high)
    values = legal_grid((a, b), over, low, high, points)
    curve = []
    for value in values:
        pair = tuple(objective_at(c, over, value, objective) for c in (a, b))
        fits = tuple(_fits(c, over, value) for c in (a, b)) if over.memory else ()
        curve.append(CurvePoint(value=value, objective=pair, fits=fits))
    legal = [p for p in curve if None not in p.objective]
    if not legal:
        raise InputError(
            f"{over.name} from {low:g} to {high:g}: {a.name} and {b.name} are never legal together"
        )
    crossings = [
        _refined(a, b, over, objective, p, q) for p, q in pairwise(legal) if _gap(p) * _gap(q) < 0
    ]
    now = over.get(a)
    nearest = min((c.value / now for c in crossings if now > 0), key=_distance, default=None)
    return ThresholdResult(
        parameter=over.name,
        unit=over.unit,
        objective=objective,
        plans=(a.name, b.name),
        low=low,
        high=high,
        now=now,
        crossings=tuple(crossings),
        better_throughout=None if crossings else (a.name if _gap(legal[0]) <= 0 else b.name),
        factor_to_nearest=nearest,
        fit_limits=tuple(_fit_limits((a.name, b.name), curve)),
        curve=tuple(curve),
    )


def _distance(factor: float) -> float:
    """How far a factor lies from one."""
    return abs(math.log(factor))


def _fits(case: Case, over: Parameter, value: float) -> bool | None:
    try:
        return fits_memory(over.at(case, value))
    except InputError:
        return None


def _gap(point: CurvePoint) -> float:
    """Objective of the first plan less that of the second."""
    first, second = point.objective
    assert first is not None and second is not None  # chosen so by the caller
    return first - second


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


def step_of(cases: Sequence[Case], over: Parameter) -> int:
    """Distance of the values of a whole parameter that all plans can have."""
    if over.name == "global-batch":
        return math.lcm(*(c.plan.dp * c.plan.mbs for c in cases))
    if over.name == "sequence-length":
        return math.lcm(*(2 * c.plan.cp * c.plan.tp for c in cases))
    return 1


def legal_grid(
    cases: Sequence[Case], over: Parameter, low: float, high: float, points: int
) -> tuple[float, ...]:
    """Grid values; of a whole parameter only those that all plans can have."""
    values = grid(low, high, points, over.whole)
    if not over.whole:
        return values
    step = step_of(cases, over)
    return tuple(sorted({float(max(1, round(v / step)) * step) for v in values}))


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


def phase(
    cases: Sequence[Case],
    x: Parameter,
    y: Parameter,
    objective: Objective,
    x_values: Sequence[float],
    y_values: Sequence[float],
) -> PhaseResult:
    """Which of `cases` wins at each pair of values, among those that are legal and fit there.

    Raises InputError for fewer than two cases.
    """
    if len(cases) < 2:
        raise InputError("a map of winners needs two plans or more")
    if x.name == y.name:
        raise InputError(f"both axes are {x.name}: two different parameters are needed")
    winner, lead = [], []
    fast = len(cases) * len(x_values) * len(y_values) >= MANY
    for value in y_values:
        rows = [_row(y, case, value, x, x_values, objective, fast) for case in cases]
        best, margin = [], []
        for column in zip(*rows, strict=True):
            order = sorted((v, i) for i, v in enumerate(column) if v is not None)
            best.append(order[0][1] if order else -1)
            margin.append(order[1][0] / order[0][0] - 1 if len(order) > 1 else math.inf)
        winner.append(tuple(best))
        lead.append(tuple(m if math.isfinite(m) else 0.0 for m in margin))
    cells = len(x_values) * len(y_values)
    share = tuple(sum(r.count(i) for r in winner) / cells for i in range(len(cases)))
    return PhaseResult(
        x=x.name,
        y=y.name,
        x_unit=x.unit,
        y_unit=y.unit,
        objective=objective,
        plans=tuple(c.name for c in cases),
        x_values=tuple(x_values),
        y_values=tuple(y_values),
        winner=tuple(winner),
        lead=tuple(lead),
        share=share,
    )


MANY = 200_000
"""Evaluations from which a map runs compiled."""
MONEY_ONLY = frozenset({"device-price", "energy-price", "failure-rate"})
"""Parameters that leave the step's seconds as they are."""


def _row(
    y: Parameter,
    case: Case,
    value: float,
    x: Parameter,
    x_values: Sequence[float],
    objective: Objective,
    fast: bool,
) -> list[float | None]:
    """Objectives of one plan along x at one y; a step is timed once where x is money only."""
    try:
        moved = y.at(case, value)
        if not x.memory and not fits_memory(moved):
            return [None] * len(x_values)
        if x.name in MONEY_ONLY:
            step_s = moved.step().step
            return [x.at(moved, v).objective(objective, step_s) for v in x_values]
        if x.name in RATES:
            return [moved.objective(objective, s) for s in step_row(moved, x, x_values, fast)]
    except InputError:
        return [None] * len(x_values)
    return [
        objective_at(moved, x, v, objective) if not x.memory or _fits(moved, x, v) else None
        for v in x_values
    ]


def step_row(case: Case, x: Parameter, values: Sequence[float], fast: bool = False) -> list[float]:
    """Step seconds along a rate of the hardware: lowered once, one number changed a value.

    `fast` runs the compiled formulas, whose first compilation costs half a minute.
    """
    step = compiled(plan_step) if fast else plan_step
    check_plan(case.job, case.plan)
    low = lower(case.job)
    counts = counts_of(case.job, case.plan)
    loads = loads_of(case.job.model, case.plan, counts)
    cut, strides = cut_of(case.plan, case.job.recipe), strides_of(case.plan)
    state = memory_state(case.plan, case.job.recipe)
    now, out = x.get(case), []
    for value in values:
        device, net = RATES[x.name](low, value / now, case)
        cost = step(
            low.kinds, low.ends, loads, cut, state, device, net, strides, low.stack, low.memory
        )
        out.append(float(cost.step))
    return out


def _rate(low: Lowered, factor: float, inside: slice) -> tuple[Device, Net]:
    """Bandwidth of some tiers times `factor`."""
    rates = low.net.bytes_per_s.copy()
    rates[inside] *= factor
    return low.device, low.net._replace(bytes_per_s=rates)


def _peaks(low: Lowered, factor: float) -> tuple[Device, Net]:
    """Peaks times `factor`."""
    device = low.device
    peaks = {"peak": device.peak * factor, "peak_linear": device.peak_linear * factor}
    return device._replace(**peaks), low.net


RATES: dict[str, Callable[[Lowered, float, Case], tuple[Device, Net]]] = {
    "inter-node-bandwidth": lambda low, f, c: _rate(low, f, slice(outer_tier(c), None)),
    "intra-node-bandwidth": lambda low, f, c: _rate(low, f, slice(0, outer_tier(c))),
    "device-flops": lambda low, f, _: _peaks(low, f),
    "device-bandwidth": lambda low, f, _: (low.device._replace(hbm=low.device.hbm * f), low.net),
}
"""Rates of the hardware: what changes of the lowered job when one is `factor` times as high."""
