"""`gangsaw measure`: probe this machine or cluster and write a cluster file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import ModelArg, OutputFlags, takes
from gangsaw.errors import InputError

_M = "Measurement"
Text = str | None


def _flag(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_M)


@dataclass(frozen=True)
class MeasureFlags:
    """What is measured."""

    ranks: Annotated[Text, _flag("--ranks", "N", "local ranks [GPUs, or 2 on CPU]")] = None
    seq_len: Annotated[Text, _flag("--seq-len", "N", "tokens of the layer probes [256]")] = None
    precision: Annotated[
        Text, _flag("--precision", "P,..", "fp32, bf16; the first one leads [fp32; GPUs bf16,fp32]")
    ] = None
    out: Annotated[Text, _flag("--out", "DIR", "results, continued if there [gangsaw-measure]")] = (
        None
    )
    seconds: Annotated[Text, _flag("--seconds", "S", "spent on each probe [0.3]")] = None
    sustained: Annotated[
        Text, _flag("--sustained", "S", "of load for the sustained rate [3; GPUs 30]")
    ] = None


@takes(ModelArg, MeasureFlags, OutputFlags)
def command(model: ModelArg, flags: MeasureFlags, output: OutputFlags) -> None:
    """Time products, memory, one layer by TP size, collectives, messages and checkpoints."""
    stated = _stated(model, flags)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(
            "measure needs torch. Legal: pip install 'gangsaw[run]' (CPU wheels:"
            " --extra-index-url https://download.pytorch.org/whl/cpu)"
        ) from None
    from gangsaw.run import launch
    from gangsaw.run.measure import measure, measured_cluster
    from gangsaw.trace.cluster_toml import cluster_toml

    cfg = _config(stated)
    out = measure(cfg)
    if launch.started_by_torchrun() and launch.own_rank() != 0:
        return
    cluster, facts = measured_cluster(out)
    target = out / "cluster.toml"
    files.put(target, cluster_toml(cluster, _comments(facts)))
    facts["cluster"] = str(target)
    if output.json:
        from gangsaw.run.documents import MeasureResult

        screen.write_json(MeasureResult.model_validate(facts))
        return
    from gangsaw.report.run_text import measure_text

    screen.show(lambda console: measure_text(facts, console))


def _stated(model: ModelArg, flags: MeasureFlags) -> dict[str, Any]:
    """What was typed, checked before torch is loaded (which takes seconds)."""
    from gangsaw.read.models import load_model
    from gangsaw.run.carried import check_model

    spec = load_model(model.model)
    check_model(spec)
    fields: dict[str, Any] = {"out": flags.out or "gangsaw-measure", "model": spec}
    if flags.ranks is not None:
        fields["ranks"] = values.whole("--ranks", flags.ranks, 1, 4096)
    if flags.precision is not None:
        fields["precisions"] = tuple(
            values.choice("--precision", p, ("fp32", "bf16")) for p in flags.precision.split(",")
        )
    if flags.seq_len is not None:
        fields["seq_len"] = values.whole("--seq-len", flags.seq_len, 16, 10**6)
    if flags.seconds is not None:
        fields["budget_s"] = values.real("--seconds", flags.seconds, 1e-3, 3600)
    if flags.sustained is not None:
        fields["sustained_s"] = values.real("--sustained", flags.sustained, 0.1, 3600)
    return fields


def _config(stated: dict[str, Any]) -> Any:  # noqa: ANN401
    """The whole configuration: what was not stated depends on the device."""
    import os

    from gangsaw.read.toml import validate
    from gangsaw.run.launch import pick_device
    from gangsaw.run.measure import MeasureConfig

    device = pick_device()
    fields: dict[str, Any] = {"ranks": 2, "precisions": ("fp32",), "sustained_s": 3.0}
    if device == "cuda":
        import torch

        fields = {
            "ranks": torch.cuda.device_count(), "precisions": ("bf16", "fp32"),
            "sustained_s": 30.0, "largest_bytes": 2**28, "checkpoint_bytes": 2**30,
            "memory_bytes": (2**28, 2**30, 2**32),
        }  # fmt: skip
    fields |= {**stated, "device": device}
    fields["ranks"] = int(os.environ.get("WORLD_SIZE", fields["ranks"]))
    return validate(MeasureConfig, fields, "measure")


def _comments(facts: dict[str, Any]) -> list[str]:
    machine = facts["machine"]
    lines = [
        f"Measured by gangsaw on {machine['host']}, {machine['date']}: {machine['name']},"
        f" torch {machine['torch']}, python {machine['python']}",
    ]
    for name, fit in facts["fits"].items():
        words = f"{name}: misfit {fit['residual']:.3f} (rms log) over {fit['points']} points"
        if len(name.split()) > 2:
            rate, latency_s = fit["bytes_per_s"], fit["latency_s"]
            words += f"; alone {rate:.4g} bytes/s, {latency_s:.3g} s"
        lines.append(words)
    noise = facts["noise"]
    lines.append(
        f"Rounds of a probe differ by {noise['scatter_frac']:.3f} (median); other work took"
        f" {noise['busy_frac']:.3f} of a core"
    )
    if facts["noise"]["too_noisy"]:
        lines.append("The machine was too noisy: measure again when nothing else runs.")
    return lines
