"""Thresholds as text of 100 columns and as a page with their charts."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from gangsaw.report import svg, words
from gangsaw.report.charts import SMALL
from gangsaw.report.curves import CURVE_LOOKS, Panel, mark
from gangsaw.report.scorecard import wrapped
from gangsaw.search.answer import ThresholdAnswer
from gangsaw.search.families import FAMILIES
from gangsaw.search.phase import PhaseResult
from gangsaw.search.robust import Robustness, Shock, TierCarries
from gangsaw.search.threshold import ThresholdResult
from gangsaw.units import (
    format_bandwidth,
    format_frac,
    format_gib,
    format_s,
    format_usd,
    significant,
)

SHORT = 5
"""Plans up to which every pair is shown."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FILLS = (
    *(look[0] for look in CURVE_LOOKS), "#72757e", "#aebb4d", "#eb9bb3", "#5fb7c9", "#b58f5a",
    "#9a86c9", "#c9c3ae", "#4f7a5c",
)  # fmt: skip
"""Colours of the plans on a map; a letter stands in each plan's area as well."""


def shown(value: float, unit: str) -> str:
    """A value of a parameter in the unit that reads best."""
    if unit.startswith("bytes/s"):
        return format_bandwidth(value)
    if unit == "bytes":
        return format_gib(value)
    if unit == "FLOP/s":
        return f"{significant(value / 1e12)} TFLOP/s"
    if unit.startswith("USD"):
        return f"${significant(value)}{unit[3:]}"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{significant(value)} {unit}"


def _objective(objective: str) -> Callable[[float], str]:
    """How an objective a million tokens is written."""
    return format_s if objective == "time" else format_usd


_MEMORY = {"risky": "; may not fit in memory", "no": "; does NOT fit in memory"}
"""What is said of a plan that does not surely fit."""


def plans_text(answer: ThresholdAnswer) -> str:
    """What each name stands for."""
    out = []
    for name, plan in answer.plans.items():
        there = answer.clusters.get(name)
        on = f" on {there}" if there else ""
        memory = _MEMORY.get(answer.fits.get(name, "yes"), "")
        out += wrapped(f"{name}: {words.in_words(plan)}{on}{memory}", "")
    return "\n".join(out)


def best_text(answer: ThresholdAnswer) -> str:
    """Which plan of the list is best where along the range."""
    r = answer.pairs[0]
    out = [f"best of the list over {r.parameter}, by {r.objective} a million tokens:"]
    for s in answer.best:
        span = f"{shown(s.low, r.unit)} to {shown(s.high, r.unit)}"
        out.append(f"  {span:<44}  {s.plan or 'none is legal and fits'}")
    return "\n".join(out)


def pairs_shown(answer: ThresholdAnswer) -> tuple[ThresholdResult, ...]:
    """All pairs of a short list; of a long one those of winners in the range and best of a kind."""
    if len(answer.plans) <= SHORT:
        return answer.pairs
    main = {s.plan for s in answer.best} | set(FAMILIES)
    return tuple(r for r in answer.pairs if main.issuperset(r.plans))


def pairs_text(answer: ThresholdAnswer) -> str:
    """Every pair that crosses, with its crossings; the others in a line each."""
    some = pairs_shown(answer)
    parts = [pair_text(r) for r in some if r.crossings or len(some) == 1]
    calm = [r for r in some if not r.crossings]
    if len(some) > 1 and calm:
        rows = [f"  {r.better_throughout} before {_other(r)}" for r in calm]
        parts.append("\n".join(["no crossing in the range:", *rows]))
    if len(some) < len(answer.pairs):
        parts.append(f"{len(answer.pairs) - len(some)} more pairs: in --json")
    return "\n\n".join(parts)


def _other(r: ThresholdResult) -> str:
    """The plan of a pair that is not better throughout."""
    return r.plans[0] if r.better_throughout == r.plans[1] else r.plans[1]


def _better(r: ThresholdResult) -> str:
    """What being better means: the objective alone, whether or not a plan fits."""
    return "faster" if r.objective == "time" else "cheaper"


def pair_text(r: ThresholdResult) -> str:
    """The crossings of one pair of plans."""
    write = _objective(r.objective)
    what = f"{r.objective} a million tokens"
    out = [
        f"{r.plans[0]} against {r.plans[1]} over {r.parameter}, by {what}",
        f"  from {shown(r.low, r.unit)} to {shown(r.high, r.unit)}"
        + (f"; now {shown(r.now, r.unit)}" if r.now else ""),
    ]
    if r.better_throughout:
        out.append(f"  no crossing: {r.better_throughout} is {_better(r)} throughout")
    for c in r.crossings:
        times = f" ({significant(c.value / r.now)} x now)" if r.now else ""
        out += wrapped(
            f"{shown(c.value, r.unit)}{times}: below it {c.better_below},"
            f" above it {c.better_above}; {write(c.objective)} there"
            + (" (a step between whole values)" if c.kind == "jump" else ""),
            "  ",
        )
    for f in r.fit_limits:
        out.append(
            f"  {f.plan} fits at {shown(f.fits_at, r.unit)}, not at {shown(f.fails_at, r.unit)}"
        )
    return "\n".join(out)


def phase_text(p: PhaseResult, columns: int = 60, rows: int = 20) -> str:
    """The map in letters: x to the right, y upwards; `.` where no plan is legal and fits."""
    out = [f"best by {p.objective}: {p.x} to the right, {p.y} upwards"]
    out += [f"  {LETTERS[i]}  {n}: {format_frac(p.share[i])}" for i, n in enumerate(p.plans)]
    xs = _picked(len(p.x_values), columns)
    for i in reversed(_picked(len(p.y_values), rows)):
        row = "".join(LETTERS[w] if (w := p.winner[i][j]) >= 0 else "." for j in xs)
        out.append(f"  {shown(p.y_values[i], p.y_unit):>20} |{row}")
    low, high = (shown(v, p.x_unit) for v in (p.x_values[0], p.x_values[-1]))
    out.append(f"  {'':>20}  {low:<{max(1, len(xs) - len(high))}}{high}")
    return "\n".join(out)


def _picked(count: int, most: int) -> list[int]:
    """At most `most` indices spread evenly over `count`."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def robust_text(r: Robustness) -> str:
    """Shares of draws, and what decides between the two best."""
    out = [f"every input moved within its doubt, {r.draws} draws; share in which each plan wins:"]
    out += [f"  {n:<40}{format_frac(w):>9}" for n, w in zip(r.plans, r.win_frac, strict=True)]
    out.append(f"what decides between {r.pair[0]} and {r.pair[1]} (Sobol: alone, in all):")
    out += [
        f"  {x.name:<28}{format_frac(max(0.0, x.first_order)):>9}{format_frac(x.total):>9}"
        f"   doubt {format_frac(x.sigma)}"
        for x in r.influences
        if x.total > 0.005
    ]
    return "\n".join(out)


def shocks_text(rows: tuple[Shock, ...]) -> str:
    """The best plan after each shock."""
    out = ["after a shock, by money a million tokens:"]
    for s in rows:
        best = f"{s.order[0]} at {format_usd(s.objective[0])}" if s.order else "no plan is legal"
        if s.fits and s.fits[0] != "yes":
            best += " (may not fit)" if s.fits[0] == "risky" else " (none fits)"
        out.append(f"  {s.name:<44}{best}{'  (another plan)' if s.best_changes else ''}")
    return "\n".join(out)


def tiers_text(rows: tuple[TierCarries, ...]) -> str:
    """Bandwidth over compute of each tier, and the tensor-parallel degree it carries."""
    out = ["tier: link over compute, exposed TP communication over a layer's compute by degree:"]
    for t in rows:
        ratios = ", ".join(f"{d}: {significant(r)}" for d, r in [*t.comm_over_compute.items()][:4])
        out.append(
            f"  {t.tier:<8}{format_bandwidth(t.bytes_per_s):>10}"
            f"{significant(t.bytes_per_flop * 1e3):>9} B/kFLOP  carries TP {t.largest_tp}"
            f"  ({ratios or 'no group'})"
        )
    return "\n".join(out)


def answer_text(answer: ThresholdAnswer) -> str:
    """All parts of the answer."""
    parts = [plans_text(answer)]
    parts += ["\n".join(wrapped(note, "")) for note in answer.notes]
    parts += [best_text(answer), pairs_text(answer)]
    if answer.phase is not None:
        parts.append(phase_text(answer.phase))
    if answer.robustness is not None:
        parts.append(robust_text(answer.robustness))
    if answer.shocks:
        parts.append(shocks_text(answer.shocks))
    if answer.tiers:
        parts.append(tiers_text(answer.tiers))
    return "\n\n".join(parts)


def pair_svg(r: ThresholdResult, width: float = 640.0) -> str:
    """Both objectives over the parameter; present value and crossings marked."""
    legal = [p for p in r.curve if None not in p.objective]
    every = [v for p in legal for v in p.objective if v is not None]
    top = max(every)
    panel = Panel(58.0, 24.0, width - 76.0, 230.0, (r.low, r.high), (0.0, 1.06 * top))
    base = panel.top + panel.height
    write = _objective(r.objective)
    body = []
    for tick in svg.linear_ticks(0.0, 1.06 * top):
        y = panel.y(tick)
        body.append(svg.line((panel.left, y), (panel.left + panel.width, y)))
        body.append(svg.text((panel.left - 6, y + 4), write(tick), "end", svg.MUTED, SMALL))
    for tick in svg.log_ticks(r.low, r.high)[:: max(1, len(svg.log_ticks(r.low, r.high)) // 6)]:
        x = panel.x(tick)
        body.append(svg.line((x, base), (x, base + 4), svg.MUTED))
        body.append(svg.text((x, base + 16), shown(tick, r.unit), "middle", svg.MUTED, SMALL))
    if r.low <= r.now <= r.high:
        x = panel.x(r.now)
        body.append(svg.line((x, panel.top), (x, base), svg.ACCENT, 'stroke-dasharray="3 3"'))
        body.append(svg.text((x + 5, panel.top + 9), "now", fill=svg.ACCENT, extra=SMALL))
    for k, (colour, dash, shape) in zip(range(2), CURVE_LOOKS, strict=False):
        at = [(panel.x(p.value), panel.y(p.objective[k] or 0.0)) for p in legal]
        body.append(svg.polyline(at, colour, f'stroke-width="2" {dash}'))
        for i in range(0, len(at), max(1, len(at) // 6)):
            title = f"{r.plans[k]}: {write(legal[i].objective[k] or 0.0)}"
            body.append(mark(shape, at[i], colour, escape(title), False))
    for c in r.crossings:
        x, y = panel.x(c.value), panel.y(c.objective)
        ring = f'<circle cx="{svg.num(x)}" cy="{svg.num(y)}" r="8" fill="none"'
        body.append(f'{ring} stroke="{svg.INK}" stroke-width="1.5"/>')
        body.append(svg.text((x + 11, y - 10), shown(c.value, r.unit), extra=SMALL))
    entries = [(CURVE_LOOKS[k][0], "", r.plans[k]) for k in range(2)]
    drawn, used = svg.legend(entries, 0, base + 28, width)
    label = f"{r.objective} a million tokens of two plans over {r.parameter}"
    return svg.document((width, base + 28 + used), label, "".join(body) + drawn)


def phase_svg(p: PhaseResult, width: float = 640.0) -> str:
    """The map of winners: one cell a pair of values, a letter in each plan's largest run."""
    left, top, height = 112.0, 10.0, 320.0
    w, h = (width - left - 8) / len(p.x_values), height / len(p.y_values)
    fills = FILLS
    body = []
    for i, row in enumerate(p.winner):
        y = top + height - (i + 1) * h
        start = 0
        for j in range(1, len(row) + 1):
            if j < len(row) and row[j] == row[start]:
                continue
            fill = fills[row[start] % len(fills)] if row[start] >= 0 else svg.SURFACE
            body.append(svg.rect((left + start * w, y, (j - start) * w + 0.3, h + 0.3), fill))
            start = j
    for i, (up, across) in _middles(p).items():
        middle = (left + (across + 0.5) * w, top + height - (up + 0.5) * h + 4)
        body.append(svg.text(middle, LETTERS[i], "middle", svg.INK, 'font-weight="600"'))
    for at, anchor in ((0, "start"), (len(p.x_values) - 1, "end")):
        x = left + (at + 0.5) * w
        said = shown(p.x_values[at], p.x_unit)
        body.append(svg.text((x, top + height + 15), said, anchor, svg.MUTED, SMALL))
    for at in (0, len(p.y_values) - 1):
        y = top + height - (at + 0.5) * h + 4
        said = shown(p.y_values[at], p.y_unit)
        body.append(svg.text((left - 6, y), said, "end", svg.MUTED, SMALL))
    body.append(svg.text((left, top + height + 31), f"{p.x} (across), {p.y} (up)", extra=SMALL))
    entries = [
        (fills[i % len(fills)], "", f"{LETTERS[i]} {n} {format_frac(p.share[i])}")
        for i, n in enumerate(p.plans)
    ]
    drawn, used = svg.legend(entries, 0, top + height + 42, width)
    label = f"best plan by {p.objective} over {p.x} and {p.y}"
    return svg.document((width, top + height + 42 + used), label, "".join(body) + drawn)


def _middles(p: PhaseResult) -> dict[int, tuple[int, int]]:
    """Row and column for each plan's letter: the middle of its longest run in the middle rows."""
    best: dict[int, tuple[int, int, int]] = {}
    for i, row in enumerate(p.winner):
        start = 0
        for j in range(1, len(row) + 1):
            if j < len(row) and row[j] == row[start]:
                continue
            length = j - start
            if row[start] >= 0 and length > best.get(row[start], (0, 0, 0))[0]:
                best[row[start]] = (length, i, (start + j - 1) // 2)
            start = j
    return {k: (i, j) for k, (length, i, j) in best.items() if length > 1}


_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;"
    "color-scheme:light dark}pre{overflow:auto}svg{max-width:100%;height:auto}"
)


def answer_html(answer: ThresholdAnswer) -> str:
    """A page that opens offline: each pair's chart, the map, and the text as the table behind."""
    title = f"Thresholds of {answer.model} on {answer.cluster}"
    some = pairs_shown(answer)
    body = f"<pre>{escape(plans_text(answer))}</pre>"
    body += "".join(f"<p>{escape(note)}</p>" for note in answer.notes)
    body += f"<h2>Best of the list</h2><pre>{escape(best_text(answer))}</pre>"
    body += "".join(
        f"<h2>{escape(r.plans[0])} and {escape(r.plans[1])}</h2>{pair_svg(r)}"
        f"<pre>{escape(pair_text(r))}</pre>"
        for r in some
        if r.crossings or len(some) == 1
    )
    calm = [f"{r.better_throughout} before {_other(r)}" for r in some if not r.crossings]
    if calm and len(some) > 1:
        rows = "".join(f"<li>{escape(x)}</li>" for x in calm)
        body += f"<h2>Pairs without a crossing</h2><ul>{rows}</ul>"
    if answer.phase is not None:
        body += f"<h2>Which plan wins where</h2>{phase_svg(answer.phase)}"
        body += f"<pre>{escape(phase_text(answer.phase))}</pre>"
    rest = []
    if answer.robustness is not None:
        rest.append(robust_text(answer.robustness))
    if answer.shocks:
        rest.append(shocks_text(answer.shocks))
    rest.append(tiers_text(answer.tiers))
    body += "".join(f"<pre>{escape(part)}</pre>" for part in rest)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )
