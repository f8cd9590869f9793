"""The HTML report: one file that opens offline, asks nothing of any network, and can be printed."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound
from markupsafe import Markup

from gangsaw.report import charts, curves, data, words
from gangsaw.report.picture import picture_svg
from gangsaw.report.series import BandwidthSweep, MicrobatchSweep, ReportSweeps
from gangsaw.report.text import miss_text
from gangsaw.report.views import View, legend, pair, plan_row
from gangsaw.spec.job import Job
from gangsaw.spec.result import EstimateResult, PlanListResult, PlanResult, SearchedDoc
from gangsaw.units import GB, GIB, MIB, format_bandwidth, format_frac, format_s, format_usd
from gangsaw.units import significant as sig

MOST_PAIRS = 12
"""Plans whose memory and invoice are drawn in full; the table lists all."""


def write_report(
    path: Path, result: PlanListResult, chosen: EstimateResult, sweeps: ReportSweeps
) -> None:
    """Write the report of a search whose `chosen` plan is shown in full. Raises OSError."""
    path.write_text(report_html(result, chosen, sweeps), encoding="utf-8")


def report_html(result: PlanListResult, chosen: EstimateResult, sweeps: ReportSweeps) -> str:
    """The report as text."""
    page = _page(result, chosen, sweeps)
    return _environment().get_template("report.html.j2").render(page=page)


def single_plan(job: Job, chosen: EstimateResult) -> PlanListResult:
    """A list of one plan, so that one estimate is reported like a search."""
    fields = set(PlanResult.model_fields)
    plan = PlanResult.model_validate({k: v for k, v in dict(chosen).items() if k in fields})
    fits = int(chosen.memory.fits != "no")
    return PlanListResult(
        model=chosen.model,
        cluster=chosen.cluster,
        recipe=job.recipe.model_dump(mode="json"),
        stack=chosen.stack,
        searched=SearchedDoc(plans=1, legal=1, fit=fits, wall_s=0.0),
        plans=(plan,),
        notes=chosen.notes,
    )


def _file(name: str) -> str:
    return resources.files("gangsaw.report").joinpath("templates", name).read_text("utf-8")


class _Templates(BaseLoader):
    """Templates of this package, wherever it is installed."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, None]:
        """Source of a template by name."""
        del environment
        try:
            return _file(template), template, None
        except FileNotFoundError:
            raise TemplateNotFound(template) from None


@cache
def _environment() -> Environment:
    return Environment(
        loader=_Templates(), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def _page(result: PlanListResult, chosen: EstimateResult, sweeps: ReportSweeps) -> View:
    recipe = result.recipe
    rows = tuple(result.plans)
    return {
        "css": Markup(_file("report.css")),
        "js": Markup(_file("report.js")),
        "title": words.title(result.model, result.cluster, chosen.plan),
        "job": (
            f"{recipe.get('task')}, {recipe.get('seq_len')} tokens x {recipe.get('global_batch')}"
            f" sequences a step, {recipe.get('precision')}, stack {result.stack}"
        ),
        **_sentence(chosen),
        "picture": Markup(picture_svg(chosen, _short(sweeps.timeline_svg))),
        "timeline_page": sweeps.timeline_page,
        "timeline_height": 210 + 42 * min(sweeps.timeline_ranks, 20),
        "chosen": pair(chosen, 1),
        "memory_line": f"{words.memory_use(chosen)}, {_headroom(chosen)}",
        "price_line": _price(chosen),
        "timeline": Markup(sweeps.timeline_svg) if sweeps.timeline_svg else "",
        "no_timeline": sweeps.no_timeline or _no_timeline(chosen),
        "searched": _searched(result.searched),
        "plans": [plan_row(plan) for plan in rows],
        "pareto": [plan_row(plan) for plan in result.pareto] if rows else [],
        "others": [pair(plan, i) for i, plan in enumerate(rows[:MOST_PAIRS], start=1) if i > 1],
        "legend": legend(rows),
        "nearest": [miss_text(miss) for miss in result.nearest] if not rows else [],
        **_waterfall(chosen),
        "microbatches": _microbatches(sweeps.microbatches),
        "bandwidth": _bandwidth(sweeps.bandwidth),
        "collectives": _collectives(chosen),
        "sources": (*chosen.sources, *result.notes, *(n for n in chosen.notes
                    if n not in result.notes)),
    }  # fmt: skip


def _short(drawing: str) -> str:
    """A drawing small enough to stand in the page twice, or nothing."""
    return drawing if len(drawing) <= 10**6 else ""


def _sentence(chosen: EstimateResult) -> View:
    plan = chosen.plan
    per_billion = 1e3 * chosen.bill.usd_per_million_tokens
    return {
        "degrees": words.degrees(plan).replace("  ", " "),
        "choices": f"microbatch {plan.mbs} x {plan.num_microbatches}, {words.choices(plan)}",
        "step_time": words.step_time(chosen),
        "rate": words.rate(chosen),
        "mfu": format_frac(chosen.mfu_frac),
        "hfu": format_frac(chosen.hfu_frac),
        "money": f"{format_usd(per_billion)} a billion tokens",
        "limits": words.limits(chosen),
    }


def _headroom(chosen: EstimateResult) -> str:
    fits = {"yes": "fits", "risky": "risky", "no": "does not fit"}[chosen.memory.fits]
    return f"{words.free(chosen.memory.headroom_frac)}, {fits}"


def _price(chosen: EstimateResult) -> str:
    hours = chosen.bill.device_s / 3600.0
    if chosen.bill.usd <= 0 or hours <= 0:
        return "no price is known for this device"
    return f"at ${sig(chosen.bill.usd / hours)} a device-hour"


def _no_timeline(chosen: EstimateResult) -> str:
    if chosen.plan.pp == 1:
        return "One pipeline stage: every rank computes all the time, there is no schedule to draw."
    return f"The schedule {words.schedule_title(chosen.plan)} is not drawn in this report."


def _searched(found: SearchedDoc) -> str:
    if found.plans == 1:
        return "the plan that was stated"
    return (
        f"{found.plans:,} evaluated, {found.legal:,} legal, {found.fit:,} fit,"
        f" {format_s(found.wall_s)}"
    )


def _waterfall(chosen: EstimateResult) -> View:
    bars = data.waterfall(chosen)
    return {
        "waterfall_wide": Markup(charts.waterfall_svg(bars, charts.WIDE, "waterfall-w")),
        "waterfall_narrow": Markup(charts.waterfall_svg(bars, charts.NARROW, "waterfall-n")),
        "lower_bound": format_s(chosen.lower_bound_s),
        "waterfall": [
            {
                "title": bar.title,
                "seconds": repr(bar.seconds),
                "seconds_text": sig(bar.seconds),
                "before": repr(bar.before_frac),
                "before_text": format_frac(bar.before_frac),
                "after": repr(bar.after_frac),
                "after_text": format_frac(bar.after_frac),
            }
            for bar in bars
        ],
    }


def _microbatches(sweep: MicrobatchSweep | None) -> View | None:
    if sweep is None or len(sweep.points) < 2:
        return None
    return {
        "wide": Markup(curves.microbatch_svg(sweep, charts.WIDE)),
        "narrow": Markup(curves.microbatch_svg(sweep, charts.NARROW)),
        "rows": [
            {
                "count": p.num_microbatches,
                "mbs": p.mbs,
                "time_s": repr(p.step_time_s),
                "time_text": sig(p.step_time_s),
                "peak_gib": repr(p.peak_bytes / GIB),
                "peak_text": sig(p.peak_bytes / GIB),
                "fits": p.fits,
            }
            for p in sweep.points
        ],
    }


def _bandwidth(sweep: BandwidthSweep | None) -> View | None:
    if sweep is None:
        return None
    lines = [
        f"Below {format_bandwidth(c.at)} {c.faster_below} is faster, above it {c.faster_above}."
        for c in sweep.crossings
    ]
    if not sweep.crossings and len(sweep.curves) > 1:
        low, high = (format_bandwidth(x) for x in (sweep.bytes_per_s[0], sweep.bytes_per_s[-1]))
        lines = [f"The curves of these plans do not cross between {low} and {high}."]
    return {
        "wide": Markup(curves.bandwidth_svg(sweep, charts.WIDE)),
        "narrow": Markup(curves.bandwidth_svg(sweep, charts.NARROW)),
        "lines": lines,
        "names": [curve.name for curve in sweep.curves],
        "rows": [
            {
                "gb_per_s": repr(x / GB),
                "rate": sig(x / GB),
                "cells": [
                    {"exact": repr(c.step_time_s[i]), "text": sig(c.step_time_s[i])}
                    for c in sweep.curves
                ],
            }
            for i, x in enumerate(sweep.bytes_per_s)
        ],
    }


def _collectives(chosen: EstimateResult) -> list[tuple[str, ...]]:
    return [
        (
            c.axis.upper(), c.operation, str(c.group), c.tier, sig(c.count_per_step),
            sig(c.bytes_each / MIB), format_s(c.seconds_each), format_s(c.exposed_s_per_step),
        )
        for c in chosen.collectives
    ]  # fmt: skip
