"""`gangsaw reconcile`: a measured trace against a prediction, cause by cause."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import OutputFlags, PlanFlags, RecipeFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.simulate.timeline import Timeline
    from gangsaw.spec.job import Job
    from gangsaw.spec.result import EstimateResult

_P = "Measured and predicted"
Text = str | None


def _flag(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_P)


@dataclass(frozen=True)
class ReconcileFlags:
    """What is compared."""

    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|TRACE",
            help="folder of a run, folder of traces (one a rank), or one profiler trace",
        ),
    ]
    predicted: Annotated[
        str,
        typer.Argument(
            metavar="PLAN",
            help="what estimate --json wrote, or a plan file (with --model and --cluster)",
        ),
    ]
    model: Annotated[Text, _flag("--model", "MODEL", "as in estimate, with a plan file")] = None
    cluster: Annotated[
        Text, _flag("--cluster", "CLUSTER", "as in estimate; prices and feedback go by it")
    ] = None
    step: Annotated[Text, _flag("--step", "N", "profiler step [the last whole one]")] = None
    write_cluster: Annotated[
        Text, _flag("--write-cluster", "FILE.toml", "the cluster, scaled to what was measured")
    ] = None


@takes(ReconcileFlags, RecipeFlags, PlanFlags, OutputFlags)
def command(
    flags: ReconcileFlags, recipe: RecipeFlags, cut: PlanFlags, output: OutputFlags
) -> None:
    """Align measured with predicted and name the largest difference."""
    from gangsaw.cli.options import seed_of
    from gangsaw.trace.measured import measure_files
    from gangsaw.trace.reconcile import reconcile, sharpened

    seed_of(output)
    target = None
    if flags.write_cluster is not None:
        from gangsaw.cli.files import writable

        target = writable("--write-cluster", flags.write_cluster, (".toml",))
        if flags.cluster is None:
            raise InputError("--write-cluster needs --cluster. Legal: the cluster to scale")
    paths = trace_files(Path(flags.source))
    number = None if flags.step is None else values.whole("--step", flags.step, 0, 10**9)
    estimate, job, line = _prediction(flags, recipe, cut)
    _same_cut(Path(flags.source), flags.predicted, estimate)
    measured = measure_files(paths, number)
    cluster = job.cluster if job else _cluster(flags)
    tokens = job.recipe.tokens_per_step if job else 1
    result = reconcile(measured, estimate, cluster, tokens, line)
    if target is not None and cluster is not None:
        from gangsaw.cli.files import put
        from gangsaw.trace.cluster_toml import cluster_toml, comments_of

        said = comments_of(Path(flags.cluster or ""))
        said.append(f"Scaled by gangsaw reconcile to {flags.source}, {date.today()}")
        put(target, cluster_toml(sharpened(cluster, result, estimate), said))
        screen.note(f"cluster: {target}")
    if output.json:
        screen.write_json(result)
        return
    from gangsaw.report.run_text import reconcile_text

    screen.show(lambda console: reconcile_text(result, console))


def trace_files(source: Path) -> list[Path]:
    """The trace files that a path names. InputError when there are none."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"{source}: no such file or folder")
    folder = source / "trace" if (source / "trace").is_dir() else source
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not found:
        raise InputError(f"{source} holds no traces. Legal: files ending in .json or .json.gz")
    return found


def _same_cut(source: Path, name: str, estimate: EstimateResult) -> None:
    """Refuse a prediction of another plan than the one that a run's own folder says it ran."""
    head = source / "run.json"
    if not head.is_file():
        return
    from gangsaw.read.toml import read_json

    config = read_json(head).get("config")
    ran = config.get("plan") if isinstance(config, dict) else None
    if not isinstance(ran, dict):
        return
    axes = ("tp", "cp", "pp", "dp", "ep", "mbs", "num_microbatches")
    differ = [a for a in axes if a in ran and ran[a] != getattr(estimate.plan, a)]
    if differ:
        theirs = " ".join(f"{a}={getattr(estimate.plan, a)}" for a in differ)
        raise InputError(
            f"{name} is of another plan than the one that ran: {theirs}. Legal: that of {head},"
            f" {' '.join(f'{a}={ran[a]}' for a in differ)}"
        )


def _cluster(flags: ReconcileFlags) -> Any:  # noqa: ANN401
    if flags.cluster is None:
        return None
    from gangsaw.read.clusters import load_cluster

    return load_cluster(flags.cluster)


def _prediction(
    flags: ReconcileFlags, recipe: RecipeFlags, cut: PlanFlags
) -> tuple[EstimateResult, Job | None, Timeline | None]:
    """The estimate, and where a plan file was given the job and its simulated pipeline."""
    import dataclasses

    from gangsaw.cli.files import read_table
    from gangsaw.read.toml import validate
    from gangsaw.spec.result import EstimateResult

    table = read_table(flags.predicted)
    if "step_time_s" in table:
        return validate(EstimateResult, table, flags.predicted), None, None
    if flags.model is None or flags.cluster is None:
        raise InputError(
            f"{flags.predicted} is a plan, not an estimate: --model and --cluster are needed."
            " Legal: both, or the output of gangsaw estimate --json"
        )
    from gangsaw.cli.flags import JobArgs
    from gangsaw.cli.options import job_from, plan_fields, whole_plan
    from gangsaw.search.estimate import estimate
    from gangsaw.search.timeline import plan_timeline

    fields = plan_fields(dataclasses.replace(cut, plan=flags.predicted))
    job, _ = job_from(JobArgs(flags.model, flags.cluster), recipe, fields)
    plan = whole_plan(job, fields)
    line = plan_timeline(job, plan) if plan.pp > 1 else None
    return estimate(job, plan), job, line
