"""What is in a model: parameters, FLOPs and cache bytes by group. What `gangsaw model` answers."""

from __future__ import annotations

from pydantic import Field

from gangsaw.cost.flops import (
    forward_flops_per_token,
    layer_flops_per_token,
    model_flops_per_token,
    mtp_flops_per_token,
    vision_flops_per_image,
)
from gangsaw.spec.base import Document
from gangsaw.spec.model import LayerKind, ModelSpec

DEFAULT_SEQ_LEN = 4096


class LayerSummary(Document):
    """One kind of layer; counts are of one layer, not of all `count`."""

    kind: str
    count: int
    params: int
    active_params: int
    attention_params: int
    mlp_params: int = Field(description="dense MLP and shared experts")
    expert_params: int = Field(description="all routed experts")
    router_params: int
    norm_params: int = Field(description="norms and vectors of other kinds")
    experts: int = 0
    topk: int = 0
    window: int = Field(0, description="keys a query sees; 0 is all before it")
    forward_flops_per_token: float
    kv_bytes_per_token: float


class MtpSummary(Document):
    """Multi-token prediction, in no other number of the summary."""

    layers: int
    params: int
    forward_flops_per_token: float


class VisionSummary(Document):
    """The vision tower and its projector; their parameters are in the model's total."""

    layers: int
    params: int = Field(description="tower with its embedding, without the projector")
    projector_params: int
    layer_params: int
    patches_per_image: int
    tokens_per_image: int
    forward_flops_per_image: float


class ModelSummary(Document):
    """The answer of `gangsaw model`. Parameters count tied weights once."""

    name: str
    family: str
    source: str
    params: int
    active_params: int = Field(description="that one token meets")
    embedding_params: int = Field(description="tokens and learned positions")
    head_params: int = Field(description="0 when tied to the embedding")
    other_params: int = Field(description="final norm and what stands around the embedding")
    tied: bool
    hidden: int
    vocab: int
    num_layers: int
    layers: tuple[LayerSummary, ...] = Field(description="by kind, in order of appearance")
    layer_order: tuple[int, ...] = Field(description="index into `layers` for each layer")
    seq_len: int = Field(description="that FLOPs and cache bytes hold for")
    flops_per_token: float = Field(description="training, 3 x forward, causal as half the square")
    flops_per_token_full_square: float = Field(description="the same with the square in full")
    forward_flops_per_token: float
    kv_bytes_per_token: float = Field(description="16-bit keys and values that a new token adds")
    kv_bytes_per_sequence: float = Field(description="at seq_len, windows counted at their width")
    mtp: MtpSummary | None = None
    vision: VisionSummary | None = None
    notes: tuple[str, ...] = ()


def kv_bytes_per_sequence(model: ModelSpec, seq_len: int, bytes_per_value: float = 2.0) -> float:
    """Cache of one sequence: a layer with a window keeps no more than its window."""
    total = 0.0
    for k in model.order:
        attention = model.kinds[k].attention
        kept = min(seq_len, attention.window) if attention.window else seq_len
        total += attention.kv_bytes_per_token(bytes_per_value) * kept
    return total


def layer_summary(kind: LayerKind, count: int, seq_len: int) -> LayerSummary:
    """One kind of layer in numbers."""
    moe, hidden = kind.moe, kind.hidden
    mlp = kind.mlp.params(hidden) if kind.mlp else 0
    if moe and moe.shared:
        mlp += moe.shared.params(hidden)
    return LayerSummary(
        kind=kind.name,
        count=count,
        params=kind.params(),
        active_params=kind.active_params(),
        attention_params=kind.attention_params(),
        mlp_params=mlp,
        expert_params=kind.expert_params(),
        router_params=moe.router_params(hidden) if moe else 0,
        norm_params=kind.norm_weights() + kind.extra_params,
        experts=moe.experts if moe else 0,
        topk=moe.topk if moe else 0,
        window=kind.attention.window,
        forward_flops_per_token=layer_flops_per_token(kind, seq_len),
        kv_bytes_per_token=kind.attention.kv_bytes_per_token(),
    )


def model_summary(model: ModelSpec, seq_len: int = DEFAULT_SEQ_LEN) -> ModelSummary:
    """Everything that is in a model, at a sequence length."""
    counts = [model.order.count(k) for k in range(len(model.kinds))]
    layers = [layer_summary(k, n, seq_len) for k, n in zip(model.kinds, counts, strict=True)]
    training = model_flops_per_token(model, seq_len) - 3.0 * mtp_flops_per_token(model, seq_len)
    square = 3.0 * forward_flops_per_token(model, seq_len, causal=False)
    return ModelSummary(
        name=model.name,
        family=model.family,
        source=model.source,
        params=model.params(),
        active_params=model.active_params(),
        embedding_params=model.embedding_params(),
        head_params=model.head_params(),
        other_params=model.other_params(),
        tied=model.tied,
        hidden=model.hidden,
        vocab=model.vocab,
        num_layers=model.layers,
        layers=tuple(layers),
        layer_order=model.order,
        seq_len=seq_len,
        flops_per_token=training,
        flops_per_token_full_square=square,
        forward_flops_per_token=forward_flops_per_token(model, seq_len),
        kv_bytes_per_token=sum(layers[k].kv_bytes_per_token for k in model.order),
        kv_bytes_per_sequence=kv_bytes_per_sequence(model, seq_len),
        mtp=_mtp(model, seq_len),
        vision=_vision(model),
        notes=model.notes,
    )


def _mtp(model: ModelSpec, seq_len: int) -> MtpSummary | None:
    if model.mtp is None:
        return None
    return MtpSummary(
        layers=model.mtp.layers,
        params=model.mtp.params(),
        forward_flops_per_token=mtp_flops_per_token(model, seq_len),
    )


def _vision(model: ModelSpec) -> VisionSummary | None:
    v = model.vision
    if v is None:
        return None
    return VisionSummary(
        layers=v.layers,
        params=v.params(),
        projector_params=v.projector_params,
        layer_params=v.kind.params(),
        patches_per_image=v.patches_per_image,
        tokens_per_image=v.tokens_per_image,
        forward_flops_per_image=vision_flops_per_image(model),
    )
