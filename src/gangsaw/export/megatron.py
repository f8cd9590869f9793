"""Megatron-LM: a shell script of torchrun and flags, names of core_r0.15."""

from __future__ import annotations

from gangsaw.export.document import ExportFile, header, nodes_of
from gangsaw.export.ends import prediction_layers
from gangsaw.read.launch.stages import layout_text
from gangsaw.spec import Job, LayerKind, ModelSpec, Plan

Flags = list[tuple[str, object]]


def files(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`launch.sh` with everything, and how to start it on several nodes."""
    nodes, per_node = nodes_of(job, plan)
    groups = [
        ("MODEL_ARGS", model_flags(job.model, plan.tp)),
        ("PARALLEL_ARGS", parallel_flags(job, plan)),
        ("TRAIN_ARGS", train_flags(job, plan)),
    ]  # fmt: skip
    text = ["#!/bin/bash\n", header(job, plan), "set -euo pipefail\n"]
    fsdp = plan.zero >= 2
    if (plan.tp > 1 or plan.cp > 1) and not fsdp:
        text.append("export CUDA_DEVICE_MAX_CONNECTIONS=1\n")
    text.append(f"NNODES={nodes}\nGPUS_PER_NODE={per_node}\n")
    for name, flags in groups:
        text.append(f"{name}=(\n" + "".join(f"    {_flag(k, v)}\n" for k, v in flags) + ")\n")
    text.append(
        "torchrun --nnodes $NNODES --nproc-per-node $GPUS_PER_NODE"
        ' --node-rank "${NODE_RANK:-0}" \\\n'
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\\n'
        "    pretrain_gpt.py \\\n"
        '    "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAIN_ARGS[@]}" \\\n'
        '    --mock-data --tokenizer-type NullTokenizer --split 99,1,0 "$@"\n'
    )
    return (ExportFile(name="launch.sh", text="".join(text), main=True),)


def _flag(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    text = str(value)
    quoted = f"'{text}'" if any(c in text for c in "|*()[] ") else text
    return f"--{name} {quoted}"


def main_kind(model: ModelSpec) -> LayerKind:
    """The layer kind that most layers are of."""
    return model.kinds[max(set(model.order), key=model.order.count)]


def model_flags(model: ModelSpec, tp: int) -> Flags:
    """Shape of the model."""
    kind = main_kind(model)
    a = kind.attention
    dense = next((k.mlp for k in model.kinds if k.mlp is not None), None)
    gated = (dense or (kind.moe.expert if kind.moe else None)) or None
    flags: Flags = [
        ("use-mcore-models", True), ("num-layers", model.layers), ("hidden-size", model.hidden),
        ("num-attention-heads", a.heads),
    ]  # fmt: skip
    if dense is not None:
        flags.append(("ffn-hidden-size", dense.ffn))
    elif kind.moe is not None:
        flags.append(("ffn-hidden-size", kind.moe.expert.ffn))
    if a.is_mla:
        flags += [
            ("multi-latent-attention", True), ("kv-lora-rank", a.kv_lora_rank),
            ("qk-head-dim", a.head_dim - a.rope_head_dim),
            ("qk-pos-emb-head-dim", a.rope_head_dim), ("v-head-dim", a.v_head_dim),
        ]  # fmt: skip
        if a.q_lora_rank:
            flags.append(("q-lora-rank", a.q_lora_rank))
    else:
        flags.append(("kv-channels", a.head_dim))
        if a.kv_heads != a.heads:
            flags += [("group-query-attention", True), ("num-query-groups", a.kv_heads)]
    if gated is not None and gated.gated:
        flags.append(("swiglu", True))
    if not a.out_bias:
        flags.append(("disable-bias-linear", True))
    if a.q_bias and not a.out_bias:
        flags.append(("add-qkv-bias", True))
    if a.qk_norm != "none":
        flags.append(("qk-layernorm", True))
    flags.append(("normalization", "LayerNorm" if kind.norm_bias else "RMSNorm"))
    if not model.tied:
        flags.append(("untie-embeddings-and-output-weights", True))
    flags.append(("vocab-size", model.vocab))
    if prediction_layers(model):
        flags.append(("mtp-num-layers", prediction_layers(model)))
    return flags + _moe_flags(model, kind)


def _moe_flags(model: ModelSpec, kind: LayerKind) -> Flags:
    moe = kind.moe
    if moe is None:
        return []
    flags: Flags = [
        ("num-experts", moe.experts), ("moe-router-topk", moe.topk),
        ("moe-ffn-hidden-size", moe.expert.ffn), ("moe-grouped-gemm", True),
        ("moe-token-dispatcher-type", "alltoall"),
    ]  # fmt: skip
    if moe.shared is not None:
        flags.append(("moe-shared-expert-intermediate-size", moe.shared.ffn))
    if moe.router_bias:
        flags.append(("moe-router-enable-expert-bias", True))
    routed = [1 if model.kinds[k].moe is not None else 0 for k in model.order]
    if 0 in routed:
        flags.append(("moe-layer-freq", "(" + "+".join(_runs(routed)) + ")"))
    return flags


def _runs(values: list[int]) -> list[str]:
    """`[0]*3`, `[1]*58` of a list."""
    out: list[str] = []
    start = 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[start]:
            out.append(f"[{values[start]}]*{index - start}")
            start = index
    return out


def parallel_flags(job: Job, plan: Plan) -> Flags:
    """Degrees, stages, sharding."""
    flags: Flags = [
        ("tensor-model-parallel-size", plan.tp), ("pipeline-model-parallel-size", plan.pp),
        ("context-parallel-size", plan.cp),
    ]  # fmt: skip
    if any(kind.moe is not None for kind in job.model.kinds):
        flags += [
            ("expert-model-parallel-size", plan.ep), ("expert-tensor-parallel-size", plan.etp),
        ]  # fmt: skip
    if plan.stages is not None and plan.pp > 1:
        layout = layout_text(plan.stages, prediction_layers(job.model))
        flags.append(("pipeline-model-parallel-layout", layout))
    elif plan.vpp > 1:
        flags.append(("num-virtual-stages-per-pipeline-rank", plan.vpp))
    if plan.sequence_parallel and plan.tp > 1:
        flags.append(("sequence-parallel", True))
    if plan.rank_order == "tp-cp-ep-pp-dp":
        flags.append(("use-tp-pp-dp-mapping", True))
    if plan.zero == 1:
        flags += [
            ("use-distributed-optimizer", True), ("overlap-grad-reduce", True),
            ("overlap-param-gather", True),
        ]  # fmt: skip
        if plan.shard_group:
            copies = plan.dp * plan.cp // plan.shard_group
            flags.append(("num-distributed-optimizer-instances", copies))
    elif plan.zero >= 2:
        strategy = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        flags += [
            ("use-megatron-fsdp", True), ("data-parallel-sharding-strategy", strategy),
            ("ckpt-format", "fsdp_dtensor"),
        ]  # fmt: skip
    return flags


def train_flags(job: Job, plan: Plan) -> Flags:
    """Batch, length, precision, recompute, offload."""
    recipe = job.recipe
    flags: Flags = [
        ("micro-batch-size", plan.mbs), ("global-batch-size", recipe.global_batch),
        ("seq-length", recipe.seq_len),
        ("max-position-embeddings", max(recipe.seq_len, job.model.learned_positions)),
    ]  # fmt: skip
    positions = "learned_absolute" if job.model.learned_positions else "rope"
    flags.append(("position-embedding-type", positions))
    flags += rotary_flags(job.model)
    flags += [("attention-dropout", "0.0"), ("hidden-dropout", "0.0")]
    if recipe.precision in ("bf16", "fp8"):
        flags.append(("bf16", True))
    if recipe.precision == "fp8":
        flags.append(("fp8-format", "hybrid"))
    if recipe.precision == "fp16":
        flags.append(("fp16", True))
    steps = round(recipe.tokens / recipe.tokens_per_step) if recipe.tokens else 1000
    flags += [("train-iters", steps), ("lr", "1.0e-4"), ("min-lr", "1.0e-5")]
    return flags + recompute_flags(job, plan)


def rotary_flags(model: ModelSpec) -> Flags:
    """Base and scaling of rotary positions, where the model states them."""
    rotary = model.rotary
    if rotary is None or model.learned_positions:
        return []
    flags: Flags = [("rotary-base", _whole(rotary.base))]
    scaling = rotary.scaling
    if scaling is None or unscaled(model):
        return flags
    if scaling.kind == "llama3":
        return [*flags, ("use-rope-scaling", True), ("rope-scaling-factor", scaling.factor)]
    if scaling.kind == "linear":
        return [*flags, ("rotary-seq-len-interpolation-factor", _whole(scaling.factor))]
    return [
        *flags, ("rope-type", "yarn"), ("rotary-scaling-factor", scaling.factor),
        ("mscale", scaling.mscale or 1.0), ("mscale-all-dim", scaling.mscale_all_dim or 0.0),
    ]  # fmt: skip


def unscaled(model: ModelSpec) -> str:
    """What of the scaling Megatron's flags cannot say; empty where they say all."""
    scaling = model.rotary.scaling if model.rotary else None
    if scaling is None:
        return ""
    if scaling.kind == "yarn" and not model.kinds[0].attention.is_mla:
        return "YaRN scaling of rotary positions outside latent attention"
    fixed = (scaling.original_positions, scaling.low_freq_factor, scaling.high_freq_factor)
    if scaling.kind == "llama3" and fixed != LLAMA3_SCALING:
        return "Llama 3 scaling other than over 8192 positions with factors 1 and 4"
    return ""


LLAMA3_SCALING = (8192, 1.0, 4.0)
"""Original positions and frequency factors that --use-rope-scaling has built in."""


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def recompute_flags(job: Job, plan: Plan) -> Flags:
    """Recompute and offload."""
    flags: Flags = []
    if plan.recompute == "selective":
        flags.append(("recompute-granularity", "selective"))
    if plan.recompute == "full":
        method = "block" if plan.recompute_layers else "uniform"
        flags += [
            ("recompute-granularity", "full"), ("recompute-method", method),
            ("recompute-num-layers", plan.recompute_layers or 1),
        ]  # fmt: skip
    if plan.offload_optimizer:
        flags += [
            ("optimizer-cpu-offload", True), ("use-precision-aware-optimizer", True),
            ("optimizer-offload-fraction", repr(plan.offload_optimizer)),
        ]  # fmt: skip
    if plan.offload_activations:
        count = round(plan.offload_activations * job.model.layers)
        flags.append(("cpu-offloading-num-layers", count))
    return flags
