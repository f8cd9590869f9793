"""Two pipelines side by side as text: the step that each makes, and what the slower one costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gangsaw.report import words
from gangsaw.report.text import plain_table
from gangsaw.simulate.document import Compared
from gangsaw.units import format_frac, format_s


def compared_text(found: Sequence[Compared], console: Console) -> None:
    """A row for each: its stages, step, pipeline, idle share; then the difference in words."""
    table = plain_table(
        ("", "left"), ("layers", "left"), ("step", "right"), ("pipeline", "right"),
        ("idle", "right"), ("more devices for the same rate", "right"),
    )  # fmt: skip
    for each in found:
        more = round(each.more_devices)
        table.add_row(
            each.name, words.runs(each.stages), format_s(each.step_time_s),
            format_s(each.pipeline_s), format_frac(each.idle_frac), str(more) if more else "",
        )  # fmt: skip
    console.print()
    console.print(table)
    fast = min(found, key=lambda each: each.step_time_s)
    slow = max(found, key=lambda each: each.step_time_s)
    if fast.step_time_s == slow.step_time_s:
        console.print(Text("neither is faster"))
        return
    less = 1.0 - fast.step_time_s / slow.step_time_s
    console.print(
        Text(
            f"{fast.name}: {format_s(fast.step_time_s)} a step instead of"
            f" {format_s(slow.step_time_s)}, {format_frac(less)} less"
        )
    )
