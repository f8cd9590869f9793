"""`gangsaw export`: a plan as the launch files of a framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes

Text = str | None


@dataclass(frozen=True)
class TargetFlags:
    """For whom, and where to."""

    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            rich_help_panel="Export",
            help="megatron-lm, megatron-bridge, torchtitan, deepspeed, torchrun, slurm,"
            " kubernetes, schedule-csv",
        ),
    ]
    out: Annotated[
        Text,
        typer.Option(
            "--out", metavar="DIR", rich_help_panel="Export",
            help="folder to write to [the main file on standard output]",
        ),
    ] = None  # fmt: skip


@takes(JobArgs, RecipeFlags, PlanFlags, TargetFlags, OutputFlags)
def command(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, target: TargetFlags, output: OutputFlags
) -> None:
    """Write complete launch files; say what the framework cannot express and what that costs."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of, whole_plan
    from gangsaw.export import export_plan
    from gangsaw.units import format_frac

    seed_of(output)
    fields = plan_fields(cut)
    job, notes = job_from(args, recipe, fields)
    result = export_plan(job, whole_plan(job, fields), target.to)
    for line in (*notes, *result.notes):
        screen.note(line)
    for line in result.differences:
        screen.note(f"not expressible: {line}")
    if result.step_time_change_frac is not None:
        screen.note(f"predicted cost: {format_frac(result.step_time_change_frac)} of step time")
    if target.out is not None:
        _write(target.out, {file.name: file.text for file in result.files})
    if output.json:
        screen.write_json(result)
    elif target.out is None:
        screen.tell_notes()
        screen.emit(result.main.text)


def _write(folder: str, files: dict[str, str]) -> None:
    """Write the files into a folder, which is made where its parent exists."""
    from pathlib import Path

    from gangsaw.cli.files import put
    from gangsaw.errors import InputError
    from gangsaw.read.toml import shown

    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {shown(folder)} is a file. Legal: a folder")
    try:
        path.mkdir(exist_ok=True)
        for name, text in files.items():
            put(path / name, text)
            screen.note(f"wrote {shown(path / name)}")
    except OSError as error:
        raise InputError(
            f"--out {shown(folder)}: {error.strerror or error}. Legal: a folder, or one that can"
            " be made where its parent exists"
        ) from None
