"""The bars of the report: memory of each stage, the invoice, the walk from peak to delivered.

Each is a thin function from the data of `report.data` to SVG.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangsaw.report import svg, words
from gangsaw.report.colours import CAUSE_COLOURS, HATCHED, MEMORY_COLOURS, OUTLINED
from gangsaw.report.data import InvoiceRow, StageBar, WaterfallBar, memory_bars
from gangsaw.spec.result import MemoryDoc
from gangsaw.units import GIB, format_frac, format_gib, format_s, format_usd, significant

WIDE, NARROW = 560.0, 330.0
"""Widths in pixels of the two drawings of a chart."""

SMALL = 'font-size="11"'


@dataclass(frozen=True)
class Frame:
    """A horizontal scale: `low`..`high` over `left`..`left + span` pixels, rows from `top`."""

    left: float
    span: float
    high: float
    top: float
    row: float
    low: float = 0.0

    def x(self, value: float) -> float:
        """Pixel of a value."""
        return self.left + self.span * (value - self.low) / (self.high - self.low)


def memory_fill(key: str, name: str) -> str:
    """Fill of a part of memory; `name` is the drawing that holds the hatch."""
    if key in HATCHED:
        return f"url(#{name}-hatch)"
    if key in OUTLINED:
        return svg.SURFACE
    return MEMORY_COLOURS[key]


def cause_fill(cause: str, name: str) -> str:
    """Fill of a cause; the bubble is hatched."""
    if cause in HATCHED:
        return f"url(#{name}-hatch)"
    if cause in OUTLINED:
        return svg.SURFACE
    return CAUSE_COLOURS.get(cause, CAUSE_COLOURS["compute"])


def outline(key: str) -> str:
    """Stroke of what is drawn as an outline or a hatch."""
    if key in OUTLINED or key in HATCHED:
        return f'stroke="{svg.MUTED}" stroke-width="0.75"'
    return ""


def hatch(name: str) -> str:
    """The hatch of one drawing."""
    return svg.hatch(f"{name}-hatch", "var(--hatch,#97a0ac)", svg.SURFACE)


def memory_svg(memory: MemoryDoc, width: float, name: str) -> str:
    """Stacked bar a stage against capacity; whisker and headroom at the tightest stage."""
    bars = memory_bars(memory)
    row = 22.0 if len(bars) <= 16 else 13.0 if len(bars) <= 32 else 7.0
    most = max(memory.capacity_bytes, memory.peak_hi_bytes, memory.peak_bytes) * 1.02
    frame = Frame(62.0, width - 62.0 - 44.0, most, 34.0, row)
    bottom = frame.top + row * len(bars)
    body = [_memory_axis(frame, bottom)]
    every = max(1, round(14.0 / row))
    for i, bar in enumerate(bars):
        body.append(_memory_row(bar, frame, i, name))
        if bar.tightest or (i % every == 0 and not _near_tightest(bars, i, every)):
            body.append(_memory_label(bar, frame, i, width))
    edge = frame.x(memory.capacity_bytes)
    body.append(svg.line((edge, frame.top - 7), (edge, bottom + 3), svg.INK, 'stroke-width="1.5"'))
    said = f"capacity {format_gib(memory.capacity_bytes)}"
    body.append(svg.text((edge + 4, frame.top - 12), said, "end", extra=SMALL))
    columns = "stage, layers" if width > NARROW else "stage"
    body.append(svg.text((0, frame.top - 12), columns, fill=svg.MUTED, extra=SMALL))
    body.append(_tightest(memory, bars, frame))
    used = [
        k for k in MEMORY_COLOURS if any(p.amount and p.key == k for b in bars for p in b.parts)
    ]
    titles = dict(words.MEMORY_PARTS)
    entries = [(memory_fill(k, name), outline(k), titles[k]) for k in used]
    drawn, height = svg.legend(entries, 0, bottom + 28, width)
    label = (
        f"Memory of each pipeline stage: peak {words.memory_peak(memory)},"
        f" {words.free(memory.headroom_frac)}"
    )
    return svg.document((width, bottom + 28 + height), label, "".join(body) + drawn, hatch(name))


def _near_tightest(bars: tuple[StageBar, ...], at: int, every: int) -> bool:
    """Whether a label here would touch that of the tightest stage."""
    return any(b.tightest for b in bars[max(0, at - every + 1) : at + every])


def _memory_axis(frame: Frame, bottom: float) -> str:
    out = []
    for tick in svg.linear_ticks(0.0, frame.high / GIB, 5):
        at = frame.x(tick * GIB)
        out.append(svg.line((at, frame.top), (at, bottom + 3)))
        label = "0 GiB" if tick == 0 else f"{tick:g}"
        out.append(svg.text((at, bottom + 16), label, "middle", svg.MUTED, SMALL))
    return "".join(out)


def _memory_row(bar: StageBar, frame: Frame, index: int, name: str) -> str:
    gap = 3.0 if frame.row > 10 else 1.0
    top, height = frame.top + index * frame.row, frame.row - gap
    start, out = 0.0, []
    for part in bar.parts:
        if part.amount <= 0:
            continue
        a, b = frame.x(start), frame.x(start + part.amount)
        title = f"stage {bar.stage}: {part.title} {format_gib(part.amount)}"
        # A hairline of background between neighbours keeps them apart in grey print.
        box = (a, top, max(0.4, b - a - 0.6), height)
        out.append(svg.rect(box, memory_fill(part.key, name), title, outline(part.key)))
        start += part.amount
    return "".join(out)


def _memory_label(bar: StageBar, frame: Frame, index: int, width: float) -> str:
    base = frame.top + index * frame.row + (frame.row - 3) / 2 + 4
    weight = ' font-weight="700"' if bar.tightest else ""
    out = [svg.text((4, base), str(bar.stage), extra=SMALL + weight)]
    if width > NARROW:
        out.append(svg.text((54, base), str(bar.layers), "end", svg.MUTED, SMALL))
    peak = significant(bar.peak_bytes / GIB)
    out.append(svg.text((width, base), peak, "end", extra=SMALL + weight))
    return "".join(out)


def _tightest(memory: MemoryDoc, bars: tuple[StageBar, ...], frame: Frame) -> str:
    """Whisker over the tightest bar, and its headroom written beside it."""
    index = next(i for i, bar in enumerate(bars) if bar.tightest)
    middle = frame.top + index * frame.row + (frame.row - 3) / 2
    low, high = frame.x(memory.peak_lo_bytes), frame.x(memory.peak_hi_bytes)
    out = []
    if memory.peak_hi_bytes > memory.peak_lo_bytes:
        stroke = 'stroke-width="1.5"'
        out.append(svg.line((low, middle), (high, middle), svg.INK, stroke))
        out += [svg.line((v, middle - 4), (v, middle + 4), svg.INK, stroke) for v in (low, high)]
    said = words.free(memory.headroom_frac)
    bold = f'{SMALL} font-weight="700"'
    room = frame.x(memory.capacity_bytes) - high
    if room > svg.text_width(said, 11) + 12 and frame.row > 10:
        out.append(svg.text((high + 6, middle + 4), said, extra=f"{bold} {svg.HALO}"))
    else:
        # No room beside the bar: in the line of titles, over the left end of the bars.
        out.append(svg.text((frame.left + 28, frame.top - 12), said, extra=bold))
    return "".join(out)


def invoice_svg(rows: tuple[InvoiceRow, ...], width: float, name: str) -> str:
    """One row a cause: a thin bar, device-hours, money, share; idle causes below a rule."""
    row, top = 24.0, 24.0
    most = max((r.share_frac for r in rows), default=1.0)
    left = 132.0
    frame = Frame(left, width - left - 176.0, most, top, row)
    columns = (width - 116.0, width - 56.0, width)
    body = [
        svg.text((at, 12), said, "end", svg.MUTED, SMALL)
        for at, said in zip(columns, ("device-h", "money", "share"), strict=True)
    ]
    y, idle = top, False
    for item in rows:
        if item.idle and not idle:
            body.append(svg.line((0, y + 5), (width, y + 5)))
            body.append(svg.text((0, y + 22), "idle", fill=svg.MUTED, extra=SMALL))
            y, idle = y + 30, True
        box = (left, y + 4, max(1.0, frame.x(item.share_frac) - left), 10.0)
        fill = cause_fill(item.cause, name)
        body.append(svg.rect(box, fill, item.title, outline(item.cause)))
        body.append(svg.text((0, y + 13), item.title))
        cells = (significant(item.device_hours), format_usd(item.usd), format_frac(item.share_frac))
        body += [svg.text((at, y + 13), c, "end") for at, c in zip(columns, cells, strict=True)]
        y += row
    return svg.document((width, y + 4), "Invoice of a step by cause", "".join(body), hatch(name))


def waterfall_svg(bars: tuple[WaterfallBar, ...], width: float, name: str) -> str:
    """Model FLOPs utilisation from peak down to what is delivered, one row a cause."""
    row, top = 25.0, 22.0
    left = 132.0 if width > NARROW else 108.0
    frame = Frame(left, width - left - 8.0, 1.0, top, row)
    bottom = top + row * (len(bars) + 2)
    body = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0) if width > NARROW else (0.0, 0.5, 1.0):
        at = frame.x(tick)
        body.append(svg.line((at, top - 4), (at, bottom)))
        side = "end" if tick == 1.0 else "middle"
        body.append(svg.text((at, 12), f"{100 * tick:.0f} %", side, svg.MUTED, SMALL))
    body.append(_waterfall_row(frame, 0, "peak", (0.0, 1.0), ("var(--muted,#5b6675)", "", "")))
    for i, bar in enumerate(bars, start=1):
        said = f"{format_s(bar.seconds)}, {format_frac(bar.after_frac)} left"
        fill = (cause_fill(bar.cause, name), outline(bar.cause), said)
        body.append(_waterfall_row(frame, i, bar.title, (bar.after_frac, bar.before_frac), fill))
    end = bars[-1].after_frac if bars else 1.0
    last = (CAUSE_COLOURS["compute"], "", f"MFU {format_frac(end)}")
    body.append(_waterfall_row(frame, len(bars) + 1, "delivered", (0.0, end), last))
    label = f"From peak to {format_frac(end)} model FLOPs utilisation"
    return svg.document((width, bottom + 4), label, "".join(body), hatch(name))


def _waterfall_row(
    frame: Frame, index: int, title: str, span: tuple[float, float], look: tuple[str, str, str]
) -> str:
    """A bar from span[0] to span[1]; `look` is fill, stroke and what stands beside it."""
    top = frame.top + index * frame.row
    fill, stroke, said = look
    a, b = frame.x(span[0]), frame.x(span[1])
    out = [
        svg.text((0, top + 13), title, extra=SMALL),
        svg.rect((a, top + 3, max(1.0, b - a), 13), fill, f"{title}: {said}", stroke),
    ]
    if said:
        wide = svg.text_width(said, 11) + 8
        if frame.left + frame.span - b > wide:
            out.append(svg.text((b + 6, top + 13), said, extra=SMALL))
        elif a - frame.left > wide:
            out.append(svg.text((a - 6, top + 13), said, "end", extra=SMALL))
        else:
            out.append(svg.text((b - 6, top + 13), said, "end", "#ffffff", SMALL))
    return "".join(out)
