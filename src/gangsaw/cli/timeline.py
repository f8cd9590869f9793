"""`gangsaw timeline`: the pipeline schedule of a plan, drawn; or a recorded job, replayed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.files import put, replacing, writable
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.schedule import Schedule
    from gangsaw.search.drawn import Drawn
    from gangsaw.simulate import Timeline

ENDINGS = (".svg", ".html", ".json", ".csv")
MOST_LISTED = 48
"""Letters of a list of layers over a picture."""
Text = str | None


@dataclass(frozen=True)
class DrawnArgs:
    """The model and the cluster, of which a record needs none."""

    model: Annotated[
        Text,
        typer.Argument(
            metavar="MODEL",
            help="catalog name (llama-3.1-405b), a Hugging Face config.json, or a model TOML",
        ),
    ] = None
    cluster: Annotated[
        Text,
        typer.Argument(
            metavar="CLUSTER",
            help="catalog node and number of devices (h100-sxm:2048), or a cluster TOML",
        ),
    ] = None


@dataclass(frozen=True)
class OutFlag:
    """Where the picture goes."""

    out: Annotated[
        Text,
        typer.Option(
            "--out",
            metavar="FILE",
            help="drawing (.svg), page (.html), Chrome trace (.json), torch's schedule (.csv)",
            rich_help_panel="Output",
        ),
    ] = None
    against: Annotated[
        Text,
        typer.Option(
            "--against",
            metavar="WHAT",
            help="the same plan with another schedule, or with its layers even or balanced over"
            " the stages, drawn under the first on one axis",
            rich_help_panel="Plan",
        ),
    ] = None


@dataclass(frozen=True)
class ReplayFlags:
    """A record of operations instead of a plan."""

    replay: Annotated[
        Text,
        typer.Option(
            "--replay",
            metavar="FILE.parquet",
            help="recorded operations of a job instead of a plan: what repairs would bring back",
            rich_help_panel="Record",
        ),
    ] = None
    repair: Annotated[
        list[str] | None,
        typer.Option(
            "--repair",
            metavar="PART",
            help="stage:N, worker:DP,STAGE or operation:NAME at its ideal; several together"
            " [each by itself]",
            rich_help_panel="Record",
        ),
    ] = None
    step: Annotated[
        Text,
        typer.Option(
            "--step",
            metavar="N",
            help="recorded step that is drawn [the one nearest to the mean]",
            rich_help_panel="Record",
        ),
    ] = None


@takes(DrawnArgs, RecipeFlags, PlanFlags, OutFlag, ReplayFlags, OutputFlags)
def command(
    args: DrawnArgs,
    recipe: RecipeFlags,
    cut: PlanFlags,
    where: OutFlag,
    record: ReplayFlags,
    output: OutputFlags,
) -> None:
    """Draw the pipeline of one step: what each rank does when, and why it waits."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of, whole_plan

    path = None if where.out is None else writable("--out", where.out, ENDINGS)
    seed_of(output)
    if record.replay is not None:
        _alone(args, recipe, cut, where)
        _replay(record, path, output)
        return
    _no_record(record)
    if args.model is None or args.cluster is None:
        raise InputError(
            "MODEL and CLUSTER are missing. Legal: gangsaw timeline MODEL CLUSTER ..., or"
            " gangsaw timeline --replay FILE.parquet"
        )
    stated = plan_fields(cut, own=True)
    job, assumed = job_from(JobArgs(args.model, args.cluster), recipe, stated)
    plan = whole_plan(job, stated)
    from gangsaw.search.drawn import drawings

    found = drawings(job, plan, where.against)
    if path is not None:
        _write(path, found)
        screen.note(f"written: {path}")
    for line in assumed:
        screen.note(line)
    _say(found, where.against, output)


def _say(found: list[Drawn], against: str | None, output: OutputFlags) -> None:
    """The pipelines as columns or as text, with their steps side by side where there are two."""
    from gangsaw.search.drawn import compared

    table = found[0].timeline.to_table
    names = [each.stages or each.schedule.name for each in found]
    both = compared(found, names)
    if output.json:
        from gangsaw.simulate.document import ComparedTimeline, TimelineColumns

        if against is None:
            screen.write_json(TimelineColumns.model_validate(table()))
        else:
            screen.write_json(ComparedTimeline.model_validate({**table(), "compared": both}))
        return
    from gangsaw.report import words
    from gangsaw.report.compared_text import compared_text
    from gangsaw.report.timeline_text import timeline_text
    from gangsaw.search.estimate import plan_doc

    title = words.in_words(plan_doc(found[0].ev.plan, found[0].ev.counts))
    for number, (each, name) in enumerate(zip(found, names, strict=True)):
        said = f"against {name}" if number else title
        screen.show(partial(timeline_text, each.timeline, said))
    if against is not None:
        screen.show(partial(compared_text, both))


def _alone(args: DrawnArgs, recipe: RecipeFlags, cut: PlanFlags, where: OutFlag) -> None:
    """Refuse what belongs to a plan beside a record."""
    stated = [each.name for group in (args, recipe, cut) for each in fields(group)
              if getattr(group, each.name) is not None]  # fmt: skip
    if where.against is not None:
        stated.append("against")
    if stated:
        raise InputError(
            f"--replay with {', '.join(stated)}: a record needs no plan. Legal with it: --repair,"
            " --step, --out, --json"
        )


def _no_record(record: ReplayFlags) -> None:
    for name in ("repair", "step"):
        if getattr(record, name) is not None:
            raise InputError(f"--{name} belongs to a record. Legal: with --replay FILE.parquet")


def _replay(record: ReplayFlags, path: Path | None, output: OutputFlags) -> None:
    """Replay a record: the slowdown, what repairs bring back, one step drawn."""
    from gangsaw.simulate.replay import Replay, recorded_timeline, usual_step, what_if
    from gangsaw.trace.straggler import read_recorded_ops

    if path is not None and path.suffix.lower() == ".csv":
        raise InputError("--out .csv is a schedule, --replay a record. Legal: .svg, .html, .json")
    ops = read_recorded_ops(Path(str(record.replay)))
    replay = Replay(ops)
    step = usual_step(replay)
    if record.step is not None:
        step = values.whole("--step", record.step, 0, 10**9)
    timeline = recorded_timeline(ops, step)
    result = what_if(replay, record.repair or (), step)
    if path is not None:
        title = f"{Path(str(record.replay)).name}, step {step} as it ran"
        _put(path, [timeline], [title])
        screen.note(f"written: {path}")
    if output.json:
        from gangsaw.simulate.document import ReplayedTimeline

        screen.write_json(ReplayedTimeline(**timeline.to_table(), replay=result))
        return
    from gangsaw.report.replay_text import replay_text
    from gangsaw.report.timeline_text import timeline_text

    screen.show(partial(replay_text, result, f"replay of {record.replay}"))
    screen.show(partial(timeline_text, timeline, f"step {step} as it ran"))


def _write(path: Path, found: list[Drawn]) -> None:
    """Write the form that the file's ending asks for."""
    if path.suffix.lower() == ".csv":
        put(path, _csv([each.schedule for each in found]))
        return
    _put(path, [each.timeline for each in found], [_title(each) for each in found])


def _title(each: Drawn) -> str:
    """What a picture says over a pipeline."""
    from gangsaw.report import words
    from gangsaw.units import format_s

    schedule, plan = each.schedule, each.ev.plan
    said = (
        f"{schedule.name}, PP {plan.pp}x{schedule.chunks // schedule.pipes},"
        f" {schedule.total_microbatches} microbatches"
    )
    if not each.stages:
        return said
    layers = words.runs(each.ev.counts)
    if len(layers) > MOST_LISTED:
        layers = layers[:MOST_LISTED].rpartition(",")[0] + ", .."
    step = format_s(each.ev.cost.step)
    return f"{each.stages}, step {step}: layers {layers}; {said}; pipeline"


def _csv(schedules: list[Schedule]) -> str:
    if len(schedules) > 1:
        raise InputError("--out .csv holds one schedule. Legal with --against: .svg, .html")
    from gangsaw.schedule import csv_note, to_csv

    if csv_note(schedules[0]):
        screen.note(csv_note(schedules[0]))
    return to_csv(schedules[0])


def _put(path: Path, timelines: list[Timeline], titles: list[str]) -> None:
    """Write timelines as a picture, a page or a trace; a trace as it is made, for it is long."""
    ending = path.suffix.lower()
    if ending == ".svg":
        from gangsaw.report.picture import standalone
        from gangsaw.report.timeline_svg import timeline_svg

        put(path, standalone(timeline_svg(timelines, titles)))
    elif ending == ".html":
        from gangsaw.report.timeline_html import timeline_html

        put(path, timeline_html(timelines, titles))
    elif len(timelines) > 1:
        raise InputError("--out .json holds one schedule. Legal with --against: .svg, .html")
    else:
        from gangsaw.trace.chrome import write_trace

        with replacing(path) as part, part.open("w", encoding="utf-8") as out:
            write_trace(timelines[0], out)
