"""`gangsaw validate`: predictions beside published measured runs."""

from __future__ import annotations

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import OutputFlags, RunsArg, takes


@takes(RunsArg, OutputFlags)
def command(args: RunsArg, output: OutputFlags) -> None:
    """Predict measured runs and set the predictions beside what was measured."""
    from gangsaw.cli.files import read_rows
    from gangsaw.cli.options import seed_of

    seed_of(output)
    chosen = values.whole("--calibrate", args.calibrate, 0, 10**6) if args.calibrate else 0
    rows = read_rows(args.file)
    from gangsaw.fit.validate import validate

    document = validate(rows, chosen)
    if output.json:
        screen.write_json(document)
        return
    from gangsaw.report.validate_text import validate_text

    screen.show(lambda console: validate_text(document, console))
