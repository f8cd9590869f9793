"""What the templates print: a plan's memory and invoice as ready text, fills and widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gangsaw.report import charts, data, words
from gangsaw.report.colours import CAUSE_COLOURS, HATCHED, MEMORY_COLOURS, OUTLINED
from gangsaw.spec.result import BillDoc, PlanResult
from gangsaw.units import GIB, format_count, format_frac, format_gib, format_s, format_usd
from gangsaw.units import significant as sig

View = dict[str, Any]


@dataclass(frozen=True)
class Look:
    """How a swatch or bar is filled: a class for hatch and outline, else a colour."""

    css: str
    fill: str


def cause_look(cause: str) -> Look:
    """Look of a cause."""
    if cause in HATCHED:
        return Look("hatched", "")
    if cause in OUTLINED:
        return Look("outlined", "")
    return Look("", CAUSE_COLOURS.get(cause, CAUSE_COLOURS["compute"]))


def memory_look(key: str) -> Look:
    """Look of a part of memory."""
    if key in HATCHED:
        return Look("hatched", "")
    if key in OUTLINED:
        return Look("outlined", "")
    return Look("", MEMORY_COLOURS[key])


def memory_bar(result: PlanResult) -> View:
    """The tightest stage as parts of capacity, per cent."""
    capacity = result.memory.capacity_bytes
    parts = [
        {
            "css": memory_look(p.key).css,
            "fill": memory_look(p.key).fill,
            "percent": 100.0 * p.amount / max(capacity, result.memory.peak_bytes),
            "title": f"{p.title} {format_gib(p.amount)}",
        }
        for p in data.peak_parts(result)
        if p.amount > 0
    ]
    return {"label": f"memory {words.memory_use(result)}", "parts": parts}


def bill_bar(result: PlanResult) -> View:
    """The invoice as parts of the step, per cent: work first, then idle causes."""
    parts = [
        {
            "css": cause_look(r.cause).css,
            "fill": cause_look(r.cause).fill,
            "percent": 100.0 * r.share_frac,
            "title": f"{r.title} {format_frac(r.share_frac)}, {format_usd(r.usd)}",
        }
        for r in data.invoice_rows(result.bill)
    ]
    return {"label": f"bill: {format_frac(result.bill.idle_frac)} idle", "parts": parts}


def pair(result: PlanResult, number: int) -> View:
    """Memory and invoice of one plan, side by side."""
    slug = f"plan-{number}"
    return {
        "number": number,
        "slug": slug,
        "degrees": words.degrees(result.plan).replace("  ", " "),
        **_memory(result, slug),
        **_invoice(result, slug),
    }


def _memory(result: PlanResult, slug: str) -> View:
    bars = data.memory_bars(result.memory)
    used = [k for k, _ in words.MEMORY_PARTS if any(_part(b, k) for b in bars)]
    titles = dict(words.MEMORY_PARTS)
    rows = [
        {
            "stage": bar.stage,
            "layers": bar.layers,
            "phase": bar.phase,
            "cells": [_gib(_part(bar, k)) for k in used] + [_gib(bar.peak_bytes)],
        }
        for bar in bars
    ]
    return {
        "memory_wide": Markup(charts.memory_svg(result.memory, charts.WIDE, f"{slug}-mw")),
        "memory_narrow": Markup(charts.memory_svg(result.memory, charts.NARROW, f"{slug}-mn")),
        "part_titles": [titles[k] for k in used],
        "memory_rows": rows,
    }


def _part(bar: data.StageBar, key: str) -> float:
    return next(p.amount for p in bar.parts if p.key == key)


def _gib(value_bytes: float) -> View:
    gib = value_bytes / GIB
    return {"exact": repr(gib), "text": sig(gib)}


def _invoice(result: PlanResult, slug: str) -> View:
    bill = result.bill
    rows = data.invoice_rows(bill)
    top = max((r.share_frac for r in rows), default=1.0)
    hours = sig(bill.device_s / 3600.0)
    return {
        "invoice": [
            {
                "title": r.title,
                "meaning": words.CAUSE_MEANINGS.get(r.cause, r.title),
                "idle": r.idle,
                "look": cause_look(r.cause),
                "percent": 100.0 * r.share_frac / top,
                "device_hours": repr(r.device_hours),
                "hours_text": sig(r.device_hours),
                "usd": repr(r.usd),
                "usd_text": format_usd(r.usd),
                "share": repr(r.share_frac),
                "share_text": format_frac(r.share_frac),
            }
            for r in rows
        ],
        "invoice_svg": Markup(charts.invoice_svg(rows, charts.WIDE, f"{slug}-iw")),
        "total_usd": format_usd(bill.usd),
        "total_hours": f"{hours} device-h",
        "total_hours_short": hours,
        "idle_hours": words.idle_hours(bill),
        "idle_usd": format_usd(data.idle_usd(bill)),
        "idle_share": format_frac(bill.idle_frac),
        "run_facts": run_facts(bill),
    }


def run_facts(bill: BillDoc) -> list[tuple[str, str]]:
    """Money a million and a billion tokens, and the whole run where its tokens are known."""
    facts = [
        ("a million tokens", format_usd(bill.usd_per_million_tokens)),
        ("a billion tokens", format_usd(1e3 * bill.usd_per_million_tokens)),
    ]
    if bill.usd_per_run is not None and bill.device_hours_per_run is not None:
        hours = format_count(bill.device_hours_per_run)
        facts.append(("the whole run", f"{format_usd(bill.usd_per_run)}, {hours} device-h"))
    if bill.run_s is not None:
        facts.append(("lasting", format_s(bill.run_s)))
    return facts


def plan_row(result: PlanResult) -> View:
    """A row of the ranked table."""
    plan = result.plan
    prob = result.best_prob_frac
    return {
        "degrees": words.degrees(plan).replace("  ", " "),
        "devices": f"{plan.tp * plan.cp * plan.pp * plan.dp:,}",
        "batch": f"{plan.mbs} x {plan.num_microbatches}",
        "choices": words.choices(plan),
        "layers": words.runs(plan.stages),
        "step_time": words.step_time(result),
        "step_time_s": repr(result.step_time_s),
        "mfu": format_frac(result.mfu_frac),
        "rate": words.rate(result),
        "best_prob": format_frac(prob) if prob > 0 else "",
        "bad_day": words.bad_day(result),
        "memory_bar": memory_bar(result),
        "memory_use": words.memory_use(result),
        "peak_bytes": repr(result.memory.peak_bytes),
        "headroom": words.free(result.memory.headroom_frac),
        "fits": {"yes": "yes", "risky": "risky", "no": "does not fit"}[result.memory.fits],
        "bill_bar": bill_bar(result),
        "usd": repr(result.bill.usd),
        "idle": words.idle_hours(result.bill),
        "idle_share": format_frac(result.bill.idle_frac),
        "money": words.money_per_tokens(result.bill.usd_per_million_tokens),
        "labels": result.labels,
        "why": words.spelled(result.why),
        "like": words.like(result) if result.like else "",
    }


def legend(results: tuple[PlanResult, ...]) -> list[View]:
    """Swatches of the parts and causes that occur in the bars of the table."""
    parts = {p.key: p.title for r in results for p in data.peak_parts(r) if p.amount > 0}
    causes = {r.cause: r.title for p in results for r in data.invoice_rows(p.bill)}
    return [{"look": memory_look(k), "title": t} for k, t in parts.items()] + [
        {"look": cause_look(k), "title": t} for k, t in causes.items()
    ]
