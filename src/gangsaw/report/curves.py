"""The curves of the report: step time and memory against microbatches, time against bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gangsaw.report import svg
from gangsaw.report.charts import NARROW, SMALL
from gangsaw.report.colours import CAUSE_COLOURS, MEMORY_COLOURS
from gangsaw.report.series import BandwidthSweep, MicrobatchSweep
from gangsaw.units import GB, GIB, format_bandwidth, format_gib, format_s, significant

CURVE_LOOKS = (
    (CAUSE_COLOURS["compute"], "", "o"),
    (CAUSE_COLOURS["tp_comm"], 'stroke-dasharray="6 3"', "s"),
    (CAUSE_COLOURS["pp_comm"], 'stroke-dasharray="2 3"', "d"),
    (CAUSE_COLOURS["dp_comm"], 'stroke-dasharray="8 3 2 3"', "t"),
)
"""Colour, dash and mark of each curve: three ways to tell them apart."""


@dataclass(frozen=True)
class Panel:
    """A plot area in pixels with its scales; x is logarithmic."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        """Pixel of a value on the logarithmic x axis."""
        low, high = self.x_range
        if high <= low:
            return self.left + self.width / 2
        return self.left + self.width * math.log(value / low) / math.log(high / low)

    def y(self, value: float) -> float:
        """Pixel of a value on the linear y axis."""
        low, high = self.y_range
        return self.top + self.height * (1.0 - (value - low) / (high - low))


def mark(shape: str, at: tuple[float, float], colour: str, title: str, hollow: bool) -> str:
    """A point of a curve: circle, square, diamond or triangle; hollow where it does not fit."""
    x, y = at
    fill = svg.SURFACE if hollow else colour
    look = f'fill="{fill}" stroke="{colour}" stroke-width="1.5"'
    inner = f"<title>{title}</title>"
    if shape == "o":
        return f'<circle cx="{svg.num(x)}" cy="{svg.num(y)}" r="4" {look}>{inner}</circle>'
    corners = {
        "s": ((-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)),
        "d": ((0, -5), (5, 0), (0, 5), (-5, 0)),
        "t": ((0, -5), (4.5, 4), (-4.5, 4)),
    }[shape]
    where = " ".join(f"{svg.num(x + dx)},{svg.num(y + dy)}" for dx, dy in corners)
    return f'<polygon points="{where}" {look}>{inner}</polygon>'


def microbatch_svg(sweep: MicrobatchSweep, width: float) -> str:
    """Step time above, memory below, on one axis of microbatch counts."""
    points = sweep.points
    counts = (float(points[0].num_microbatches), float(points[-1].num_microbatches))
    left, span, height = 52.0, width - 52.0 - 14.0, 118.0
    times = [p.step_time_s for p in points]
    most = max([p.peak_bytes for p in points] + [sweep.capacity_bytes]) / GIB * 1.08
    upper = Panel(left, 26.0, span, height, counts, (0.0, max(times) * 1.12))
    lower = Panel(left, 26.0 + height + 34.0, span, height, counts, (0.0, most))
    body = [_y_axis(upper, "step time", "s"), _y_axis(lower, "peak memory", "GiB")]
    body.append(_count_axis(lower, upper, points[0].num_microbatches, sweep))
    cap = lower.y(sweep.capacity_bytes / GIB)
    body.append(svg.line((left, cap), (left + span, cap), svg.INK, 'stroke-width="1.5"'))
    said = f"capacity {format_gib(sweep.capacity_bytes)}"
    body.append(svg.text((left + span, cap - 5), said, "end", extra=f"{SMALL} {svg.HALO}"))
    blue, gold = CAUSE_COLOURS["compute"], MEMORY_COLOURS["activations"]
    places = [(p, upper.x(p.num_microbatches)) for p in points]
    above = [(x, upper.y(p.step_time_s)) for p, x in places]
    below = [(x, lower.y(p.peak_bytes / GIB)) for p, x in places]
    body.append(svg.polyline(above, blue, 'stroke-width="2"'))
    body.append(svg.polyline(below, gold, 'stroke-width="2"'))
    for p, a, b in zip(points, above, below, strict=True):
        hollow = p.fits == "no"
        title = (
            f"{p.num_microbatches} microbatches of {p.mbs}: {format_s(p.step_time_s)},"
            f" {format_gib(p.peak_bytes)}" + (", does not fit" if hollow else "")
        )
        body.append(mark("o", a, blue, title, hollow))
        body.append(mark("s", b, gold, title, hollow))
    return svg.document(
        (width, lower.top + height + 40), "Step time and peak memory against microbatch count",
        "".join(body),
    )  # fmt: skip


def _y_axis(panel: Panel, title: str, unit: str) -> str:
    out = [svg.text((0, panel.top - 10), f"{title}, {unit}", fill=svg.MUTED, extra=SMALL)]
    for tick in svg.linear_ticks(*panel.y_range, 4):
        y = panel.y(tick)
        out.append(svg.line((panel.left, y), (panel.left + panel.width, y)))
        out.append(svg.text((panel.left - 6, y + 4), f"{tick:g}", "end", svg.MUTED, SMALL))
    return "".join(out)


def _count_axis(lower: Panel, upper: Panel, first: int, sweep: MicrobatchSweep) -> str:
    base = lower.top + lower.height
    out, last = [], -1e9
    for point in sweep.points:
        x = lower.x(point.num_microbatches)
        if x - last > 26 or point.num_microbatches == first:
            said = str(point.num_microbatches)
            out.append(svg.text((x, base + 15), said, "middle", svg.MUTED, SMALL))
            last = x
    middle = lower.left + lower.width / 2
    said = "microbatches a step, at the same global batch; hollow: does not fit"
    if lower.width < NARROW:
        said = "microbatches a step (hollow: does not fit)"
    out.append(svg.text((middle, base + 32), said, "middle", svg.MUTED, SMALL))
    at = lower.x(sweep.chosen)
    dash = 'stroke-dasharray="3 3"'
    out.append(svg.line((at, upper.top), (at, base), svg.ACCENT, dash))
    side = "end" if at > lower.left + lower.width * 0.6 else "start"
    shift = -5 if side == "end" else 5
    out.append(svg.text((at + shift, upper.top + 8), "chosen", side, svg.ACCENT, SMALL))
    return "".join(out)


def bandwidth_svg(sweep: BandwidthSweep, width: float) -> str:
    """Step time of each plan against bandwidth; present bandwidth and crossings marked."""
    xs = sweep.bytes_per_s
    every = [t for curve in sweep.curves for t in curve.step_time_s]
    low, high = min(every), max(every)
    low = 0.0 if low < 0.5 * high else low - 0.15 * (high - low)
    left, span, height = 52.0, width - 52.0 - 14.0, 226.0
    panel = Panel(left, 26.0, span, height, (xs[0], xs[-1]), (low, high + 0.06 * (high - low)))
    body = [_y_axis(panel, "step time", "s"), _rate_axis(panel, sweep)]
    for curve, (colour, dash, shape) in zip(sweep.curves, CURVE_LOOKS, strict=False):
        places = [(panel.x(x), panel.y(t)) for x, t in zip(xs, curve.step_time_s, strict=True)]
        body.append(svg.polyline(places, colour, f'stroke-width="2" {dash}'))
        step = max(1, len(places) // 6)
        for i in range(0, len(places), step):
            title = f"{curve.name}: {format_s(curve.step_time_s[i])} at {format_bandwidth(xs[i])}"
            body.append(mark(shape, places[i], colour, title, False))
    for crossing in sweep.crossings:
        body.append(_crossing(panel, crossing.at, crossing.step_time_s))
    entries = [
        (colour, "", curve.name)
        for curve, (colour, _, _) in zip(sweep.curves, CURVE_LOOKS, strict=False)
    ]
    drawn, used = svg.legend(entries, 0, panel.top + height + 44, width)
    return svg.document(
        (width, panel.top + height + 44 + used),
        f"Step time against bandwidth of {sweep.tier}", "".join(body) + drawn,
    )  # fmt: skip


def _rate_axis(panel: Panel, sweep: BandwidthSweep) -> str:
    base = panel.top + panel.height
    out, last = [], -1e9
    for tick in svg.log_ticks(panel.x_range[0] / GB, panel.x_range[1] / GB):
        x = panel.x(tick * GB)
        out.append(svg.line((x, base), (x, base + 4), svg.MUTED))
        if x - last > 28:
            out.append(svg.text((x, base + 16), f"{tick:g}", "middle", svg.MUTED, SMALL))
            last = x
    said = f"{sweep.tier}, GB/s a device and direction"
    middle = panel.left + panel.width / 2
    out.append(svg.text((middle, base + 33), said, "middle", svg.MUTED, SMALL))
    now = panel.x(sweep.now_bytes_per_s)
    out.append(svg.line((now, panel.top), (now, base), svg.ACCENT, 'stroke-dasharray="3 3"'))
    side = "end" if now > panel.left + panel.width * 0.5 else "start"
    shift = -5 if side == "end" else 5
    said = f"now {format_bandwidth(sweep.now_bytes_per_s)}"
    out.append(svg.text((now + shift, panel.top + 8), said, side, svg.ACCENT, SMALL))
    return "".join(out)


def _crossing(panel: Panel, at: float, time_s: float) -> str:
    x, y = panel.x(at), panel.y(time_s)
    said = f"{significant(at / GB)} GB/s"
    ring = f'<circle cx="{svg.num(x)}" cy="{svg.num(y)}" r="8" fill="none" stroke="{svg.INK}"'
    side = "end" if x > panel.left + panel.width * 0.8 else "start"
    shift = -11 if side == "end" else 11
    bold = f'{SMALL} font-weight="700" {svg.HALO}'
    return f'{ring} stroke-width="1.5"><title>ranks change at {said}</title></circle>' + svg.text(
        (x + shift, y - 10), said, side, extra=bold
    )
