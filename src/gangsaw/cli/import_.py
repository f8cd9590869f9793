"""`gangsaw import`: a launch file as model, recipe and plan."""

from __future__ import annotations

from gangsaw.cli import output as screen
from gangsaw.cli.check import LaunchArg
from gangsaw.cli.flags import OutputFlags, takes


@takes(LaunchArg, OutputFlags)
def command(args: LaunchArg, output: OutputFlags) -> None:
    """Read a launch file of another framework: what it states, assumes and leaves unread."""
    from gangsaw.cli.options import seed_of
    from gangsaw.read.launch import read_launch

    seed_of(output)
    launch = read_launch(args.file)
    if output.json:
        screen.write_json(launch)
        return
    from gangsaw.report.doctor import launch_text

    screen.show(lambda console: launch_text(launch, console))
