"""`gangsaw explain`: the five steps that lead to a plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, ModelArg, OutputFlags, SiteRecipeFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.run.results import MeasuredLayers


@dataclass(frozen=True)
class ExplainArgs(ModelArg):
    """The model, and the cluster or what was measured of one."""

    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER",
            help="catalog node and number of devices (h100-sxm:2048), or a cluster TOML",
        ),
    ] = None
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured",
            metavar="DIR",
            help="walk on what gangsaw measure found, in place of CLUSTER",
            rich_help_panel="Recipe",
        ),
    ] = None


@takes(ExplainArgs, SiteRecipeFlags, OutputFlags)
def command(args: ExplainArgs, recipe: SiteRecipeFlags, output: OutputFlags) -> None:
    """Walk the five steps from one layer to a plan, with the numbers at each step."""
    from gangsaw.cli.options import job_from, seed_of

    seed_of(output)
    where, found = _where(args)
    if found is not None:
        recipe = dataclasses.replace(
            recipe,
            seq_len=recipe.seq_len or str(found.seq_len),
            precision=recipe.precision or found.precision,
        )
    job, assumed = job_from(JobArgs(args.model, where), recipe)
    same = found is not None and (found.seq_len, found.precision) == (
        job.recipe.seq_len,
        job.recipe.precision,
    )
    from gangsaw.search.explain import Measured, explain

    own = Measured(found.seconds, found.kept_bytes) if found is not None and same else None
    document = explain(job, own)
    if found is not None and not same:
        screen.note(
            f"layers were measured at seq_len={found.seq_len} in {found.precision}; this walk"
            " follows the measured curves instead"
        )
    if output.json:
        screen.write_json(document)
        return
    from gangsaw.report.walk import explain_text

    for line in assumed:
        screen.note(line)
    screen.show(lambda console: explain_text(document, console))


def _where(args: ExplainArgs) -> tuple[str, MeasuredLayers | None]:
    """The cluster that is walked on, and the layers that were measured on it."""
    if args.measured is None:
        if args.cluster is None:
            raise InputError(
                "CLUSTER is missing. Legal: a catalog node and devices (h100-sxm:2048), a cluster"
                " TOML, or --measured DIR"
            )
        return args.cluster, None
    if args.cluster is not None:
        raise InputError("--measured stands beside CLUSTER. Legal: one of both")
    from pathlib import Path

    from gangsaw.run.results import CLUSTER, measured_layers

    folder = Path(args.measured)
    return str(folder / CLUSTER), measured_layers(folder)
