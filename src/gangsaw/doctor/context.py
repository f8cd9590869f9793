"""All names that a rule may use: facts of the file, of the named model, of the cluster, derived."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from gangsaw.doctor.flags import bad_choice, flags_of, listed, releases, removed_flag
from gangsaw.doctor.predict import changed, job_of, predict
from gangsaw.errors import InputError
from gangsaw.read.launch.document import LaunchFile
from gangsaw.read.launch.facts import vocabulary
from gangsaw.read.models import load_model
from gangsaw.spec import ClusterSpec, Job, ModelSpec, Plan, RotarySpec, StackProfile
from gangsaw.units import GB, GIB

_OFF = (
    "mla", "sp", "bf16", "fp16", "fp8", "distribute_saved", "tp_overlap", "torch_fsdp",
    "megatron_fsdp", "overlap_grad", "overlap_param", "elastic", "grouped_gemm", "dist_opt",
    "cpu_optimizer", "tied", "async_tp", "no_loss_parallel", "gated", "bias",
)  # fmt: skip
MODULES = frozenset((
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "mhc",
    "gdn", "gdn_norm_out",
))  # fmt: skip


_PROVIDERS = ("megatron-bridge", "nemo", "verl", "ms-swift")
_WHOLE_SHAPE = ("megatron-lm", "nanotron", "gpt-neox", "deepspeed")
"""Frameworks whose files state a shape in full, with the framework's defaults for the rest."""


@cache
def _reference() -> dict[str, Any]:
    text = (files("gangsaw.doctor") / "rules" / "reference.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def names_of(
    launch: LaunchFile,
    cluster: ClusterSpec | None = None,
    stack: StackProfile | None = None,
    version: str = "",
) -> dict[str, Any]:
    """Every name that is known, with its value. `version` is the framework's release."""
    names: dict[str, Any] = dict(launch.facts)
    for key in _OFF:
        if names.get(key) is None:
            names[key] = False
    names["precision"] = launch.facts.get("precision")
    _switches(launch, names)
    _misspelt(launch, names)
    if launch.framework == "megatron-lm":
        _parser(launch, names, version or launch.version)
    _grid(launch, names, cluster)
    _model(launch, names)
    _named(launch, names)
    _network(launch, names, cluster)
    if cluster is not None and launch.framework != "verl":
        _predicted(launch, names, cluster, stack)
    if launch.base:
        _leave_open(launch, names)
    return names


_PUBLISHED = frozenset((
    "framework", "layers", "hidden", "vocab", "tied", "heads", "kv_heads", "head_dim", "ffn",
    "gated", "experts", "topk", "moe_ffn", "shared_ffn",
))  # fmt: skip


def _leave_open(launch: LaunchFile, names: dict[str, Any]) -> None:
    """Unknown is what a recipe leaves to a function of another file: no rule fires on it."""
    known = {*_PUBLISHED, *launch.wheres}
    if {"nodes", "per_node"} <= launch.wheres.keys():
        known |= {"world", "cluster_devices"}
    if {"tp", "pp", "cp"} <= known:
        known |= {"dp", "world", "cluster_devices"}
    if launch.plan is not None:
        known |= {"num_microbatches"}
    for key in names:
        if key not in known:
            names[key] = None


def _whole(names: dict[str, Any], key: str, default: int = 0) -> int:
    value = names.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _switches(launch: LaunchFile, names: dict[str, Any]) -> None:
    flags = launch.flags
    names["gqa_n"] = bool(launch.facts.get("gqa"))
    names["count_embedding_n"] = int(bool(launch.facts.get("count_embedding")))
    names["count_loss_n"] = int(bool(launch.facts.get("count_loss")))
    names["megatron_fsdp_n"] = bool(launch.facts.get("megatron_fsdp"))
    names["torch_fsdp_n"] = bool(launch.facts.get("torch_fsdp"))
    names["precision_aware_n"] = bool(launch.facts.get("precision_aware"))
    names["compile_n"] = bool(launch.facts.get("compile"))
    names["framework"] = launch.framework
    # Providers fill in what a recipe leaves out, so there an unstated part is unknown, not absent.
    names["shape_known"] = launch.framework not in _PROVIDERS or launch.model is not None
    names["model_mla"] = launch.model is not None and any(
        kind.attention.is_mla for kind in launch.model.kinds
    )
    names["vpp_n"] = launch.facts.get("vpp") or 1
    names["vocab_multiple_n"] = launch.facts.get("vocab_multiple") or 128
    names["qkv_bias_n"] = bool(launch.facts.get("qkv_bias"))
    names["qk_norm_n"] = bool(launch.facts.get("qk_norm"))
    names["env_connections"] = launch.env.get("CUDA_DEVICE_MAX_CONNECTIONS")
    names["env_blocking"] = launch.env.get("CUDA_LAUNCH_BLOCKING")
    names["ckpt_format_n"] = launch.facts.get("ckpt_format") or "torch_dist"
    names["dispatcher_n"] = launch.facts.get("dispatcher") or "allgather"
    names["attention_backend_n"] = launch.facts.get("attention_backend") or "auto"
    names["head_dim_stated"] = True if "head_dim" in launch.wheres else None
    modules = launch.facts.get("recompute_modules")
    listed = modules if isinstance(modules, list) else ([modules] if modules else [])
    texts = [part for item in listed for part in str(item).replace(",", " ").split()]
    names["bad_modules"] = sum(1 for item in texts if item not in MODULES)
    names["has_mla_up"] = "mla_up_proj" in texts
    names["has_moe_act"] = "moe_act" in texts
    lengths = {
        str(item.value) for item in launch.stated
        if item.fact == "seq" and item.key in ("seq_length", "sequence_length")
    }  # fmt: skip
    names["seq_values"] = len(lengths)
    steps = flags.get("gradient_accumulation_steps")
    if names.get("ds_ga") is None and isinstance(steps, int) and "ga" in launch.wheres:
        names["ds_ga_n"] = steps
    else:
        names["ds_ga_n"] = names.get("ds_ga")


def _misspelt(launch: LaunchFile, names: dict[str, Any]) -> None:
    """The first stated key that no vocabulary knows and that is nearly one that is known."""
    if launch.framework in ("gangsaw", "slurm"):
        return
    words = vocabulary(launch.framework)
    known = [key for key, fact in words.facts.items() if fact]
    real: frozenset[str] = frozenset()
    if launch.framework == "megatron-lm":
        real = frozenset(flag.replace("-", "_") for flag in flags_of(releases()[-1]))
        known = [*known, *real]
    for item in launch.stated:
        if item.fact or item.key in real or len(item.key) < 6:
            continue
        if words.means(item.key) is not None and not real:
            continue
        near = difflib.get_close_matches(item.key, known, n=1, cutoff=0.92)
        if near and near[0] not in {other.key for other in launch.stated}:
            names["misspelt"], names["meant"] = item.key, near[0]
            names["meant_fact"] = words.facts.get(near[0], "").partition("=")[0] or "misspelt"
            names["misspelt_value"] = item.value
            return


def _parser(launch: LaunchFile, names: dict[str, Any], version: str) -> None:
    """What Megatron-LM's parser of the release refuses."""
    if gone := removed_flag(launch.stated, version):
        names["removed_flag"] = gone
        names["removed_key"] = gone.replace("-", "_")
    if wrong := bad_choice(launch.stated, version):
        names["choice_flag"], names["choice_value"] = wrong.flag, wrong.value
        names["choices"], names["choice_key"] = wrong.legal, wrong.flag.replace("-", "_")
    names["parser_release"] = listed(version)


def _grid(launch: LaunchFile, names: dict[str, Any], cluster: ClusterSpec | None) -> None:
    tp, cp, pp = (_whole(names, key, 1) for key in ("tp", "cp", "pp"))
    ep, etp, vpp = (_whole(names, key, 1) for key in ("ep", "etp", "vpp"))
    count, world = _whole(names, "num_microbatches"), _whole(names, "world")
    if count and pp >= 1:
        names["bubble_frac"] = (pp - 1) / (vpp * count + pp - 1)
    steps = _whole(names, "grad_accumulation", 1)
    names["microbatches_per_pass"] = count // max(1, steps) if count else None
    names["experts_n"] = _whole(names, "experts", 1)
    names["offload_n"] = float(names.get("offload_optimizer") or 0.0)
    inside = tp * cp * _whole(names, "dp")
    names["expert_dp"] = inside // (ep * etp) if ep * etp and inside else None
    if cluster is not None and names.get("per_node") is None:
        names["per_node"] = cluster.host.devices
    per_node = _whole(names, "per_node")
    names["nodes_n"] = -(-world // per_node) if world and per_node else _whole(names, "nodes", 1)
    names["blackwell"] = False
    names["big_domain"] = False
    if cluster is not None:
        name = cluster.device.name.lower()
        names["blackwell"] = any(text in name for text in ("b200", "b300", "b100"))
        names["big_domain"] = cluster.tiers[0].devices >= tp
        names["device_gib"] = cluster.device.memory_bytes / GIB
        names["device_name"] = cluster.device.name
        names["device_precisions"] = [*cluster.device.peak_flops_per_s]
        names["cluster_devices"] = cluster.devices


def _model(launch: LaunchFile, names: dict[str, Any]) -> None:
    model = launch.model
    if model is None:
        return
    names["params"] = float(model.params())
    # A vocabulary that is padded makes no other model.
    names["vocab_params"] = float(model.hidden * (1 if model.tied else 2))
    kinds = [model.kinds[k] for k in model.order]
    routed = [kind for kind in kinds if kind.moe is not None]
    if routed:
        ep, etp, pp = (_whole(names, key, 1) for key in ("ep", "etp", "pp"))
        experts = sum(kind.expert_params() for kind in routed) / max(1, ep * etp * pp)
        names["dense_layers"] = _dense_layers(model)
        names["expert_state_gib"] = 18.0 * experts / GIB
        names["unsharded_layer_gib"] = 2.0 * max(kind.params() for kind in routed) / GIB


def _named(launch: LaunchFile, names: dict[str, Any]) -> None:
    """What the named model looks like, where the file states a shape of its own."""
    shape = ("layers", "hidden", "heads", "ffn")
    stated = any(key in launch.wheres for key in shape)
    # Where a provider gives the named model's shape, only what the file states replaces it.
    names["own_shape"] = stated and launch.framework in _WHOLE_SHAPE
    if not launch.model_name:
        return
    names["model_name"] = launch.model_name
    table = _reference()
    name = launch.model_name
    names["ref_bf16_trained"] = any(name.startswith(f) for f in table["bf16_trained"])
    if not stated:
        return
    try:
        model = load_model(name)
    except InputError:
        return
    names["ref_no_dropout"] = any(name.startswith(f) for f in table["no_dropout"])
    names["ref_rope_base"] = _base(model.rotary)
    names.update(_shape_of(model))


def _base(rotary: RotarySpec | None) -> float | int | None:
    """The base as a file states it: a whole number where it is one."""
    if rotary is None:
        return None
    return int(rotary.base) if rotary.base.is_integer() else rotary.base


def _shape_of(model: ModelSpec) -> dict[str, Any]:
    kind = model.kinds[model.order[-1]]
    attention = kind.attention
    dense = next((k.mlp for k in model.kinds if k.mlp is not None), None)
    found: dict[str, Any] = {
        "ref_layers": model.layers, "ref_hidden": model.hidden, "ref_vocab": model.vocab,
        "ref_tied": model.tied, "ref_heads": attention.heads, "ref_kv_heads": attention.kv_heads,
        "ref_head_dim": attention.head_dim, "ref_mla": attention.is_mla,
        "ref_bias": attention.out_bias, "ref_qkv_bias": attention.q_bias,
        "ref_params": float(model.params()), "ref_dense_layers": _dense_layers(model),
        "ref_qk_norm": attention.qk_norm != "none",
        "ref_rms": not kind.norm_bias, "ref_learned_positions": model.learned_positions,
        "ref_ffn": dense.ffn if dense is not None else None,
        "ref_gated": dense.gated if dense is not None else None,
    }  # fmt: skip
    if kind.moe is not None:
        found |= {
            "ref_experts": kind.moe.experts, "ref_topk": kind.moe.topk,
            "ref_moe_ffn": kind.moe.expert.ffn, "ref_gated": kind.moe.expert.gated,
            "ref_shared_ffn": kind.moe.shared.ffn if kind.moe.shared is not None else None,
        }  # fmt: skip
    return found


def _dense_layers(model: ModelSpec) -> int:
    return sum(1 for index in model.order if model.kinds[index].moe is None)


def _network(launch: LaunchFile, names: dict[str, Any], cluster: ClusterSpec | None) -> None:
    """What ZeRO-3 asks of the network, and what offload asks of the hosts."""
    params, world = names.get("params"), _whole(names, "world")
    if cluster is None or params is None:
        return
    plan, recipe = launch.plan, launch.recipe
    zero = _whole(names, "zero")
    if plan is not None and recipe is not None and zero == 3 and world > cluster.host.devices:
        shard = plan.shard_group or plan.dp * plan.cp
        if shard > cluster.host.devices:
            # Two gathers of 2-byte parameters and a reduction of 2-byte gradients a microbatch,
            # against 6 FLOPs a parameter and token (8 with full recompute) at half the peak.
            tokens = plan.mbs * recipe.seq_len / plan.cp
            share = 8.0 if plan.recompute == "full" else 6.0
            flops = share * params / (plan.tp * plan.pp) * tokens
            peak = cluster.device.peak_flops_per_s.get("bf16", 1e15)
            # A ring passes every node boundary once on all of the node's links together.
            moved = 6.0 * params / (plan.pp * cluster.host.devices)
            names["sharding_gbs"] = moved / (flops / (0.5 * peak)) / GB
            tier = next((t for t in cluster.tiers if t.devices > cluster.host.devices), None)
            if tier is not None:
                speed = tier.bytes_per_s * tier.efficiency / tier.oversubscription
                names["network_gbs"] = speed / GB
    share_offload = float(names.get("offload_optimizer") or 0.0)
    if share_offload > 0 and world:
        nodes = max(1, world // cluster.host.devices)
        names["host_need_gb"] = 16.0 * params * share_offload / nodes / GB
        names["host_have_gb"] = cluster.host.memory_bytes / GB


def _predicted(
    launch: LaunchFile, names: dict[str, Any], cluster: ClusterSpec, stack: StackProfile | None
) -> None:
    """Peaks and step times of the plan as it is, without recompute, and with twice the batch."""
    job, plan = job_of(launch, cluster, stack), launch.plan
    base = predict(job, plan)
    if base is None or plan is None:
        return
    capacity = cluster.device.memory_bytes * cluster.device.usable_memory_frac
    names["peak_frac"] = base.peak_bytes / capacity
    names["peak_gib"] = base.peak_bytes / GIB
    if plan.recompute == "full":
        none: dict[str, object] = {"recompute": "none", "recompute_layers": 0}
        _compare(names, "without_recompute", job, plan, none)
    if plan.num_microbatches % 2 == 0:
        twice = {"mbs": 2 * plan.mbs, "num_microbatches": plan.num_microbatches // 2}
        _compare(names, "double_mbs", job, plan, dict(twice))
    if plan.cp > 1 and plan.num_microbatches % plan.cp == 0:
        fewer = plan.num_microbatches // plan.cp
        change = {"cp": 1, "dp": plan.dp * plan.cp, "num_microbatches": fewer}
        _compare(names, "without_cp", job, plan, dict(change))
    if plan.tp > 1 and not plan.sequence_parallel:
        _compare(names, "with_sp", job, plan, {"sequence_parallel": True})
    if plan.offload_optimizer > 0:
        _compare(names, "without_offload", job, plan, {"offload_optimizer": 0.0})


def _compare(
    names: dict[str, Any], key: str, job: Job | None, plan: Plan, change: dict[str, object]
) -> None:
    """Peak and step time of a changed plan as shares of the device and of the step now."""
    base, other = predict(job, plan), predict(job, changed(plan, change))
    if base is None or other is None or job is None:
        return
    device = job.cluster.device
    names[f"peak_frac_{key}"] = other.peak_bytes / device.memory_bytes / device.usable_memory_frac
    names[f"step_ratio_{key}"] = other.step_s / base.step_s
