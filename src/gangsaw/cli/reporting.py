"""The HTML report of `plan` and `estimate`: where it goes, and what goes into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangsaw.cli.files import replacing, writable
from gangsaw.cli.flags import ReportFlags
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.report.series import ReportSweeps
    from gangsaw.search.estimate import Evaluated
    from gangsaw.spec.job import Job
    from gangsaw.spec.plan import Plan
    from gangsaw.spec.result import EstimateResult, MemoryDoc, PlanListResult


ENDINGS = (".html", ".htm", ".svg")
"""The report as a page, or its one picture alone."""
MOST_DRAWN, MOST_FRAMED = 8_000, 100_000
"""Forwards and backwards that are drawn box by box, and those that a framed canvas shows."""


@dataclass(frozen=True)
class Quick:
    """A point of a sweep: the step's time at once, its memory only when it is read."""

    found: Evaluated

    @property
    def step_time_s(self) -> float:
        """Step time."""
        return self.found.cost.step

    @property
    def memory(self) -> MemoryDoc:
        """Memory of all stages."""
        from gangsaw.cost.memory_doc import memory_doc

        ev = self.found
        return memory_doc(ev.job, ev.plan, ev.counts, ev.low)


def quick(job: Job, plan: Plan) -> Quick:
    """Time and memory of one plan, without bill, collectives and bounds."""
    from gangsaw.search.estimate import evaluate

    return Quick(evaluate(job, plan))


def report_path(flags: ReportFlags) -> Path | None:
    """Where the report goes, checked before anything is computed."""
    return None if flags.report is None else writable("--report", flags.report, ENDINGS)


def write_list_report(path: Path, job: Job, result: PlanListResult) -> None:
    """The report of a search: its first plan is the chosen one."""
    from gangsaw.report.html import write_report
    from gangsaw.report.sweeps import plan_of, report_sweeps
    from gangsaw.search.estimate import estimate

    chosen = estimate(job, plan_of(result.plans[0].plan))
    # The list says which labels the plan earned and why; its estimate alone cannot.
    first = result.plans[0]
    chosen = chosen.model_copy(update={"labels": first.labels, "why": first.why})
    if path.suffix.lower() == ".svg":
        _write_picture(path, job, chosen)
        return
    sweeps = with_pipeline(report_sweeps(job, chosen, result.plans, quick), job, chosen)
    _write(path, lambda part: write_report(part, result, chosen, sweeps))


def write_estimate_report(path: Path, job: Job, chosen: EstimateResult) -> None:
    """The report of one plan."""
    from gangsaw.report.html import single_plan, write_report
    from gangsaw.report.sweeps import report_sweeps

    if path.suffix.lower() == ".svg":
        _write_picture(path, job, chosen)
        return
    sweeps = with_pipeline(report_sweeps(job, chosen, (), quick), job, chosen)
    _write(path, lambda part: write_report(part, single_plan(job, chosen), chosen, sweeps))


class Drawing(NamedTuple):
    """A drawing, or a page of a longer one with its number of ranks, or why there is neither."""

    svg: str = ""
    page: str = ""
    ranks: int = 0
    why_not: str = ""


def with_pipeline(sweeps: ReportSweeps, job: Job, chosen: EstimateResult) -> ReportSweeps:
    """The sweeps with the drawn pipeline of the chosen plan."""
    drawn = pipeline(job, chosen)
    return replace(
        sweeps,
        timeline_svg=drawn.svg,
        timeline_page=drawn.page,
        timeline_ranks=drawn.ranks,
        no_timeline=drawn.why_not,
    )


def pipeline(job: Job, chosen: EstimateResult) -> Drawing:
    """The pipeline of the chosen plan: drawn, framed where it is long, or why it is not there."""
    from gangsaw.report import words
    from gangsaw.report.sweeps import plan_of
    from gangsaw.report.timeline_html import timeline_html
    from gangsaw.report.timeline_svg import timeline_svg
    from gangsaw.search.timeline import plan_timeline

    plan = plan_of(chosen.plan)
    if plan.pp == 1:
        return Drawing()
    actions = 2 * plan.pp * plan.vpp * plan.num_microbatches
    if actions > MOST_FRAMED:
        return Drawing(
            why_not=f"{actions:,} actions are too many for this page;"
            " gangsaw timeline --out FILE.html draws any number."
        )
    try:
        timeline = plan_timeline(job, plan)
    except InputError as fault:
        return Drawing(why_not=f"This schedule is not drawn: {fault}")
    titles = [words.schedule_title(chosen.plan)]
    if actions > MOST_DRAWN:
        return Drawing(page=timeline_html([timeline], titles), ranks=timeline.ranks)
    return Drawing(svg=timeline_svg([timeline], titles))


def _write_picture(path: Path, job: Job, chosen: EstimateResult) -> None:
    from gangsaw.report.picture import write_picture

    drawing = pipeline(job, chosen).svg
    _write(path, lambda part: write_picture(part, chosen, drawing))


def _write(path: Path, write: Callable[[Path], None]) -> None:
    with replacing(path) as part:
        write(part)
