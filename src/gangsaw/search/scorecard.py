"""Scorecard: the best pure-pipeline, pure-tensor, sharded-data and hybrid plan, side by side.

Every cell is a number with its derivation. The grade beside it only says how far the number lies
from the best of the row; beside that stands the grade that an article gives without derivation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from pydantic import Field
from scipy.optimize import brentq

from gangsaw.bill.finance import ownership_of_book
from gangsaw.bill.goodput import daly_interval_s, job_mtbf_s
from gangsaw.bill.power import SitePower
from gangsaw.cost.layout import default_counts
from gangsaw.cost.lower import Lowered, lower
from gangsaw.cost.memory_doc import memory_doc
from gangsaw.errors import InputError
from gangsaw.search.estimate import counts_of, evaluate
from gangsaw.search.parameters import Case, Money, fits_memory, outer_tier, parameter
from gangsaw.search.robust import spread_of
from gangsaw.search.threshold import step_row
from gangsaw.spec.base import Document
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.price import PriceBook
from gangsaw.spec.result import PlanDoc
from gangsaw.units import HOUR_S

Family = Literal["pipeline", "tensor", "sharded", "hybrid"]
FAMILIES: tuple[Family, ...] = ("pipeline", "tensor", "sharded", "hybrid")
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


class Cell(Document):
    """A number, how it came about, our grade, and the article's."""

    value: float
    unit: str
    derivation: str
    grade: Grade
    article: str = Field("", description="empty where the article has none")
    why: str = Field("", description="why ours differs from the article's")


class Column(Document):
    """The best plan of a family. No plan: none fits, and `nearest` says what comes closest."""

    family: Family
    plan: PlanDoc | None
    step_time_s: float | None
    mfu_frac: float | None
    tried: int
    note: str = ""


class Scorecard(Document):
    """Rows of cells by family; families without a plan that fits have no cell."""

    model: str
    cluster: str
    columns: tuple[Column, ...]
    rows: dict[str, dict[str, Cell]]
    notes: tuple[str, ...] = ()


def _divisors(n: int, most: int) -> list[int]:
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def plans_of(job: Job, family: Family) -> Iterator[Plan]:
    """Plans of a family: every degree split of the devices, microbatch, schedule, recompute."""
    devices, batch = job.cluster.devices, job.recipe.global_batch
    layers = job.model.layers
    heads = min(k.attention.heads for k in job.model.kinds)
    tps = [1] if family in ("pipeline", "sharded") else [
        t for t in _divisors(heads, devices) if devices % t == 0
    ]  # fmt: skip
    pps = [1] if family in ("tensor", "sharded") else _divisors(devices, layers)
    experts = [k.moe.experts for k in job.model.kinds if k.moe]
    for tp in tps:
        for pp in pps:
            if devices % (tp * pp) or _outside(family, tp, pp):
                continue
            dp = devices // (tp * pp)
            eps = [e for e in _divisors(math.gcd(*experts), dp) if dp % e == 0] if experts else [1]
            for ep in eps:
                yield from _variants(family, job, tp, pp, dp, ep, batch)


def _outside(family: Family, tp: int, pp: int) -> bool:
    """Whether degrees do not belong to a family: its own axis must be used."""
    return (family == "pipeline" and pp == 1) or (family == "tensor" and tp == 1)


def _variants(
    family: Family, job: Job, tp: int, pp: int, dp: int, ep: int, batch: int
) -> Iterator[Plan]:
    """Microbatch, recompute, schedule and sharding of one split."""
    if batch % dp:
        return
    zeros = {"sharded": (3,), "hybrid": (1, 3) if pp == 1 else (1,)}.get(family, (1,))
    chunks = [1] + [v for v in (2, 4) if pp > 1 and pp * v <= job.model.layers]
    for mbs in _divisors(batch // dp, 8):
        m = batch // dp // mbs
        for vpp in chunks:
            if vpp > 1 and m % pp:
                continue
            for recompute in ("none", "selective", "full"):
                for zero in zeros:
                    yield Plan.model_validate(
                        {
                            "tp": tp, "pp": pp, "dp": dp, "ep": ep, "vpp": vpp, "mbs": mbs,
                            "num_microbatches": m, "recompute": recompute, "zero": zero,
                            "schedule": "interleaved" if vpp > 1 else "1f1b",
                            "sequence_parallel": tp > 1,
                            "stages": default_counts(job.model.layers, pp * vpp),
                        }
                    )  # fmt: skip


def best_plans(
    job: Job, plans: Iterable[Plan], money: Money, low: Lowered, count: int = 1
) -> tuple[list[Case], int, str]:
    """The `count` fastest plans that fit, how many were timed, the nearest miss where none fits."""
    timed: list[tuple[float, int, Plan]] = []
    for plan in plans:
        try:
            timed.append((evaluate(job, plan, low).cost.step, len(timed), plan))
        except InputError:
            continue
    timed.sort(key=lambda row: row[:2])
    found: list[Case] = []
    for _, _, plan in timed:
        case = Case("", job, plan, money)
        if fits_memory(case):
            found.append(case)
        if len(found) == count:
            break
    if found:
        return found, len(timed), ""
    if not timed:
        return [], 0, "no split of the devices is legal"
    least = min(memory_doc(job, p, counts_of(job, p), low).peak_bytes for _, _, p in timed[-200:])
    return [], len(timed), f"none fits: the least needs {least / 2**30:.0f} GiB a device"


def candidates(job: Job, money: Money, hybrids: int = 3) -> list[Case]:
    """Plans worth comparing where none is stated: the best of each kind, and more hybrids.

    Raises InputError where fewer than two fit.
    """
    low = lower(job)
    cases: list[Case] = []
    for family in ("hybrid", "pipeline", "tensor", "sharded"):
        count = hybrids if family == "hybrid" else 1
        found, _, _ = best_plans(job, plans_of(job, family), money, low, count)
        for number, case in enumerate(found):
            if any(c.plan == case.plan for c in cases):
                continue
            name = family if count == 1 or number == 0 else f"{family} {number + 1}"
            cases.append(replace(case, name=name))
    if len(cases) < 2:
        raise InputError(
            f"fewer than two plans of {job.model.name} fit {job.cluster.name}: state plan files"
        )
    return cases


def needed_bandwidth(case: Case) -> float:
    """Bytes/s a device beyond the node at which a step is SLACK_FRAC above unlimited links.

    0 where even a thousandth of today's links is enough, or nothing crosses the node.
    """
    over = parameter("inter-node-bandwidth")
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
    job: Job, book: PriceBook, money: Money, power: SitePower, hybrid: Plan | None = None
) -> Scorecard:
    """Find the best plan of each family and score them. `hybrid`: a plan found elsewhere.

    Raises InputError for a cluster without a tier beyond its nodes.
    """
    outer_tier(Case("", job, Plan(), money))
    low = lower(job)
    columns, cases = [], {}
    for family in FAMILIES:
        given = family == "hybrid" and hybrid is not None
        plans = [hybrid] if given and hybrid is not None else plans_of(job, family)
        found, tried, note = best_plans(job, plans, money, low)
        case = found[0] if found else None
        if case is not None:
            cases[family] = case
        columns.append(_column(family, case, tried, note))
    rows: dict[str, dict[Family, tuple[float, str, str]]] = {}
    for family, case in cases.items():
        for name, cell in _cells(case, book, power).items():
            rows.setdefault(name, {})[family] = cell
    graded = {name: {f: _graded(name, f, cells) for f in cells} for name, cells in rows.items()}
    alone = ("one family alone fits: its grades compare it with itself",) if len(cases) == 1 else ()
    return Scorecard(
        model=job.model.name,
        cluster=job.cluster.name,
        columns=tuple(columns),
        rows={name: {str(f): c for f, c in cells.items()} for name, cells in graded.items()},
        notes=(
            "grades: low up to 1.25 times the least of the row, medium up to 2, high up to 4, very"
            " high above; of throughput, high within 1.25 of the best, medium within 2, low below",
            *alone,
        ),
    )


def _column(family: Family, case: Case | None, tried: int, note: str) -> Column:
    if case is None:
        return Column(
            family=family, plan=None, step_time_s=None, mfu_frac=None, tried=tried, note=note
        )
    from gangsaw.search.estimate import estimate

    result = estimate(case.job, case.plan)
    return Column(
        family=family,
        plan=result.plan,
        step_time_s=result.step_time_s,
        mfu_frac=result.mfu_frac,
        tried=tried,
        note=note,
    )


def _cells(case: Case, book: PriceBook, power: SitePower) -> dict[str, tuple[float, str, str]]:
    """Value, unit and derivation of each row for one plan."""
    job, money, devices = case.job, case.money, case.job.cluster.devices
    step_s = case.step().step
    rate = job.recipe.tokens_per_step / step_s
    need = needed_bandwidth(case)
    mtbf_s = job_mtbf_s(money.device_mtbf_h, devices)
    interval_s = daly_interval_s(max(money.checkpoint_block_s, 1e-3), mtbf_s)
    lost_h = devices * (money.restart_s + interval_s / 2) / HOUR_S
    replica = case.plan.tp * case.plan.cp * case.plan.pp
    parts, said = complexity(case.plan)
    nodes = devices / job.cluster.host.devices
    kwh = power.energy_j(nodes, step_s) / 3.6e6 / (job.recipe.tokens_per_step / 1e6)
    lean_kwh = kwh / power.pue * 0.1
    return {
        "effective throughput": (
            rate / devices, "tokens/s/device",
            f"{job.recipe.tokens_per_step:,} tokens in {step_s:.2f} s on {devices:,} devices",
        ),
        "network bandwidth": (
            need, "bytes/s a device",
            f"beyond the node, for a step at most {100 * SLACK_FRAC:.0f} % above unlimited links",
        ),
        "failure-domain cost": (
            lost_h * money.hour_usd() * replica / devices, "USD a failure and replica",
            f"a stop costs the whole job {lost_h:,.0f} device-hours ="
            f" ${lost_h * money.hour_usd():,.0f} ({money.restart_s / 60:.0f} min restart, half of"
            f" {interval_s / 60:.0f} min between saves); here the share of one replica of"
            f" {replica} devices, the least that must stop",
        ),
        "implementation complexity": (float(parts), "parts", said),
        "energy and PUE": (
            kwh, "kWh a million tokens",
            f"at PUE {power.pue:g}; each 0.1 of it is {lean_kwh:.3g} kWh",
        ),
        "capital": _capital(case, book, need, rate),
        "variability": (
            spread_of(case), "step time, share",
            "half-width of 80 % of draws with every input moved within its doubt",
        ),
    }  # fmt: skip


def _capital(case: Case, book: PriceBook, need: float, rate: float) -> tuple[float, str, str]:
    """Hardware and fabric for a million tokens a second, the fabric sized to the need."""
    from gangsaw.bill.answer import book_name

    cluster = case.job.cluster
    name = book_name(cluster, book, "device_price")
    if not book.has(f"device_price.{name}.server"):
        return math.nan, "USD a million tokens/s", f"no figure device_price.{name}.server"
    own = ownership_of_book(book, name, cluster.host.devices)
    now = parameter("inter-node-bandwidth").get(case)
    fabric = own.fabric_usd * need / now
    usd = cluster.devices * (own.devices_usd + fabric) / rate * 1e6
    return (
        usd,
        "USD a million tokens/s",
        f"{cluster.devices:,} x (${own.devices_usd:,.0f} server + ${fabric:,.0f} fabric, in"
        f" proportion to {need / 1e9:.1f} of {now / 1e9:.0f} GB/s)",
    )


def _graded(name: str, family: Family, cells: dict[Family, tuple[float, str, str]]) -> Cell:
    """A cell with its grade, the article's, and why they differ."""
    value, unit, derivation = cells[family]
    known = [v for v, _, _ in cells.values() if math.isfinite(v)]
    grade, ratio, against = _grade(name, value, known)
    article = ARTICLE.get(name, {}).get(family, "")
    why = ""
    if article and grade not in article.split("-"):
        why = f"{ratio:.2f} times {against} of the row; the article gives no number"
    finite = value if math.isfinite(value) else 0.0
    return Cell(
        value=finite, unit=unit, derivation=derivation, grade=grade, article=article, why=why
    )


def _grade(name: str, value: float, known: list[float]) -> tuple[Grade, float, str]:
    """Grade by the ratio to the best of the row: the most throughput, the least of all else."""
    if name == "effective throughput":
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
