"""`gangsaw tail`: stragglers, congestion, failures, checkpoints of one plan or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.cli.threshold import PlansArg
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.search.estimate import Evaluated
    from gangsaw.search.tail_answer import TailQuestion
    from gangsaw.spec.job import Job

Text = str | None
_PANEL = "Bad day"
ONE_PLAN_STEPS, MORE_PLANS_STEPS = 10_000, 2_000


def _flag(name: str, metavar: str, text: str) -> object:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class TailFlags:
    """What the day is like, what is asked of recovery, and how much is drawn."""

    failures: Annotated[
        Text, _flag("--failures", "FILE", "own rates, recovery, noise, storage (TOML)")
    ] = None
    steps: Annotated[
        Text, _flag("--steps", "N", "steps drawn [10000; 2000 each of several plans]")
    ] = None
    clusters: Annotated[Text, _flag("--clusters", "N", "draws of which devices are slow [50]")] = (
        None
    )
    slow_device: Annotated[
        Text, _flag("--slow-device", "FRAC", "price one device slower by this [10%]")
    ] = None
    hot_racks: Annotated[
        Text, _flag("--hot-racks", "N:FRAC", "racks under a thermal cap, slower by this, as 1:5%")
    ] = None
    slow_link: Annotated[
        Text, _flag("--slow-link", "FRAC", "the slowest link of the fabric, slower by this")
    ] = None
    background: Annotated[
        Text, _flag("--background", "FRAC", "of the fabric, taken by an unrelated job [0]")
    ] = None
    routing: Annotated[
        Text,
        _flag("--routing", "HOW", "hashed (ECMP), sprayed [hashed on Ethernet only]"),
    ] = None
    uneven: Annotated[
        Text, _flag("--uneven", "FRAC", "spread of the work of microbatches (lengths) [0]")
    ] = None
    availability: Annotated[
        Text, _flag("--availability", "FRAC", "of time with all hosts there, for spares [0.999]")
    ] = None
    recovery: Annotated[
        Text, _flag("--recovery", "TIME", "from a failure to the next step, wanted, as 5min")
    ] = None
    content: Annotated[
        Text, _flag("--content", "WHAT", "of a checkpoint: full, state, weights [full]")
    ] = None
    layout: Annotated[
        Text, _flag("--layout", "HOW", "sharded, replica, consolidated, copies [sharded]")
    ] = None
    objective: Annotated[
        Text, _flag("--objective", "BY", "mean, p50, p95, p99, predictability, cost [mean]")
    ] = None


@takes(JobArgs, PlansArg, RecipeFlags, PlanFlags, TailFlags, OutputFlags)
def command(
    args: JobArgs,
    named: PlansArg,
    recipe: RecipeFlags,
    cut: PlanFlags,
    flags: TailFlags,
    output: OutputFlags,
) -> None:
    """Say what a bad day does to plans: percentiles, failures, checkpoints, network."""
    from gangsaw.cli.options import job_from, plan_fields, seed_of
    from gangsaw.read.prices import load_prices
    from gangsaw.search.tail_answer import tail_answer

    seed = seed_of(output)
    fields = plan_fields(cut)
    several = not fields and len(named.plans or ()) != 1
    asked = _question(flags, seed, MORE_PLANS_STEPS if several else ONE_PLAN_STEPS)
    job, notes = job_from(args, recipe, fields or None)
    for note in notes:
        screen.note(note)
    book = load_prices(recipe.prices)
    cases = _cases(job, named.plans or [], fields)
    answer = tail_answer(cases, asked, book)
    if output.json:
        screen.write_json(answer)
        return
    from gangsaw.report.tail import tail_text

    screen.show(lambda console: console.print(tail_text(answer), soft_wrap=True))


def _question(flags: TailFlags, seed: int, steps: int) -> TailQuestion:
    """The flags as a question. Raises InputError with what is legal."""
    from gangsaw.cost.checkpoint import Content, Layout
    from gangsaw.read.reliability import load_reliability
    from gangsaw.search.bad_day import Wishes
    from gangsaw.search.tail import Conditions
    from gangsaw.search.tail_answer import TailQuestion
    from gangsaw.search.tail_docs import OBJECTIVES
    from gangsaw.simulate.noise import Fleet, Routing

    if flags.failures is not None:
        files.read_stated(flags.failures, "rates, recovery, noise or storage, as in docs/tail.md")
    figures = load_reliability(flags.failures)
    changed: dict[str, float] = {}
    if flags.background is not None:
        changed["background_frac"] = _below_one("--background", flags.background)
    if flags.uneven is not None:
        changed["sequence_cv"] = values.fraction("--uneven", flags.uneven)
    figures = figures.model_copy(update={"noise": figures.noise.model_copy(update=changed)})
    racks, loss = _hot(flags.hot_racks)
    routing = None
    if flags.routing is not None:
        routing = values.choice("--routing", flags.routing, get_args(Routing))
    objective = values.choice("--objective", flags.objective or "mean", OBJECTIVES)
    content = values.choice("--content", flags.content or "full", get_args(Content))
    layout = values.choice("--layout", flags.layout or "sharded", get_args(Layout))
    link = values.fraction("--slow-link", flags.slow_link) if flags.slow_link else 0.0
    clusters = values.whole("--clusters", flags.clusters or "50", 1, 10_000)
    day = Conditions(
        reliability=figures,
        fleet=Fleet(racks, loss, link),
        routing=next((r for r in get_args(Routing) if r == routing), None),
        steps=values.whole("--steps", flags.steps or str(steps), clusters, 10**7),
        clusters=clusters,
        seed=seed,
        slow_device_frac=values.fraction("--slow-device", flags.slow_device or "10%"),
    )
    wishes = Wishes(
        recovery_s=values.duration_s("--recovery", flags.recovery) if flags.recovery else None,
        availability_frac=_below_one("--availability", flags.availability or "0.999"),
        content=next(c for c in get_args(Content) if c == content),
        layout=next(x for x in get_args(Layout) if x == layout),
    )
    return TailQuestion(day, wishes, next(o for o in OBJECTIVES if o == objective))


def _below_one(flag: str, text: str) -> float:
    """A share of less than all."""
    share = values.fraction(flag, text)
    if share >= 1.0:
        raise InputError(f"{flag} {text} is out of range. Legal: 0 to below 1, as 0.3 or 30%")
    return share


def _hot(text: Text) -> tuple[int, float]:
    """Racks and by what share they are slower."""
    if text is None:
        return 0, 0.0
    count, _, loss = text.partition(":")
    racks = values.whole("--hot-racks", count, 0, 10**6)
    return racks, values.fraction("--hot-racks", loss or "5%")


def _cases(job: Job, names: list[str], fields: dict[str, object]) -> list[tuple[str, Evaluated]]:
    """The plan of the flags, those of the files, or the best of each kind."""
    from gangsaw.cli.options import plan_fields, whole_plan
    from gangsaw.search.estimate import evaluate

    found: list[tuple[str, Evaluated]] = []
    if fields:
        found.append(("stated", evaluate(job, whole_plan(job, fields))))
    for name in names:
        plan = whole_plan(job, plan_fields(PlanFlags(plan=name)))
        short = Path(name).stem
        found.append((name if short in dict(found) else short, evaluate(job, plan)))
    if not found:
        from gangsaw.search.families import survey

        surveyed = survey(job, 1)
        found = [(name, b.found) for name, b in surveyed.best.items() if b.found is not None]
        known = {(ev.plan, ev.counts) for _, ev in found}
        found = [
            *(("fastest", ev) for ev in surveyed.listed if (ev.plan, ev.counts) not in known),
            *found,
        ]
    if not found:
        raise InputError(
            f"no plan of {job.model.name} fits {job.cluster.name}: gangsaw plan shows the nearest"
        )
    return found
