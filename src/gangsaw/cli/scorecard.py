"""`gangsaw scorecard`: pipeline, tensor, sharded and hybrid plans side by side."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from gangsaw.cli import files
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, RecipeFlags, takes
from gangsaw.errors import InputError, NoPlanFitsError

Text = str | None


@dataclass(frozen=True)
class ScorecardFlags:
    """Where the page goes, and a hybrid plan that is already known."""

    hybrid: Annotated[
        Text,
        typer.Option("--hybrid", metavar="FILE", help="score this plan as the hybrid [search]"),
    ] = None
    html: Annotated[
        Text, typer.Option("--html", metavar="FILE.html", help="write the page for signing")
    ] = None


@takes(JobArgs, RecipeFlags, ScorecardFlags, OutputFlags)
def command(args: JobArgs, recipe: RecipeFlags, flags: ScorecardFlags, output: OutputFlags) -> None:
    """Compare the best plan of each kind, every cell a number with its derivation."""
    from gangsaw.bill.answer import power_of
    from gangsaw.cli.flags import PlanFlags
    from gangsaw.cli.options import job_from, plan_fields, seed_of, whole_plan
    from gangsaw.cli.plan import COMPILING
    from gangsaw.cli.threshold import money_of
    from gangsaw.jit import told_of_compiling
    from gangsaw.read.prices import load_prices
    from gangsaw.search.scorecard import scorecard

    target = files.writable("--html", flags.html, (".html", ".htm")) if flags.html else None
    seed_of(output)
    book = load_prices(recipe.prices)
    job, notes = job_from(args, recipe)
    for note in notes:
        screen.note(note)
    hybrid = None
    if flags.hybrid is not None:
        hybrid = whole_plan(job, plan_fields(PlanFlags(plan=flags.hybrid)))
    power = None
    with suppress(InputError):
        power = power_of(job.cluster, book)
    with told_of_compiling(lambda: screen.progress(COMPILING)):
        card = scorecard(job, book, money_of(job, book), power, hybrid)
    if target:
        from gangsaw.report.scorecard import scorecard_html

        files.put(target, scorecard_html(card))
        screen.note(f"wrote {target}")
    if output.json:
        screen.write_json(card)
    else:
        from gangsaw.report.scorecard import scorecard_text

        screen.show(lambda console: console.print(scorecard_text(card), soft_wrap=True))
    if not any(c.plan for c in card.columns):
        raise NoPlanFitsError(
            "no plan of any kind fits: what the least of each needs is"
            f" {'in the document' if output.json else 'listed'}"
        )
