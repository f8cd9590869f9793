"""Which stack profiles a row's words point to, and what the row itself says about its software."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gangsaw.cost.fitted import device_family
from gangsaw.cost.mixture import EARLIER, LATER
from gangsaw.fit.row_model import whole
from gangsaw.fit.row_recipe import with_facts
from gangsaw.read.stacks import load_stack
from gangsaw.spec import StackProfile, blocking, without_overlap

Row = Mapping[str, Any]

_STACKS = (
    ("sail-sg", "zero-bubble"),
    ("zero bubble", "zero-bubble"),
    ("zero-bubble", "zero-bubble"),
    ("zerobubble", "zero-bubble"),
    ("vocab", "zero-bubble"),
    ("llm-foundry", "fsdp1"),
    ("composer", "fsdp1"),
    ("fsdp1", "fsdp1"),
    ("torchtitan", "torchtitan"),
    ("fsdp2", "torchtitan"),
    ("automodel", "automodel"),
    ("maxtext", "jax-maxtext"),
    ("paxml", "jax-maxtext"),
    ("jax", "jax-maxtext"),
    ("nanotron", "nanotron"),
    ("internevo", "internevo"),
    ("internlm", "internevo"),
    ("primus", "megatron-core-te"),
    ("megatron-bridge", "megatron-core-te"),
    ("megatron bridge", "megatron-core-te"),
    ("megatron-core", "megatron-core-te"),
    ("mcore", "megatron-core-te"),
    ("transformerengine", "megatron-core-te"),
    ("+ te", "megatron-core-te"),
    ("nemo", "megatron-core-te"),
)

OLD_KERNELS = (
    "megatron-lm-2021", "megatron-lm-2022-sp", "megatron-deepspeed-fp16",
    "megatron-deepspeed-bf16", "zero-bubble",
)  # fmt: skip
"""Profiles of stacks from before sequence parallelism was the default."""


def words(row: Row, *keys: str) -> str:
    """The row's own text under keys of its plan, lower case."""
    plan = row["plan"]
    return " ".join(str(plan[k]) for k in keys if plan.get(k) is not None).lower()


def is_fp8(row: Row) -> bool:
    """Whether the linear layers run in eight bits or fewer."""
    text = words(row, "precision")
    if (
        "rowwise" in text
        and whole(row["plan"].get("tp") or 1) > 1
        and "torchtitan" in words(row, "framework", "stack")
    ):
        # Row-wise scales under tensor parallelism ran no faster than bf16 there, and took as much
        # memory (github.com/pytorch/torchtitan/issues/1207, torch 2.8).
        return False
    return any(mark in text for mark in ("fp8", "float8", "fp4", "mxfp", "e4m3"))


def stack_name(row: Row) -> str:
    """The stack profile that the row's framework text, precision and kernels point to."""
    text = words(row, "framework", "stack")
    precision = words(row, "precision")
    if "deepspeed" in text and "megatron" in text:
        return "megatron-deepspeed-bf16" if "bf16" in precision else "megatron-deepspeed-fp16"
    for needle, name in _STACKS:
        if needle in text:
            return f"{name}-fp8" if name == "megatron-core-te" and is_fp8(row) else name
    if "megatron" in text:
        family = device_family(str(row["hardware"].get("device", "")))
        if family not in ("a100", "v100") or row["plan"].get("flash_attention"):
            if row["plan"].get("cross_entropy_fusion") is False and not is_fp8(row):
                return "megatron-core-unfused-ce"
            return "megatron-core-te-fp8" if is_fp8(row) else "megatron-core-te"
        old = any(mark in text for mark in ("20.1", "21.", "2021", "2020", "v2."))
        return "megatron-lm-2021" if old else "megatron-lm-2022-sp"
    if any(mark in text for mark in ("deepspeed", "transformers", "hugging", "accelerate")):
        return "hf-eager"
    return "unknown"


@lru_cache(maxsize=64)
def profile(name: str) -> StackProfile:
    """A profile of the catalog."""
    return load_stack(name)


def stacks_of(row: Row, assumed: list[str]) -> tuple[tuple[StackProfile, float], ...]:
    """Profiles of a row with weights, each changed to what the row states about its kernels."""
    name = stack_name(row)
    if name == "unknown":
        assumed.append("stack: a mixture of profiles")
        base = profile("unknown")
        old = device_family(str(row["hardware"].get("device", ""))) in ("a100", "v100")
        mixture = EARLIER if old else LATER
        doubt = {
            "time_doubt_frac": base.time_doubt_frac, "memory_doubt_frac": base.memory_doubt_frac,
        }  # fmt: skip
        mixed = [
            (
                base.model_copy(update={"time": profile(other).time, "name": other})
                if old
                else profile(other).model_copy(update=doubt),
                weight,
            )
            for other, weight in mixture
        ]
        if old:
            mixed = [(s.model_copy(update=doubt), w) for s, w in mixed]
    elif name == "torchtitan":
        mixed = _torchtitan(row, assumed)
    else:
        mixed = [(profile(name), 1.0)]
    return tuple((adjusted(stack, row), weight) for stack, weight in mixed)


def _torchtitan(row: Row, assumed: list[str]) -> list[tuple[StackProfile, float]]:
    """Eager or compiled, with tensor parallelism asynchronous or not, as far as the row says."""
    text = words(row, "framework", "kernel", "stack")
    eager, quick = profile("torchtitan"), profile("torchtitan-compiled")
    if "compile" in text or is_fp8(row):
        # Eight-bit linear layers are only fast there when the casts are compiled.
        found = [(quick, 1.0)]
    elif "eager" in text:
        found = [(eager, 1.0)]
    else:
        assumed.append("stack: eager or compiled")
        found = [(eager, 0.5), (quick, 0.5)]
    if whole(row["plan"].get("tp") or 1) <= 1:
        return found
    hidden = {"tp_exposed_fwd_frac": 0.4, "tp_exposed_bwd_frac": 0.4}
    shares: tuple[tuple[dict[str, float], float], ...] = (({}, 0.75), (hidden, 0.25))
    if "async" in text:
        shares = ((hidden, 1.0),)
    elif "vanilla" in text:
        shares = (({}, 1.0),)
    else:
        assumed.append("tensor parallelism: asynchronous or not")
    return [
        (s.model_copy(update={"time": s.time.model_copy(update=change)}), w * share)
        for s, w in found
        for change, share in shares
    ]


def _score_bytes(stack: StackProfile, kernel: str) -> float:
    """Bytes a score that unfused attention keeps: 5 with dropout (arXiv:2205.05198, section 4).

    Without dropout a fused softmax (Megatron's, and Transformer Engine's unfused attention, which
    calls the same kernel) keeps its 16-bit output, eager modules an fp32 one beside it.
    """
    if stack.memory.dropout:
        return 5.0
    if "megatron" in kernel or stack.name.startswith("megatron-core"):
        return 2.0
    return 6.0 if "torch" in kernel else 4.0


def adjusted(stack: StackProfile, row: Row) -> StackProfile:
    """The profile with the row's own statements: attention kernel, fused norms, overlaps off."""
    time: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    kernel = words(row, "kernel", "attention_kernel")
    flash = row["plan"].get("flash_attention")
    if flash is None and kernel:
        flash = "flash" in kernel or "cudnn" in kernel
    unfused = stack.time.attention_kernel == "unfused"
    if flash and unfused:
        time["attention_kernel"] = "flash"
        memory["unfused_score_bytes"] = 0.0
    elif flash is False and stack.memory.unfused_score_bytes <= 0.0:
        time["attention_kernel"] = "unfused"
        memory["unfused_score_bytes"] = _score_bytes(stack, kernel)
    elif unfused is False and stack.memory.unfused_score_bytes > 0.0:
        memory["unfused_score_bytes"] = 0.0
    if "rms" in kernel:
        # A fused norm kernel keeps its input and output only, and moves as much.
        memory["norm_bytes"] = 4.0
        time["traffic_factor"] = min(stack.time.traffic_factor, 1.4)
    elif kernel == "torch":
        time["traffic_factor"] = max(stack.time.traffic_factor, 2.4)
    timed = stack.time
    if "off" in words(row, "overlap"):
        timed = without_overlap(timed)
    timed = with_facts(timed, row["plan"])
    if row["plan"].get("launch_blocking") is True:
        timed = blocking(timed)
    dropout = row["plan"].get("hidden_dropout")
    if isinstance(dropout, int | float):
        memory["dropout"] = dropout > 0.0
    grads = row["plan"].get("grad_bytes")
    if isinstance(grads, int | float) and grads > 0.0:
        memory["grad_bytes"] = float(grads)
    if row["plan"].get("gradient_accumulation_fusion") is False:
        # Transformer Engine's cached dummy gradients belong to the fusion.
        memory["wgrad_dummy"] = False
    if not time and not memory and timed is stack.time:
        return stack
    return stack.model_copy(
        update={
            "time": timed.model_copy(update=time),
            "memory": stack.memory.model_copy(update=memory),
        }
    )
