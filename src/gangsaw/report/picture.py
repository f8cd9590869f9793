"""The one picture of a plan as one SVG: sentence, memory beside invoice, pipeline under both."""

from __future__ import annotations

import re
from pathlib import Path

from gangsaw.report import charts, data, svg, words
from gangsaw.spec.result import EstimateResult
from gangsaw.units import format_frac, format_usd, significant

WIDTH = 1180.0
MARGIN = 24.0
GAP = 32.0
HALF = (WIDTH - 2 * MARGIN - GAP) / 2


def sentence(chosen: EstimateResult) -> str:
    """The plan in words: time, rate, use, money, and what holds it back."""
    per_billion = format_usd(1e3 * chosen.bill.usd_per_million_tokens)
    return (
        f"{words.degrees(chosen.plan).replace('  ', ' ')}, microbatch {chosen.plan.mbs} x"
        f" {chosen.plan.num_microbatches}, {words.choices(chosen.plan)}, takes"
        f" {words.step_time(chosen)} a step: {words.rate(chosen)}, MFU"
        f" {format_frac(chosen.mfu_frac)}, {per_billion} a billion tokens;"
        f" {words.limits(chosen)}."
    )


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines of `text` that fit `width` pixels at a font size."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and svg.text_width(longer, size) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def placed(drawing: str, x: float, y: float) -> str:
    """A drawing as a part of another, its upper left corner at (x, y)."""
    return drawing.replace("<svg ", f'<svg x="{svg.num(x)}" y="{svg.num(y)}" ', 1)


def size_of(drawing: str) -> tuple[float, float]:
    """Width and height of a drawing in pixels."""
    match = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    if match is None:
        raise ValueError("a drawing states its viewBox from 0 0")
    return float(match.group(1)), float(match.group(2))


def picture_svg(chosen: EstimateResult, timeline: str = "") -> str:
    """The picture; `timeline` is the drawing of the pipeline, at any size."""
    title = words.title(chosen.model, chosen.cluster, chosen.plan)
    body = [svg.text((MARGIN, 34), title, extra='font-size="19" font-weight="650"')]
    y = 60.0
    for said in wrapped(sentence(chosen), WIDTH - 2 * MARGIN, 14):
        body.append(svg.text((MARGIN, y), said, extra='font-size="14"'))
        y += 20
    top = y + 16
    right = MARGIN + HALF + GAP
    memory = charts.memory_svg(chosen.memory, HALF, "picture-m")
    invoice = charts.invoice_svg(data.invoice_rows(chosen.bill), HALF, "picture-i")
    body.append(_heading((MARGIN, top), "Memory of each stage"))
    body.append(placed(memory, MARGIN, top + 14))
    body.append(_heading((right, top), "Invoice of one step"))
    body.append(_totals(chosen, right, top + 42))
    body.append(placed(invoice, right, top + 78))
    bottom = max(top + 14 + size_of(memory)[1], top + 78 + size_of(invoice)[1]) + 20
    if timeline:
        wide, high = size_of(timeline)
        scale = (WIDTH - 2 * MARGIN) / wide
        body.append(svg.line((MARGIN, bottom - 6), (WIDTH - MARGIN, bottom - 6)))
        body.append(_heading((MARGIN, bottom + 14), "Pipeline of one step"))
        # The page may hold the same drawing once more: its hatches get names of their own.
        inner = placed(timeline, 0, 0).replace("wait-", "picture-wait-")
        moved = f"translate({svg.num(MARGIN)} {svg.num(bottom + 26)}) scale({scale:.4f})"
        body.append(f'<g transform="{moved}">{inner}</g>')
        bottom += 26 + high * scale + 16
    back = svg.rect((0, 0, WIDTH, bottom), svg.SURFACE)
    return svg.document((WIDTH, bottom), f"{title}: {sentence(chosen)}", back + "".join(body))


def _heading(at: tuple[float, float], said: str) -> str:
    return svg.text(at, said, extra='font-size="14" font-weight="650"')


def _totals(chosen: EstimateResult, x: float, y: float) -> str:
    bill = chosen.bill
    hours = significant(bill.device_s / 3600.0)
    idle = f"idle: {format_usd(data.idle_usd(bill))}, {format_frac(bill.idle_frac)} of the step"
    big, next_big = 'font-size="30" font-weight="680"', 'font-size="22" font-weight="640"'
    return (
        svg.text((x, y), format_usd(bill.usd), extra=big)
        + svg.text((x, y + 18), f"a step: {hours} device-h", fill=svg.MUTED)
        + svg.text((x + 170, y), words.idle_hours(bill), extra=next_big)
        + svg.text((x + 170, y + 18), idle, fill=svg.MUTED)
    )


def write_picture(path: Path, chosen: EstimateResult, timeline: str = "") -> None:
    """Write the picture in its light colours. Raises OSError."""
    path.write_text(standalone(picture_svg(chosen, timeline)), encoding="utf-8")


def standalone(drawing: str) -> str:
    """A drawing whose theme variables are replaced by their light defaults, for any viewer."""
    return re.sub(r"var\(--[\w-]+,(#[0-9a-fA-F]{3,8})\)", r"\1", drawing)
