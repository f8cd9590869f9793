"""`gangsaw bill`: the invoice of a plan: a step, a million tokens, a run, a month."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes

if TYPE_CHECKING:
    from rich.console import Console

    from gangsaw.bill.answer import BillAnswer, BillChoices
    from gangsaw.spec.invoice import StepUse
    from gangsaw.spec.job import Job
    from gangsaw.spec.price import PriceBook

Text = str | None
_PANEL = "Bill"


def _flag(name: str, metavar: str, text: str) -> object:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class BillFlags:
    """What is billed, at which offer, and where it is written."""

    per: Annotated[
        list[str] | None,
        _flag("--per", "WHAT", "step, million-tokens, run, month; repeat, or join with commas"),
    ] = None
    offer: Annotated[
        Text, _flag("--offer", "NAME", "of the price book: on-demand, reserved-1y, spot, owned")
    ] = None
    own: Annotated[
        Text, _flag("--own", "FILE", "figures of owned devices (TOML); implies --offer owned")
    ] = None
    run: Annotated[
        Text, _flag("--run", "FILE", "terms of the run (TOML): ramp, evaluation, failures, saves")
    ] = None
    against: Annotated[
        Text, _flag("--against", "FILE", "a second plan (TOML or JSON), compared line by line")
    ] = None
    csv: Annotated[Text, _flag("--csv", "FILE.csv", "write every line of the last invoice")] = None
    html: Annotated[Text, _flag("--html", "FILE.html", "write the invoices as a page")] = None


@takes(JobArgs, RecipeFlags, PlanFlags, BillFlags, OutputFlags)
def command(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, flags: BillFlags, output: OutputFlags
) -> None:
    """Bill one plan: device-hours and money by cause, a step, a million tokens and a run."""
    from gangsaw.bill.answer import bill_answer
    from gangsaw.bill.use import use_of_plan
    from gangsaw.cli.options import estimated
    from gangsaw.read.prices import load_prices

    target_csv = files.writable("--csv", flags.csv, (".csv",)) if flags.csv else None
    target_html = files.writable("--html", flags.html, (".html", ".htm")) if flags.html else None
    book = load_prices(recipe.prices)
    job, result = estimated(args, recipe, cut, output)
    choices = _choices(flags, book, job)
    tokens = job.recipe.tokens_per_step
    answer = bill_answer(
        use_of_plan(result, tokens),
        job.cluster,
        book,
        choices,
        plan=result.plan,
        memory=result.memory,
        against=_second(flags.against, job) if flags.against else None,
    )
    if target_csv:
        from gangsaw.report.invoice import invoice_csv

        target_csv.write_text(invoice_csv(answer.invoices[-1]), encoding="utf-8")
        screen.note(f"wrote {target_csv}")
    if target_html:
        from gangsaw.report.invoice import answer_html

        target_html.write_text(answer_html(answer), encoding="utf-8")
        screen.note(f"wrote {target_html}")
    if output.json:
        screen.write_json(answer)
        return
    screen.show(lambda console: _print(answer, console))


def _choices(flags: BillFlags, book: PriceBook, job: Job) -> BillChoices:
    """The bill's flags as what the bill is asked for."""
    from gangsaw.bill.answer import PERS, BillChoices, terms_with

    wanted = [p for text in flags.per or () for p in text.split(",")]
    per = [PERS[PERS.index(values.choice("--per", p, PERS))] for p in wanted]
    stated = files.read_table(flags.run) if flags.run else {}
    terms = terms_with(book, job.recipe.tokens, float(job.model.params()), stated)
    return BillChoices(
        offer=(flags.offer or "").strip(),
        owned=files.read_table(flags.own) if flags.own else None,
        terms=terms,
        per=tuple(dict.fromkeys(per)),
    )


def _second(name: str, job: Job) -> StepUse:
    """The use of the plan in a file, for the same job."""
    from gangsaw.bill.use import use_of_plan
    from gangsaw.cli.options import plan_fields, whole_plan
    from gangsaw.search.estimate import estimate

    plan = whole_plan(job, plan_fields(PlanFlags(plan=name)))
    return use_of_plan(estimate(job, plan), job.recipe.tokens_per_step)


def _print(answer: BillAnswer, console: Console) -> None:
    """The answer as text."""
    from gangsaw.report.invoice import answer_text

    console.print(answer_text(answer, color=not screen.is_plain()), soft_wrap=True)
