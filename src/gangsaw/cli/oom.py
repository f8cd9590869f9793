"""`gangsaw oom`: why a run was out of memory, and what would fit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from gangsaw.cli import output as screen
from gangsaw.cli.check import LaunchArg, SiteFlags, site_of
from gangsaw.cli.flags import OutputFlags, takes

Text = str | None


@dataclass(frozen=True)
class MessageFlags:
    """Where the message is."""

    message: Annotated[
        Text,
        typer.Option(
            "--message", metavar="TEXT", rich_help_panel="Message",
            help="the message; FILE:PATH reads a log, - the standard input [-]",
        ),
    ] = None  # fmt: skip


def message_of(flags: MessageFlags) -> str:
    """The text of the message, from the flag, a log or standard input."""
    from gangsaw.errors import InputError
    from gangsaw.read.toml import read_text

    if flags.message is None or flags.message == "-":
        if flags.message is None and sys.stdin.isatty():
            raise InputError(
                "no message. Legal: --message 'CUDA out of memory. Tried to allocate ...',"
                " --message FILE:train.log, or the message on standard input"
            )
        return sys.stdin.read(100_000_000)
    if flags.message.startswith("FILE:"):
        return read_text(flags.message[5:], 1_000_000_000)
    return flags.message


@takes(LaunchArg, MessageFlags, SiteFlags, OutputFlags)
def command(args: LaunchArg, message: MessageFlags, site: SiteFlags, output: OutputFlags) -> None:
    """Name the tensor that did not fit, tell fragmentation from shortage, list what fits."""
    from gangsaw.cli.options import seed_of
    from gangsaw.doctor.oom import explain_oom
    from gangsaw.read.launch import read_launch

    seed_of(output)
    launch = read_launch(args.file)
    cluster, stack = site_of(site, launch.facts.get("world"))
    result = explain_oom(message_of(message), launch, cluster, stack)
    if output.json:
        screen.write_json(result)
        return
    from gangsaw.report.doctor import oom_text

    screen.show(lambda console: oom_text(result, console))
