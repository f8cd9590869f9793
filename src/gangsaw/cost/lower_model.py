"""Lowering of a model and a recipe to the numbers that formulas work on."""

from __future__ import annotations

from gangsaw.cost.types import Ends, Kind
from gangsaw.spec.model import LayerKind, MlpSpec, ModelSpec
from gangsaw.spec.recipe import Recipe


def _mlp_matrices(mlp: MlpSpec, hidden: int) -> list[tuple[int, int]]:
    return [(hidden, mlp.ffn)] * (2 if mlp.gated else 1) + [(mlp.ffn, hidden)]


def attention_matrices(kind: LayerKind) -> list[tuple[int, int]]:
    """(inputs, outputs) of the projections of attention."""
    a, hidden = kind.attention, kind.hidden
    out = [(a.heads * a.v_head_dim, hidden)]
    if not a.is_mla:
        kv = a.kv_heads * a.head_dim
        return [(hidden, a.q_width), (hidden, kv), (hidden, a.kv_heads * a.v_head_dim), *out]
    nope = a.head_dim - a.rope_head_dim
    down = [(hidden, a.kv_lora_rank + a.rope_head_dim)]
    up = [(a.kv_lora_rank, a.heads * (nope + a.v_head_dim))]
    if a.q_lora_rank:
        return [(hidden, a.q_lora_rank), (a.q_lora_rank, a.q_width), *down, *up, *out]
    return [(hidden, a.q_width), *down, *up, *out]


def adapter_params(kind: LayerKind, recipe: Recipe) -> int:
    """LoRA parameters of a layer: rank x (inputs + outputs) of every targeted matrix.

    Source: Hu et al., arXiv:2106.09685. `all` targets attention and the dense or shared
    feed-forward matrices; routed experts stay frozen without adapters.
    """
    matrices = attention_matrices(kind)
    if recipe.lora_targets == "all":
        if kind.mlp is not None:
            matrices += _mlp_matrices(kind.mlp, kind.hidden)
        if kind.moe is not None and kind.moe.shared is not None:
            matrices += _mlp_matrices(kind.moe.shared, kind.hidden)
    return recipe.lora_rank * sum(i + o for i, o in matrices)


def kind_of(
    kind: LayerKind, recipe: Recipe, tokens_frac: float = 1.0, seq_len: float = 0.0
) -> Kind:
    """One layer kind as numbers; the attention kernel's rates are filled in by the device."""
    a, moe, hidden = kind.attention, kind.moe, kind.hidden
    lora = recipe.task in ("lora", "qlora")
    mlp_params = kind.mlp.params(hidden) if kind.mlp else 0
    router = 0
    if moe is not None:
        mlp_params += moe.shared.params(hidden) if moe.shared else 0
        router = moe.router_params(hidden)
    gated = kind.mlp.gated if kind.mlp else (moe.expert.gated if moe else False)
    return Kind(
        hidden=float(hidden),
        heads=float(a.heads),
        kv_heads=float(a.kv_heads),
        head_dim=float(a.head_dim),
        v_head_dim=float(a.v_head_dim),
        q_lora=float(a.q_lora_rank),
        kv_lora=float(a.kv_lora_rank),
        rope_dim=float(a.rope_head_dim),
        window=float(a.window),
        causal=float(a.causal),
        ffn=float(kind.mlp.ffn if kind.mlp else 0),
        gated=float(gated),
        experts=float(moe.experts if moe else 0),
        topk=float(moe.topk if moe else 0),
        moe_ffn=float(moe.expert.ffn if moe else 0),
        shared_ffn=float(moe.shared.ffn if moe and moe.shared else 0),
        norms=float(kind.norms),
        parallel=float(kind.parallel),
        softcap=float(a.softcap),
        attention_params=float(kind.attention_params()),
        mlp_params=float(mlp_params),
        replicated_params=float(kind.norm_weights() + kind.extra_params + router),
        expert_params=float(kind.expert_params()),
        tokens_frac=tokens_frac,
        seq_len=seq_len,
        trainable_frac=0.0 if lora else 1.0,
        adapter_params=float(adapter_params(kind, recipe)) if lora else 0.0,
        attention_a_fwd=0.0,
        attention_a_bwd=0.0,
    )


def kinds_of(model: ModelSpec, recipe: Recipe) -> tuple[Kind, ...]:
    """Decoder kinds in the model's order, then multi-token prediction, then the vision tower."""
    kinds = [kind_of(k, recipe) for k in model.kinds]
    if model.mtp is not None:
        kind = kind_of(model.mtp.kind, recipe)
        extra = kind.mlp_params + model.mtp.extra_params
        kinds.append(kind._replace(mlp_params=float(extra)))
    if model.vision is not None:
        v = model.vision
        patches = recipe.images_per_sequence * v.patches_per_image
        kinds.append(kind_of(v.kind, recipe, patches / recipe.seq_len, float(v.patches_per_image)))
    return tuple(kinds)


def ends_of(model: ModelSpec, recipe: Recipe) -> Ends:
    """Embedding and loss head as numbers; a tied head is counted where it is computed."""
    width = model.embedding_width or model.hidden
    head = model.vocab * width + (model.vocab if model.head_bias else 0)
    embedding = model.embedding_params() + model.embedding_norm_params
    vision = model.vision
    return Ends(
        hidden=float(model.hidden),
        vocab=float(model.vocab),
        embedding_params=float(embedding + model.embedding_projection_params),
        head_params=float(head),
        tied=float(model.tied),
        final_norm_params=float(model.final_norm_params),
        vision_embedding_params=float(vision.embedding_params if vision else 0),
        projector_params=float(vision.projector_params if vision else 0),
        mtp_layers=float(model.mtp.layers if model.mtp else 0),
    )
