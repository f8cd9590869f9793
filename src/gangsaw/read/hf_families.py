"""The decoder families: what transformers' class of each model type builds.

Source of every entry: the modeling file of that family in transformers (the version that
catalog/hf_defaults.json names); tests compare each with the class itself built without memory.
"""

from __future__ import annotations

from dataclasses import replace

from gangsaw.errors import InputError
from gangsaw.read.hf_keys import Keys
from gangsaw.read.hf_layers import (
    Traits,
    dense,
    every_nth_full,
    layer_types,
    listed_window,
    mla,
    qwen2_moe_windows,
    qwen_windows,
    routed,
    switched_window,
    uniform_window,
)
from gangsaw.spec.model import MlpSpec, ModelSpec, MoeSpec


def _expert(keys: Keys, width: int, gated: bool = True, bias: bool = False) -> MlpSpec:
    """One expert."""
    act = keys.text("hidden_act", "silu")
    return MlpSpec(ffn=width, gated=gated, in_bias=bias, out_bias=bias, activation=act)


def _all_routed(keys: Keys, traits: Traits, index: int) -> MoeSpec:
    """Experts of the MLP's width in every layer (Mixtral, OLMoE, PhiMoE, GraniteMoE)."""
    key = "num_experts" if "num_experts" in keys.defaults else "num_local_experts"
    return routed(keys, keys.count(key), _expert(keys, keys.count("intermediate_size")))


def _gpt_oss_feed(keys: Keys, traits: Traits, index: int) -> MoeSpec:
    """Experts and router with biases in every layer."""
    expert = _expert(keys, keys.count("intermediate_size"), bias=True)
    return routed(keys, keys.count("num_local_experts"), expert, router_bias=True)


def _is_sparse(keys: Keys, index: int) -> bool:
    """Whether a Qwen layer is routed: not listed as dense, and on the sparse step."""
    dense_layers = keys.layer_indices("mlp_only_layers") or []
    step = keys.count("decoder_sparse_step")
    experts = keys.count("num_experts", 0)
    return index not in dense_layers and experts > 0 and (index + 1) % step == 0


def _qwen2_moe_feed(keys: Keys, traits: Traits, index: int) -> MlpSpec | MoeSpec:
    """Routed experts beside a gated shared one."""
    if not _is_sparse(keys, index):
        return dense(keys, traits)
    return routed(
        keys,
        keys.count("num_experts"),
        _expert(keys, keys.count("moe_intermediate_size")),
        shared=_expert(keys, keys.count("shared_expert_intermediate_size")),
        shared_gate=True,
    )


def _qwen3_moe_feed(keys: Keys, traits: Traits, index: int) -> MlpSpec | MoeSpec:
    """Routed experts alone."""
    if not _is_sparse(keys, index):
        return dense(keys, traits)
    return routed(
        keys, keys.count("num_experts"), _expert(keys, keys.count("moe_intermediate_size"))
    )


def _deepseek_feed(keys: Keys, traits: Traits, index: int) -> MlpSpec | MoeSpec:
    """Dense layers first, then every `moe_layer_freq`-th routed with shared experts."""
    experts = keys.optional("n_routed_experts", 0)
    every = keys.optional("moe_layer_freq") or 1
    if not experts or index < keys.count("first_k_dense_replace", 0) or index % every:
        return dense(keys, traits)
    width = keys.count("moe_intermediate_size")
    shared = keys.optional("n_shared_experts", 0) or 0
    biased = dense(keys, traits)
    part = biased.model_copy(update={"ffn": width * shared}) if shared else None
    return routed(keys, experts, _expert(keys, width), shared=part)


def _llama4_feed(keys: Keys, traits: Traits, index: int) -> MlpSpec | MoeSpec:
    """Routed layers by list or step; one shared expert of the experts' width."""
    listed = keys.layer_indices("moe_layers")
    step = keys.count("interleave_moe_layer_step", 0)
    sparse = index in listed if listed is not None else step > 0 and (index + 1) % step == 0
    if not sparse:
        return dense(keys, traits, "intermediate_size_mlp")
    width = keys.count("intermediate_size")
    expert = _expert(keys, width)
    return routed(keys, keys.count("num_local_experts"), expert, shared=expert)


def _llama4_windows(keys: Keys, layers: int) -> list[int]:
    """Layers with rotary positions attend within chunks; the others to all.

    A chunk of c keys is met at (c + 1) / 2 on average; like a window of c it is at most c, and it
    is recorded as that.
    """
    chunk = keys.optional("attention_chunk_size", 0) or 0
    listed = layer_types(keys, layers, chunk)
    if listed:
        return listed
    rotary = keys.sequence("no_rope_layers")
    every = keys.count("no_rope_layer_interval")
    if rotary:
        return [chunk if value else 0 for value in rotary]
    return [chunk if (i + 1) % every else 0 for i in range(layers)]


def _smollm3_windows(keys: Keys, layers: int) -> list[int]:
    """Layers without rotary positions have the window, where one is switched on."""
    window = keys.optional("sliding_window", 0) or 0
    if not keys.flag("use_sliding_window"):
        window = 0
    listed = layer_types(keys, layers, window)
    if listed:
        return listed
    rotary = keys.sequence("no_rope_layers")
    every = keys.count("no_rope_layer_interval")
    has = rotary or [int((i + 1) % every != 0) for i in range(layers)]
    return [0 if value else window for value in has]


def _gpt_neo_windows(keys: Keys, layers: int) -> list[int]:
    """Global and local layers as `attention_types` lists them, `[[["global", "local"], 12]]`."""
    window = keys.optional("window_size") or 0
    listed = keys.sequence("attention_types")
    if listed is None:
        listed = [[["global", "local"], layers // 2]]
    out: list[int] = []
    try:
        for kinds, times in listed:
            out += [window if kind == "local" else 0 for kind in kinds] * times
    except (TypeError, ValueError):
        raise InputError(
            f"{keys.where}: attention_types is not a list of [[kinds], times]"
        ) from None
    if len(out) != layers:
        raise InputError(
            f"{keys.where}: attention_types lists {len(out)} layers, num_layers={layers}"
        )
    return out


def _falcon(keys: Keys, traits: Traits) -> Traits:
    """Norms and key-value heads of the old and the new decoder of Falcon."""
    new, parallel = keys.flag("new_decoder_architecture"), keys.flag("parallel_attn")
    norms = keys.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    return replace(traits, norms=2 if not parallel or norms == 2 else 1)


def _falcon_attention_heads(keys: Keys, traits: Traits) -> Traits:
    """Multi-query Falcon of the old decoder has one key-value head whatever the config says."""
    traits = _falcon(keys, traits)
    if not keys.flag("new_decoder_architecture") and keys.flag("multi_query"):
        keys.values["num_kv_heads"] = 1
    return traits


def _bigcode(keys: Keys, traits: Traits) -> Traits:
    """Multi-query GPT-BigCode has one key-value head, else as many as query heads."""
    keys.values["num_key_value_heads"] = 1 if keys.flag("multi_query") else None
    return traits


def _minicpm(keys: Keys, traits: Traits) -> Traits:
    """MiniCPM's published class ties embedding and head unless told otherwise."""
    keys.values.setdefault("tie_word_embeddings", True)
    return traits


def _stablelm(keys: Keys, traits: Traits) -> Traits:
    """With parallel residuals one norm serves attention and MLP."""
    return replace(traits, norms=1) if keys.flag("use_parallel_residual") else traits


def _phi_extra(keys: Keys) -> int:
    """Biases of the query and key norms, which are layer norms of one head's width."""
    width = keys.count("hidden_size") // keys.count("num_attention_heads")
    return 2 * width if keys.flag("qk_layernorm") else 0


def _opt_finish(keys: Keys, model: ModelSpec) -> ModelSpec:
    """OPT's narrow embedding with its two projections, and no final norm after post-norm."""
    narrow = keys.optional("word_embed_proj_dim") or model.hidden
    changes: dict[str, int] = {}
    if narrow != model.hidden:
        changes["embedding_width"] = narrow
        changes["embedding_projection_params"] = 2 * narrow * model.hidden
    if not keys.flag("do_layer_norm_before") or keys.raw("_remove_final_layer_norm"):
        changes["final_norm_params"] = 0
    return model.model_copy(update=changes)


def _mpt(keys: Keys, traits: Traits) -> Traits:
    """MPT's transformers class has an MLP of four times the width whatever the ratio says."""
    ratio = keys.optional("expansion_ratio") or 4
    if ratio != 4:
        raise InputError(f"{keys.where}: expansion_ratio={ratio} is not what the class builds: 4")
    nested = keys.nest("attn_config", "mpt_attention")
    keys.notes += nested.finish()
    return traits


def _dbrx(keys: Keys, traits: Traits) -> Traits:
    """DBRX keeps key-value heads in a nested config."""
    nested = keys.nest("attn_config", "dbrx_attention")
    keys.values["num_key_value_heads"] = nested.count("kv_n_heads")
    keys.notes += nested.finish()
    return traits


def _dbrx_feed(keys: Keys, traits: Traits, index: int) -> MoeSpec:
    """Experts of DBRX from its nested config."""
    nested = keys.nest("ffn_config", "dbrx_ffn")
    nested.finish()
    expert = _expert(keys, nested.count("ffn_hidden_size"))
    return routed(nested, nested.count("moe_num_experts"), expert, "moe_top_k")


def _ernie_or_biased(key: str) -> Traits:
    """Attention and MLP biases all by one key."""
    return Traits(q_bias=key, kv_bias=key, out_bias=key, mlp_in_bias=key, mlp_out_bias=key)


_BIASED = Traits(q_bias=True, kv_bias=True, out_bias=True, mlp_in_bias=True, mlp_out_bias=True)
_ATTENTION = Traits(q_bias="attention_bias", kv_bias="attention_bias", out_bias="attention_bias")
_LLAMA = replace(_ATTENTION, mlp_in_bias="mlp_bias", mlp_out_bias="mlp_bias")
_QKV = Traits(q_bias="attention_bias", kv_bias="attention_bias")
_QWEN2 = Traits(q_bias=True, kv_bias=True, windows=qwen_windows)
_MOE_KEYS = ("num_experts_per_tok",)
_BASE = Traits().required
_DEEPSEEK = replace(
    _LLAMA,
    attention=mla,
    feed=_deepseek_feed,
    mtp=True,
    required=(
        *_BASE, "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    ),
)  # fmt: skip
_DEEPSEEK_V3 = replace(_DEEPSEEK, mlp_in_bias=False, mlp_out_bias=False)
_GPT = replace(
    _BIASED, gated=False, norm_bias=True, act_key="activation_function", ffn_key="n_inner",
    ffn_over_hidden=4, learned_positions="n_positions",
)  # fmt: skip
_MIXTRAL = Traits(
    feed=_all_routed, windows=uniform_window, required=(*_BASE, "num_local_experts", *_MOE_KEYS)
)

FAMILIES: dict[str, Traits] = {
    "llama": _LLAMA,
    "minicpm": replace(_LLAMA, adjust=_minicpm),
    "mistral": Traits(windows=uniform_window),
    "ministral": Traits(windows=listed_window),
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(
        _QWEN2, q_bias="qkv_bias", kv_bias="qkv_bias", feed=_qwen2_moe_feed,
        windows=qwen2_moe_windows,
        required=(*_BASE, "num_experts", "moe_intermediate_size", *_MOE_KEYS),
    ),
    "qwen3": replace(_ATTENTION, qk_norm="head", windows=qwen_windows),
    "qwen3_moe": replace(
        _ATTENTION, qk_norm="head", feed=_qwen3_moe_feed, windows=switched_window,
        required=(*_BASE, "num_experts", "moe_intermediate_size", *_MOE_KEYS),
    ),
    "gemma": _ATTENTION,
    "gemma2": replace(
        _ATTENTION, norms=4, softcap=True, act_key="hidden_activation", windows=every_nth_full(2)
    ),
    "gemma3_text": replace(
        _ATTENTION, norms=4, qk_norm="head", softcap=True, act_key="hidden_activation",
        windows=every_nth_full(6),
    ),
    "phi": replace(
        _BIASED, gated=False, norms=1, norm_bias=True, parallel=True, head_bias=True,
        qk_norm="head", qk_norm_key="qk_layernorm", extra=_phi_extra,
    ),
    "phi3": Traits(windows=uniform_window),
    "phimoe": replace(
        _MIXTRAL, q_bias="attention_bias", kv_bias="attention_bias", out_bias="attention_bias",
        norm_bias=True, head_bias="lm_head_bias",
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm": _QKV,
    "glm4": replace(_QKV, norms=4),
    "glm4_moe": replace(
        _QKV, qk_norm="head", qk_norm_key="use_qk_norm", feed=_deepseek_feed, mtp=True,
        required=(*_BASE, "n_routed_experts", "moe_intermediate_size", *_MOE_KEYS),
    ),
    "dots1": replace(
        _ATTENTION, qk_norm="head", feed=_deepseek_feed,
        required=(*_BASE, "n_routed_experts", "moe_intermediate_size", *_MOE_KEYS),
    ),
    "gpt2": _GPT,
    "gpt_bigcode": replace(_GPT, adjust=_bigcode),
    "gptj": replace(
        _GPT, q_bias=False, kv_bias=False, out_bias=False, norms=1, parallel=True,
        learned_positions="", head_bias=True,
    ),
    "gpt_neo": replace(
        _GPT, q_bias=False, kv_bias=False, ffn_key="intermediate_size",
        learned_positions="max_position_embeddings", windows=_gpt_neo_windows,
    ),
    "gpt_neox": replace(
        _ATTENTION, mlp_in_bias=True, mlp_out_bias=True, gated=False, norm_bias=True,
        parallel="use_parallel_residual",
    ),
    "falcon": replace(
        _ernie_or_biased("bias"), gated=False, norm_bias=True, act_key="activation",
        ffn_key="ffn_hidden_size", ffn_over_hidden=4, kv_key="num_kv_heads",
        parallel="parallel_attn", adjust=_falcon_attention_heads,
    ),
    "bloom": replace(
        _BIASED, gated=False, norm_bias=True, ffn_key="", ffn_over_hidden=4, embedding_norm=True,
    ),
    "opt": replace(
        _ernie_or_biased("enable_bias"), gated=False, norm_bias=True, ffn_key="ffn_dim",
        act_key="activation_function", norm_params="layer_norm_elementwise_affine",
        learned_positions="max_position_embeddings", positions_offset=2, finish=_opt_finish,
    ),
    "mpt": Traits(gated=False, ffn_key="", ffn_over_hidden=4, adjust=_mpt),
    "olmo": replace(_ATTENTION, norm_params=False),
    "olmo2": replace(_ATTENTION, qk_norm="full"),
    "olmo3": replace(_ATTENTION, qk_norm="full", windows=every_nth_full(4)),
    "olmoe": replace(
        _ATTENTION, qk_norm="full", feed=_all_routed,
        required=(*_BASE, "num_experts", *_MOE_KEYS),
    ),
    "cohere": replace(
        _ATTENTION, norms=1, parallel=True, qk_norm="head_layernorm", qk_norm_key="use_qk_norm"
    ),
    "cohere2": replace(_ATTENTION, norms=1, parallel=True, windows=every_nth_full(4)),
    "dbrx": Traits(ffn_key="", adjust=_dbrx, feed=_dbrx_feed, required=(*_BASE, "ffn_config")),
    "nemotron": replace(_LLAMA, gated=False, norm_bias=True),
    "gpt_oss": replace(
        _ATTENTION, sinks=True, feed=_gpt_oss_feed, windows=every_nth_full(2),
        required=(*_BASE, "num_local_experts", *_MOE_KEYS),
    ),
    "llama4_text": replace(
        _ATTENTION, feed=_llama4_feed, windows=_llama4_windows,
        required=(*_BASE, "num_local_experts", *_MOE_KEYS),
    ),
    "starcoder2": replace(
        _ernie_or_biased("use_bias"), gated=False, norm_bias=True, windows=uniform_window
    ),
    "stablelm": Traits(
        q_bias="use_qkv_bias", kv_bias="use_qkv_bias", norm_bias=True,
        parallel="use_parallel_residual", qk_norm="head_layernorm", qk_norm_key="qk_layernorm",
        adjust=_stablelm,
    ),
    "granite": _LLAMA,
    "granitemoe": replace(
        _ATTENTION, feed=_all_routed, required=(*_BASE, "num_local_experts", *_MOE_KEYS)
    ),
    "smollm3": replace(_LLAMA, windows=_smollm3_windows),
    "seed_oss": replace(_LLAMA, out_bias="attention_out_bias"),
    "arcee": replace(_LLAMA, gated=False),
    "ernie4_5": _ernie_or_biased("use_bias"),
    "exaone4": Traits(qk_norm="head", windows=every_nth_full(4)),
    "helium": replace(_LLAMA, out_bias=False),
    "hunyuan_v1_dense": replace(_ATTENTION, qk_norm="head"),
}  # fmt: skip
