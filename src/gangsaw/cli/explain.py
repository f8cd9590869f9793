"""`gangsaw explain`: the five steps that lead to a plan."""

from __future__ import annotations

from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, SiteRecipeFlags, takes


@takes(JobArgs, SiteRecipeFlags, OutputFlags)
def command(args: JobArgs, recipe: SiteRecipeFlags, output: OutputFlags) -> None:
    """Walk the five steps from one layer to a plan, with the numbers at each step."""
    from gangsaw.cli.options import job_from, seed_of

    seed_of(output)
    job, assumed = job_from(args, recipe)
    from gangsaw.search.explain import explain

    document = explain(job)
    if output.json:
        screen.write_json(document)
        return
    from gangsaw.report.walk import explain_text

    for line in assumed:
        screen.note(line)
    screen.show(lambda console: explain_text(document, console))
