"""`gangsaw check`: a launch file against the rules of its framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.flags import OutputFlags, takes

if TYPE_CHECKING:
    from gangsaw.doctor.resume import ResumeResult
    from gangsaw.doctor.saving import SaveResult
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
    """A checkpoint that the launch is to resume, or has saved."""

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
    saved_in: Annotated[
        Text,
        typer.Option(
            "--saved-in", metavar="TIME[,TIME]", rich_help_panel="Resume",
            help="how long a save took, as 6min; with a second, when all but the last writer"
            " had ended and when the last: 107min,175min",
        ),
    ] = None  # fmt: skip


def resume_of(launch: LaunchFile, flags: ResumeFlags) -> ResumeResult | None:
    """Whether the stated checkpoint can be resumed."""
    from gangsaw.doctor.resume import resume_check
    from gangsaw.errors import InputError
    from gangsaw.read.launch import read_launch

    if flags.resume_from is None:
        if flags.checkpoint_format is not None and flags.saved_in is None:
            raise InputError(
                "--checkpoint-format needs --resume-from FILE or --saved-in TIME. Legal: with one"
            )
        return None
    old = read_launch(flags.resume_from)
    for found in (old, launch):
        if found.plan is None or found.model is None:
            raise InputError(f"{found.path}: no plan to resume ({'; '.join(found.missing)})")
    if old.plan is None or launch.plan is None or launch.model is None:
        return None
    return resume_check(
        launch.model, old.plan, launch.plan, _format_of(old, flags), _ranks(launch),
        frameworks=(_engine(old), _engine(launch)),
    )  # fmt: skip


def _engine(launch: LaunchFile) -> str:
    """The framework that reads and writes checkpoints; empty for a job script without one."""
    return "" if launch.framework == "slurm" else launch.framework


def _format_of(launch: LaunchFile, flags: ResumeFlags) -> str:
    usual = {"torchtitan": "dcp", "deepspeed": "deepspeed", "gangsaw": "dcp"}
    return flags.checkpoint_format or str(
        launch.facts.get("ckpt_format") or usual.get(launch.framework, "torch_dist")
    )


def _ranks(launch: LaunchFile) -> int:
    ranks = launch.facts.get("per_node")
    return ranks if isinstance(ranks, int) else 8


def saving_of(launch: LaunchFile, flags: ResumeFlags) -> SaveResult | None:
    """Whether the stated time of a save fits its size."""
    from gangsaw.cli.values import duration_s
    from gangsaw.doctor.saving import save_check
    from gangsaw.errors import InputError

    if flags.saved_in is None:
        return None
    if launch.plan is None or launch.model is None:
        raise InputError(f"{launch.path}: no plan to save ({'; '.join(launch.missing)})")
    times = [duration_s("--saved-in", part.strip()) for part in flags.saved_in.split(",")]
    if len(times) > 2:
        raise InputError(f"--saved-in {flags.saved_in}: {len(times)} times. Legal: one or two")
    others = times[0] if len(times) == 2 else None
    return save_check(
        launch.model, launch.plan, _format_of(launch, flags), times[-1], others, _ranks(launch)
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


def _release(text: str | None) -> str:
    """The release of the framework as stated; InputError where it has no number."""
    from gangsaw.doctor.flags import releases
    from gangsaw.doctor.rulebook import numbers
    from gangsaw.errors import InputError

    if text is not None and not numbers(text):
        raise InputError(
            f"--version {text!r} has no number."
            f" Legal: a release, as core_r{releases()[-1]} or v0.3.0"
        )
    return text or ""


@takes(LaunchArg, SiteFlags, ResumeFlags, OutputFlags)
def command(args: LaunchArg, site: SiteFlags, resume: ResumeFlags, output: OutputFlags) -> None:
    """Say what a framework would refuse, what trains another model, and what is wasted."""
    from gangsaw.cli.options import seed_of
    from gangsaw.doctor.check import check, on_cluster
    from gangsaw.read.launch import read_launch

    seed_of(output)
    version = _release(site.version)
    launch = read_launch(args.file)
    cluster, stack = site_of(site, launch.facts.get("world"))
    result = check(launch, cluster, stack, version)
    launch = on_cluster(launch, cluster)
    more = {"resume": resume_of(launch, resume), "saving": saving_of(launch, resume)}
    result = result.model_copy(update=more)
    if output.json:
        screen.write_json(result)
        return
    from gangsaw.report.doctor import check_text

    screen.show(lambda console: check_text(result, console))
