"""Predictions beside measured runs, as text: errors by source, then the worst rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gangsaw.fit.outcome import SourceSummary, ValidateResult, ValidateRow
from gangsaw.report import words
from gangsaw.report.text import plain_table
from gangsaw.units import format_frac, format_s

WORST = 5


def validate_text(result: ValidateResult, console: Console) -> None:
    """Time, then memory and fit by source; worst rows; skipped rows with their reason."""
    skipped = [row for row in result.rows if row.skipped]
    used = sum(row.calibration for row in result.rows)
    head = f"{len(result.rows)} rows, {len(skipped)} skipped"
    console.print(Text(head + (f", {used} to calibrate on" if used else ""), style="bold"))
    console.print()
    _section("Step time", _time_table(result.summary), console)
    if any(s.memory_rows or s.oom_rows for s in result.summary.values()):
        _section("Memory", _memory_table(result.summary), console)
    worst = worst_rows(result.rows)
    if worst:
        _section("Largest errors of step time", _worst_table(worst), console)
    for row in skipped:
        console.print(Text(f"skipped {row.id}: {row.skipped}", style="dim"))


def time_error(row: ValidateRow) -> float | None:
    """Predicted over measured step time less one; None where a side is missing or was used."""
    if row.skipped or row.calibration:
        return None
    if not row.measured_step_time_s or not row.predicted_step_time_s:
        return None
    return row.predicted_step_time_s / row.measured_step_time_s - 1.0


def worst_rows(rows: Sequence[ValidateRow]) -> list[tuple[float, ValidateRow]]:
    """The rows with the largest errors, largest first."""
    found = [(error, row) for row in rows if (error := time_error(row)) is not None]
    return sorted(found, key=lambda pair: -abs(math.log1p(pair[0])))[:WORST]


def signed(value: float | None) -> str:
    """A share with its sign: `+3.1 %`."""
    if value is None:
        return "-"
    return f"{'+' if value >= 0 else '-'}{format_frac(abs(value))}"


def _share(value: float | None) -> str:
    return "-" if value is None else format_frac(value)


def _section(title: str, table: Table, console: Console) -> None:
    console.print(Text(title, style="bold"))
    console.print(Padding(table, (0, 0, 1, 2)))


def _time_table(summary: dict[str, SourceSummary]) -> Table:
    table = plain_table(
        ("source", "left"), ("rows", "right"), ("error", "right"), ("median", "right"),
        ("90th pct", "right"), ("bias", "right"), ("in 80 %", "right"), ("width", "right"),
    )  # fmt: skip
    for source, s in summary.items():
        table.add_row(
            source, str(s.time_rows), _share(s.time_mean_abs_frac), _share(s.time_median_abs_frac),
            _share(s.time_p90_abs_frac), signed(s.time_bias_frac), _share(s.covered_frac),
            _share(s.width_frac),
        )  # fmt: skip
    return table


def _memory_table(summary: dict[str, SourceSummary]) -> Table:
    table = plain_table(
        ("source", "left"), ("rows", "right"), ("error", "right"), ("bias", "right"),
        ("fits: rows", "right"), ("right", "right"), ("risky", "right"), ("missed", "right"),
    )  # fmt: skip
    for source, s in summary.items():
        if s.memory_rows or s.oom_rows:
            table.add_row(
                source, str(s.memory_rows), _share(s.memory_mean_abs_frac),
                signed(s.memory_bias_frac), str(s.oom_rows), _share(s.oom_right_frac),
                _share(s.risky_frac), _share(s.missed_oom_frac),
            )  # fmt: skip
    return table


def _worst_table(rows: Sequence[tuple[float, ValidateRow]]) -> Table:
    table = plain_table(
        ("row", "left"), ("stack", "left"), ("measured", "right"), ("predicted", "right"),
        ("error", "right"),
    )  # fmt: skip
    for error, row in rows:
        low, high = row.predicted_lo_s, row.predicted_hi_s
        value = row.predicted_step_time_s or 0.0
        said = words.interval_s(value, low, high) if low and high else format_s(value)
        table.add_row(row.id, row.stack, format_s(row.measured_step_time_s or 0.0), said,
                      signed(error))  # fmt: skip
    return table
