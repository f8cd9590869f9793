"""DeepSpeed: its JSON and a launch of Hugging Face's Trainer, 0.18."""

from __future__ import annotations

import json

from gangsaw import __version__
from gangsaw.export.document import ExportFile, header, nodes_of, plan_hash
from gangsaw.spec import Job, Plan


def config(job: Job, plan: Plan) -> dict[str, object]:
    """The DeepSpeed configuration of a plan."""
    recipe = job.recipe
    zero: dict[str, object] = {"stage": plan.zero}
    if plan.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 5e8}
    if plan.offload_optimizer:
        offload: dict[str, object] = {"device": "cpu", "pin_memory": True}
        if plan.offload_optimizer < 1.0:
            offload["ratio"] = plan.offload_optimizer
        zero["offload_optimizer"] = offload
    if plan.shard_group:
        zero["mics_shard_size"] = plan.shard_group
    data: dict[str, object] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": plan.mbs,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_clipping": 1.0, "zero_optimization": zero,
        "bf16": {"enabled": recipe.precision in ("bf16", "fp8")},
        "fp16": {"enabled": recipe.precision == "fp16"},
    }  # fmt: skip
    if plan.tp > 1:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        data["sequence_parallel_size"] = plan.cp
    if plan.offload_activations:
        data["activation_checkpointing"] = {"cpu_checkpointing": True}
    return data


def files(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`ds_config.json` inside `launch.sh`, which writes it and starts the Trainer."""
    nodes, per_node = nodes_of(job, plan)
    recipe = job.recipe
    data = {"_gangsaw": {"version": __version__, "plan": plan_hash(plan)}, **config(job, plan)}
    flags: list[tuple[str, object]] = [
        ("deepspeed", "ds_config.json"), ("model_name_or_path", hub_name(job)),
        ("per_device_train_batch_size", plan.mbs),
        ("gradient_accumulation_steps", plan.num_microbatches),
        ("max_seq_length", recipe.seq_len),
        ("gradient_checkpointing", plan.recompute == "full"),
        ("bf16", recipe.precision in ("bf16", "fp8")), ("fp16", recipe.precision == "fp16"),
    ]  # fmt: skip
    if recipe.task in ("lora", "qlora"):
        flags += [("use_peft", True), ("lora_r", recipe.lora_rank)]
    steps = round(recipe.tokens / recipe.tokens_per_step) if recipe.tokens else 1000
    flags += [("max_steps", steps), ("output_dir", "out")]
    body = json.dumps(data, indent=2)
    text = (
        "#!/bin/bash\n" + header(job, plan) + "set -euo pipefail\n"
        f"cat > ds_config.json <<'JSON'\n{body}\nJSON\n"
        f"deepspeed --num_nodes {nodes} --num_gpus {per_node} train.py \\\n    "
        + " \\\n    ".join(f"--{key} {str(value).lower() if value in (True, False) else value}"
                           for key, value in flags)
        + ' "$@"\n'
    )  # fmt: skip
    return (
        ExportFile(name="launch.sh", text=text, main=True),
        ExportFile(name="ds_config.json", text=body + "\n"),
    )


HUB = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf", "llama-2-13b": "meta-llama/Llama-2-13b-hf",
    "llama-2-70b": "meta-llama/Llama-2-70b-hf", "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B", "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B", "llama-3.1-405b": "meta-llama/Llama-3.1-405B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1", "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1", "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B", "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B", "qwen2.5-32b": "Qwen/Qwen2.5-32B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3", "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
}  # fmt: skip
"""Repositories of models on the Hugging Face hub."""


def hub_name(job: Job) -> str:
    """The repository of a model, else its own name."""
    return HUB.get(job.model.name, job.model.name)
