"""DeepSpeed with Hugging Face's Trainer, LLaMA-Factory, axolotl; GPT-NeoX and nanotron.

Sources: deepspeed/runtime/config.py 0.18 (batch sizes), transformers/integrations/deepspeed.py
5.0 ("auto"), nanotron/config/parallelism_config.py 0.4, gpt-neox neox_arguments v2.0.
"""

from __future__ import annotations

from gangsaw.read.launch.facts import Facts


def resolve(facts: Facts, tuner: bool) -> None:
    """Precision, recompute, sharding and task of a Trainer or DeepSpeed launch."""
    _precision(facts)
    checkpointing = facts.flag("grad_checkpointing") or facts.flag("recompute_layer")
    facts.derive("recompute", "full" if checkpointing else "none")
    adapter = str(facts.get("adapter") or facts.get("finetuning_type") or "")
    if adapter in ("lora", "qlora") or facts.flag("lora"):
        four = facts.flag("quantization_4bit") or facts.whole("quantization_bit") == 4
        facts.derive("task", "qlora" if adapter == "qlora" or four else "lora")
    elif tuner:
        facts.derive("task", "sft")
    device = str(facts.get("offload_optimizer_device") or "none")
    if device in ("cpu", "nvme") or facts.flag("cpu_offload_old"):
        ratio = facts.get("offload_optimizer_ratio")
        facts.derive("offload_optimizer", float(ratio) if isinstance(ratio, (int, float)) else 1.0)
    if facts.flag("cpu_checkpointing"):
        facts.derive("offload_activations", 1.0)
    facts.derive("vpp", 1)
    facts.derive("ep", facts.get("ep") or 1)
    facts.derive("etp", 1)
    if facts.get("schedule") is None:
        facts.derive("schedule", "1f1b")
    if facts.get("sp") is None:
        facts.derive("sp", False)


def _precision(facts: Facts) -> None:
    if facts.get("precision") is not None:
        return
    neox = str(facts.get("neox_precision") or facts.get("fp16_type") or "")
    dtype = str(facts.get("dtype") or "")
    if facts.flag("bf16") or facts.flag("ds_bf16") or "bf" in neox or dtype == "bfloat16":
        facts.derive("precision", "bf16")
    elif facts.flag("fp16") or facts.flag("ds_fp16") or "fp16" in neox or dtype == "float16":
        facts.derive("precision", "fp16")
    elif facts.flag("pure_bf16"):
        facts.derive("precision", "bf16")
    else:
        facts.assume("precision", "fp32", "no precision stated: fp32")


def batch(facts: Facts) -> None:
    """Micro batch, accumulation and global batch as DeepSpeed and Trainer settle them.

    train_batch_size = micro batch x accumulation x data parallel ranks; "auto" takes Trainer's.
    """
    for name, other in (("mbs", "ds_mbs"), ("ga", "ds_ga"), ("gbs", "ds_gbs")):
        value = facts.whole(other)
        if value and facts.whole(name) is None:
            facts.derive(name, value, facts.held[other].where)
        elif value and facts.whole(name) not in (None, value) and facts.is_stated(name):
            facts.derive(f"{name}_conflict", value)
    dp, mbs, steps, total = (facts.whole(n) for n in ("dp", "mbs", "ga", "gbs"))
    if dp and mbs and total and steps is None and total % (mbs * dp) == 0:
        steps = total // (mbs * dp)
        facts.derive("ga", steps)
    if dp and total and steps and mbs is None and total % (dp * steps) == 0:
        mbs = total // (dp * steps)
        facts.derive("mbs", mbs)
    if dp and total and steps is None and mbs is None and total % dp == 0:
        mbs, steps = total // dp, 1
        facts.derive("mbs", mbs)
    steps = steps or 1
    facts.derive("ga", steps)
    facts.derive("num_microbatches", steps)
    if dp and mbs and total is None:
        facts.derive("gbs", dp * mbs * steps)


def sharding(facts: Facts) -> None:
    """Shard groups of hpZ and MiCS, FSDP of axolotl."""
    hpz, mics = facts.whole("hpz") or 1, facts.whole("mics") or -1
    if mics > 1:
        facts.derive("shard_group", mics)
    elif hpz > 1:
        facts.derive("shard_group_hpz", hpz)
    if facts.get("fsdp") or facts.get("fsdp_version"):
        reshard = facts.get("reshard")
        facts.derive("zero", 2 if reshard is False else 3)
        if facts.flag("fsdp_offload"):
            facts.derive("offload_optimizer", 1.0)
    replicate, shard = facts.whole("dp_replicate"), facts.whole("dp_shard")
    if replicate and replicate > 1 and shard and shard > 1:
        facts.derive("shard_group", shard)


def neox(facts: Facts, defaults: str) -> None:
    """GPT-NeoX's own defaults. Source: megatron/neox_arguments/neox_args.py, v2.0."""
    if (facts.whole("pp") or 0) == 0:
        facts.state("pp", 1, "")
    facts.derive("positions", "rope" if facts.get("neox_positions") == "rotary" else "learned")
    norm = str(facts.get("neox_norm") or "layernorm")
    facts.derive("normalization", "RMSNorm" if "rms" in norm else "LayerNorm")
    gated = facts.get("mlp_type") == "llama" or facts.get("neox_activation") == "swiglu"
    facts.derive("gated", gated)
    facts.assume("bias", not gated, f"{defaults}: biases of linear layers")
    heads = facts.whole("heads")
    if heads and facts.get("kv_heads") is None:
        facts.assume("kv_heads", heads, f"{defaults}: num_kv_heads")
    hidden = facts.whole("hidden")
    if hidden and facts.get("ffn") is None:
        width = 4 * hidden if not gated else -(-int(8 * hidden / 3) // 256) * 256
        facts.assume("ffn", width, f"{defaults}: intermediate_size")
    for name in ("max_positions",):
        facts.derive(name, facts.get("max_positions") or facts.get("seq"))


def nanotron(facts: Facts, defaults: str) -> None:
    """nanotron's engine names and its sequence-parallel mode."""
    engine = str(facts.get("pp_engine") or "afab").lower()
    facts.derive("schedule", {"1f1b": "1f1b", "afab": "gpipe"}.get(engine, engine))
    # Every stage above 0 builds the same ZeroDistributedOptimizer.
    facts.derive("zero", min(facts.whole("zero_stage") or 0, 1))
    facts.derive("sp", str(facts.get("tp_mode") or "").upper() == "REDUCE_SCATTER")
    facts.assume("dtype", "bfloat16", f"{defaults}: ModelArgs.dtype")
    facts.assume("gated", True, f"{defaults}: SwiGLU of LlamaConfig")
    facts.assume("bias", False, f"{defaults}: no biases in LlamaConfig")
    facts.assume("normalization", "RMSNorm", f"{defaults}: LlamaConfig")
