"""Scorecard: the best pure-pipeline, pure-tensor, sharded-data and hybrid plan, side by side.

Every cell is a number with its derivation. The grade beside it only says how far the number lies
from the best of the row; beside that stands the grade that an article gives without derivation.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import Field
from scipy.optimize import brentq

from gangsaw.bill.goodput import daly_interval_s, job_mtbf_s
from gangsaw.bill.power import SitePower
from gangsaw.errors import InputError
from gangsaw.search.estimate import estimate, limiting
from gangsaw.search.families import FAMILIES, Best, Family, Survey, kind_of, survey
from gangsaw.search.line import step_row
from gangsaw.search.parameters import Case, Money, domain_of, inner_tiers, link_parameter
from gangsaw.search.ranking import words_of
from gangsaw.search.robust import spread_of
from gangsaw.spec.base import Document
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.price import PriceBook
from gangsaw.spec.result import EstimateResult, PlanDoc
from gangsaw.units import GIB, HOUR_S

Grade = Literal["low", "medium", "high", "very high"]
SLACK_FRAC = 0.10
"""A step may be this much longer than over unlimited links before a link counts as too slow."""

ARTICLE: dict[str, dict[Family, Grade | str]] = {
    "effective throughput": {"pipeline": "medium", "tensor": "high", "hybrid": "high"},
    "network bandwidth": {"pipeline": "low", "tensor": "high", "hybrid": "medium-high"},
    "failure-domain cost": {"pipeline": "high", "tensor": "medium", "hybrid": "medium"},
    "implementation complexity": {"pipeline": "high", "tensor": "medium", "hybrid": "high"},
    "energy and PUE": {"pipeline": "medium", "tensor": "high", "hybrid": "high"},
    "capital": {"pipeline": "medium", "tensor": "high", "hybrid": "very high"},
}
"""Grades of the third article for a run of a trillion parameters; it has no column for sharding."""


MOST_IS_BEST = "effective throughput"
"""The row in which more is better; less is in all others."""


class Cell(Document):
    """A number, how it came about, our grade, and the article's."""

    value: float | None = Field(description="None: a figure is missing, `derivation` says which")
    unit: str
    derivation: str
    grade: Grade | None
    article: str = Field("", description="empty where the article has none")
    why: str = Field("", description="why ours differs from the article's")


class Column(Document):
    """The best plan of a family. No plan: none fits, and `nearest` says what comes closest."""

    family: Family
    plan: PlanDoc | None
    step_time_s: float | None
    mfu_frac: float | None
    tried: int = Field(description="plans whose time and memory were evaluated")
    note: str = ""


class Scorecard(Document):
    """Rows of cells by family; families without a plan that fits have no cell."""

    model: str
    cluster: str
    columns: tuple[Column, ...]
    rows: dict[str, dict[str, Cell]]
    notes: tuple[str, ...] = ()


def needed_bandwidth(case: Case) -> float:
    """Bytes/s a device at which a step is SLACK_FRAC above unlimited links.

    Of the links beyond the node; on one node, of those inside it. 0 where even a thousandth of
    today's links is enough, or nothing crosses them.
    """
    over = link_parameter(case)
    now = over.get(case)
    low, high = now / 1e3, now * 1e3
    (free_s,) = step_row(case, over, [high])
    limit_s = (1 + SLACK_FRAC) * free_s

    def gap(value: float) -> float:
        return step_row(case, over, [value])[0] - limit_s

    if gap(low) <= 0:
        return 0.0
    return float(brentq(gap, low, high, rtol=1e-6))


def complexity(plan: Plan) -> tuple[int, str]:
    """Counted moving parts: process groups, what the schedule adds, checkpoint layouts."""
    groups = [a for a in ("tp", "cp", "pp", "dp", "ep", "etp") if getattr(plan, a) > 1]
    if plan.ep > 1:
        groups.append("expert dp")
    if plan.tp > 1 and plan.sequence_parallel:
        groups.append("sp")
    schedule = 0 if plan.pp == 1 else 2 if plan.vpp == 1 else 3
    layouts = sum((plan.tp > 1, plan.pp > 1, plan.ep > 1, plan.zero > 0))
    total = len(groups) + schedule + layouts
    said = (
        f"process groups {len(groups)} ({', '.join(groups)}), schedule {schedule}"
        f" (programs a rank runs), {layouts} axes that cut a checkpoint"
    )
    return total, said


def scorecard(
    job: Job, book: PriceBook, money: Money, power: SitePower | None, hybrid: Plan | None = None
) -> Scorecard:
    """Find the best plan of each family and score them. `hybrid`: a plan found elsewhere.

    `power` is None where the power of a node is not known: then energy has no number.

    Raises InputError for a single device, which nothing can be cut over.
    """
    if job.cluster.devices < 2:
        raise InputError(
            f"a scorecard of {job.cluster.name}:1 has nothing to compare. Legal: two devices and"
            " more"
        )
    found = survey(job, 1)
    columns, scored = [], {}
    for family in FAMILIES:
        best = found.best[family]
        if family == "hybrid" and hybrid is not None:
            best = _given(job, hybrid)
        result = None
        if best.found is not None:
            plan = best.found.plan.model_copy(update={"stages": best.found.counts})
            result = estimate(job, plan)
            scored[family] = _cells(Case("", job, plan, money), result, book, power)
        columns.append(_column(family, best, result))
    rows: dict[str, dict[Family, Scored]] = {}
    for family, cells in scored.items():
        for name, cell in cells.items():
            rows.setdefault(name, {})[family] = cell
    graded = {name: {f: _graded(name, f, cells) for f in cells} for name, cells in rows.items()}
    return Scorecard(
        model=job.model.name,
        cluster=f"{job.cluster.name}:{job.cluster.devices}",
        columns=tuple(columns),
        rows={name: {str(f): c for f, c in cells.items()} for name, cells in graded.items()},
        notes=_notes(found, len(scored)),
    )


def _given(job: Job, plan: Plan) -> Best:
    """A plan of the user's own, if it may fit."""
    from gangsaw.search.estimate import evaluate

    ev = evaluate(job, plan)
    memory = estimate(job, plan).memory
    if memory.fits == "no":
        need = memory.peak_bytes / GIB
        return Best(None, 1, f"does not fit: it needs {need:.0f} GiB a device")
    return Best(ev, 1, "as stated" + ("; its memory only may fit" * (memory.fits == "risky")))


def _notes(found: Survey, families: int) -> tuple[str, ...]:
    """How grades are given, and where the fastest plan of the whole search stands."""
    notes = [
        "grades: low up to 1.25 times the least of the row, medium up to 2, high up to 4, very"
        " high above; of throughput, high within 1.25 of the best, medium within 2, low below",
        "the article gives grades without numbers",
    ]
    if families == 1:
        notes.append("one family alone fits: its grades compare it with itself")
    if found.listed:
        ev, p = found.listed[0], found.listed[0].plan
        kind = kind_of(p.tp, p.cp, p.pp, p.dp, p.zero)
        said = "none of the four kinds" if kind not in FAMILIES else kind
        notes.append(
            f"fastest of the whole search: {words_of(p)} ({said}), step {ev.cost.step:.3g} s"
        )
    return tuple(notes)


def _column(family: Family, best: Best, result: EstimateResult | None) -> Column:
    return Column(
        family=family,
        plan=result.plan if result else None,
        step_time_s=result.step_time_s if result else None,
        mfu_frac=result.mfu_frac if result else None,
        tried=best.tried,
        note=best.note,
    )


class Scored(NamedTuple):
    """A cell before it is graded; `because`: what in the plan makes the number what it is."""

    value: float
    unit: str
    derivation: str
    because: str = ""


def crossing_words(case: Case, result: EstimateResult) -> str:
    """What crosses the links that are asked about, most bytes a step first."""
    inner = {t.name for t in case.job.cluster.tiers[inner_tiers(case)]}
    one_node = inner_tiers(case).stop == len(case.job.cluster.tiers)
    moved: dict[str, float] = {}
    for c in result.collectives:
        if c.group > 1 and (one_node or c.tier not in inner):
            moved[c.axis] = moved.get(c.axis, 0.0) + c.count_per_step * c.bytes_each
    if not moved:
        return f"nothing of this plan crosses the {domain_of(case)}"
    rows = sorted(moved.items(), key=lambda r: -r[1])
    return "a step moves " + ", ".join(f"{v / 1e9:,.3g} GB {k}" for k, v in rows)


def _cells(
    case: Case, result: EstimateResult, book: PriceBook, power: SitePower | None
) -> dict[str, Scored]:
    """Each row's number for one plan, with its derivation and what lies behind it."""
    job, devices = case.job, case.job.cluster.devices
    step_s = result.step_time_s
    rate = job.recipe.tokens_per_step / step_s
    need, over = needed_bandwidth(case), link_parameter(case)
    where = "beyond" if over.name.startswith("inter") else "inside"
    parts, said = complexity(case.plan)
    cost = case.step()
    return {
        MOST_IS_BEST: Scored(
            rate / devices, "tokens/s/device",
            f"{job.recipe.tokens_per_step:,} tokens in {step_s:.2f} s on {devices:,} devices",
            limiting(cost),
        ),
        "network bandwidth": Scored(
            need, "bytes/s a device",
            f"{where} the {domain_of(case)}, for a step at most {100 * SLACK_FRAC:.0f} % above"
            " unlimited links",
            crossing_words(case, result),
        ),
        "failure-domain cost": _failure(case),
        "implementation complexity": Scored(float(parts), "parts", said, said),
        "energy and PUE": _energy(case, step_s, power),
        "capital": _capital(case, book, need, rate),
        "variability": Scored(
            spread_of(case), "step time, share",
            "half-width of 80 % of draws with every input moved within its doubt",
        ),
    }  # fmt: skip


def _energy(case: Case, step_s: float, power: SitePower | None) -> Scored:
    """Energy of a million tokens at the meter."""
    unit, job = "kWh a million tokens", case.job
    if power is None:
        return Scored(math.nan, unit, f"no rated power of a node of {job.cluster.name} is known")
    devices = job.cluster.devices
    kwh = power.energy_j(devices / job.cluster.host.devices, step_s)
    kwh /= 3.6e6 * job.recipe.tokens_per_step / 1e6
    return Scored(
        kwh, unit,
        f"{devices:,} devices at measured power for {step_s:.2f} s, at PUE {power.pue:g}; each 0.1"
        f" of PUE is {kwh / power.pue * 0.1:.3g} kWh",
        "energy follows device-hours a token, PUE is the site's and the same for all",
    )  # fmt: skip


def _failure(case: Case) -> Scored:
    """What a failure costs the smallest part that must stop."""
    money, devices, plan = case.money, case.job.cluster.devices, case.plan
    mtbf_s = job_mtbf_s(money.device_mtbf_h, devices)
    interval_s = daly_interval_s(max(money.checkpoint_block_s, 1e-3), mtbf_s)
    lost_h = devices * (money.restart_s + interval_s / 2) / HOUR_S
    spread, how = plan.cp, "cp"
    if plan.zero >= 3 and plan.dp * plan.cp > 1:
        # No rank of the shard group has the weights without the others.
        spread, how = plan.shard_group or plan.dp * plan.cp, "shard group"
    replica = plan.tp * spread * plan.pp
    return Scored(
        lost_h * money.hour_usd() * replica / devices, "USD a failure and replica",
        f"a stop costs the whole job {lost_h:,.0f} device-hours ="
        f" ${lost_h * money.hour_usd():,.0f} ({money.restart_s / 60:.0f} min restart, half of"
        f" {interval_s / 60:.0f} min between saves); here the share of one replica of"
        f" {replica} devices, the least that must stop",
        f"tp x {how} x pp = {plan.tp} x {spread} x {plan.pp} devices work on one copy, whichever"
        " axis cuts it",
    )  # fmt: skip


def _capital(case: Case, book: PriceBook, need: float, rate: float) -> Scored:
    """Hardware and fabric for a million tokens a second, the fabric sized to the need."""
    from gangsaw.bill.answer import owning

    cluster = case.job.cluster
    unit = "USD a million tokens/s"
    try:
        own = owning(cluster, book)
    except InputError as error:
        return Scored(math.nan, unit, str(error).partition(";")[0])
    over = link_parameter(case)
    if over.name.startswith("intra"):
        said = (
            f"{cluster.devices:,} x ${own.devices_usd:,.0f} server; one {domain_of(case)} has no"
            " fabric"
        )
        return Scored(cluster.devices * own.devices_usd / rate * 1e6, unit, said, "servers alone")
    now = over.get(case)
    fabric = own.fabric_usd * need / now
    usd = cluster.devices * (own.devices_usd + fabric) / rate * 1e6
    return Scored(
        usd, unit,
        f"{cluster.devices:,} x (${own.devices_usd:,.0f} server + ${fabric:,.0f} fabric, in"
        f" proportion to {need / 1e9:.1f} of {now / 1e9:.0f} GB/s)",
        f"fabric is {100 * fabric / (own.devices_usd + fabric):.0f} % of it, so throughput decides",
    )  # fmt: skip


def _graded(name: str, family: Family, cells: dict[Family, Scored]) -> Cell:
    """A cell with its grade, the article's, and why they differ."""
    value, unit, derivation, because = cells[family]
    known = [c.value for c in cells.values() if math.isfinite(c.value)]
    article = ARTICLE.get(name, {}).get(family, "")
    if not math.isfinite(value):
        return Cell(value=None, unit=unit, derivation=derivation, grade=None, article=article)
    grade, ratio, against = _grade(name, value, known)
    why = ""
    if article and grade not in article.split("-"):
        why = f"{ratio:.2f} times {against} of the row: {because}"
    return Cell(
        value=value, unit=unit, derivation=derivation, grade=grade, article=article, why=why
    )


def _grade(name: str, value: float, known: list[float]) -> tuple[Grade, float, str]:
    """Grade by the ratio to the best of the row: the most throughput, the least of all else."""
    if name == MOST_IS_BEST:
        ratio = value / max(known)
        return ("high" if ratio >= 0.8 else "medium" if ratio >= 0.5 else "low"), ratio, "the most"
    floor = min(known, default=0.0)
    ratio = value / floor if floor > 0 else (1.0 if value == 0 else math.inf)
    if not math.isfinite(ratio):
        # The least of the row is nothing at all: grade against the largest.
        ratio = value / max(known)
        return ("high" if ratio > 0.5 else "medium"), ratio, "the most"
    grade: Grade = "low"
    for limit, name_ in ((1.25, "medium"), (2.0, "high"), (4.0, "very high")):
        if ratio > limit:
            grade = name_  # type: ignore[assignment]
    return grade, ratio, "the least"
