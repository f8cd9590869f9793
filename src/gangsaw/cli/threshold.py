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
    from gangsaw.search.parameters import Case, Money, Objective
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
            help="plan files (TOML or JSON), each on CLUSTER or as FILE@CLUSTER [the plans that the"
            " search finds]",
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
    from gangsaw.cli.plan import COMPILING
    from gangsaw.jit import told_of_compiling
    from gangsaw.read.prices import load_prices
    from gangsaw.search.answer import Question, threshold_answer
    from gangsaw.search.parameters import OBJECTIVES, PARAMETERS, parameter

    if flags.over is None:
        raise InputError(f"--over is missing. Legal: {', '.join(PARAMETERS)}")
    over = parameter(flags.over.strip())
    against = parameter(flags.map.strip(), "--map") if flags.map else None
    by: Objective = "cost" if over.unit.startswith("USD") else "time"
    if flags.objective:
        by = OBJECTIVES[OBJECTIVES.index(values.choice("--objective", flags.objective, OBJECTIVES))]
    low, high = _range(flags.range)
    target = files.writable("--html", flags.html, (".html", ".htm")) if flags.html else None
    job, notes = job_from(args, recipe)
    for note in notes:
        screen.note(note)
    book = load_prices(recipe.prices)
    asked = Question(over, by, low, high, against, flags.robust, seed_of(output))
    with told_of_compiling(lambda: screen.progress(COMPILING)):
        if named.plans:
            cases = _cases(job, named.plans, _Prices(book, flags.energy_price, recipe.prices))
        else:
            from gangsaw.search.contenders import Span, contenders

            spans = [Span(over, low, high), *([Span(against)] if against else [])]
            cases = contenders(job, money_of(job, book, flags.energy_price), spans, by)
        answer = threshold_answer(cases, asked)
    if target:
        from gangsaw.report.threshold import answer_html

        files.put(target, answer_html(answer))
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
        raise InputError(
            f"--range {text}: the smaller end comes first. Legal: LOW:HIGH, as 1e9:1e11"
        )
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
        usual_usd_per_kwh=book.value("electricity.us.industrial", "USD/kWh"),
    )


@dataclass(frozen=True)
class _Prices:
    """The book, energy on top, and the user's price file."""

    book: PriceBook
    energy: Text
    path: Text


def _cases(job: Job, names: list[str], prices: _Prices) -> list[Case]:
    """The plans of the files, named after them; FILE@CLUSTER is a plan on another cluster."""
    from pathlib import Path

    from gangsaw.cli.options import plan_fields, whole_plan
    from gangsaw.search.parameters import Case

    found: list[Case] = []
    for name in names:
        path, at, cluster = name.rpartition("@")
        if not at or Path(name).exists():
            path, at, cluster = name, "", ""
        there = _elsewhere(job, cluster, prices.path) if at else job
        plan = whole_plan(there, plan_fields(PlanFlags(plan=path)))
        short = Path(path).stem + (f"@{cluster}" if at else "")
        if any(c.name == short for c in found):
            short = name
        same = next((c for c in found if (c.plan, c.job.cluster) == (plan, there.cluster)), None)
        if same is not None:
            raise InputError(
                f"{name} is the same plan as {same.name}: they never change rank. Legal: different"
                " plans, or one plan on different clusters"
            )
        money = money_of(there, prices.book, prices.energy)
        found.append(Case(short, there, plan, money, elsewhere=bool(at)))
    return found


def _elsewhere(job: Job, name: str, path: Text) -> Job:
    """The same training on another cluster, at its own price."""
    from gangsaw.cli.options import priced
    from gangsaw.read.clusters import load_cluster

    cluster = load_cluster(name)
    if path is not None:
        cluster = priced(cluster, path)
    return job.model_copy(update={"cluster": cluster})
