"""The invoice as text of 100 columns, as an HTML fragment and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape

from gangsaw.bill.answer import BillAnswer
from gangsaw.bill.compare import Comparison
from gangsaw.bill.spread import MoneySpan
from gangsaw.report.charts import memory_svg
from gangsaw.report.colours import CAUSE_COLOURS, HATCHED
from gangsaw.report.words import CAUSE_TITLES
from gangsaw.spec.invoice import Invoice
from gangsaw.spec.result import IDLE_CAUSES, MemoryDoc
from gangsaw.units import HOUR_S, format_frac, format_gib, format_s, format_usd, significant

WORDS = {**CAUSE_TITLES, "services": "services"}
"""A cause as a reader says it."""
_SERVICE_COLOUR = "#444444"


class InvoiceRow:
    """One printed row: a cause (or a service) with its hours, its money by kind, its share."""

    def __init__(self, label: str, cause: str, idle: bool) -> None:
        self.label, self.cause, self.idle = label, cause, idle
        self.device_h = self.capital_usd = self.operating_usd = 0.0

    @property
    def usd(self) -> float:
        """Money of the row."""
        return self.capital_usd + self.operating_usd


def invoice_rows(invoice: Invoice) -> list[InvoiceRow]:
    """Rows by cause: useful work first, then idle time, then services; dearest first in each."""
    rows: dict[str, InvoiceRow] = {}
    for line in invoice.lines:
        service = line.phase == "services"
        name = line.item if service else line.cause
        if name not in rows:
            rows[name] = InvoiceRow(WORDS.get(name, name), line.cause, line.cause in IDLE_CAUSES)
        row = rows[name]
        row.device_h += line.device_s / HOUR_S
        if line.spending == "capital":
            row.capital_usd += line.usd
        else:
            row.operating_usd += line.usd
    order = {"services": 2}
    return sorted(
        rows.values(),
        key=lambda r: (order.get(r.cause, 1 if r.idle else 0), -r.usd, -r.device_h),
    )


def _headline(invoice: Invoice) -> list[str]:
    """Title, total, idle total, and what it is per."""
    idle_h = invoice.idle_device_s / HOUR_S
    idle_usd = sum(x.usd for x in invoice.lines if x.cause in IDLE_CAUSES)
    return [
        f"{invoice.title}: {invoice.basis}, {invoice.devices:,} devices x"
        f" {format_s(invoice.wall_s)}, {invoice.offer}",
        f"total {format_usd(invoice.usd)}, {significant(invoice.device_s / HOUR_S)} device-hours"
        f" ({format_usd(invoice.usd_per_million_tokens)} a million tokens)",
        f"idle  {format_usd(idle_usd)}, {significant(idle_h)} device-hours"
        f" ({format_frac(invoice.idle_frac)})",
    ]


def invoice_text(invoice: Invoice, color: bool = False) -> str:
    """The invoice in at most 100 columns; `color` uses block characters for the bars."""
    rows = invoice_rows(invoice)
    widest = max((r.usd for r in rows), default=0.0) or 1.0
    full = "█" if color else "#"
    head = f"{'':31}{'device-hours':>13}{'capital':>12}{'operating':>12}{'share':>8}"
    out = [*_headline(invoice), "", head]
    group = None
    for row in rows:
        kind = "services" if row.cause == "services" else "idle" if row.idle else "work"
        if kind != group:
            out.append(kind)
            group = kind
        share = row.usd / invoice.usd if invoice.usd else 0.0
        bar = full * round(20 * row.usd / widest)
        hours = significant(row.device_h) if row.device_h else "-"
        out.append(
            f"  {row.label:29}{hours:>13}{_money(row.capital_usd):>12}"
            f"{_money(row.operating_usd):>12}{format_frac(share):>8} {bar}".rstrip()
        )
    kinds = invoice.totals("spending")
    out.append(
        f"{'total':31}{significant(invoice.device_s / HOUR_S):>13}"
        f"{_money(kinds.get('capital', (0.0, 0.0))[1]):>12}"
        f"{_money(kinds.get('operating', (0.0, 0.0))[1]):>12}{'100.0 %':>8}"
    )
    notes = [part for line in _footnotes(invoice) for part in _wrapped(line)]
    return "\n".join([*out, *notes])


def _money(usd: float) -> str:
    """Money, or a dash where there is none."""
    return format_usd(usd) if usd else "-"


def _footnotes(invoice: Invoice) -> list[str]:
    """Phases, tiers, what is not billed, old figures."""
    out = [""]
    phases = invoice.totals("phase")
    if len(phases) > 1:
        parts = (f"{name} {format_usd(usd)}" for name, (_, usd) in phases.items())
        out.append("by phase: " + ", ".join(parts))
    stages = {k: v for k, v in invoice.totals("stage").items() if k != "all"}
    if stages:
        out += _stage_lines(invoice)
    tiers = {t: s for t, (s, _) in invoice.totals("tier").items() if t != "device" and s > 0}
    if tiers:
        parts = (f"{t} {significant(s / HOUR_S)} device-hours" for t, s in tiers.items())
        out.append("exposed communication by tier: " + ", ".join(parts))
    out += list(invoice.notes)
    if invoice.not_billed:
        out.append("not on this bill: " + "; ".join(invoice.not_billed))
    if invoice.stale:
        out.append("figures older than a year: " + ", ".join(invoice.stale))
    return out


def _stage_lines(invoice: Invoice) -> list[str]:
    """Device-hours and idle share of each stage: which one waits."""
    busy: dict[str, float] = {}
    idle: dict[str, float] = {}
    for line in invoice.lines:
        share = idle if line.cause in IDLE_CAUSES else busy
        share[line.stage] = share.get(line.stage, 0.0) + line.device_s
    names = sorted((s for s in {*busy, *idle} if s != "all"), key=lambda s: (len(s), s))
    parts = []
    for name in names:
        total = busy.get(name, 0.0) + idle.get(name, 0.0)
        parts.append(f"{name} {format_frac(idle.get(name, 0.0) / total if total else 0.0)}")
    return ["idle share by stage: " + ", ".join(parts)]


def _wrapped(line: str, width: int = 100) -> list[str]:
    """A line broken at spaces to at most `width` columns."""
    words, out = line.split(" "), [""]
    for word in words:
        if out[-1] and len(out[-1]) + 1 + len(word) > width:
            out.append("  " + word)
        else:
            out[-1] = f"{out[-1]} {word}" if out[-1] else word
    return out


def invoice_csv(invoice: Invoice, line_usd: Sequence[tuple[float, float | None]] = ()) -> str:
    """Every line with all its tags, full precision; a spreadsheet's sums equal the totals.

    `line_usd`: each line with all figures at their cheaper and dearer end, as two more columns.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["phase", "cause", "stage", "tier", "item", "spending", "device_s", "device_h", "usd"]
    writer.writerow(head + (["usd_low", "usd_high"] if line_usd else []))
    for i, x in enumerate(invoice.lines):
        ends = ["" if u is None else repr(u) for u in line_usd[i]] if line_usd else []
        writer.writerow(
            [x.phase, x.cause, x.stage, x.tier, x.item, x.spending, repr(x.device_s),
             repr(x.device_s / HOUR_S), repr(x.usd), *ends]
        )  # fmt: skip
    return out.getvalue()


def invoice_html(invoice: Invoice) -> str:
    """The invoice as an HTML fragment: a table with a thin bar a row; styles stand inline."""
    rows = invoice_rows(invoice)
    widest = max((r.usd for r in rows), default=0.0) or 1.0
    cells = []
    for row in rows:
        share = row.usd / invoice.usd if invoice.usd else 0.0
        color = CAUSE_COLOURS.get(row.cause, _SERVICE_COLOUR)
        hatch = (
            f"background:repeating-linear-gradient(45deg,{color} 0 3px,#fff 3px 6px)"
            if row.cause in HATCHED
            else f"background:{color}"
        )
        bar = (
            f'<span style="display:inline-block;height:.6em;border:1px solid #888;{hatch};'
            f'width:{100 * row.usd / widest:.1f}%"></span>'
        )
        kind = "idle" if row.idle else "services" if row.cause == "services" else "work"
        cells.append(
            f'<tr class="{kind}"><th scope="row">{escape(row.label)}</th>'
            f"<td>{significant(row.device_h) if row.device_h else '-'}</td>"
            f"<td>{_money(row.capital_usd)}</td><td>{_money(row.operating_usd)}</td>"
            f'<td>{format_frac(share)}</td><td class="bar">{bar}</td></tr>'
        )
    title, total, idle = (escape(x) for x in _headline(invoice))
    notes = "".join(f"<li>{escape(x)}</li>" for x in _footnotes(invoice) if x)
    return (
        f'<section class="invoice"><h2>{title}</h2>'
        f'<p class="total">{total}</p><p class="idle-total">{idle}</p>'
        '<div class="wide"><table><thead><tr><th scope="col">cause</th>'
        '<th scope="col">device-hours</th>'
        '<th scope="col">capital</th><th scope="col">operating</th><th scope="col">share</th>'
        f'<th scope="col"></th></tr></thead><tbody>{"".join(cells)}</tbody></table></div>'
        f'<ul class="notes">{notes}</ul></section>'
    )


def _dearer(usd: float) -> str:
    """Which of two bills is dearer; below a cent neither is."""
    if abs(usd) < 0.005:
        return "B costs what A costs"
    return f"B costs {format_usd(abs(usd))} {'more' if usd > 0 else 'less'} than A"


def comparison_text(c: Comparison) -> str:
    """Two bills side by side; each line says how much of it is time and how much price."""
    head = f"{'':32}{'A':>11}{'B':>11}{'B - A':>11}{'of it time':>12}{'price':>11}"
    out = [
        f"A  {c.title_a}",
        f"B  {c.title_b}",
        f"{_dearer(c.usd)}"
        f" ({format_usd(c.usd_b)} against {format_usd(c.usd_a)};"
        f" {significant(c.device_h_b)} against {significant(c.device_h_a)} device-hours;"
        f" {format_s(c.wall_s_b)} against {format_s(c.wall_s_a)})",
    ]
    if not math.isclose(c.tokens_a, c.tokens_b, rel_tol=1e-9):
        per_b, per_a = (u / t * 1e6 for u, t in ((c.usd_b, c.tokens_b), (c.usd_a, c.tokens_a)))
        out.append(
            f"B trains {significant(c.tokens_b / 1e9)} billion tokens for it, A"
            f" {significant(c.tokens_a / 1e9)}: {format_usd(per_b)} against {format_usd(per_a)} a"
            " million tokens"
        )
    out = [*(part for line in out for part in _wrapped(line)), "", head]
    for x in c.lines:
        label = WORDS.get(x.cause, x.cause)
        label = label if x.phase == "training" else f"{x.phase}: {label}"
        out.append(
            f"{label[:31]:32}{_money(x.usd_a):>11}{_money(x.usd_b):>11}{_signed(x.usd):>11}"
            f"{_signed(x.time_usd):>12}{_signed(x.price_usd):>11}"
        )
    out.append(
        f"{'total':32}{_money(c.usd_a):>11}{_money(c.usd_b):>11}{_signed(c.usd):>11}"
        f"{_signed(sum(x.time_usd for x in c.lines)):>12}"
        f"{_signed(sum(x.price_usd for x in c.lines)):>11}"
    )
    return "\n".join(out)


def _signed(usd: float) -> str:
    """Money with its sign; a dash under a hundredth of a cent."""
    if abs(usd) < 1e-4:
        return "-"
    return ("+" if usd > 0 else "-") + format_usd(abs(usd))


def memory_text(memory: MemoryDoc, color: bool = False, width: int = 44) -> str:
    """The memory chart that stands beside every bill: one bar a stage against capacity."""
    parts = (
        ("params_bytes", "p"), ("grads_bytes", "g"), ("optimizer_bytes", "o"),
        ("activations_bytes", "a"), ("logits_bytes", "l"), ("buffers_bytes", "b"),
    )  # fmt: skip
    shades = {"p": "█", "g": "▓", "o": "▒", "a": "░", "l": "■", "b": "▪"} if color else {}
    out = [
        f"memory: peak {format_gib(memory.peak_bytes)} of {format_gib(memory.capacity_bytes)},"
        f" headroom {format_frac(memory.headroom_frac)}, fits: {memory.fits}",
        "p parameters  g gradients  o optimizer  a activations  l logits  b buffers  . reserved",
    ]
    for stage in memory.per_stage:
        bar = ""
        for name, letter in parts:
            cells = round(width * getattr(stage, name) / memory.capacity_bytes)
            bar += shades.get(letter, letter) * cells
        peak = round(width * stage.peak_device_bytes / memory.capacity_bytes)
        bar = bar + "." * max(0, peak - len(bar))
        out.append(f"stage {stage.stage:>3} |{bar:<{width}}| {format_gib(stage.peak_device_bytes)}")
    return "\n".join(out)


def side_lines(answer: BillAnswer) -> list[str]:
    """Energy and carbon, and what recovered idle time is worth."""
    last, lines = answer.invoices[-1], []
    if answer.energy is not None:
        e = answer.energy
        lines.append(
            f"energy of the {last.basis}: {significant(e.kwh)} kWh at the meter,"
            f" {format_usd(e.usd)}, {significant(e.kg_co2 / 1e3)} t CO2"
        )
        if e.stale:
            lines.append(f"of its figures, older than a year: {', '.join(e.stale)}")
    w = answer.worth
    if w is not None and w.job.usd:
        said = (
            f"{significant(100 * w.points_frac)} points less idle are worth"
            f" {format_usd(w.job.usd)} of the {last.basis} ({significant(w.job.device_hours)}"
            f" device-hours), {format_usd(w.cluster_usd_per_year)} a year of the cluster"
        )
        if w.fleet_usd_per_year is not None:
            said += f", {format_usd(w.fleet_usd_per_year)} a year of {w.fleet_devices:,} devices"
        lines.append(said)
    if answer.span is not None:
        lines += span_lines(answer.span)
    return lines


SHOWN_SPANS = 5
"""Ranges that are listed, widest first; all are in the JSON."""


def _end(usd: float | None) -> str:
    """Money at the end of a range."""
    return "no end of the run" if usd is None else format_usd(usd)


def span_lines(span: MoneySpan) -> list[str]:
    """Money within the ranges that sources give, and which of them move it most."""
    lines = [
        f"within the stated ranges of its figures: {format_usd(span.usd_low)} to"
        f" {_end(span.usd_high)}, if all lie at one end"
    ]
    for f in span.figures[:SHOWN_SPANS]:
        lines.append(
            f"{f.key} {significant(f.low)} to {significant(f.high)} {f.unit}:"
            f" {_end(f.usd_at_low)} to {_end(f.usd_at_high)}"
        )
    if len(span.figures) > SHOWN_SPANS:
        lines.append(f"{len(span.figures) - SHOWN_SPANS} more ranges move less: --json")
    return lines


def answer_text(answer: BillAnswer, color: bool = False) -> str:
    """All invoices of an answer, the memory chart beside them, energy, and the comparison."""
    last = answer.invoices[-1]
    parts = [invoice_text(last, color)]
    others = [
        f"{inv.basis:<16}{format_usd(inv.usd):>12}"
        f"{significant(inv.device_s / HOUR_S):>16} device-hours, {format_s(inv.wall_s)}"
        for inv in answer.invoices
    ]
    if len(others) > 1:
        parts.append("\n".join(others))
    if answer.memory is not None:
        parts.append(memory_text(answer.memory, color))
    lines = [part for line in side_lines(answer) for part in _wrapped(line)]
    if lines:
        parts.append("\n".join(lines))
    if answer.comparison is not None:
        parts.append(comparison_text(answer.comparison))
    return "\n\n".join(parts)


_PAGE_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;"
    "color-scheme:light dark}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.15em .6em;text-align:right;font-variant-numeric:tabular-nums}"
    "td{white-space:nowrap}th[scope=row],th:first-child,td.bar{text-align:left}td.bar{width:30%}"
    ".total{font-size:1.6em;margin:.2em 0}"
    ".idle-total{font-size:1.3em;margin:.2em 0}tr.idle th{font-style:italic}"
    "pre,.wide{overflow-x:auto}.both{display:flex;flex-wrap:wrap;gap:2em}"
    ".both>section{flex:1 1 min(34em,100%);min-width:0}"
    ".both>svg{flex:1 1 min(24em,100%);max-width:30em;height:auto;align-self:flex-start}"
)


def answer_html(answer: BillAnswer, more: str = "") -> str:
    """A page that opens offline: memory left, the last invoice right, the rest, and `more`."""
    *rest, last = answer.invoices
    memory = memory_svg(answer.memory, 480.0, "bill-memory") if answer.memory else ""
    side = "".join(f"<li>{escape(line)}</li>" for line in side_lines(answer))
    below = f"<ul>{side}</ul>" + "".join(invoice_html(x) for x in reversed(rest))
    if answer.comparison is not None:
        below += f"<h2>Two plans</h2><pre>{escape(comparison_text(answer.comparison))}</pre>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Bill: {escape(answer.title)}</title><style>{_PAGE_STYLE}</style></head><body>"
        f'<div class="both">{memory}{invoice_html(last)}</div>{below}{more}</body></html>\n'
    )
