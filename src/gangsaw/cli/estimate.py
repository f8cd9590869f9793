"""`gangsaw estimate`: one plan, every term."""

from __future__ import annotations

from gangsaw.cli import output as screen
from gangsaw.cli.flags import (
    JobArgs,
    PlanFlags,
    ReportFlags,
    SiteRecipeFlags,
    takes,
)


@takes(JobArgs, SiteRecipeFlags, PlanFlags, ReportFlags)
def command(
    args: JobArgs,
    recipe: SiteRecipeFlags,
    cut: PlanFlags,
    output: ReportFlags,
) -> None:
    """Predict one plan: time from peak to delivered, memory of each stage, collectives, bill."""
    from gangsaw.cli.options import estimated
    from gangsaw.cli.reporting import report_path, write_estimate_report

    path = report_path(output)
    job, result = estimated(args, recipe, cut, output)
    if output.json:
        screen.write_json(result)
    else:
        from gangsaw.report.text import estimate_text

        screen.show(lambda console: estimate_text(result, console))
    if path is not None:
        write_estimate_report(path, job, result)
        screen.note(f"report: {path}")
