"""`gangsaw check`: a launch file against the rules of its framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.flags import OutputFlags, takes

if TYPE_CHECKING:
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


@takes(LaunchArg, SiteFlags, OutputFlags)
def command(args: LaunchArg, site: SiteFlags, output: OutputFlags) -> None:
    """Say what a framework would refuse, what trains another model, and what is wasted."""
    from gangsaw.cli.options import seed_of
    from gangsaw.doctor.check import check
    from gangsaw.read.launch import read_launch

    seed_of(output)
    launch = read_launch(args.file)
    cluster, stack = site_of(site, launch.facts.get("world"))
    result = check(launch, cluster, stack, site.version or "")
    if output.json:
        screen.write_json(result)
        return
    from gangsaw.report.doctor import check_text

    screen.show(lambda console: check_text(result, console))
