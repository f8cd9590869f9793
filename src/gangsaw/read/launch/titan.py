"""torchtitan: what its settings mean together.

Source: torchtitan/distributed/parallel_dims.py, distributed/pipeline_parallel.py and
config/job_config.py, v0.2.
"""

from __future__ import annotations

import re

from gangsaw.errors import InputError
from gangsaw.read.launch import stages
from gangsaw.read.launch.facts import Facts

SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "loopedbfs": "bfs",
    "interleavedzerobubble": "izb", "zbvzerobubble": "zb-v", "dualpipev": "dualpipe-v",
}  # fmt: skip
"""torch.distributed.pipelining's names (without case) and gangsaw's."""

TWO_CHUNKS = frozenset(("interleaved", "bfs", "izb", "zb-v", "dualpipe-v"))


def resolve(facts: Facts, defaults: str) -> None:
    """Everything that follows from torchtitan's settings, before world size is known."""
    name = str(facts.get("titan_schedule") or "1F1B")
    schedule = SCHEDULES.get(name.lower())
    if schedule is not None:
        facts.derive("schedule", schedule)
    _precision(facts)
    _checkpointing(facts)
    mode = str(facts.get("ac_mode") or "none").lower()
    facts.derive("recompute", mode if mode in ("none", "selective", "full") else "selective")
    if facts.flag("cpu_offload"):
        facts.derive("offload_optimizer", 1.0)
    etp = facts.whole("etp")
    if etp is None:
        facts.assume("etp", 1, f"{defaults}: expert_tensor_parallel_degree")
    facts.assume("gated", True, f"{defaults}: SwiGLU")
    facts.assume("bias", False, f"{defaults}: no biases")
    facts.assume("normalization", "RMSNorm", f"{defaults}: RMSNorm")


_AC = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
"""Classes that stand for the modes of activation checkpointing since v0.3."""


def _checkpointing(facts: Facts) -> None:
    """The mode, where a recipe names it by a class or by None."""
    if facts.is_stated("ac_mode"):
        return
    item = facts.settings.items.get("activation_checkpoint")
    if item is not None and item.value is None:
        # Classes that the file imports beside it say nothing then.
        facts.state("ac_mode", "none", facts.settings.at(item.line))
        return
    for name, mode in _AC.items():
        if any(name in text.split(".") for text in facts.settings.names):
            facts.state("ac_mode", mode, "")
            return


def _precision(facts: Facts) -> None:
    converters = facts.get("converters")
    listed = converters if isinstance(converters, list) else [converters]
    text = " ".join(str(item) for item in listed if item)
    made = any("Float8" in name for name in facts.settings.names)
    # Emulated float8 computes in bf16 (for tests on devices without it).
    emulated = any(key.endswith(".emulate") and item.value is True
                   for key, item in facts.settings.items.items())  # fmt: skip
    made = made and not emulated
    if "float8" in text or made or facts.flag("float8") or facts.flag("float8_gather"):
        facts.derive("precision", "fp8")
        return
    dtype = str(facts.get("param_dtype") or "bfloat16")
    known = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
    facts.derive("precision", known.get(dtype, "bf16"))


def degrees(facts: Facts) -> None:
    """Data parallel degree, sharding and batch, once the world is known."""
    replicate, shard = facts.whole("dp_replicate") or 1, facts.whole("dp_shard")
    tp, cp, pp = (facts.whole(name) or 1 for name in ("tp", "cp", "pp"))
    world = facts.whole("world")
    if shard is not None and shard < 0:
        inner = replicate * tp * cp * pp
        shard = world // inner if world and world % inner == 0 else None
    if shard is None:
        facts.lack("dp: the number of devices is not stated")
        return
    if replicate * shard < 1:
        return
    facts.derive("dp_shard_size", shard)
    facts.derive("dp", replicate * shard)
    facts.derive("zero", _stage(facts, shard * cp, pp))
    if replicate > 1 and shard * cp > 1:
        facts.derive("shard_group", shard * cp)
    _batch(facts, replicate * shard, pp)


def _stage(facts: Facts, shard: int, pp: int) -> int:
    """ZeRO stage that FSDP's resharding amounts to; with pipelines the default keeps parameters."""
    if shard == 1:
        return 0
    reshard = str(facts.get("reshard") or "default").lower()
    if reshard in ("never", "false"):
        return 2
    if reshard in ("always", "true"):
        return 3
    return 2 if pp > 1 else 3


def _batch(facts: Facts, dp: int, pp: int) -> None:
    local = facts.whole("local_batch")
    if local is None or local < 1:
        return
    total = facts.whole("gbs")
    if total is not None and total < 1:
        total = None
    if pp == 1:
        facts.derive("mbs", local)
        if total is None:
            facts.derive("gbs", local * dp)
            facts.derive("num_microbatches", 1)
        elif total % (local * dp) == 0:
            facts.derive("num_microbatches", total // (local * dp))
        return
    stated = facts.whole("num_microbatches_stated")
    size = facts.whole("pp_mbs") or 1
    if stated and stated > 0:
        size = max(1, local // stated)
    facts.derive("mbs", size)
    if size > 0 and local % size == 0:
        facts.derive("num_microbatches", local // size)
    steps = total // (local * dp) if total and total % (local * dp) == 0 else 1
    facts.derive("grad_accumulation", steps)
    facts.derive("gbs", local * dp)
    if steps > 1 and total:
        facts.derive("gbs", total)
        facts.derive("num_microbatches", local // size * steps)


def split(facts: Facts) -> None:
    """Chunks and layers a chunk."""
    pp, layers = facts.whole("pp") or 1, facts.whole("layers")
    schedule = str(facts.get("schedule") or "1f1b")
    parts = facts.get("module_parts")
    if isinstance(parts, list) and parts:
        counts = [_decoder_layers(part) for part in parts]
        facts.derive("layout_stages", len(counts))
        facts.derive("layout_layers", sum(counts))
        if len(counts) % pp == 0:
            facts.derive("vpp", len(counts) // pp)
            facts.derive("stages", list(counts))
        return
    vpp = 2 if schedule in TWO_CHUNKS and pp > 1 else 1
    first, last = facts.whole("first_less"), facts.whole("last_less")
    first, last = 1 if first is None else first, 1 if last is None else last
    per = facts.whole("layers_per_stage")
    if per and per > 0 and layers:
        count = -(-(layers + first + last) // per)
        facts.derive("virtual_stages", count)
        vpp = max(1, count // pp)
    facts.derive("vpp", vpp)
    if layers and pp > 1 and pp * vpp <= stages.MAX_STAGES:
        try:
            facts_stages = stages.titan_counts(layers, pp * vpp, first, last)
        except InputError as error:
            facts.derive("layout_error", str(error))
            return
        if len(set(facts_stages)) > 1:
            facts.derive("stages", list(facts_stages))


def _decoder_layers(part: object) -> int:
    names = part if isinstance(part, list) else [part]
    return sum(1 for name in names if re.fullmatch(r"layers\.\d+", str(name)))


MODELS = {
    ("llama3", "8B"): "llama-3.1-8b", ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b", ("llama3_ft", "8B"): "llama-3.1-8b",
    ("deepseek_v3", "671B"): "deepseek-v3", ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "14B"): "qwen3-14b", ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b", ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
}  # fmt: skip
"""torchtitan's model name and flavour, and the catalog's name."""


def named_model(facts: Facts) -> str:
    """The catalog's name of the model and flavour that the settings choose."""
    flavor = str(facts.get("flavor") or "")
    family = str(facts.get("title_model") or "")
    for (name, size), model in MODELS.items():
        if size.lower() == flavor.lower() and (not family or name == family):
            return model
    return ""
