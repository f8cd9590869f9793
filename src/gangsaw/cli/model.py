"""`gangsaw model`: what is in a model."""

from __future__ import annotations

from gangsaw.cli.flags import ModelArg, OutputFlags, takes


@takes(ModelArg, OutputFlags)
def command(args: ModelArg, output: OutputFlags) -> None:
    """Say what is in a model: parameters by group, FLOPs and cache a token."""
    from gangsaw.cli import output as screen
    from gangsaw.cli.options import seed_of
    from gangsaw.read.models import load_model
    from gangsaw.read.summary import model_summary

    seed_of(output)
    model = load_model(args.model)
    summary = model_summary(model)
    if output.json:
        screen.write_json(summary)
        return
    from gangsaw.report.text import model_table

    model_table(model.name, summary, screen.console())
