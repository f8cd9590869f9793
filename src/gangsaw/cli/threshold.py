"""`gangsaw threshold`: where plans change rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.search.parameters import Case, Money
    from gangsaw.spec.job import Job
    from gangsaw.spec.price import PriceBook

Text = str | None
_PANEL = "Threshold"


def _flag(name: str, metavar: str, text: str) -> object:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class PlansArg:
    """Plan files to compare."""

    plans: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLAN PLAN...]",
            help="plan files (TOML or JSON) [the best hybrid, pipeline, tensor, sharded plans]",
        ),
    ] = None


@dataclass(frozen=True)
class ThresholdFlags:
    """What is varied, over which range, and by what plans are judged."""

    over: Annotated[
        Text, _flag("--over", "NAME", "inter-node-bandwidth, device-price, sequence-length, ...")
    ] = None
    range: Annotated[
        Text, _flag("--range", "LOW:HIGH", "in the parameter's SI unit [1/16 to 16 times now]")
    ] = None
    map: Annotated[Text, _flag("--map", "NAME", "a second parameter: which plan wins where")] = None
    objective: Annotated[
        Text, _flag("--objective", "BY", "time or cost, a million tokens [time]")
    ] = None
    energy_price: Annotated[
        Text, _flag("--energy-price", "USD", "a kWh, on top of the device-hour [none]")
    ] = None
    robust: Annotated[
        bool,
        typer.Option(
            "--robust", help="move every input within its doubt; shocks", rich_help_panel=_PANEL
        ),
    ] = False
    html: Annotated[Text, _flag("--html", "FILE.html", "write charts as a page")] = None


@takes(JobArgs, PlansArg, RecipeFlags, ThresholdFlags, OutputFlags)
def command(
    args: JobArgs,
    named: PlansArg,
    recipe: RecipeFlags,
    flags: ThresholdFlags,
    output: OutputFlags,
) -> None:
    """Say at which bandwidth, price, length or batch plans change rank."""
    from gangsaw.cli.options import job_from, seed_of
    from gangsaw.read.prices import load_prices
    from gangsaw.search.answer import Question, threshold_answer
    from gangsaw.search.parameters import OBJECTIVES, parameter

    if flags.over is None:
        raise InputError("--over is missing. Legal: a parameter, as --over inter-node-bandwidth")
    over = parameter(flags.over.strip())
    against = parameter(flags.map.strip()) if flags.map else None
    by = OBJECTIVES[OBJECTIVES.index(values.choice("--objective", flags.objective, OBJECTIVES))] \
        if flags.objective else "time"  # fmt: skip
    low, high = _range(flags.range)
    target = files.writable("--html", flags.html, (".html", ".htm")) if flags.html else None
    job, notes = job_from(args, recipe)
    for note in notes:
        screen.note(note)
    money = money_of(job, load_prices(recipe.prices), flags.energy_price)
    if named.plans:
        cases = _cases(job, named.plans, money)
    else:
        from gangsaw.search.scorecard import candidates

        cases = candidates(job, money)
    asked = Question(over, by, low, high, against, flags.robust, seed_of(output))
    answer = threshold_answer(cases, asked)
    if target:
        from gangsaw.report.threshold import answer_html

        target.write_text(answer_html(answer), encoding="utf-8")
        screen.note(f"wrote {target}")
    if output.json:
        screen.write_json(answer)
        return
    from gangsaw.report.threshold import answer_text

    screen.show(lambda console: console.print(answer_text(answer), soft_wrap=True))


def _range(text: Text) -> tuple[float | None, float | None]:
    """The two ends of a range."""
    if text is None:
        return None, None
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--range {text!r} is not a range. Legal: LOW:HIGH, as 1e9:1e11")
    ends = [values.real("--range", end, 1e-12, 1e18) for end in (low, high)]
    if not ends[0] < ends[1]:
        raise InputError(f"--range {text}: the smaller end comes first")
    return ends[0], ends[1]


def money_of(job: Job, book: PriceBook, energy_price: Text = None) -> Money:
    """Prices of the cluster, energy where it is stated, failures of the price book."""
    from gangsaw.search.parameters import Money

    host = job.cluster.host
    watts = host.node_power_w / host.devices * book.value("power.measured.share", "frac")
    watts *= (1 + book.value("power.network.share", "frac")) * book.value("pue.site.new", "ratio")
    energy = 0.0
    if energy_price is not None:
        energy = values.real("--energy-price", energy_price, 0.0, 100.0)
    return Money(
        usd_per_device_hour=job.cluster.usd_per_device_hour,
        device_w=watts,
        usd_per_kwh=energy,
        device_mtbf_h=book.value("failure.device.mtbf", "hours"),
        restart_s=book.value("failure.restart.time", "s"),
        checkpoint_block_s=book.value("failure.checkpoint.block", "s"),
    )


def _cases(job: Job, names: list[str], money: Money) -> list[Case]:
    """The plans of the files, named after them."""
    from pathlib import Path

    from gangsaw.cli.options import plan_fields, whole_plan
    from gangsaw.search.parameters import Case

    found: list[Case] = []
    for name in names:
        plan = whole_plan(job, plan_fields(PlanFlags(plan=name)))
        short = Path(name).stem
        if any(c.name == short for c in found):
            short = name
        found.append(Case(short, job, plan, money))
    return found
