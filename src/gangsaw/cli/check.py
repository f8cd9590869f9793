"""`gangsaw check`: a launch file against the rules of its framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.flags import OutputFlags, takes

if TYPE_CHECKING:
    from gangsaw.doctor.resume import ResumeResult
    from gangsaw.read.launch.document import LaunchFile
    from gangsaw.spec import ClusterSpec, StackProfile

Text = str | None
_D = "Where it runs"


@dataclass(frozen=True)
class LaunchArg:
    """A launch file."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="launch script, recipe or configuration; recipes.py:NAME picks one recipe",
        ),
    ]


@dataclass(frozen=True)
class SiteFlags:
    """Where the launch runs, for predicted memory and time."""

    cluster: Annotated[
        Text,
        typer.Option(
            "--cluster",
            metavar="CLUSTER",
            rich_help_panel=_D,
            help="as h100-sxm:64, or a cluster TOML; without one nothing is predicted",
        ),
    ] = None
    stack: Annotated[
        Text,
        typer.Option(
            "--stack",
            metavar="NAME",
            rich_help_panel=_D,
            help="software generation [that of the framework]",
        ),
    ] = None
    version: Annotated[
        Text,
        typer.Option(
            "--version", metavar="RELEASE", rich_help_panel=_D,
            help="of the framework, as core_r0.12 [the newest]",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True)
class ResumeFlags:
    """A checkpoint that the launch is to resume."""

    resume_from: Annotated[
        Text,
        typer.Option(
            "--resume-from",
            metavar="FILE",
            rich_help_panel="Resume",
            help="the launch file whose checkpoint is resumed",
        ),
    ] = None
    checkpoint_format: Annotated[
        Text,
        typer.Option(
            "--checkpoint-format", metavar="FORMAT", rich_help_panel="Resume",
            help="torch_dist, torch, fsdp_dtensor, deepspeed, deepspeed-universal, dcp,"
            " safetensors [that of the framework]",
        ),
    ] = None  # fmt: skip


def resume_of(launch: LaunchFile, flags: ResumeFlags) -> ResumeResult | None:
    """Whether the stated checkpoint can be resumed."""
    from gangsaw.doctor.resume import resume_check
    from gangsaw.errors import InputError
    from gangsaw.read.launch import read_launch

    if flags.resume_from is None:
        if flags.checkpoint_format is not None:
            raise InputError("--checkpoint-format needs --resume-from FILE. Legal: both or none")
        return None
    old = read_launch(flags.resume_from)
    for found in (old, launch):
        if found.plan is None or found.model is None:
            raise InputError(f"{found.path}: no plan to resume ({'; '.join(found.missing)})")
    if old.plan is None or launch.plan is None or launch.model is None:
        return None
    usual = {"torchtitan": "dcp", "deepspeed": "deepspeed", "gangsaw": "dcp"}
    form = flags.checkpoint_format or str(
        old.facts.get("ckpt_format") or usual.get(old.framework, "torch_dist")
    )
    ranks = launch.facts.get("per_node")
    return resume_check(
        launch.model, old.plan, launch.plan, form, ranks if isinstance(ranks, int) else 8
    )


def site_of(flags: SiteFlags, world: object) -> tuple[ClusterSpec | None, StackProfile | None]:
    """The cluster and the stack that were stated; a node's name alone takes the file's devices."""
    cluster = stack = None
    if flags.cluster is not None:
        from gangsaw.read.clusters import load_cluster

        name = flags.cluster
        bare = ":" not in name and not name.endswith(".toml")
        cluster = load_cluster(f"{name}:{world}" if bare and isinstance(world, int) else name)
    if flags.stack is not None:
        from gangsaw.read.stacks import load_stack

        stack = load_stack(flags.stack)
    return cluster, stack


@takes(LaunchArg, SiteFlags, ResumeFlags, OutputFlags)
def command(args: LaunchArg, site: SiteFlags, resume: ResumeFlags, output: OutputFlags) -> None:
    """Say what a framework would refuse, what trains another model, and what is wasted."""
    from gangsaw.cli.options import seed_of
    from gangsaw.doctor.check import check
    from gangsaw.read.launch import read_launch

    seed_of(output)
    launch = read_launch(args.file)
    cluster, stack = site_of(site, launch.facts.get("world"))
    result = check(launch, cluster, stack, site.version or "")
    result = result.model_copy(update={"resume": resume_of(launch, resume)})
    if output.json:
        screen.write_json(result)
        return
    from gangsaw.report.doctor import check_text

    screen.show(lambda console: check_text(result, console))
