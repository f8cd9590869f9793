"""What of a job `train` and `measure` carry; no torch, so that a refusal comes at once."""

from __future__ import annotations

import json
from pathlib import Path

from gangsaw.errors import InputError
from gangsaw.run.config import TrainConfig
from gangsaw.run.data import Batches, load_tokens
from gangsaw.run.schedule import schedule_rows, stage_owners
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan

FOLDER, POINTER, MANIFEST = "checkpoints", "latest", "gangsaw.json"
"""Where a run's checkpoints stand, the file that names the newest, and what says it is whole."""

ACTIVATION_NAMES = (
    "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2",
)  # fmt: skip
"""Activations that `run.model` has."""


def check_model(spec: ModelSpec) -> None:
    """Raise InputError, naming the part, where this decoder cannot be that model."""
    parts = {
        "a vision tower": spec.vision is not None,
        "multi-token prediction": spec.mtp is not None,
        "learned positions": spec.learned_positions > 0,
        "a norm behind the embedding": spec.embedding_norm_params > 0,
        "a bias of the head": spec.head_bias,
    }
    for kind in spec.kinds:
        a = kind.attention
        parts |= {
            "latent attention (MLA)": a.is_mla,
            "attention sinks": a.sinks,
            "softcap": a.softcap,
            "attention that is not causal": not a.causal,
            f"qk_norm={a.qk_norm!r}": a.qk_norm not in ("none", "head"),
            "unequal head_dim and v_head_dim": a.head_dim != a.v_head_dim,
            "parallel attention and MLP": kind.parallel,
            f"{kind.norms} norms a layer": kind.norms != 2 or not kind.norm_params,
            "norms with bias": kind.norm_bias,
            "extra parameters of a layer": kind.extra_params > 0,
        }
        for mlp in (kind.mlp, kind.moe.expert if kind.moe else None):
            if mlp is not None and mlp.activation not in ACTIVATION_NAMES:
                parts[f"activation {mlp.activation!r}"] = True
    for part, present in parts.items():
        if present:
            raise InputError(
                f"{spec.name}: {part} is not carried by `gangsaw train`. Legal here: decoders with"
                " two RMS norms a layer, rotary positions, (grouped) causal attention, dense or"
                " routed MLP"
            )


def divisors(*numbers: int) -> str:
    """Common divisors of `numbers`, as they are listed in a message."""
    low = min(numbers)
    return ", ".join(str(d) for d in range(1, low + 1) if all(n % d == 0 for n in numbers))


NO_CP = (
    "torch's context_parallel is experimental and has no rule for attention on CPUs"
    " (torch 2.13: no sharding strategy for its flash kernel, mixed tensors in its plain one)"
)
NO_EP = "torch has no stable part that sends tokens to the ranks of their experts"


def check_plan(plan: Plan, spec: ModelSpec, seq_len: int) -> None:
    """Raise InputError with the legal choices where this plan cannot be run on torch here."""
    check_model(spec)
    for axis, degree, why in (("cp", plan.cp, NO_CP), ("ep", plan.ep, NO_EP)):
        if degree > 1:
            raise InputError(
                f"{axis}={degree} is not carried by `gangsaw train`: {why}. Legal here: {axis}=1"
            )
    if plan.offload_optimizer or plan.offload_activations:
        raise InputError("offload is not carried by `gangsaw train`. Legal here: 0")
    if plan.pp == 1 and plan.vpp > 1:
        raise InputError(f"vpp={plan.vpp} needs pp > 1. Legal here: vpp=1")
    if plan.schedule == "dualpipe":
        raise InputError(
            "schedule='dualpipe' keeps two copies of each stage, which torch's pipeline runtime"
            " does not run. Legal here: dualpipe-v (the same order on half of the ranks)"
        )
    if plan.shard_group and plan.dp % plan.shard_group:
        raise InputError(
            f"shard_group={plan.shard_group} does not divide dp={plan.dp}."
            f" Legal here: {divisors(plan.dp)}"
        )
    _check_tp(plan, spec, seq_len)
    if plan.stages is not None and sum(plan.stages) != spec.layers:
        raise InputError(
            f"stages={','.join(map(str, plan.stages))} sums to {sum(plan.stages)} layers,"
            f" {spec.name} has {spec.layers}"
        )


def _check_tp(plan: Plan, spec: ModelSpec, seq_len: int) -> None:
    tp = plan.tp
    if tp == 1:
        return
    widths = {"vocab": spec.vocab}
    if plan.sequence_parallel:
        widths["seq_len"] = seq_len
    for kind in spec.kinds:
        widths |= {"heads": kind.attention.heads, "kv_heads": kind.attention.kv_heads}
        if kind.mlp:
            widths["ffn"] = kind.mlp.ffn
        if kind.moe:
            widths["expert ffn"] = kind.moe.expert.ffn
            if plan.etp != tp:
                raise InputError(
                    f"etp={plan.etp}: with tp={tp} the experts are cut like the rest."
                    f" Legal here: etp={tp}"
                )
    for name, width in widths.items():
        if width % tp:
            raise InputError(
                f"tp={tp} does not divide {name}={width}. Legal here: {divisors(*widths.values())}"
            )


def check_run(cfg: TrainConfig) -> None:
    """Raise InputError for whatever can be known to be wrong before a rank is started."""
    check_plan(cfg.plan, cfg.model, cfg.seq_len)
    rows = schedule_rows(cfg.plan, cfg.model.layers, cfg.schedule_csv)
    stage_owners(rows, cfg.plan.pp * cfg.plan.vpp)
    tokens = load_tokens(cfg.data, cfg.tokenizer, cfg.token_bytes, cfg.model.vocab)
    Batches(tokens, cfg.seq_len, cfg.global_batch, cfg.seed)
    out = Path(cfg.out)
    if cfg.resume:
        found = pointed(out)
        if found is not None:
            check_resumed(cfg, found[1], found[0])
    elif (out / "log.jsonl").exists():
        raise InputError(f"--out {cfg.out} holds a run already. Legal: --resume, or another folder")


def pointed(out: Path) -> tuple[str, TrainConfig, int] | None:
    """Name, configuration and step of the checkpoint that a resumed run looks at first.

    None where there is none, or where it is damaged: the ranks then look for an older one.
    """
    try:
        name = (out / FOLDER / POINTER).read_text().strip()
        meta = json.loads((out / FOLDER / name / MANIFEST).read_text())["meta"]
        return name, TrainConfig.model_validate(meta["config"]), int(meta["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


SAME = ("model", "seq_len", "global_batch", "seed", "data", "optimizer", "steps")
"""What a run must keep to be continued exactly; its plan and precision may change."""


def check_resumed(cfg: TrainConfig, theirs: TrainConfig, checkpoint: str) -> None:
    """Raise InputError where the run that wrote `checkpoint` is another than the one now stated."""
    for name in SAME:
        mine, old = getattr(cfg, name), getattr(theirs, name)
        if mine != old:
            flag = name if name in ("global_batch", "optimizer") else f"--{name.replace('_', '-')}"
            raise InputError(
                f"--resume: {flag} is {_short(mine)}, the checkpoint {checkpoint} was written with"
                f" {_short(old)}; an exact continuation needs the same. Legal: {_short(old)}, or"
                " another --out"
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
