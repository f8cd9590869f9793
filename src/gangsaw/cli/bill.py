"""`gangsaw bill`: the invoice of a plan."""

from __future__ import annotations

from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes


@takes(JobArgs, RecipeFlags, PlanFlags, OutputFlags)
def command(
    args: JobArgs,
    recipe: RecipeFlags,
    cut: PlanFlags,
    output: OutputFlags,
) -> None:
    """Bill one plan: device-hours and money by cause, a step, a million tokens and a run."""
    from gangsaw.cli.options import estimated

    _, result = estimated(args, recipe, cut, output)
    if output.json:
        screen.write_json(result.bill)
        return
    from gangsaw.report.text import bill_text

    screen.show(lambda console: bill_text(result, console))
