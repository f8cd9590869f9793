"""Terminal text of runs: training, measurement, measured beside predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangsaw.units import format_count, format_s

if TYPE_CHECKING:
    from rich.console import Console


def train_text(summary: Mapping[str, Any], console: Console) -> None:
    """What a training run did."""
    lo, hi = format_s(summary["step_time_lo_s"]), format_s(summary["step_time_hi_s"])
    console.print(
        f"{summary['steps']} steps on {summary['ranks']} ranks:"
        f" loss {summary['first_loss']:.3f} to {summary['last_loss']:.3f};"
        f" step {format_s(summary['step_time_s'])} ({lo} to {hi}),"
        f" {format_count(summary['tokens_per_s'])} tokens/s"
    )
    console.print(f"run folder: {summary['out']}", soft_wrap=True)
    if "sample" in summary:
        console.print(f"\n{summary['sample']}")
