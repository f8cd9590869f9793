"""The table of commands: a new command is one line here and one module with `command`."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A command: its name, the module that holds `command`, and what it does."""

    name: str
    module: str
    text: str


VERBS = (
    Verb("plan", "gangsaw.cli.plan", "ranked legal plans: memory beside the bill"),
    Verb("estimate", "gangsaw.cli.estimate", "one plan, every term of time, memory and bill"),
    Verb("explain", "gangsaw.cli.explain", "the five steps that lead to a plan"),
    Verb("timeline", "gangsaw.cli.timeline", "the pipeline schedule of a plan, drawn"),
    Verb("bill", "gangsaw.cli.bill", "the invoice of a plan, by cause"),
    Verb("threshold", "gangsaw.cli.threshold", "where plans change rank, and how surely"),
    Verb("scorecard", "gangsaw.cli.scorecard", "pipeline, tensor, sharded, hybrid, side by side"),
    Verb("tail", "gangsaw.cli.tail", "a bad day: stragglers, failures, checkpoints, network"),
    Verb("check", "gangsaw.cli.check", "a launch file against its framework's rules"),
    Verb("oom", "gangsaw.cli.oom", "an out-of-memory message: which tensor, and what fits"),
    Verb("export", "gangsaw.cli.export", "a plan as launch files of other frameworks"),
    Verb("import", "gangsaw.cli.import_", "a launch file of another framework, read"),
    Verb("model", "gangsaw.cli.model", "what is in a model: parameters, FLOPs, cache"),
    Verb("measure", "gangsaw.cli.measure", "probe this machine: layers, collectives, links"),
    Verb("train", "gangsaw.cli.train", "run a plan on torch.distributed"),
    Verb("reconcile", "gangsaw.cli.reconcile", "a measured trace against a plan, by cause"),
    Verb("validate", "gangsaw.cli.validate", "predictions beside published measured runs"),
    Verb("calibrate", "gangsaw.cli.calibrate", "measured steps of this site sharpen predictions"),
    Verb("schema", "gangsaw.cli.schema", "the JSON Schema of a command's output"),
)

NAMES = tuple(verb.name for verb in VERBS)


def usage() -> str:
    """The text of `gangsaw --help`."""
    width = max(len(name) for name in NAMES) + 2
    lines = [
        "Usage: gangsaw VERB [ARGUMENTS] [FLAGS]",
        "",
        "Decide how to cut the training of a large model across accelerators: which plans fit,",
        "how fast they are, what they cost.",
        "",
        "Verbs:",
        *(f"  {verb.name:<{width}}{verb.text}" for verb in VERBS),
        "",
        "Flags:",
        f"  {'--help':<11}this text; gangsaw VERB --help for a verb's arguments and flags",
        f"  {'--version':<11}the version",
        "",
        "Exit codes: 0 done, 1 failure, 2 wrong input, 3 no plan fits.",
        "Example: gangsaw plan llama-3.1-405b h100-sxm:16384 --seq-len 8192 --global-batch 2048",
    ]
    return "\n".join(lines) + "\n"
