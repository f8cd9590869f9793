"""From the keys of a decoder config to its layers: the part that all families share.

A family is a `Traits`: which biases, norms and feed-forward parts its transformers class builds.
A trait that a config may switch is the name of that key; a fixed one is True or False.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gangsaw.errors import InputError
from gangsaw.read.hf_keys import Keys, divisors
from gangsaw.spec.model import AttentionSpec, LayerKind, MlpSpec, ModelSpec, MoeSpec, MtpSpec

Flag = bool | str
QkNorm = Literal["none", "head", "head_layernorm", "full"]
MAX_HEADS_KEY = "num_attention_heads"


@dataclass(frozen=True)
class Traits:
    """What a family's transformers class builds. Strings name the config key that decides."""

    q_bias: Flag = False
    kv_bias: Flag = False
    out_bias: Flag = False
    mlp_in_bias: Flag = False
    mlp_out_bias: Flag = False
    gated: bool = True
    act_key: str = "hidden_act"
    ffn_key: str = "intermediate_size"
    ffn_over_hidden: int = 0  # width when `ffn_key` is absent or null
    qk_norm: QkNorm = "none"
    qk_norm_key: str = ""  # the norm exists only where this key is true
    norms: int = 2
    norm_bias: bool = False
    norm_params: Flag = True
    parallel: Flag = False
    sinks: bool = False
    softcap: bool = False
    learned_positions: str = ""
    positions_offset: int = 0
    embedding_norm: bool = False
    head_bias: Flag = False
    kv_key: str = "num_key_value_heads"
    windows: Callable[[Keys, int], list[int]] = lambda keys, layers: [0] * layers
    feed: Callable[[Keys, Traits, int], MlpSpec | MoeSpec] | None = None
    attention: Callable[[Keys, Traits], AttentionSpec] | None = None
    mtp: bool = False
    required: tuple[str, ...] = field(
        default=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    adjust: Callable[[Keys, Traits], Traits] | None = None
    extra: Callable[[Keys], int] | None = None  # vectors of a layer that no other trait names
    finish: Callable[[Keys, ModelSpec], ModelSpec] | None = None


def on(keys: Keys, flag: Flag) -> bool:
    """A trait's value for this config."""
    return keys.flag(flag) if isinstance(flag, str) else flag


def heads_of(keys: Keys, traits: Traits) -> tuple[int, int, int]:
    """Heads, key-value heads and head width, checked against each other."""
    hidden = keys.count("hidden_size")
    heads = keys.count(MAX_HEADS_KEY)
    kv = keys.optional(traits.kv_key) or heads
    if heads % kv:
        raise InputError(
            f"{keys.where}: {traits.kv_key}={kv} does not divide {MAX_HEADS_KEY}={heads};"
            f" legal here: {divisors(heads)}"
        )
    width = keys.optional("head_dim")
    if width is None:
        if hidden % heads:
            raise InputError(
                f"{keys.where}: {MAX_HEADS_KEY}={heads} does not divide hidden_size={hidden} and"
                f" head_dim is not stated; legal here: {divisors(hidden)}"
            )
        width = hidden // heads
    return heads, kv, width


def attention_of(keys: Keys, traits: Traits) -> AttentionSpec:
    """Attention of the family, before any window."""
    if traits.attention:
        return traits.attention(keys, traits)
    heads, kv, width = heads_of(keys, traits)
    normed = not traits.qk_norm_key or keys.flag(traits.qk_norm_key)
    return AttentionSpec(
        heads=heads,
        kv_heads=kv,
        head_dim=width,
        v_head_dim=width,
        q_bias=on(keys, traits.q_bias),
        kv_bias=on(keys, traits.kv_bias),
        out_bias=on(keys, traits.out_bias),
        qk_norm=traits.qk_norm if normed else "none",
        sinks=traits.sinks,
        softcap=traits.softcap and keys.raw("attn_logit_softcapping") is not None,
    )


def mla(keys: Keys, traits: Traits) -> AttentionSpec:
    """Multi-head latent attention as DeepSeek-V2 and V3 build it."""
    heads = keys.count(MAX_HEADS_KEY)
    rope, bias = keys.count("qk_rope_head_dim", 0), on(keys, traits.q_bias)
    q_lora = keys.optional("q_lora_rank", 0) or 0
    return AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_dim=keys.count("qk_nope_head_dim") + rope,
        v_head_dim=keys.count("v_head_dim"),
        q_lora_rank=q_lora,
        kv_lora_rank=keys.count("kv_lora_rank"),
        rope_head_dim=rope,
        q_bias=bias and q_lora > 0,
        kv_bias=bias,
        out_bias=bias,
    )


def dense(keys: Keys, traits: Traits, ffn_key: str = "") -> MlpSpec:
    """The dense feed-forward part of the family."""
    key = ffn_key or traits.ffn_key
    width = keys.optional(key)
    if width is None:
        if not traits.ffn_over_hidden:
            raise InputError(f"{keys.where}: missing keys {key}; every shape must be stated")
        width = traits.ffn_over_hidden * keys.count("hidden_size")
    return MlpSpec(
        ffn=width,
        gated=traits.gated,
        in_bias=on(keys, traits.mlp_in_bias),
        out_bias=on(keys, traits.mlp_out_bias),
        activation=keys.text(traits.act_key, "silu"),
    )


def routed(
    keys: Keys, experts: int, expert: MlpSpec, topk_key: str = "num_experts_per_tok", **more: object
) -> MoeSpec:
    """A routed feed-forward part; `more` are further fields of MoeSpec."""
    topk = keys.count(topk_key)
    if topk > experts:
        raise InputError(
            f"{keys.where}: {topk_key}={topk} is more than the {experts} experts;"
            f" legal here: 1 to {experts}"
        )
    return MoeSpec(experts=experts, topk=topk, expert=expert, **more)


def layer_kinds(keys: Keys, traits: Traits) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """All layers in order, equal ones as one kind."""
    layers = keys.count("num_hidden_layers")
    attention = attention_of(keys, traits)
    windows = traits.windows(keys, layers)
    if len(windows) < layers:
        raise InputError(
            f"{keys.where}: layer_types lists {len(windows)} layers, num_hidden_layers={layers}"
        )
    found: dict[LayerKind, int] = {}
    order = []
    for index in range(layers):
        feed = traits.feed(keys, traits, index) if traits.feed else dense(keys, traits)
        kind = layer(keys, traits, attention.model_copy(update={"window": windows[index]}), feed)
        order.append(found.setdefault(kind, len(found)))
    return tuple(found), tuple(order)


def layer(
    keys: Keys, traits: Traits, attention: AttentionSpec, feed: MlpSpec | MoeSpec
) -> LayerKind:
    """One layer with the norms of the family, named after its parts."""
    is_moe = isinstance(feed, MoeSpec)
    name = "moe" if is_moe else "dense"
    if attention.window:
        name += f"-window{attention.window}"
    return LayerKind(
        name=name,
        hidden=keys.count("hidden_size"),
        attention=attention,
        mlp=None if isinstance(feed, MoeSpec) else feed,
        moe=feed if isinstance(feed, MoeSpec) else None,
        norms=traits.norms,
        norm_bias=traits.norm_bias,
        norm_params=on(keys, traits.norm_params),
        parallel=on(keys, traits.parallel),
        extra_params=traits.extra(keys) if traits.extra else 0,
    )


def mtp_of(keys: Keys, kinds: tuple[LayerKind, ...], order: tuple[int, ...]) -> MtpSpec | None:
    """Multi-token prediction layers, only where the config states the number."""
    if not keys.has("num_nextn_predict_layers"):
        return None
    layers = keys.optional("num_nextn_predict_layers", 0) or 0
    if not layers:
        return None
    return MtpSpec.behind(kinds[order[-1]], layers)


def decoder(keys: Keys, traits: Traits, family: str, name: str) -> ModelSpec:
    """The language model of a config. Notes are added by the caller."""
    keys.require(_required(traits))
    if traits.adjust:
        traits = traits.adjust(keys, traits)
    hidden = keys.count("hidden_size")
    kinds, order = layer_kinds(keys, traits)
    norm = hidden * (2 if traits.norm_bias else 1) if on(keys, traits.norm_params) else 0
    positions = 0
    if traits.learned_positions:
        positions = keys.count(traits.learned_positions) + traits.positions_offset
    model = ModelSpec(
        name=name,
        family=family,
        hidden=hidden,
        vocab=keys.count("vocab_size"),
        kinds=kinds,
        order=order,
        tied=keys.flag("tie_word_embeddings"),
        learned_positions=positions,
        embedding_norm_params=norm if traits.embedding_norm else 0,
        final_norm_params=norm,
        head_bias=on(keys, traits.head_bias),
        mtp=mtp_of(keys, kinds, order) if traits.mtp else None,
    )
    return traits.finish(keys, model) if traits.finish else model


def _required(traits: Traits) -> tuple[str, ...]:
    """Keys that every published config of the family states."""
    if traits.ffn_over_hidden or not traits.ffn_key:
        return traits.required
    return (*traits.required, traits.ffn_key)


def layer_types(keys: Keys, layers: int, window: int | None) -> list[int] | None:
    """Windows of a config that lists its layers by type, None where it does not."""
    listed = keys.sequence("layer_types")
    if listed is None:
        return None
    legal = ("full_attention", "sliding_attention", "chunked_attention")
    for entry in listed:
        if entry not in legal:
            raise InputError(
                f"{keys.where}: layer_types has {entry!r:.60}; legal here: {', '.join(legal)}"
            )
    return [0 if entry == "full_attention" else window or 0 for entry in listed]


def uniform_window(keys: Keys, layers: int) -> list[int]:
    """The same window in every layer (Mistral, Phi-3, StarCoder2)."""
    return [keys.optional("sliding_window", 0) or 0] * layers


def listed_window(keys: Keys, layers: int) -> list[int]:
    """`layer_types`, else the same window in every layer."""
    window = keys.optional("sliding_window", 0)
    return layer_types(keys, layers, window) or [window or 0] * layers


def qwen_windows(keys: Keys, layers: int) -> list[int]:
    """Full attention below `max_window_layers`, windows from there, where switched on."""
    if not keys.flag("use_sliding_window"):
        return [0] * layers
    window = keys.optional("sliding_window", 0) or 0
    first = keys.optional("max_window_layers", 0)
    listed = layer_types(keys, layers, window)
    first = 0 if first is None else first
    return listed or [window if i >= first else 0 for i in range(layers)]


def qwen2_moe_windows(keys: Keys, layers: int) -> list[int]:
    """Every other layer below `max_window_layers` has a window, where switched on."""
    if not keys.flag("use_sliding_window"):
        return [0] * layers
    window = keys.optional("sliding_window", 0) or 0
    first = keys.optional("max_window_layers", 0) or 0
    listed = layer_types(keys, layers, window)
    return listed or [window if i % 2 == 0 and i < first else 0 for i in range(layers)]


def switched_window(keys: Keys, layers: int) -> list[int]:
    """A window in every layer where `use_sliding_window` is true (Qwen3-MoE)."""
    return uniform_window(keys, layers) if keys.flag("use_sliding_window") else [0] * layers


def every_nth_full(period: int) -> Callable[[Keys, int], list[int]]:
    """Windows in all layers but every n-th (Gemma 2 and 3, Cohere 2, gpt-oss, OLMo 3)."""

    def windows(keys: Keys, layers: int) -> list[int]:
        window = keys.optional("sliding_window", 0) or 0
        stated = keys.optional("sliding_window_pattern") if period != 2 else None
        every = stated or period
        listed = layer_types(keys, layers, window)
        return listed or [window if (i + 1) % every else 0 for i in range(layers)]

    return windows
