"""Megatron-LM and its relatives: what their arguments mean together.

The arithmetic follows megatron/training/arguments.py (validate_args) and
megatron/core/transformer/transformer_config.py, core_r0.15.
"""

from __future__ import annotations

from gangsaw.errors import InputError
from gangsaw.read.launch import stages
from gangsaw.read.launch.document import Value
from gangsaw.read.launch.facts import Facts

TOKENIZER_VOCAB = {
    "GPT2BPETokenizer": 50257, "GPTSentencePieceTokenizer": 0, "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256, "BertWordPieceLowerCase": 30522,
}  # fmt: skip
"""Entries of the vocabularies that these tokenizers stand for; 0: the file decides."""


def resolve(facts: Facts, defaults: str) -> None:
    """Everything that follows from Megatron's arguments, before world size is known."""
    _shape(facts, defaults)
    _precision(facts)
    _recompute(facts)
    _sharding(facts)
    _pipeline(facts, defaults)
    facts.assume("etp", facts.get("tp"), f"{defaults}: tensor parallel size of the experts")
    if facts.flag("cpu_optimizer"):
        share = facts.get("cpu_optimizer_frac")
        facts.derive("offload_optimizer", 1.0 if share is None else share)
    offloaded, layers = facts.whole("offload_layers"), facts.whole("layers")
    if offloaded and layers and 0 < offloaded < layers:
        facts.derive("offload_activations", offloaded / layers)
    if facts.flag("pp_before_dp"):
        facts.derive("rank_order", "tp-cp-ep-pp-dp")
    if (facts.whole("tp") or 1) == 1 and facts.flag("sp"):
        # Megatron turns sequence parallelism off with one tensor rank; the plan says the same.
        facts.derive("sp_unused", True)
    train = str(facts.get("train_type") or "").lower()
    if train == "lora" or facts.whole("lora_rank"):
        facts.derive("task", "lora")


def _shape(facts: Facts, defaults: str) -> None:
    hidden, heads = facts.whole("hidden"), facts.whole("heads")
    if hidden and facts.get("ffn") is None:
        gated = facts.flag("gated")
        width = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
        facts.assume("ffn", width, f"{defaults}: {'8/3' if gated else '4'} x hidden size")
    if hidden and heads and facts.get("head_dim") is None:
        facts.derive("head_dim", hidden // heads)
    groups = facts.whole("query_groups")
    needs_flag = facts.get("gqa_flag_needed") is True
    if groups and (facts.flag("gqa") or not needs_flag):
        facts.derive("kv_heads", groups)
    elif facts.flag("gqa"):
        facts.assume("kv_heads", 1, f"{defaults}: num_query_groups")
    if heads and facts.get("kv_heads") is None:
        facts.assume("kv_heads", heads, f"{defaults}: every head has its own keys and values")
    _vocab(facts)
    if facts.whole("experts") in (0, 1) and facts.is_stated("experts"):
        facts.derive("dense", True)
    if (facts.whole("experts") or 0) > 1 and facts.get("moe_ffn") is None and facts.get("ffn"):
        facts.assume("moe_ffn", facts.get("ffn"), f"{defaults}: ffn_hidden_size")
    if facts.get("positions") == "rope" and facts.get("max_positions") is None:
        facts.derive("max_positions", facts.get("seq"))


def _vocab(facts: Facts) -> None:
    if facts.whole("vocab"):
        return
    kind = str(facts.get("tokenizer") or "")
    size = TOKENIZER_VOCAB.get(kind, 0)
    if size:
        facts.assume("vocab", size, f"vocabulary of {kind}")


def _precision(facts: Facts) -> None:
    if facts.get("precision") is not None:
        return
    fp8 = facts.get("fp8")
    if fp8 not in (None, False, "none", "None", ""):
        facts.derive("precision", "fp8")
    elif facts.flag("bf16"):
        facts.derive("precision", "bf16")
    elif facts.flag("fp16"):
        facts.derive("precision", "fp16")
    else:
        facts.assume("precision", "fp32", "no precision flag: Megatron-LM trains in fp32")


def _recompute(facts: Facts) -> None:
    granularity = str(facts.get("recompute_granularity") or "none").lower()
    if facts.flag("recompute_activations"):
        granularity = "selective"
    if granularity not in ("none", "selective", "full"):
        granularity = "none"
    facts.derive("recompute", granularity)
    if granularity == "full" and str(facts.get("recompute_method") or "") == "block":
        facts.derive("recompute_layers", facts.whole("recompute_num") or 1)


def _sharding(facts: Facts) -> None:
    strategy = str(facts.get("sharding_strategy") or "no_shard")
    if facts.flag("torch_fsdp"):
        zero = 3
    elif facts.flag("megatron_fsdp"):
        zero = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(
            strategy, 0
        )
    else:
        zero = 1 if facts.flag("dist_opt") else 0
    facts.derive("zero", zero)


def _pipeline(facts: Facts, defaults: str) -> None:
    layers, pp = facts.whole("layers"), facts.whole("pp") or 1
    layout = facts.get("layout")
    try:
        if layout not in (None, "", "None"):
            _layout(facts, layout, pp)
        else:
            _split(facts, layers, pp, defaults)
    except InputError as error:
        facts.derive("layout_error", str(error))
    facts.assume("vpp", 1, f"{defaults}: no virtual stages")
    facts.derive("schedule", "interleaved" if (facts.whole("vpp") or 1) > 1 else "1f1b")


def _layout(facts: Facts, layout: Value, pp: int) -> None:
    if isinstance(layout, list):
        counts = tuple(_listed(stage) for stage in layout)
    else:
        counts = stages.layout_counts(str(layout))
    if len(counts) > stages.MAX_STAGES:
        raise InputError(f"layout of {len(counts)} stages; {stages.MAX_STAGES} are the limit")
    facts.derive("layout_stages", len(counts))
    facts.derive("layout_layers", sum(counts))
    if len(counts) % pp == 0:
        facts.derive("vpp", len(counts) // pp)
        facts.derive("stages", list(counts))


def _listed(stage: Value) -> int:
    """Layers of a stage of a layout given as a list of lists of names."""
    parts = stage if isinstance(stage, list) else [stage]
    return sum(1 for part in parts if part in ("decoder", "t"))


def _split(facts: Facts, layers: int | None, pp: int, defaults: str) -> None:
    first, last = facts.whole("first_layers"), facts.whole("last_layers")
    embedding, loss = facts.flag("count_embedding"), facts.flag("count_loss")
    per_virtual = facts.whole("layers_per_virtual_stage")
    if layers and per_virtual and not facts.whole("vpp"):
        total = layers + embedding + loss
        if per_virtual > 0 and total // pp >= per_virtual:
            facts.derive("vpp", total // pp // per_virtual)
    vpp = facts.whole("vpp") or 1
    if not layers or pp < 1 or vpp < 1 or pp * vpp > stages.MAX_STAGES:
        return
    if first is not None or last is not None:
        per_rank = stages.first_last(layers, pp, first, last)
        chunks = None if per_rank is None else stages.over_chunks(per_rank, vpp)
        if per_rank is not None:
            facts.derive("rank_layers", list(per_rank))
        if chunks is not None:
            facts.derive("stages", list(chunks))
    elif embedding or loss:
        chunks = stages.counted_ends(layers, pp, vpp, embedding, loss)
        if chunks is not None:
            facts.derive("stages", list(chunks))
