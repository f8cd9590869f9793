"""Small pieces of SVG, and the scales of axes. Colours are theme variables with a light default.

A chart is drawn at a fixed width in pixels, so that text has its true size; pages carry a wide
and a narrow drawing and show the one that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

INK = "var(--ink,#1b222c)"
MUTED = "var(--muted,#5b6675)"
LINE = "var(--line,#d5dae1)"
SURFACE = "var(--surface,#ffffff)"
ACCENT = "var(--accent,#b4231f)"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


def num(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(
    box: tuple[float, float, float, float], fill: str, title: str = "", extra: str = ""
) -> str:
    """A rectangle (x, y, width, height) with a tooltip."""
    x, y, w, h = (num(v) for v in box)
    inner = f"<title>{escape(title)}</title>" if title else ""
    more = f" {extra}" if extra else ""
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}"{more}>{inner}</rect>'


def line(
    a: tuple[float, float], b: tuple[float, float], stroke: str = LINE, extra: str = ""
) -> str:
    """A straight line from a to b."""
    more = f" {extra}" if extra else ""
    return (
        f'<line x1="{num(a[0])}" y1="{num(a[1])}" x2="{num(b[0])}" y2="{num(b[1])}"'
        f' stroke="{stroke}"{more}/>'
    )


def text(
    at: tuple[float, float], words: str, anchor: str = "start", fill: str = INK, extra: str = ""
) -> str:
    """A line of text whose baseline is at `at`."""
    more = f" {extra}" if extra else ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text x="{num(at[0])}" y="{num(at[1])}"{side} fill="{fill}"{more}>{escape(words)}</text>'
    )


HALO = f'paint-order="stroke" stroke="{SURFACE}" stroke-width="3" stroke-linejoin="round"'
"""For text that stands over lines: a rim of background."""


def polyline(points: Sequence[tuple[float, float]], stroke: str, extra: str = "") -> str:
    """An open line through points."""
    where = " ".join(f"{num(x)},{num(y)}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{stroke}" {extra}/>'


def hatch(name: str, colour: str, back: str = "none") -> str:
    """A pattern of diagonal lines, to be used as `url(#name)`."""
    return (
        f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse"'
        f' patternTransform="rotate(45)"><rect width="5" height="5" fill="{back}"/>'
        f'<rect width="2" height="5" fill="{colour}"/></pattern>'
    )


def document(size: tuple[float, float], label: str, body: str, defs: str = "") -> str:
    """A whole SVG of a size in pixels; `label` is what a screen reader says."""
    w, h = num(size[0]), num(size[1])
    inner = f"<defs>{defs}</defs>" if defs else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
        f' role="img" aria-label="{escape(label)}" font-family="{FONT}" font-size="12"'
        f' style="font-variant-numeric:tabular-nums">{inner}{body}</svg>'
    )


def text_width(words: str, size: float = 12.0) -> float:
    """Rough width of text in pixels; errs on the wide side."""
    narrow = sum(words.count(c) for c in " .,:;il|()'")
    return size * (0.63 * (len(words) - narrow) + 0.36 * narrow)


def linear_ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Round values within [low, high], about `count` of them."""
    if not high > low:
        return (low,)
    raw = (high - low) / max(1, count)
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if base * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(step * k for k in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5 x 10^k within [low, high]."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [k * 10.0**power for k in (1, 2, 5)]
    return tuple(v for v in found if low * 0.999 <= v <= high * 1.001)


def legend(
    entries: Sequence[tuple[str, str, str]], left: float, top: float, width: float
) -> tuple[str, float]:
    """Swatches (fill, extra, title) in rows within `width`; the SVG, and the height used."""
    out, x, y = [], left, top
    for fill, extra, title in entries:
        need = 16 + text_width(title, 11) + 12
        if x > left and x + need > left + width:
            x, y = left, y + 17
        out.append(rect((x, y, 10, 10), fill, extra=extra))
        out.append(text((x + 15, y + 9), title, fill=MUTED, extra='font-size="11"'))
        x += need
    return "".join(out), y - top + 17
