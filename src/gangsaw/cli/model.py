"""`gangsaw model`: what is in a model."""

from __future__ import annotations

from gangsaw.cli.flags import LengthFlag, ModelArg, OutputFlags, takes


@takes(ModelArg, LengthFlag, OutputFlags)
def command(args: ModelArg, length: LengthFlag, output: OutputFlags) -> None:
    """Say what is in a model: parameters by group, FLOPs and cache a token."""
    from gangsaw.cli import output as screen
    from gangsaw.cli.options import seed_of, seq_len_of
    from gangsaw.cost.summary import model_summary
    from gangsaw.read.models import load_model

    seed_of(output)
    seq_len = seq_len_of(length.seq_len)
    summary = model_summary(load_model(args.model), seq_len)
    if output.json:
        screen.write_json(summary)
        return
    from gangsaw.report.model_text import model_text

    screen.show(lambda console: model_text(summary, console))
