"""Terminal text of runs: training, measurement, measured beside predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangsaw.units import format_count, format_s

if TYPE_CHECKING:
    from rich.console import Console

    from gangsaw.trace.reconcile import ReconcileResult


MOST_RANKS = 16
"""Ranks that are listed one by one."""
MISFIT = 0.25
"""Residual of a tier's curve from which its operations are told apart."""
LAYER_GAP = 0.01
"""Gap between a settled and a measured layer from which it is told."""


def train_text(summary: Mapping[str, Any], console: Console) -> None:
    """What a training run did."""
    lo, hi = format_s(summary["step_time_lo_s"]), format_s(summary["step_time_hi_s"])
    begun = summary.get("timed_from", 0)
    since = f" behind step {begun}" if begun else ""
    console.print(
        f"{summary['steps']} steps on {summary['ranks']} ranks:"
        f" loss {summary['first_loss']:.3f} to {summary['last_loss']:.3f};"
        f" step{since} {format_s(summary['step_time_s'])} ({lo} to {hi}),"
        f" {format_count(summary['tokens_per_s'])} tokens/s"
    )
    console.print(f"run folder: {summary['out']}", soft_wrap=True)
    if "sample" in summary:
        console.print(f"\n{summary['sample']}")


def reconcile_text(result: ReconcileResult, console: Console) -> None:
    """Measured beside predicted, the largest difference first."""
    from gangsaw.report.text import plain_table

    console.print(
        f"{result.step}: measured {format_s(result.measured_step_s)}, predicted"
        f" {format_s(result.predicted_step_s)} ({result.ratio:.2f}x), {result.ranks} of"
        f" {result.devices} ranks"
    )
    table = plain_table(
        ("cause", "left"), ("measured", "right"), ("predicted", "right"), ("difference", "right"),
        ("device-hours", "right"), ("USD", "right"), ("hidden", "right"),
    )  # fmt: skip
    for row in result.causes:
        sign = "+" if row.difference_s >= 0 else "-"
        table.add_row(
            "unexplained" if row.cause == "unallocated" else row.cause,
            format_s(row.measured_s),
            format_s(row.predicted_s),
            f"{sign}{format_s(abs(row.difference_s))}",
            f"{row.difference_device_hours:+.3g}",
            f"{row.difference_usd:+.3g}",
            format_s(row.hidden_s) if row.hidden_s else "",
        )
    console.print(table)
    console.print(result.explanation)
    if result.ranks <= MOST_RANKS:
        for line in rank_lines(result):
            console.print(line)
    for note in result.notes:
        console.print(f"note: {note}")


def rank_lines(result: ReconcileResult) -> list[str]:
    """Seconds of each rank by cause, one line a rank."""
    lines = []
    for row in result.per_rank:
        parts = [f"{c} {format_s(s)}" for c, s in sorted(row.measured_s.items())]
        lines.append(f"rank {row.rank}: " + ", ".join(parts))
    return lines


def _quality(fits: Mapping[str, Any], noise: Mapping[str, Any]) -> list[str]:
    """How well curves fit, and apart from that how well the machine repeats itself."""
    lines = []
    for name, fit in fits.items():
        own = [f["residual"] for n, f in fits.items() if n.startswith(f"{name} ")]
        if own and fit["residual"] > MISFIT and max(own) < fit["residual"]:
            lines.append(
                f"{name} has one curve for all-reduce, all-gather and reduce-scatter, which run at"
                f" different rates here: it is off by {100 * fit['residual']:.0f} %, their own"
                f" curves by at most {100 * max(own):.0f} %"
            )
    busy = f", other work took {100 * noise['busy_frac']:.0f} % of a core"
    lines.append(
        f"noise: measured again, a probe differs by {100 * noise['scatter_frac']:.0f} % (median);"
        f" {100 * noise['noisy_frac']:.0f} % of probes by more than 25 %{busy}"
    )
    if noise["too_noisy"]:
        lines.append("too noisy: measure again when nothing else runs on this machine")
    return lines


def measure_text(facts: Mapping[str, Any], console: Console) -> None:
    """What was measured on a machine."""
    from gangsaw.report.text import plain_table
    from gangsaw.units import format_bandwidth, format_gib

    machine, fits = facts["machine"], facts["fits"]
    console.print(f"{machine['name']} on {machine['host']}, torch {machine['torch']}")
    table = plain_table(("curve", "left"), ("value", "left"), ("misfit", "right"))
    for name, fit in fits.items():
        if "asymptote_flops_per_s" in fit:
            said = f"{fit['asymptote_flops_per_s'] / 1e12:.3g} TFLOP/s, k0 {fit['k0']:.0f}"
        elif "latency_s" in fit:
            said = f"{format_bandwidth(fit['bytes_per_s'])}, {format_s(fit['latency_s'])}"
        elif "bytes_per_s" in fit:
            said = format_bandwidth(fit["bytes_per_s"])
        else:
            said = f"forward {fit['a_fwd']:.2f}, backward {fit['a_bwd']:.2f} of peak"
        words = name.split()
        shown = f"  {words[2].replace('_', '-')} alone" if len(words) > 2 else name
        table.add_row(shown, said, f"{100 * fit['residual']:.0f} %")
    console.print(table)
    for line in _quality(fits, facts["noise"]):
        console.print(line)
    layers = plain_table(
        ("layer", "left"), ("forward", "right"), ("with backward", "right"), ("kept", "right")
    )
    both = {(r["dtype"], r["tp"], r["backward"]): r for r in facts["layers"]}
    for (dtype, tp, backward), row in both.items():
        if not backward:
            continue
        first = both.get((dtype, tp, False), row)
        kept = format_gib(row["kept_bytes"]) if row["kept_bytes"] is not None else ""
        layers.add_row(f"{dtype} TP {tp}", format_s(first["low_s"]), format_s(row["low_s"]), kept)
    console.print(layers)
    if facts["layer_factor"] is not None:
        said = f"a layer from kernels alone: {facts['layer_factor']:.2f} of what it took"
        if abs(facts["layer_left"] - 1) > LAYER_GAP:
            said += f"; {facts['layer_left']:.2f} once scaled to it (shares stop at 1)"
        console.print(said)
    if facts["call_s"]:
        said = f"latency raised by {format_s(facts['call_s'])}"
        console.print(f"{said}: what collectives cost in a layer under TP, more than alone")
    ratio = facts["sustained_flops_per_s"] / facts["burst_flops_per_s"]
    console.print(f"sustained over burst rate: {ratio:.2f}")
    console.print(f"cluster file: {facts['cluster']}", soft_wrap=True)
