"""`gangsaw timeline`: the pipeline schedule of a plan, drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.files import writable
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError, RunFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from gangsaw.schedule import Schedule
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
    ] = None
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="SCHEDULE",
            help="a second schedule for the same plan, drawn under the first on one axis",
            rich_help_panel="Plan",
        ),
    ] = None


@takes(JobArgs, RecipeFlags, PlanFlags, OutFlag, OutputFlags)
def command(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, where: OutFlag, output: OutputFlags
) -> None:
    """Draw the pipeline of one step: what each rank does when, and why it waits."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of, whole_plan

    path = None if where.out is None else writable("--out", where.out, ENDINGS)
    seed_of(output)
    fields = plan_fields(cut, own=True)
    job, assumed = job_from(args, recipe)
    plan = whole_plan(job, fields)
    from gangsaw.search.timeline import evaluated_schedules

    evaluated = evaluated_schedules(job, plan, where.against)
    timelines = [timeline for _, timeline in evaluated]
    if path is not None:
        _write(path, [schedule for schedule, _ in evaluated], timelines, plan)
        screen.note(f"written: {path}")
    for line in assumed:
        screen.note(line)
    if output.json:
        from gangsaw.simulate.document import TimelineColumns

        screen.write_json(TimelineColumns.model_validate(timelines[0].to_table()))
        return
    from gangsaw.report import words
    from gangsaw.report.timeline_text import timeline_text
    from gangsaw.search.estimate import counts_of, plan_doc

    said = words.in_words(plan_doc(plan, counts_of(job, plan)))
    for number, timeline in enumerate(timelines):
        title = said if number == 0 else f"against {where.against}"
        screen.show(partial(timeline_text, timeline, title))


def _write(path: Path, schedules: list[Schedule], timelines: list[Timeline], plan: Plan) -> None:
    """Write the form that the file's ending asks for."""
    text = _text(path.suffix.lower(), schedules, timelines, plan)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise RunFailedError(f"{path} cannot be written: {fault.strerror or fault}") from None


def _text(ending: str, schedules: list[Schedule], timelines: list[Timeline], plan: Plan) -> str:
    titles = [
        f"{each.name}, PP {plan.pp}x{each.chunks // each.pipes},"
        f" {each.total_microbatches} microbatches"
        for each in schedules
    ]
    if ending == ".svg":
        from gangsaw.report.picture import standalone
        from gangsaw.report.timeline_svg import timeline_svg

        return standalone(timeline_svg(timelines, titles))
    if ending == ".html":
        from gangsaw.report.timeline_html import timeline_html

        return timeline_html(timelines, titles)
    if len(timelines) > 1:
        raise InputError(f"--out {ending} holds one schedule. Legal with --against: .svg, .html")
    if ending == ".json":
        from gangsaw.trace.chrome import chrome_trace

        return chrome_trace(timelines[0])
    if schedules[0].pipes > 1:
        raise InputError(
            f"--out {ending}: {schedules[0].name} runs two copies of the model in opposite"
            " directions, which torch's schedules cannot say. Legal: .svg, .html, .json, or"
            " --schedule dualpipe-v"
        )
    from gangsaw.schedule import to_csv

    return to_csv(schedules[0])
