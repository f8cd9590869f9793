"""`gangsaw timeline`: the pipeline schedule of a plan, drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.files import writable
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError, RunFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from gangsaw.simulate import Timeline
    from gangsaw.spec.plan import Plan

ENDINGS = (".svg", ".html", ".json", ".csv")


@dataclass(frozen=True)
class OutFlag:
    """Where the picture goes."""

    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="drawing (.svg), page (.html), Chrome trace (.json), torch's schedule (.csv)",
            rich_help_panel="Output",
        ),
    ] = None  # fmt: skip


@takes(JobArgs, RecipeFlags, PlanFlags, OutFlag, OutputFlags)
def command(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, where: OutFlag, output: OutputFlags
) -> None:
    """Draw the pipeline of one step: what each rank does when, and why it waits."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of, whole_plan

    path = None if where.out is None else writable("--out", where.out, ENDINGS)
    seed_of(output)
    fields = plan_fields(cut)
    job, assumed = job_from(args, recipe)
    plan = whole_plan(job, fields)
    if plan.schedule == "auto":
        raise InputError("--schedule auto is not drawn here. Legal: a named schedule")
    from gangsaw.report import words
    from gangsaw.search.timeline import plan_timeline

    timeline = plan_timeline(job, plan)
    if path is not None:
        _write(path, timeline, plan)
        screen.note(f"written: {path}")
    for line in assumed:
        screen.note(line)
    if output.json:
        screen.write_json(timeline.to_table())
        return
    from gangsaw.report.timeline_text import timeline_text
    from gangsaw.search.estimate import counts_of, plan_doc

    said = words.in_words(plan_doc(plan, counts_of(job, plan)))
    screen.show(lambda console: timeline_text(timeline, said, console))


def _write(path: Path, timeline: Timeline, plan: Plan) -> None:
    """Write the form that the file's ending asks for."""
    text = _text(path.suffix.lower(), timeline, plan)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise RunFailedError(f"{path} cannot be written: {fault.strerror or fault}") from None


def _text(ending: str, timeline: Timeline, plan: Plan) -> str:
    title = f"{plan.schedule}, PP {plan.pp}x{plan.vpp}, {plan.num_microbatches} microbatches"
    if ending == ".svg":
        from gangsaw.report.picture import standalone
        from gangsaw.report.timeline_svg import timeline_svg

        return standalone(timeline_svg([timeline], [title]))
    if ending == ".html":
        from gangsaw.report.timeline_html import timeline_html

        return timeline_html([timeline], [title])
    if ending == ".json":
        from gangsaw.trace.chrome import chrome_trace

        return chrome_trace(timeline)
    from gangsaw.schedule import generate, to_csv

    return to_csv(generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp))
