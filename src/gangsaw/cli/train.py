"""`gangsaw train`: run a plan on torch.distributed."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import OutputFlags, PlanFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.run.config import TrainConfig

_T = "Training"
Text = str | None


def _flag(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_T)


@dataclass(frozen=True)
class TrainFlags:
    """What is trained, on what, for how long."""

    cut: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", help="a plan as TOML or JSON (also what plan --json lists), or `demo`"
        ),
    ]
    data: Annotated[
        list[str] | None, _flag("--data", "FILE", "text, .npy or .bin tokens; may be repeated")
    ] = None
    model: Annotated[Text, _flag("--model", "MODEL", "catalog name, config.json or TOML")] = None
    out: Annotated[Text, _flag("--out", "DIR", "folder of the run [gangsaw-run]")] = None
    steps: Annotated[Text, _flag("--steps", "N", "optimizer steps [100; demo 300]")] = None
    seq_len: Annotated[Text, _flag("--seq-len", "N", "tokens a sequence [128]")] = None
    num_microbatches: Annotated[
        Text, _flag("--num-microbatches", "N", "microbatches a step [of the plan, else 1]")
    ] = None
    precision: Annotated[Text, _flag("--precision", "P", "fp32, bf16 [fp32; bf16 on GPUs]")] = None
    lr: Annotated[Text, _flag("--lr", "X", "peak learning rate [3e-4]")] = None
    warmup: Annotated[Text, _flag("--warmup", "N", "steps of warm-up [10]")] = None
    tokenizer: Annotated[Text, _flag("--tokenizer", "T", "bytes, or a tokenizer.json [bytes]")] = (
        None
    )
    checkpoint_every: Annotated[
        Text, _flag("--checkpoint-every", "N", "steps between checkpoints [only the last]")
    ] = None
    trace_steps: Annotated[Text, _flag("--trace-steps", "N", "steps under the profiler [1]")] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run in --out", rich_help_panel=_T)
    ] = False
    restarts: Annotated[
        Text, _flag("--restarts", "N", "times that failed ranks start again [0]")
    ] = None
    sample: Annotated[
        Text, _flag("--sample", "TEXT", "continue this text with the trained model")
    ] = None


@takes(TrainFlags, PlanFlags, OutputFlags)
def command(flags: TrainFlags, cut: PlanFlags, output: OutputFlags) -> None:
    """Train on this machine, or as a rank of torchrun, exactly as the plan says."""
    cfg = config_from(flags, cut, output)
    restarts = values.whole("--restarts", flags.restarts or "0", 0, 100)
    from gangsaw.run.carried import FOLDER, check_run, pointed

    if "RANK" not in os.environ:
        # Before torch is loaded, which takes seconds: a refusal comes at once. (A rank that
        # torchrun restarted finds its own run folder and continues there.)
        check_run(cfg)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(
            "train needs torch. Legal: pip install 'gangsaw[run]' (CPU wheels:"
            " --extra-index-url https://download.pytorch.org/whl/cpu)"
        ) from None
    from gangsaw.run import launch
    from gangsaw.run.summary import run_summary

    cfg = on_device(cfg, launch.pick_device(), flags)
    follower = launch.started_by_torchrun() and launch.own_rank() != 0
    if not follower:
        launch.make_folder(cfg.out)
        screen.progress(f"{cfg.plan.devices} ranks on {cfg.device}, run folder {cfg.out}")
    before = pointed(Path(cfg.out)) if cfg.resume else None
    if cfg.resume and not follower and not (Path(cfg.out) / FOLDER).exists():
        screen.note(f"{cfg.out} holds no checkpoint: the run starts at step 0")
    try:
        out = launch.train(cfg, restarts)
    except KeyboardInterrupt:
        screen.progress(f"gangsaw: interrupted; {launch.whence(Path(cfg.out))}")
        raise
    if follower:
        return
    if before is not None and before[2] >= cfg.steps:
        screen.note(f"nothing was left to train: {cfg.out} had all its {cfg.steps} steps")
    summary = run_summary(out)
    prompt = flags.sample or ("Shall I " if flags.cut == "demo" else None)
    if prompt is not None:
        from gangsaw.run.sample import sample_text

        summary["sample"] = sample_text(out, prompt, 400, seed=cfg.seed)
        (out / "sample.txt").write_text(str(summary["sample"]))
    if output.json:
        from gangsaw.run.documents import TrainSummary

        screen.write_json(TrainSummary.model_validate(summary))
        return
    from gangsaw.report.run_text import train_text

    screen.show(lambda console: train_text(summary, console))


def config_from(flags: TrainFlags, cut: PlanFlags, output: OutputFlags) -> TrainConfig:
    """The configuration of a run from what was typed, on the CPU; InputError for each fault."""
    from gangsaw.cli.options import seed_of
    from gangsaw.run.config import TrainConfig

    fields: dict[str, Any] = {}
    if flags.cut == "demo":
        from gangsaw.run.demo import demo_config

        fields = demo_config("gangsaw-run").model_dump()
    else:
        fields = _job_fields(flags, cut)
    fields |= {"seed": seed_of(output), "resume": flags.resume}
    fields |= _stated(flags, dict(fields.get("optimizer", {})))
    from gangsaw.read.toml import validate

    return validate(TrainConfig, fields, "train")


def on_device(cfg: TrainConfig, device: str, flags: TrainFlags) -> TrainConfig:
    """The run on the device that torch sees: in bf16 on GPUs, unless told otherwise."""
    update: dict[str, object] = {"device": device}
    if device == "cuda" and flags.precision is None and flags.cut != "demo":
        update["precision"] = "bf16"
    return cfg.model_copy(update=update)


def _job_fields(flags: TrainFlags, cut: PlanFlags) -> dict[str, Any]:
    from gangsaw.cli.options import plan_fields
    from gangsaw.read.models import load_model
    from gangsaw.read.toml import validate
    from gangsaw.spec.plan import Plan

    if flags.model is None:
        raise InputError("--model is missing. Legal: a catalog name, a config.json, or a TOML")
    if not flags.data:
        raise InputError("--data is missing. Legal: text files, .npy or .bin token files")
    if cut.plan is not None:
        raise InputError("--plan stands beside PLAN. Legal: one of both")
    stated = plan_fields(dataclasses.replace(cut, plan=flags.cut))
    if flags.num_microbatches is not None:
        stated["num_microbatches"] = values.whole(
            "--num-microbatches", flags.num_microbatches, 1, 10**6
        )
    plan = validate(Plan, stated, f"plan {flags.cut}")
    return {"model": load_model(flags.model), "plan": plan, "data": tuple(flags.data), "steps": 100}


def _stated(flags: TrainFlags, optimizer: dict[str, Any]) -> dict[str, Any]:
    """What flags say beside model, plan and data."""
    found: dict[str, Any] = {"out": flags.out or "gangsaw-run"}
    if flags.data:
        found["data"] = tuple(flags.data)
    for name, low, high in (
        ("steps", 1, 10**9), ("seq_len", 1, 10**7), ("checkpoint_every", 0, 10**9),
        ("trace_steps", 0, 100),
    ):  # fmt: skip
        text = getattr(flags, name)
        if text is not None:
            found[name] = values.whole(f"--{name.replace('_', '-')}", text, low, high)
    if flags.precision is not None:
        found["precision"] = values.choice("--precision", flags.precision, ("fp32", "bf16"))
    if flags.tokenizer is not None:
        found["tokenizer"] = flags.tokenizer
    if flags.lr is not None:
        optimizer["lr"] = values.real("--lr", flags.lr, 1e-12, 1e3)
    if flags.warmup is not None:
        optimizer["warmup_steps"] = values.whole("--warmup", flags.warmup, 0, 10**9)
    if optimizer:
        found["optimizer"] = optimizer
    return found
