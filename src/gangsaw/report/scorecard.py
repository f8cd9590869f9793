"""The scorecard as text of 100 columns and as a page for the people who sign."""

from __future__ import annotations

from html import escape

from gangsaw.report import words
from gangsaw.search.families import FAMILIES
from gangsaw.search.scorecard import MOST_IS_BEST, Cell, Column, Scorecard
from gangsaw.units import format_bandwidth, format_frac, format_s, format_usd, significant

TITLES = {
    "pipeline": "pure pipeline",
    "tensor": "pure tensor",
    "sharded": "sharded data",
    "hybrid": "hybrid",
}


def cell_value(cell: Cell) -> str:
    """The number of a cell in the unit that reads best."""
    if cell.value is None:
        return "no price" if cell.unit.startswith("USD") else "-"
    if cell.unit.startswith("bytes/s"):
        return format_bandwidth(cell.value)
    if cell.unit.startswith("USD"):
        return format_usd(cell.value)
    if cell.unit == "step time, share":
        return f"+-{format_frac(cell.value)}"
    return significant(cell.value)


def _row_unit(cells: dict[str, Cell]) -> str:
    """What the numbers of a row are per."""
    unit = next(iter(cells.values())).unit
    if unit.startswith("USD "):
        return unit[4:]
    return "a device" if unit.startswith("bytes/s") else unit


def plan_line(column: Column) -> str:
    """The plan of a column in words, or why there is none."""
    if column.plan is None or column.step_time_s is None or column.mfu_frac is None:
        return f"{column.note} ({column.tried:,} plans timed)"
    note = f"; {column.note}" if column.note else ""
    return (
        f"{words.in_words(column.plan)}; step {format_s(column.step_time_s)},"
        f" MFU {format_frac(column.mfu_frac)} ({column.tried:,} plans timed)" + note
    )


def verdict(card: Scorecard) -> str:
    """Which kind of plan is best in which rows: what a reader decides between."""
    leads: dict[str, list[str]] = {}
    for name, cells in card.rows.items():
        known = {f: c.value for f, c in cells.items() if c.value is not None}
        if len(known) < 2:
            continue
        best = max(known.values()) if name == MOST_IS_BEST else min(known.values())
        ahead = [TITLES[f] for f in FAMILIES if f in known and known[f] == best]
        leads.setdefault(" and ".join(ahead), []).append(name)
    parts = [f"{who} in {', '.join(rows)}" for who, rows in leads.items()]
    return f"Best: {'; '.join(parts)}." if parts else "No two kinds of plan to compare."


def scorecard_text(card: Scorecard) -> str:
    """Plans, then a row a metric: number, grade, and the article's grade behind the slash."""
    out = [f"Scorecard of {card.model} on {card.cluster}: the fastest plan of each kind that fits"]
    out += wrapped(verdict(card), "")
    for c in card.columns:
        out += wrapped(f"{TITLES[c.family]}: {plan_line(c)}", "  ")
    out += ["", f"{'':26}" + "".join(f"{TITLES[f]:>18}" for f in FAMILIES)]
    for name, cells in card.rows.items():
        out.append(
            f"{name[:26]:<26}"
            + "".join(f"{cell_value(cells[f]) if f in cells else '-':>18}" for f in FAMILIES)
        )
        out.append(
            f"{'  ' + _row_unit(cells):<26}"
            + "".join(f"{_grades(cells[f]) if f in cells else '':>18}" for f in FAMILIES)
        )
    out += ["", "grade/the article's grade; how each number came about:"]
    for name, cells in card.rows.items():
        for f in FAMILIES:
            if f in cells:
                said = f"{name}, {TITLES[f]}: {cells[f].derivation}"
                said += f". Against the article: {cells[f].why}" if cells[f].why else ""
                out += wrapped(said, "  ")
    for note in card.notes:
        out += wrapped(note, "")
    return "\n".join(out)


def _grades(cell: Cell) -> str:
    """Our grade, and the article's where it has one."""
    grade = cell.grade or "-"
    return f"{grade}/{cell.article}" if cell.article else grade


def wrapped(text: str, indent: str, width: int = 100) -> list[str]:
    """Text broken at spaces, later lines indented further."""
    out = [indent]
    for word in text.split(" "):
        if len(out[-1]) + 1 + len(word) > width and out[-1].strip():
            out.append(f"{indent}  {word}")
        else:
            out[-1] += word if out[-1] == indent else f" {word}"
    return out


_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;"
    "color-scheme:light dark}.wide{overflow-x:auto}td,th{min-width:9em}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.4em .6em;"
    "text-align:left;vertical-align:top;border-top:1px solid #8884}"
    "th small{font-weight:400}td b{font-size:1.25em;"
    "font-variant-numeric:tabular-nums}small{display:block;opacity:.75}"
)


def scorecard_html(card: Scorecard) -> str:
    """A page that opens offline: one table, every number with its derivation under it."""
    heads = "".join(
        f'<th scope="col">{TITLES[c.family]}<small>{escape(plan_line(c))}</small></th>'
        for c in card.columns
    )
    rows = []
    for name, cells in card.rows.items():
        tds = "".join(_td(cells[f]) if f in cells else "<td>-</td>" for f in FAMILIES)
        unit = escape(_row_unit(cells))
        rows.append(f'<tr><th scope="row">{escape(name)}<small>{unit}</small></th>{tds}</tr>')
    notes = "".join(f"<li>{escape(n)}</li>" for n in card.notes)
    title = escape(f"Scorecard of {card.model} on {card.cluster}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(verdict(card))}</p>"
        f'<div class="wide"><table><thead><tr><th scope="col"></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div><ul>{notes}</ul></body></html>\n"
    )


def _td(cell: Cell) -> str:
    """A cell of the page."""
    article = f"; article: {escape(cell.article)}" if cell.article else ""
    why = f"<small>{escape(cell.why)}</small>" if cell.why else ""
    return (
        f"<td><b>{escape(cell_value(cell))}</b> {escape(cell.grade or '-')}{article}"
        f"<small>{escape(cell.derivation)}</small>{why}</td>"
    )
