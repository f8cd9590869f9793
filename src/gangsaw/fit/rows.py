"""Rows of published measured runs -> jobs and plans. Nothing that a row leaves out is hidden.

Row format: `catalog/runs/README.md`. A field that a row does not state comes from the named model,
or is a range: the row then gives several candidates with weights. What was assumed is listed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from gangsaw.cost.layout import default_counts, ends_as_layers
from gangsaw.errors import InputError
from gangsaw.read.clusters import cluster_of
from gangsaw.read.stacks import load_stack
from gangsaw.spec import (
    AttentionSpec,
    LayerKind,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    Plan,
    Recipe,
    StackProfile,
)
from gangsaw.spec.job import Job

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One reading of a row: a job and a plan, with the weight of that reading."""

    job: Job
    plan: Plan
    weight: float


@dataclass(frozen=True)
class Reading:
    """All readings of a row, or why it cannot be predicted."""

    id: str
    source: str
    stack: str
    candidates: tuple[Candidate, ...] = ()
    assumed: tuple[str, ...] = ()
    skipped: str | None = None
    layers_measured: bool = True
    row: Row = field(default_factory=dict)


def shipped_sources() -> tuple[str, ...]:
    """Names of the shipped tables of measured runs."""
    folder = resources.files("gangsaw.catalog") / "runs"
    return tuple(sorted(p.name[:-6] for p in folder.iterdir() if p.name.endswith(".jsonl")))


def load_shipped(name: str) -> list[dict[str, Any]]:
    """Rows of one shipped table."""
    text = (resources.files("gangsaw.catalog") / "runs" / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def load_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; InputError names the line that cannot be read."""
    from gangsaw.read.toml import read_text

    rows = []
    for number, line in enumerate(read_text(path, 200_000_000).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON ({error})") from None
        missing = [k for k in ("id", "model", "hardware", "plan", "measured") if k not in row]
        if not isinstance(row, dict) or missing:
            raise InputError(f"{path}:{number}: a row needs {', '.join(missing)}")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no rows")
    return rows


_STACKS = (
    ("sail-sg", "zero-bubble"),
    ("zero bubble", "zero-bubble"),
    ("zero-bubble", "zero-bubble"),
    ("llm-foundry", "fsdp1"),
    ("composer", "fsdp1"),
    ("torchtitan", "torchtitan"),
    ("automodel", "automodel"),
    ("maxtext", "jax-maxtext"),
    ("paxml", "jax-maxtext"),
    ("jax", "jax-maxtext"),
    ("nanotron", "nanotron"),
    ("internevo", "internevo"),
    ("primus", "megatron-core-te"),
    ("megatron-bridge", "megatron-core-te"),
    ("nemo/megatron-core", "megatron-core-te"),
    ("megatron-core", "megatron-core-te"),
    ("mcore", "megatron-core-te"),
    ("transformerengine", "megatron-core-te"),
    ("+ te", "megatron-core-te"),
    ("nemo", "megatron-core-te"),
)


def stack_name(row: Row) -> str:
    """The stack profile that the row's framework text, precision and kernels point to."""
    plan = row["plan"]
    text = str(plan.get("framework") or "").lower()
    fp8 = "fp8" in str(plan.get("precision") or "").lower()
    if "deepspeed" in text and "megatron" in text:
        precision = str(plan.get("precision") or "")
        return "megatron-deepspeed-bf16" if "DS bf16" in precision else "megatron-deepspeed-fp16"
    for needle, name in _STACKS:
        if needle in text:
            return "megatron-core-te-fp8" if fp8 and name == "megatron-core-te" else name
    if "megatron-lm" in text:
        a100 = str(row["hardware"].get("device", "")).startswith(("a100", "v100"))
        if not a100 or plan.get("flash_attention"):
            return "megatron-core-te-fp8" if fp8 else "megatron-core-te"
        old = "20.1" in text or "21." in text or "2021" in text
        return "megatron-lm-2021" if old else "megatron-lm-2022-sp"
    if "deepspeed" in text or "transformers" in text or "hugging" in text:
        return "hf-eager"
    return "unknown"


def _int(value: object) -> int:
    number = float(str(value))
    if not math.isfinite(number) or number != int(number) or number < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


def _named(name: str) -> ModelSpec | None:
    """The catalog's model of that name, if it has one."""
    from gangsaw.read.models import load_model

    try:
        return load_model(name)
    except InputError:
        return None


def _attention(m: Mapping[str, Any], assumed: list[str]) -> AttentionSpec:
    hidden = _int(m["hidden"])
    if str(m.get("attention") or "").upper().startswith("MLA"):
        heads = _int(m.get("heads") or 128)
        deep = hidden >= 4096
        return AttentionSpec(
            heads=heads, kv_heads=heads, head_dim=192, v_head_dim=128,
            q_lora_rank=1536 if deep else 0, kv_lora_rank=512, rope_head_dim=64,
        )  # fmt: skip
    if m.get("heads"):
        heads = _int(m["heads"])
    else:
        heads = max(1, hidden // 128)
        assumed.append(f"heads={heads} (head width 128)")
    dim = _int(m.get("head_dim") or m.get("kv_channels") or max(1, hidden // heads))
    return AttentionSpec(
        heads=heads, kv_heads=_int(m.get("kv_heads") or heads), head_dim=dim, v_head_dim=dim
    )


def model_of(row: Row, assumed: list[str]) -> ModelSpec:
    """The model of a row, by its stated shapes; what it leaves out is noted in `assumed`."""
    m = row["model"]
    hidden, layers = _int(m["hidden"]), _int(m["layers"])
    gated = bool(m.get("gated_mlp", False))
    attention = _attention(m, assumed)
    if m.get("ffn"):
        ffn = _int(m["ffn"])
    else:
        ffn = 4 * hidden if not gated else int(8 * hidden / 3 / 256 + 1) * 256
        if not m.get("experts"):
            assumed.append(f"ffn={ffn}")
    bias = not gated
    dense = LayerKind(
        name="dense", hidden=hidden, attention=attention,
        mlp=MlpSpec(ffn=ffn, gated=gated, in_bias=bias, out_bias=bias), norm_bias=bias,
    )  # fmt: skip
    kinds, order = [dense], [0] * layers
    if m.get("experts"):
        expert = MlpSpec(ffn=_int(m.get("moe_ffn") or ffn), gated=gated)
        shared = _int(m.get("shared_experts") or 0)
        first = 0
        if attention.is_mla:
            first = min(layers, 3 if layers >= 61 and _int(m["experts"]) == 256 else 1)
            if not shared:
                shared = 2 if _int(m["experts"]) in (64, 160) else 1
                assumed.append(f"shared_experts={shared}, dense first layers={first}")
        moe = MoeSpec(
            experts=_int(m["experts"]), topk=_int(m.get("topk") or 1), expert=expert,
            shared=MlpSpec(ffn=shared * expert.ffn, gated=gated) if shared else None,
        )  # fmt: skip
        routed = LayerKind(name="moe", hidden=hidden, attention=attention, moe=moe)
        kinds = [dense, routed] if first else [routed]
        order = [0] * first + [len(kinds) - 1] * (layers - first)
    vocab = m.get("vocab")
    if not vocab:
        named = _named(str(m.get("name", "")))
        vocab = named.vocab if named else 50304
        assumed.append(f"vocab={vocab}")
    tied = m.get("untied") is False or (m.get("untied") is None and not gated)
    mtp = _int(m.get("mtp_layers") or 0)
    return ModelSpec(
        name=str(m.get("name") or row["id"]), hidden=hidden, vocab=_int(vocab),
        kinds=tuple(kinds), order=tuple(order), tied=tied,
        final_norm_params=hidden * (2 if bias else 1),
        learned_positions=_int(m["seq_len"]) if bias else 0,
        mtp=MtpSpec(kind=kinds[-1], layers=mtp, extra_params=2 * hidden * hidden) if mtp else None,
    )  # fmt: skip


def precision_of(row: Row) -> str:
    """bf16, fp16, fp8 or fp32 from the row's text; finer formats count as fp8."""
    text = str(row["plan"].get("precision") or "bf16").lower()
    if "fp8" in text or "fp4" in text or "mx" in text:
        return "fp8"
    return "fp16" if text.startswith("fp16") else ("fp32" if text == "fp32" else "bf16")


_SCHEDULE = (
    ("zb-1p", "zb-h1"), ("zb-2p", "zb-h2"), ("zbv", "zb-v"), ("zb-v", "zb-v"), ("v-half", "v-half"),
    ("v-min", "v-min"), ("zbb", "zb-h1"), ("dualpipev", "dualpipe-v"), ("dualpipe", "dualpipe"),
    ("gpipe", "gpipe"), ("zb-h1", "zb-h1"), ("zb-h2", "zb-h2"),
)  # fmt: skip


def schedule_of(row: Row) -> str:
    """The schedule of a row; interleaving follows from its chunks."""
    text = str(row["plan"].get("schedule") or "").lower()
    for needle, name in _SCHEDULE:
        if needle in text:
            return name
    return "interleaved" if int(row["plan"].get("vpp") or 1) > 1 else "1f1b"


def stages_of(row: Row, layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk: as the row states it, else as its framework splits them."""
    text = str(row["plan"].get("pp_partition") or "")
    stack = stack_name(row)
    if "embedding" in text or stack == "zero-bubble" or layers % chunks:
        ends = ends_as_layers(layers, chunks)
        if ends is not None:
            return ends
    return default_counts(layers, chunks)


def _plan(row: Row, assumed: list[str], mbs: int, recompute: str, layers: int) -> Plan:
    p = row["plan"]
    tp, pp, cp = (int(p.get(k) or 1) for k in ("tp", "pp", "cp"))
    devices = int(row["hardware"].get("devices") or tp * pp * cp * int(p.get("dp") or 1))
    dp = int(p.get("dp") or max(1, devices // (tp * pp * cp)))
    if tp * pp * cp * dp != devices:
        dp = max(1, devices // (tp * pp * cp))
        assumed.append(f"dp={dp} from the devices")
    vpp = int(p.get("vpp") or 1)
    schedule = schedule_of(row)
    if schedule in ("zb-v", "v-half", "v-min", "dualpipe-v") and vpp == 1:
        vpp = 2
    if vpp == 1 and "interleaved" in str(p.get("schedule") or "") and pp > 1:
        vpp = max(1, layers // pp) if layers % pp == 0 else max(1, (layers + 2) // pp)
        assumed.append(f"vpp={vpp}")
    if pp == 1:
        vpp, schedule = 1, "1f1b"
    while vpp > 1 and pp * vpp > layers:
        vpp -= 1
    gbs = int(p.get("gbs") or dp * mbs)
    m = int(p.get("num_microbatches") or max(1, round(gbs / (dp * mbs))))
    sp = p.get("sequence_parallel")
    zero = p.get("zero")
    if zero is None:
        zero = 1 if p.get("dist_optimizer", True) else 0
    # The layout of experts: what does not divide is left to the check of the plan itself.
    ep, etp = int(p.get("ep") or 1), int(p.get("etp") or 1)
    return Plan(
        tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=ep, etp=etp, mbs=mbs, num_microbatches=m,
        schedule=schedule, recompute=recompute, zero=int(zero),
        sequence_parallel=bool(sp) if sp is not None else True,
        stages=stages_of(row, layers, pp * vpp),
    )  # fmt: skip


def _recomputes(row: Row, assumed: list[str]) -> tuple[tuple[str, float], ...]:
    stated = row["plan"].get("recompute")
    if stated:
        return ((str(stated), 1.0),)
    assumed.append("recompute: the least that fits")
    return (("none", 0.5), ("selective", 0.3), ("full", 0.2))


def _missing(row: Row) -> list[str]:
    m, h, p = row["model"], row["hardware"], row["plan"]
    need = [k for k in ("layers", "hidden", "seq_len") if not m.get(k)]
    need += [k for k in ("device",) if not h.get(k)]
    if not h.get("devices") and not p.get("dp"):
        need.append("devices")
    if not p.get("gbs") and not p.get("num_microbatches"):
        need.append("gbs")
    return need


@lru_cache(maxsize=64)
def _stack(name: str) -> StackProfile:
    return load_stack(name)


def read_row(row: Row) -> Reading:
    """Candidates of a row with their weights; `skipped` says what no default can stand for."""
    source = (
        str(row.get("source", {}).get("title", "")) if isinstance(row.get("source"), dict) else ""
    )
    name = stack_name(row)
    missing = _missing(row)
    if missing:
        why = f"the row does not state {', '.join(missing)}"
        return Reading(str(row["id"]), source, name, skipped=why, row=row)
    assumed: list[str] = []
    try:
        candidates = _candidates(row, name, assumed)
    except (ValueError, InputError) as error:
        return Reading(str(row["id"]), source, name, skipped=" ".join(str(error).split()), row=row)
    return Reading(
        str(row["id"]), source, name, candidates, tuple(dict.fromkeys(assumed)), None,
        row.get("kind") != "per_layer", row,
    )  # fmt: skip


def _candidates(row: Row, name: str, assumed: list[str]) -> tuple[Candidate, ...]:
    h, p = row["hardware"], row["plan"]
    model = model_of(row, assumed)
    mbs_choices: tuple[tuple[int, float], ...]
    if p.get("mbs"):
        mbs_choices = ((_int(p["mbs"]), 1.0),)
    else:
        mbs_choices = ((1, 0.5), (2, 0.3), (4, 0.2))
        assumed.append("mbs: 1, 2 or 4")
    first = _plan(row, assumed, mbs_choices[0][0], "none", model.layers)
    link = h.get("inter_link_gbps_per_device")
    cluster = cluster_of(
        str(h["device"]), first.devices, per_node=h.get("per_node"),
        inter_bytes_per_s=float(link) * 1e9 / 8 if link else None,
    )  # fmt: skip
    out = []
    for mbs, w_mbs in mbs_choices:
        for recompute, w_rec in _recomputes(row, assumed):
            plan = _plan(row, assumed, mbs, recompute, model.layers)
            recipe = Recipe(
                seq_len=_int(row["model"]["seq_len"]),
                global_batch=plan.dp * plan.mbs * plan.num_microbatches,
                precision=precision_of(row),
                task=row.get("task") or "pretrain",
            )
            job = Job(model=model, recipe=recipe, cluster=cluster, stack=_stack(name))
            out.append(Candidate(job, plan, w_mbs * w_rec))
    return tuple(out)
