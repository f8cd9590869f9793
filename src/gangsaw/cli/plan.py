"""`gangsaw plan`: ranked legal plans, memory beside the bill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import (
    JobArgs,
    LimitFlags,
    PlanFlags,
    ReportFlags,
    SiteRecipeFlags,
    takes,
)
from gangsaw.errors import InputError, NoPlanFitsError

if TYPE_CHECKING:
    from gangsaw.search.space import Limits
    from gangsaw.spec.job import Job

DEFAULT_TOP = 5
COMPILING = "compiling the search for this machine, about a minute, once"


@dataclass(frozen=True)
class OrderFlags:
    """What the list is ordered by."""

    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="BY",
            help="order by time, cost, expected (with tails and failures), predictability [time]",
            rich_help_panel="Limits and goals",
        ),
    ] = None


@takes(JobArgs, SiteRecipeFlags, PlanFlags, LimitFlags, OrderFlags, ReportFlags)
def command(
    args: JobArgs,
    recipe: SiteRecipeFlags,
    fixed: PlanFlags,
    goals: LimitFlags,
    order: OrderFlags,
    output: ReportFlags,
) -> None:
    """Search all legal plans; list the best with memory and bill side by side."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of
    from gangsaw.cli.reporting import report_path, write_list_report
    from gangsaw.spec.result import GOALS

    path = report_path(output)
    seed_of(output)
    by = values.choice("--objective", order.objective or "time", GOALS)
    fields = plan_fields(fixed)
    job, assumed = job_from(args, recipe)
    limits = limits_from(goals, fields, job)
    from gangsaw.jit import told_of_compiling
    from gangsaw.search.search import search

    with told_of_compiling(lambda: screen.progress(COMPILING)):
        result = search(job, limits, next(g for g in GOALS if g == by))
    result = result.model_copy(update={"notes": (*assumed, *result.notes)})
    if output.json:
        screen.write_json(result)
    else:
        from gangsaw.report.text import plan_list_text

        screen.show(lambda console: plan_list_text(result, console))
    if path is not None and result.plans:
        write_list_report(path, job, result)
        screen.note(f"report: {path}")
    elif path is not None:
        screen.note("no report is written: nothing fits")
    if not result.plans:
        raise NoPlanFitsError(
            f"no plan fits: {result.searched.legal:,} legal plans, the nearest are"
            f" {'in the document' if output.json else 'listed'}"
        )


def limits_from(flags: LimitFlags, fields: dict[str, object], job: Job) -> Limits:
    """Limits of the search; goals that need more than was stated are refused."""
    from gangsaw.cli.options import check_fixed

    check_fixed(job, fields, fewer_devices=flags.max_devices is not None)
    for flag, text in (("--deadline", flags.deadline), ("--budget", flags.budget)):
        if text is not None and job.recipe.tokens is None:
            raise InputError(f"{flag} {text} is for a whole run. Legal: with --tokens, as 15T")
    devices = job.cluster.devices
    most = None
    if flags.max_devices is not None:
        most = values.whole("--max-devices", flags.max_devices, 1, devices)
    deadline_s = values.duration_s("--deadline", flags.deadline) if flags.deadline else None
    budget_usd = values.usd("--budget", flags.budget) if flags.budget else None
    headroom_frac = headroom(flags.headroom)
    top = values.whole("--top", flags.top, 1, 1000) if flags.top else DEFAULT_TOP
    from gangsaw.search.space import Limits

    return Limits(
        max_devices=most,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        headroom_frac=headroom_frac,
        fixed=fields,
        top=top,
        fewer_devices=most is not None,
        exhaustive=flags.exhaustive,
    )


def headroom(text: str | None) -> float:
    """The share of memory that a plan must leave free; 0 when none was asked for."""
    if text is None:
        return 0.0
    share = values.fraction("--headroom", text)
    if share >= 1.0:
        raise InputError(f"--headroom {text} leaves no memory. Legal: 0 to below 1, as 0.1 or 10%")
    return share
