"""Checked launch files and out-of-memory answers as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gangsaw.units import format_count, format_gib, format_s

if TYPE_CHECKING:
    from rich.console import Console

    from gangsaw.doctor.check import CheckResult, Fault, ModelSize
    from gangsaw.doctor.oom import OomResult
    from gangsaw.doctor.resume import ResumeResult
    from gangsaw.read.launch.document import LaunchFile

MOST_LINES = 12
_TITLES = {
    "error": "Refused by the framework", "wrong-model": "Trains another model",
    "waste": "Wasteful",
}  # fmt: skip
_COLOURS = {"error": "red", "wrong-model": "magenta", "waste": "yellow"}


def check_text(result: CheckResult, console: Console) -> None:
    """Faults by severity, each with where, rule, what is legal and repair; then what was unread."""
    head = f"{result.path}: {result.framework}"
    head += f" {result.version}" if result.version else ""
    head += f", {result.model}" if result.model else ""
    console.print(Text(head, style="bold"))
    console.print(Text(_grid_line(result), style="dim"))
    if result.runs is not None and result.named is not None:
        console.print(Text(_models_line(result.model, result.runs, result.named)))
    if result.not_predicted:
        console.print(Text(f"not predicted: {result.not_predicted}"))
    for severity, title in _TITLES.items():
        faults = [fault for fault in result.faults if fault.severity == severity]
        if faults:
            console.print()
            console.print(Text(f"{title} ({len(faults)})", style=f"bold {_COLOURS[severity]}"))
        for fault in faults:
            _fault(fault, console)
    console.print()
    if not result.faults:
        console.print(Text(f"No fault against {result.rules_checked} rules.", style="bold"))
    if result.resume is not None:
        _resume(result.resume, console)
    if result.saving is not None:
        console.print(Text(f"Save as {result.saving.format}: {result.saving.explanation}"))
    if result.expert_comm_s:
        parts = [f"{name} {format_s(time)}" for name, time in result.expert_comm_s.items()]
        console.print(Text(f"Expert communication a step: {', '.join(parts)}"))
    for line in result.refused:
        console.print(Text(f"not judged: {line}"))
    _listed("Assumed", [f"{a.fact} = {a.value} ({a.source})" for a in result.assumed], console)
    _listed("Unread", result.unread, console)
    _listed("Missing", result.missing, console)


def _models_line(name: str, runs: ModelSize, named: ModelSize) -> str:
    """The model that would run beside the one that is named."""

    def of(size: ModelSize) -> str:
        text = f"{format_count(size.params)} parameters"
        if size.active_params < 0.99 * size.params:
            text += f" ({format_count(size.active_params)} active)"
        if size.peak_bytes is not None and size.step_time_s is not None:
            text += f", {format_gib(size.peak_bytes)}, {format_s(size.step_time_s)} a step"
        return text

    return f"would run {of(runs)}; {name} has {of(named)}"


def _resume(resume: ResumeResult, console: Console) -> None:
    changed = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in resume.changed.items())
    state = "as it is" if resume.direct else "after conversion"
    if resume.weights_only:
        state += ", weights alone"
    console.print(
        Text(
            f"Resume from {resume.format} ({changed or 'same layout'}): {state}, by {resume.by};"
            f" {format_gib(resume.size_bytes)}, {format_gib(resume.host_bytes_per_node)} of host"
            " memory a node"
        )
    )
    for line in (resume.command, *resume.warnings):
        if line:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _grid_line(result: CheckResult) -> str:
    parts = [f"{key}={value}" for key, value in result.grid.items()]
    if result.stages:
        parts.append("stages " + _stages(result.stages))
    if result.peak_bytes is not None and result.step_time_s is not None:
        parts.append(
            f"predicted {format_gib(result.peak_bytes)}, {format_s(result.step_time_s)} a step"
        )
    return "  ".join(parts)


def _stages(counts: Sequence[int]) -> str:
    """`7, 8 x 14, 7` for the layers of the stages."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ", ".join(f"{count} x {times}" if times > 1 else str(count) for count, times in runs)


def _fault(fault: Fault, console: Console) -> None:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=8, no_wrap=True)
    rows.add_column()
    rows.add_row(Text(fault.code, style="bold"), Text(f"{fault.where}: {fault.message}"))
    rows.add_row("", Text(f"rule: {fault.rule} [{fault.source}]", style="dim"))
    if fault.legal:
        shown = ", ".join(str(value) for value in fault.legal[:12])
        rows.add_row("", Text(f"legal: {shown}"))
    rows.add_row("", Text(f"repair: {fault.repair}"))
    rows.add_row("", Text(f"effect: {fault.effect}"))
    console.print(Padding(rows, (0, 0, 0, 2)))


def oom_text(result: OomResult, console: Console) -> None:
    """The tensor, the cause, and the repairs as a table."""
    size = "" if result.requested_bytes is None else f" {format_gib(result.requested_bytes)}"
    named = result.matches[0].tensor if result.named else "no tensor of this plan has that size"
    if result.requested_bytes is None:
        named = {"host": "host memory", "timeout": "a collective timed out"}.get(
            result.kind, "the request is not stated"
        )
    console.print(Text(f"Asked for{size}: {named}", style="bold"))
    for line in result.explanation:
        console.print(Text(line))
    if result.matches:
        console.print()
        console.print(_matches_table(result))
    if result.repairs:
        console.print()
        console.print(Text("What would fit, least lost time first", style="bold"))
        console.print(_repairs_table(result))
    for line in result.notes:
        console.print(Text(line, style="dim"))


def _matches_table(result: OomResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tensor" if result.named else "nearest tensor")
    table.add_column("shape")
    table.add_column("type")
    table.add_column("GiB", justify="right")
    table.add_column("off by", justify="right")
    for item in result.matches:
        shape = " x ".join(f"{size:,}" for size in item.shape)
        table.add_row(
            item.tensor, shape, item.dtype, f"{item.bytes / 2**30:.2f}",
            f"{100 * item.error_frac:.1f} %",
        )  # fmt: skip
    return table


def _repairs_table(result: OomResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("change")
    table.add_column("peak GiB", justify="right")
    table.add_column("step time", justify="right")
    table.add_column("fits")
    for item in result.repairs:
        table.add_row(
            item.change, f"{item.peak_bytes / 2**30:.1f}",
            f"{100 * item.step_time_change_frac:+.1f} %", item.fits,
        )  # fmt: skip
    return table


def launch_text(launch: LaunchFile, console: Console) -> None:
    """Model, recipe and plan of a launch file, and everything that they leave open."""
    console.print(Text(f"{launch.path}: {launch.framework}", style="bold"))
    if launch.model is not None:
        size = format_count(launch.model.params())
        console.print(f"model   {launch.model_name or launch.model.name}, {size} parameters")
    if launch.recipe is not None:
        r = launch.recipe
        console.print(f"recipe  seq {r.seq_len}, batch {r.global_batch}, {r.precision}, {r.task}")
    if launch.plan is not None:
        fields = launch.plan.model_dump(exclude_defaults=True)
        console.print("plan    " + " ".join(f"{k}={v}" for k, v in fields.items()))
    _listed("Missing", launch.missing, console)
    _listed("Assumed", [f"{a.fact} = {a.value} ({a.source})" for a in launch.assumed], console)
    _listed("Unread", launch.unread, console)


def _listed(title: str, lines: Sequence[str], console: Console) -> None:
    if not lines:
        return
    console.print(Text(f"{title} ({len(lines)})", style="dim"))
    for line in lines[:MOST_LINES]:
        console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
    if len(lines) > MOST_LINES:
        rest = len(lines) - MOST_LINES
        console.print(
            Padding(Text(f"and {rest} more (--json lists all)", style="dim"), (0, 0, 0, 2))
        )
