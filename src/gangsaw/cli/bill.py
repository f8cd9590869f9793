"""`gangsaw bill`: the invoice of a plan: a step, a million tokens, a run, a month."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from gangsaw.bill.answer import BillAnswer, BillChoices
    from gangsaw.search.site import FullBill
    from gangsaw.spec.invoice import RunTerms, StepUse
    from gangsaw.spec.job import Job
    from gangsaw.spec.plan import Plan
    from gangsaw.spec.price import PriceBook
    from gangsaw.spec.result import EstimateResult, PlanDoc

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
    by_stage: Annotated[
        bool,
        typer.Option(
            "--by-stage", help="bill the simulated pipeline, stage by stage", rich_help_panel=_PANEL
        ),
    ] = False
    trace: Annotated[
        Text, _flag("--trace", "PATH", "bill measured profiler traces: a file, or a folder of them")
    ] = None
    facility: Annotated[
        bool,
        typer.Option(
            "--facility",
            help="procurement targets, floor, fabric, power cap, own or rent",
            rich_help_panel=_PANEL,
        ),
    ] = False
    facility_file: Annotated[
        Text,
        _flag("--facility-file", "FILE", "racks, feeds, switch, horizon, use by month (TOML)"),
    ] = None
    batches: Annotated[
        bool,
        typer.Option(
            "--batches",
            help="microbatch counts judged by money to the same loss; needs --tokens",
            rich_help_panel=_PANEL,
        ),
    ] = False
    recover: Annotated[
        Text, _flag("--recover", "POINTS", "worth of so many points less idle share [1]")
    ] = None
    fleet: Annotated[
        Text, _flag("--fleet", "DEVICES", "devices of the fleet that --recover is worked out for")
    ] = None
    csv: Annotated[Text, _flag("--csv", "FILE.csv", "write every line of the last invoice")] = None
    pdf: Annotated[Text, _flag("--pdf", "FILE.pdf", "print the page; needs a Chromium")] = None
    html: Annotated[Text, _flag("--html", "FILE.html", "write the invoices as a page")] = None


@takes(JobArgs, RecipeFlags, PlanFlags, BillFlags, OutputFlags)
def command(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, flags: BillFlags, output: OutputFlags
) -> None:
    """Bill one plan: device-hours and money by cause, a step, a million tokens and a run."""
    from gangsaw.bill.answer import bill_answer
    from gangsaw.cli.options import estimated
    from gangsaw.read.prices import load_prices

    target_csv = files.writable("--csv", flags.csv, (".csv",)) if flags.csv else None
    target_html = files.writable("--html", flags.html, (".html", ".htm")) if flags.html else None
    target_pdf = files.writable("--pdf", flags.pdf, (".pdf",)) if flags.pdf else None
    book = load_prices(recipe.prices)
    job, result = estimated(args, recipe, cut, output)
    choices = _choices(flags, book, job)
    answer = bill_answer(
        _use(flags, job, result),
        job.cluster,
        book,
        choices,
        plan=result.plan,
        memory=result.memory,
        against=_second(flags.against, job) if flags.against else None,
    )
    answer = _with_site(answer, flags, book, (job, choices))
    if target_csv:
        from gangsaw.report.invoice import invoice_csv

        files.put(target_csv, invoice_csv(answer.invoices[-1], answer.line_usd))
        screen.note(f"wrote {target_csv}")
    if target_html:
        files.put(target_html, _page(answer))
        screen.note(f"wrote {target_html}")
    if target_pdf:
        from gangsaw.report.pdf import print_pdf

        print_pdf(_page(answer), target_pdf)
        screen.note(f"wrote {target_pdf}")
    if output.json:
        screen.write_json(answer)
        return
    screen.show(lambda console: _print(answer, console))


def _use(flags: BillFlags, job: Job, result: EstimateResult) -> StepUse:
    """The step that is billed: the estimate's, the simulated pipeline's, or a measured one."""
    from gangsaw.bill.use import use_of_plan, use_of_plan_timeline, use_of_timeline

    tokens = job.recipe.tokens_per_step
    if flags.trace is not None:
        if flags.by_stage:
            raise InputError(
                "--trace and --by-stage: a bill is of one timeline. Legal: one of them"
            )
        from pathlib import Path

        from gangsaw.cli.reconcile import trace_files
        from gangsaw.trace.measured import measure_files

        line = measure_files(trace_files(Path(flags.trace))).timeline
        if job.cluster.devices % line.ranks:
            raise InputError(
                f"--trace {flags.trace} has {line.ranks} ranks, the cluster"
                f" {job.cluster.devices} devices: each rank stands for equally many"
            )
        return use_of_timeline(line, job.cluster.devices // line.ranks, tokens, "measured step")
    if flags.by_stage:
        from gangsaw.search.timeline import plan_timeline

        line = plan_timeline(job, plan_of(result.plan))
        return use_of_plan_timeline(result, line, tokens)
    return use_of_plan(result, tokens)


def plan_of(document: PlanDoc) -> Plan:
    """The plan that a document shows."""
    from gangsaw.spec.plan import Plan

    fields = document.model_dump()
    recompute, _, layers = str(fields["recompute"]).partition(":")
    return Plan.model_validate(
        {**fields, "recompute": recompute, "recompute_layers": int(layers or 0)}
    )


def _choices(flags: BillFlags, book: PriceBook, job: Job) -> BillChoices:
    """The bill's flags as what the bill is asked for."""
    from gangsaw.bill.answer import PERS, BillChoices, terms_of_offer, terms_with

    wanted = [p for text in flags.per or () for p in text.split(",")]
    per = [PERS[PERS.index(values.choice("--per", p, PERS))] for p in wanted]
    stated = (
        files.read_stated(flags.run, "terms of the run, as tokens = 15e12") if flags.run else {}
    )
    offer = (flags.offer or "").strip()

    def terms_at(at: PriceBook) -> RunTerms | None:
        terms = terms_with(at, job.recipe.tokens, float(job.model.params()), stated)
        return terms_of_offer(terms, offer, at, job.cluster)

    points = values.real("--recover", flags.recover, 1e-3, 100.0) if flags.recover else 1.0
    return BillChoices(
        recover_frac=points / 100.0,
        fleet_devices=values.whole("--fleet", flags.fleet, 1, 10**8) if flags.fleet else None,
        offer=offer,
        owned=files.read_stated(flags.own, "what is owned, as devices_usd = 32000.0")
        if flags.own
        else None,
        terms=terms_at(book),
        terms_at=terms_at,
        per=tuple(dict.fromkeys(per)),
    )


def _with_site(
    answer: BillAnswer, flags: BillFlags, book: PriceBook, asked: tuple[Job, BillChoices]
) -> FullBill:
    """The answer with the site and the batch sweep, where they are asked for."""
    from gangsaw.cli.threshold import money_of
    from gangsaw.read.toml import shown, validate
    from gangsaw.search.parameters import Case
    from gangsaw.search.site import Facility, FullBill, batch_sweep, site_answer

    job, choices = asked
    site = sweep = None
    wanted = flags.facility or flags.facility_file is not None
    if (wanted or flags.batches) and answer.plan is not None:
        plan = plan_of(answer.plan)
        case = Case(answer.title, job, plan, money_of(job, book))
        stated: dict[str, Any] = {}
        if flags.facility_file:
            stated = files.read_stated(flags.facility_file, "a site, as oversubscription = 2.0")
        facility = validate(Facility, stated, shown(flags.facility_file or "facility"))
        site = site_answer(case, book, facility, choices) if wanted else None
        if flags.batches:
            if answer.terms is None:
                raise InputError("--batches needs the run's tokens: --tokens 15T")
            sweep = batch_sweep(case, book, answer.terms.tokens)
    return FullBill.model_validate({**dict(answer), "site": site, "batches": sweep})


def _second(name: str, job: Job) -> StepUse:
    """The use of the plan in a file, for the same job."""
    from gangsaw.bill.use import use_of_plan
    from gangsaw.cli.options import plan_fields, whole_plan
    from gangsaw.search.estimate import estimate

    plan = whole_plan(job, plan_fields(PlanFlags(plan=name)))
    return use_of_plan(estimate(job, plan), job.recipe.tokens_per_step)


def _page(answer: FullBill) -> str:
    """The answer as a page."""
    from gangsaw.report.invoice import answer_html
    from gangsaw.report.site import sections

    return answer_html(answer, sections(answer.site, answer.batches))


def _print(answer: FullBill, console: Console) -> None:
    """The answer as text."""
    from gangsaw.report.invoice import answer_text
    from gangsaw.report.site import batches_text, site_text

    parts = [answer_text(answer, color=not screen.is_plain())]
    if answer.site is not None:
        parts.append(site_text(answer.site))
    if answer.batches is not None:
        parts.append(batches_text(answer.batches))
    console.print("\n\n".join(parts), soft_wrap=True)
