"""A replayed record as text: how long the step took, and what each repair would bring back."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gangsaw.report.text import plain_table
from gangsaw.simulate.document import ReplayResult
from gangsaw.units import format_frac, format_s

MOST_REPAIRS = 12


def replay_text(result: ReplayResult, title: str, console: Console) -> None:
    """The record, its slowdown, and the repairs that bring most back."""
    console.print(Text(title, style="bold"))
    console.print(
        Text(
            f"{result.steps} steps of {result.workers} workers: {format_s(result.recorded_s)} as it"
            f" ran, {format_s(result.no_delay_s)} without delays, {format_s(result.ideal_s)} with"
            " every operation at its ideal"
        )
    )
    console.print(
        Text(
            f"slowdown {result.slowdown:.4f} by stragglers, {result.slowdown_by_delay:.4f} by"
            " delays between operations"
        )
    )
    console.print()
    table = plain_table(("repaired", "left"), ("step", "right"), ("brought back", "right"))
    for repair in result.repairs[:MOST_REPAIRS]:
        table.add_row(repair.what, format_s(repair.step_s), format_frac(repair.brought_back_frac))
    console.print(table)
    left = len(result.repairs) - MOST_REPAIRS
    if left > 0:
        console.print(Text(f"and {left} more with --json", style="dim"))
    console.print(
        Text("brought back: share of the time between no delays and the ideal", style="dim")
    )
