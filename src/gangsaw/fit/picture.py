"""Pictures of the accuracy report: data functions elsewhere, here thin drawings as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 760
COLOURS = (
    "#1f5fa8", "#d97a2b", "#3a8a4d", "#7b4fa3", "#8a5a33", "#c0392b", "#5b6770", "#1a9aa0",
    "#b5892b", "#c2538f", "#2f2f2f", "#7f9b2f",
)  # fmt: skip


KINDS = {
    "dense, 16 bits": "#1f5fa8",
    "dense, 8 bits": "#d97a2b",
    "routed": "#3a8a4d",
    "long sequence, context parallel": "#7b4fa3",
}
"""Kinds of runs with their colours; a kind's place in this order is its shape too."""
PANEL, COLUMNS = 176, 4


class Dot(NamedTuple):
    """A point of a scatter: measured, predicted, its series, one of KINDS."""

    x: float
    y: float
    series: str
    kind: str


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


def _seconds(value: float) -> str:
    return f"{float(f'{value:.2g}'):g} s"


def _mark(x: float, y: float, kind: str) -> str:
    """A point in its kind's colour and shape: circle, square, diamond, triangle."""
    at, colour = list(KINDS).index(kind), KINDS[kind]
    style = f'fill="{colour}" fill-opacity="0.55" stroke="{colour}"'
    if at == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" {style}/>'
    if at == 1:
        return f'<rect x="{x - 2.4:.1f}" y="{y - 2.4:.1f}" width="4.8" height="4.8" {style}/>'
    if at == 2:
        corners = f"M{x:.1f} {y - 3.4:.1f}l3.4 3.4l-3.4 3.4l-3.4 -3.4z"
    else:
        corners = f"M{x:.1f} {y - 3.2:.1f}l3.2 5.4h-6.4z"
    return f'<path d="{corners}" {style}/>'


def _panel(dots: Sequence[Dot], left: float, top: float, note: str) -> list[str]:
    """One source: both axes logarithmic over its own range, the diagonal and +-20 % lines."""
    logs = [math.log10(v) for d in dots for v in (d.x, d.y)]
    middle, reach = (min(logs) + max(logs)) / 2.0, max(0.25, max(logs) - min(logs)) / 2.0 + 0.1
    lo, hi = middle - reach, middle + reach
    side = PANEL - 20

    def at(v: float, flip: bool) -> float:
        share = (math.log10(v) - lo) / (hi - lo)
        return top + (1.0 - share) * side if flip else left + share * side

    out = [
        _text(left, top - 8, dots[0].series, weight="600"),
        f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#bbb"/>',
    ]
    out.append(_text(left, top + side + 14, _seconds(10.0**lo)))
    out.append(_text(left + side, top + side + 14, _seconds(10.0**hi), "end"))
    for factor, dash in ((1.0, ""), (1.2, "4 3"), (1 / 1.2, "4 3")):
        shift = math.log10(factor)
        a, b = 10.0 ** (lo + max(0.0, -shift)), 10.0 ** (hi - max(0.0, shift))
        out.append(
            f'<path d="M{at(a, False):.1f} {at(a * factor, True):.1f}'
            f'L{at(b, False):.1f} {at(b * factor, True):.1f}" stroke="#888"'
            f' stroke-dasharray="{dash}" fill="none"/>'
        )
    out += [_mark(at(d.x, False), at(d.y, True), d.kind) for d in dots]
    out.append(_text(left + side - 4, top + side - 6, note, "end"))
    return out


def scatter(dots: Sequence[Dot], notes: Mapping[str, str], title: str) -> str:
    """Predicted against measured: a panel a source with its note, coloured by kind."""
    names = sorted({d.series for d in dots})
    rows = math.ceil(len(names) / COLUMNS)
    width, height = 24 + COLUMNS * (PANEL + 12), 80 + rows * (PANEL + 34)
    out = _head(width, height, title)
    out.append(_text(24, 24, title, weight="600"))
    x = 24.0
    for kind in KINDS:
        out += [_mark(x + 4, 42, kind), _text(x + 14, 46, kind)]
        x += 34 + 6.4 * len(kind)
    for at, name in enumerate(names):
        left = 24.0 + (at % COLUMNS) * (PANEL + 12)
        top = 84.0 + (at // COLUMNS) * (PANEL + 34)
        out += _panel([d for d in dots if d.series == name], left, top, notes[name])
    return "\n".join([*out, "</svg>"]) + "\n"


def bars(rows: Mapping[str, Sequence[float | None]], labels: Sequence[str], title: str) -> str:
    """Groups of horizontal bars, a group a row, fractions printed as per cent."""
    group = 16 * len(labels) + 12
    height = 70 + group * len(rows)
    top = max((v for values in rows.values() for v in values if v is not None), default=1.0)
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
            if value is None:
                out.append(_text(176, y + 16 * i + 11, "too few rows"))
                continue
            w = 480.0 * value / top
            out.append(
                f'<rect x="170" y="{y + 16 * i}" width="{w:.1f}" height="13" fill="{COLOURS[i]}"/>'
            )
            out.append(_text(176 + w, y + 16 * i + 11, f"{100 * value:.1f} %"))
    return "\n".join([*out, "</svg>"]) + "\n"
