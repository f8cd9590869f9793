"""Pictures of the accuracy report: data functions elsewhere, here thin drawings as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 760, 460, 56
COLOURS = (
    "#1f5fa8", "#d97a2b", "#3a8a4d", "#7b4fa3", "#8a5a33", "#c0392b", "#5b6770", "#1a9aa0",
    "#b5892b", "#c2538f", "#2f2f2f", "#7f9b2f",
)  # fmt: skip


class Dot(NamedTuple):
    """A point of a scatter: measured, predicted, its series, whether it is a routed model."""

    x: float
    y: float
    series: str
    hollow: bool


def _head(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"'
        ' font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' fill="#222">{escape(text)}</text>'
    )


def _ticks(lo: float, hi: float) -> list[float]:
    """Powers of ten inside lo..hi (logarithms)."""
    return [float(t) for t in range(math.ceil(lo), math.floor(hi) + 1)]


def _seconds(power: float) -> str:
    value = 10.0**power
    return f"{value:g} s" if value >= 1.0 else f"{value * 1e3:g} ms"


def scatter(dots: Sequence[Dot], title: str) -> str:
    """Predicted against measured, both logarithmic, with the diagonal and +-20 % lines."""
    logs = [math.log10(v) for d in dots for v in (d.x, d.y)]
    lo, hi = min(logs) - 0.1, max(logs) + 0.1
    side = HEIGHT - 2 * MARGIN

    def at(v: float, flip: bool) -> float:
        share = (math.log10(v) - lo) / (hi - lo)
        return MARGIN + (1.0 - share if flip else share) * side

    out = _head(WIDTH, HEIGHT, title)
    out.append(_text(MARGIN, 24, title, weight="600"))
    for power in _ticks(lo, hi):
        p = at(10.0**power, False)
        q = at(10.0**power, True)
        out.append(f'<path d="M{p:.1f} {MARGIN}V{MARGIN + side}" stroke="#e4e4e4"/>')
        out.append(f'<path d="M{MARGIN} {q:.1f}H{MARGIN + side}" stroke="#e4e4e4"/>')
        out.append(_text(p, MARGIN + side + 16, _seconds(power), "middle"))
        out.append(_text(MARGIN - 6, q + 4, _seconds(power), "end"))
    for factor, dash in ((1.0, ""), (1.2, "4 3"), (1 / 1.2, "4 3")):
        a, b = 10.0 ** (lo + 0.08), 10.0 ** (hi - 0.08)
        out.append(
            f'<path d="M{at(a, False):.1f} {at(a * factor, True):.1f}'
            f'L{at(b, False):.1f} {at(b * factor, True):.1f}" stroke="#888"'
            f' stroke-dasharray="{dash}" fill="none"/>'
        )
    names = sorted({d.series for d in dots})
    for d in dots:
        colour = COLOURS[names.index(d.series) % len(COLOURS)]
        fill = "none" if d.hollow else colour
        out.append(
            f'<circle cx="{at(d.x, False):.1f}" cy="{at(d.y, True):.1f}" r="3" fill="{fill}"'
            f' fill-opacity="0.6" stroke="{colour}"/>'
        )
    out.append(_text(MARGIN + side / 2, HEIGHT - 12, "measured step", "middle"))
    out.append(_text(MARGIN, MARGIN - 10, "predicted step, source left out; hollow: routed model"))
    for i, name in enumerate(names):
        y = MARGIN + 10 + 20 * i
        x = MARGIN + side + 24
        out.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(_text(x + 10, y, name))
    return "\n".join([*out, "</svg>"]) + "\n"


def bars(rows: Mapping[str, Sequence[float]], labels: Sequence[str], title: str) -> str:
    """Groups of horizontal bars, a group a row, fractions printed as per cent."""
    group = 16 * len(labels) + 12
    height = 70 + group * len(rows)
    top = max((v for values in rows.values() for v in values), default=1.0)
    out = _head(WIDTH, height, title)
    out.append(_text(16, 24, title, weight="600"))
    for i, label in enumerate(labels):
        x = 170 + 190 * i
        out.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[i]}"/>')
        out.append(_text(x + 18, 46, label))
    for r, (name, values) in enumerate(rows.items()):
        y = 62 + group * r
        out.append(_text(160, y + group / 2, name, "end"))
        for i, value in enumerate(values):
            w = 480.0 * value / top
            out.append(
                f'<rect x="170" y="{y + 16 * i}" width="{w:.1f}" height="13" fill="{COLOURS[i]}"/>'
            )
            out.append(_text(176 + w, y + 16 * i + 11, f"{100 * value:.1f} %"))
    return "\n".join([*out, "</svg>"]) + "\n"
