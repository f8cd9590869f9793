"""Which framework a launch file is for, by its name and what stands in it."""

from __future__ import annotations

import re
from itertools import pairwise

from gangsaw.read.launch.document import Framework

_TORCHTITAN_PY = re.compile(r"\b(torchtitan|Trainer\.Config|ParallelismConfig|JobConfig)\b")
_NEMO_PY = re.compile(r"\b(nemo_run|nemo\.collections|from nemo|import nemo|run\.Partial|nl\.)")
_BRIDGE_PY = re.compile(
    r"\b(megatron\.bridge|ConfigContainer|AutoBridge|tensor_model_parallel_size)\b"
)


def of_python(text: str) -> Framework | None:
    """The framework of a Python recipe."""
    if "megatron.bridge" in text or "AutoBridge" in text or "ConfigContainer" in text:
        return "megatron-bridge"
    if _NEMO_PY.search(text):
        return "nemo"
    if _TORCHTITAN_PY.search(text):
        return "torchtitan"
    return "megatron-bridge" if _BRIDGE_PY.search(text) else None


def of_yaml(keys: set[str]) -> Framework | None:
    """The framework of a YAML file by its dotted keys."""
    plain = {key.replace("-", "_") for key in keys}
    if {"pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu"} & plain:
        return "gpt-neox"
    if any(key.startswith(("parallelism.tp", "parallelism.pp")) for key in keys) and any(
        key.startswith(("tokens.", "model.model_config")) for key in keys
    ):
        return "nanotron"
    if "base_model" in plain:
        return "axolotl"
    if "model_name_or_path" in plain:
        return "llama-factory"
    if any(key.startswith("actor_rollout_ref.") for key in keys):
        return "verl"
    last = {key.rsplit(".", 1)[-1].lstrip("_") for key in plain}
    if {"tensor_model_parallel_size", "num_layers"} & last:
        return "megatron-lm"
    if any(key.startswith("zero_optimization") for key in keys):
        return "deepspeed"
    return None


_DEEPSPEED_JSON = frozenset((
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16",
    "bfloat16", "optimizer", "scheduler", "gradient_clipping", "activation_checkpointing",
    "zero_allow_untested_optimizer", "wall_clock_breakdown", "steps_per_print", "tensor_parallel",
    "gradient_accumulation_steps", "communication_data_type", "flops_profiler", "elasticity",
    "amp", "aio", "data_types", "comms_logger", "sequence_parallel_size",
))  # fmt: skip


def of_json(keys: set[str]) -> Framework | None:
    """The framework of a JSON file by its dotted keys; None where it launches nothing."""
    found = of_yaml(keys)
    tuner = {"finetuning_type", "cutoff_len", "template", "stage"} & keys
    if found == "llama-factory" and not tuner:
        return "deepspeed"
    neox = {"pipe_parallel_size", "model_parallel_size", "num_layers"} & keys
    if found is not None and (found != "gpt-neox" or neox):
        return found
    heads = {key.split(".")[0] for key in keys}
    model = "model_type" in keys or "architectures" in keys
    return "deepspeed" if heads & _DEEPSPEED_JSON and not model else None


_TITAN_TABLES = frozenset((
    "job", "profiling", "metrics", "model", "model_spec", "optimizer", "lr_scheduler", "training",
    "parallelism", "checkpoint", "activation_checkpoint", "compile", "float8", "mx", "quantize",
    "comm", "memory_estimation", "fault_tolerance", "experimental", "validation", "debug", "dump",
))  # fmt: skip
"""Tables of torchtitan's configuration, v0.1 to v0.3."""


def of_toml(keys: set[str]) -> Framework | None:
    """The framework of a TOML file by its dotted keys; None where it launches nothing."""
    if "tp" in keys:
        return "gangsaw"
    heads = {key.split(".")[0] for key in keys if "." in key}
    return "torchtitan" if heads & _TITAN_TABLES else None


def of_command(argv: tuple[str, ...]) -> Framework | None:
    """The framework of a launched command, by its program and its flags."""
    joined = " ".join(argv[:400])
    flags = {word.lstrip("-").split("=")[0].replace("-", "_") for word in argv}
    if "verl." in joined or any(word.startswith("actor_rollout_ref.") for word in argv):
        return "verl"
    if "gangsaw" in argv or any(word.endswith("/gangsaw") for word in argv):
        return "gangsaw"
    if "torchtitan" in joined or any(f.startswith(("parallelism.", "training.")) for f in flags):
        return "torchtitan"
    if any(a == "megatron" and b in ("sft", "pt", "rlhf") for a, b in pairwise(argv)):
        return "ms-swift"
    if flags & {"tensor_model_parallel_size", "num_attention_heads", "micro_batch_size",
                "pipeline_model_parallel_size", "global_batch_size"}:  # fmt: skip
        return "megatron-lm"
    if flags & {"per_device_train_batch_size", "deepspeed_config", "deepspeed"}:
        return "deepspeed"
    if "deepy.py" in joined or "gpt-neox" in joined:
        return "gpt-neox"
    return None
