"""The walk to a plan as text; and any document as text, by the units in the names of its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gangsaw.report.text import plain_table
from gangsaw.units import (
    format_bandwidth,
    format_count,
    format_frac,
    format_gib,
    format_s,
    format_usd,
    significant,
)

SUFFIXES = (
    ("_bytes_per_s", format_bandwidth),
    ("_flops_per_s", lambda v: f"{format_count(v)} FLOP/s"),
    ("_device_s", lambda v: f"{significant(v / 3600.0)} device-h"),
    ("_bytes", format_gib),
    ("_flops", lambda v: f"{format_count(v)} FLOP"),
    ("_frac", format_frac),
    ("_usd", format_usd),
    ("_s", format_s),
)
"""How a number is printed, by the unit that ends its name; the first that fits counts."""

MOST_COLUMNS = 11
LAST = ("conclusion",)
"""Keys that are said after the tables of their object."""


def explain_text(document: object, console: Console) -> None:
    """Each step of the walk under its title, its figures as tables."""
    plain = as_plain(document)
    if not isinstance(plain, Mapping):
        raise TypeError(f"a walk is a document, not {type(plain).__name__}")
    document_text(plain, console)


def as_plain(document: object) -> object:
    """Documents as dictionaries, all the way down."""
    dump = getattr(document, "model_dump", None)
    return dump() if callable(dump) else document


def cell(key: str, value: object) -> str:
    """A value as text in the unit of its name."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        for suffix, show in SUFFIXES:
            if key.endswith(suffix):
                return show(float(value))
        return f"{value:,}" if isinstance(value, int) else significant(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{label(k)} {cell(k, v)}" for k, v in value.items() if v is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(cell(key, v) for v in value)
    return str(value)


def label(key: str) -> str:
    """A key without its unit, as words."""
    for suffix, _ in SUFFIXES:
        if key.endswith(suffix) and key != suffix.lstrip("_"):
            key = key.removesuffix(suffix) + (" share" if suffix == "_frac" else "")
            break
    return key.replace("_", " ")


def document_text(document: Mapping[str, object], console: Console, depth: int = 0) -> None:
    """Scalars first, one a line; then lists of objects as tables, and objects under a title."""
    head = next((str(document[k]) for k in ("title", "name") if document.get(k)), "")
    if head:
        console.print(Text(head, style="bold"))
    indent = (0, 0, 0, 2 * min(depth, 2))
    for key, value in document.items():
        if key in ("title", "name", *LAST) or _rows(value) or _is_document(value):
            continue
        if value not in (None, "", (), []):
            text = cell(key, value)
            said = text if key in ("text", "why", "says") else f"{label(key)}: {text}"
            console.print(Padding(Text(said), indent))
    for key, value in document.items():
        rows = _rows(value)
        if rows:
            if any(_rows(v) or _is_document(v) for row in rows for v in row.values()):
                for row in rows:
                    console.print()
                    document_text(row, console, depth + 1)
            else:
                console.print(Padding(Text(label(key), style="dim"), indent))
                _rows_table(rows, console, indent)
        elif _is_document(value) and isinstance(value, Mapping):
            console.print(Padding(Text(label(key), style="bold"), indent))
            document_text(value, console, depth + 1)
    for key in LAST:
        if document.get(key):
            console.print(Padding(Text(str(document[key])), indent))


def _rows(value: object) -> list[Mapping[str, object]]:
    """The objects of a list of objects; none for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    rows = [item for item in value if isinstance(item, Mapping)]
    return rows if len(rows) == len(value) else []


def _is_document(value: object) -> bool:
    """An object with more than a line of figures."""
    return isinstance(value, Mapping) and (
        len(value) > MOST_COLUMNS or any(_rows(v) or _is_document(v) for v in value.values())
    )


def _rows_table(
    rows: Sequence[Mapping[str, object]], console: Console, indent: tuple[int, int, int, int]
) -> None:
    keys = [k for k in dict.fromkeys(str(k) for row in rows for k in row) if k != "chosen"]
    numeric = {k for k in keys if all(isinstance(r.get(k), (int, float, type(None))) for r in rows)}
    shown = keys[:MOST_COLUMNS]
    marked = any("chosen" in row for row in rows)
    columns = [(label(k), "right" if k in numeric else "left") for k in shown]
    table = plain_table(*([("", "left")] if marked else []), *columns)
    for row in rows:
        best = bool(row.get("chosen"))
        cells = [cell(k, row.get(k)) for k in shown]
        table.add_row(*([">" if best else ""] if marked else []), *cells, style="bold" * best)
    console.print(Padding(table, indent))
