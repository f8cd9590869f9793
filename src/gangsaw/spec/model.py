"""ModelSpec: a model as a sequence of layers of a few kinds, in whole (unsharded) shapes.

Parameters are counted from the shapes that each part holds, never from a name or a formula kept
beside them. Biases, norms, gates and sinks are parts like any other.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Count, CountOrZero, Document, NonNegative, Positive


class AttentionSpec(Document):
    """Attention of one layer. MLA when `kv_lora_rank` is set; GQA when kv_heads < heads."""

    heads: Count
    kv_heads: Count
    head_dim: Count = Field(description="query/key width of a head (MLA: nope + rope)")
    v_head_dim: Count = Field(description="value width of a head")
    q_lora_rank: CountOrZero = 0
    kv_lora_rank: CountOrZero = 0
    rope_head_dim: CountOrZero = Field(0, description="MLA: width of the shared rotary key")
    q_bias: bool = False
    kv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "head_layernorm", "full"] = "none"
    """`head`: one weight of head_dim for q and k each; `head_layernorm`: heads x head_dim for
    q and kv_heads x head_dim for k; `full`: RMS norm over the whole projected width."""
    window: CountOrZero = Field(0, description="keys a query sees; 0 is all before it")
    sinks: bool = False
    causal: bool = True
    softcap: bool = False

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def q_width(self) -> int:
        """Width of all queries."""
        return self.heads * self.head_dim

    def params(self, hidden: int) -> int:
        """Parameters of projections, biases, norms and sinks."""
        h, d, dv = self.heads, self.head_dim, self.v_head_dim
        total = h * dv * hidden + (hidden if self.out_bias else 0)
        if self.is_mla:
            nope = d - self.rope_head_dim
            kv_in = self.kv_lora_rank + self.rope_head_dim
            total += hidden * kv_in + (kv_in if self.kv_bias else 0) + self.kv_lora_rank
            total += self.kv_lora_rank * h * (nope + dv)
            if self.q_lora_rank:
                total += hidden * self.q_lora_rank + (self.q_lora_rank if self.q_bias else 0)
                total += self.q_lora_rank + self.q_lora_rank * h * d
            else:
                total += hidden * h * d
        else:
            kv = self.kv_heads * (d + dv)
            total += hidden * (h * d + kv)
            total += (h * d if self.q_bias else 0) + (kv if self.kv_bias else 0)
        if self.qk_norm == "head":
            total += 2 * d
        elif self.qk_norm in ("head_layernorm", "full"):
            total += (h + self.kv_heads) * d
        return total + (h if self.sinks else 0)

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float:
        """Key-value cache of one token in this layer."""
        if self.is_mla:
            return bytes_per_value * (self.kv_lora_rank + self.rope_head_dim)
        return bytes_per_value * self.kv_heads * (self.head_dim + self.v_head_dim)


class MlpSpec(Document):
    """A dense feed-forward part; `gated` has two input matrices (SwiGLU, GeGLU)."""

    ffn: Count
    gated: bool = True
    in_bias: bool = False
    out_bias: bool = False
    activation: str = "silu"

    def params(self, hidden: int) -> int:
        """Parameters of the two or three matrices and their biases."""
        ins = 2 if self.gated else 1
        total = (ins + 1) * hidden * self.ffn
        return total + (ins * self.ffn if self.in_bias else 0) + (hidden if self.out_bias else 0)


class MoeSpec(Document):
    """Routed experts, with the shared ones as one dense part of summed width."""

    experts: Count
    topk: Count
    expert: MlpSpec
    shared: MlpSpec | None = None
    shared_gate: bool = False
    router_bias: bool = False

    def router_params(self, hidden: int) -> int:
        """Parameters of the router, and of the gate of the shared expert."""
        total = self.experts * hidden + (self.experts if self.router_bias else 0)
        return total + (hidden if self.shared_gate else 0)

    def params(self, hidden: int) -> int:
        """All parameters of router, routed and shared experts."""
        shared = self.shared.params(hidden) if self.shared else 0
        return self.router_params(hidden) + shared + self.experts * self.expert.params(hidden)

    def active_params(self, hidden: int) -> int:
        """Parameters that one token meets."""
        return self.params(hidden) - (self.experts - self.topk) * self.expert.params(hidden)


class LayerKind(Document):
    """One kind of layer: attention and a dense or routed feed-forward part, with its norms."""

    name: str
    hidden: Count
    attention: AttentionSpec
    mlp: MlpSpec | None = None
    moe: MoeSpec | None = None
    norms: CountOrZero = Field(2, description="norm weights of width `hidden` in a layer")
    norm_bias: bool = False
    norm_params: bool = Field(True, description="False: the norms have no weights")
    parallel: bool = Field(False, description="attention and MLP read the same input")
    extra_params: CountOrZero = Field(0, description="vectors that no other field holds")

    def attention_params(self) -> int:
        """Parameters of attention."""
        return self.attention.params(self.hidden)

    def norm_weights(self) -> int:
        """Parameters of the norms."""
        if not self.norm_params:
            return 0
        return self.norms * self.hidden * (2 if self.norm_bias else 1)

    def params(self) -> int:
        """All parameters of the layer."""
        total = self.attention_params() + self.norm_weights() + self.extra_params
        if self.mlp:
            total += self.mlp.params(self.hidden)
        if self.moe:
            total += self.moe.params(self.hidden)
        return total

    def active_params(self) -> int:
        """Parameters of the layer that one token meets."""
        idle = 0
        if self.moe:
            idle = self.moe.params(self.hidden) - self.moe.active_params(self.hidden)
        return self.params() - idle

    def expert_params(self) -> int:
        """Parameters of the routed experts."""
        return self.moe.experts * self.moe.expert.params(self.hidden) if self.moe else 0


class VisionSpec(Document):
    """A vision tower and its projector: groups of their own in front of the decoder."""

    kind: LayerKind
    layers: Count
    embedding_params: CountOrZero = Field(description="patches, positions, class token, norms")
    projector_params: CountOrZero
    patches_per_image: Count = Field(description="tokens that the tower works on for an image")
    tokens_per_image: Count = Field(description="tokens that the decoder receives for an image")

    def params(self) -> int:
        """Parameters of the tower, without the projector."""
        return self.layers * self.kind.params() + self.embedding_params


class MtpSpec(Document):
    """Multi-token prediction: extra layers behind the last one, reported apart."""

    kind: LayerKind
    layers: Count
    extra_params: CountOrZero = Field(0, description="projection and norms of one such layer")

    @classmethod
    def behind(cls, kind: LayerKind, layers: int) -> MtpSpec:
        """Layers like `kind`, each with a projection of two hidden to one and three norms (of the
        hidden state, of the embedding, before the shared head).

        Source: DeepSeek-V3 technical report, section 2.2; shapes as in the published checkpoint
        (eh_proj, enorm, hnorm, shared_head.norm).
        """
        hidden = kind.hidden
        return cls(kind=kind, layers=layers, extra_params=2 * hidden * hidden + 3 * hidden)

    def params(self) -> int:
        """Parameters of all prediction layers (embedding and head are shared)."""
        return self.layers * (self.kind.params() + self.extra_params)


class RotaryScaling(Document):
    """How positions beyond those of pre-training are stretched: Llama 3's, YaRN's, linear."""

    kind: Literal["llama3", "yarn", "linear"]
    factor: Positive
    original_positions: CountOrZero = Field(0, description="before stretching")
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    mscale: NonNegative = Field(0.0, description="YaRN's scale of attention; 0: not stated")
    mscale_all_dim: NonNegative = 0.0


class RotarySpec(Document):
    """Rotary positions (arXiv:2104.09864): wavelengths base^(2i/d), stretched or not."""

    base: Positive
    scaling: RotaryScaling | None = None


class ModelSpec(Document):
    """A whole model: embedding, `order` of layer kinds, final norm, head; tower and MTP apart."""

    name: str
    family: str = ""
    hidden: Count
    vocab: Count
    kinds: tuple[LayerKind, ...]
    order: tuple[int, ...] = Field(description="index into `kinds` for each layer, in order")
    tied: bool = False
    learned_positions: CountOrZero = 0
    rotary: RotarySpec | None = Field(None, description="where the model's source states it")
    embedding_width: CountOrZero = Field(
        0, description="width of the token embedding where it is not `hidden`"
    )
    embedding_projection_params: CountOrZero = Field(
        0, description="matrices between embedding width and hidden"
    )
    embedding_norm_params: CountOrZero = 0
    final_norm_params: CountOrZero = 0
    head_bias: bool = False
    mtp: MtpSpec | None = None
    vision: VisionSpec | None = None
    source: str = ""
    notes: tuple[str, ...] = Field((), description="what the reader assumed or did not read")

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.order)

    def embedding_params(self) -> int:
        """Token and learned position embedding."""
        width = self.embedding_width or self.hidden
        return self.vocab * width + self.learned_positions * self.hidden

    def head_params(self) -> int:
        """Output projection; only its bias when tied to the embedding."""
        width = self.embedding_width or self.hidden
        matrix = 0 if self.tied else self.vocab * width
        return matrix + (self.vocab if self.head_bias else 0)

    def other_params(self) -> int:
        """Final norm, norm behind the embedding, projections of a narrow embedding."""
        norms = self.embedding_norm_params + self.final_norm_params
        return norms + self.embedding_projection_params

    def params(self) -> int:
        """All parameters; tied weights once, multi-token prediction not counted."""
        total = self.embedding_params() + self.head_params() + self.other_params()
        total += sum(self.kinds[k].params() for k in self.order)
        if self.vision:
            total += self.vision.params() + self.vision.projector_params
        return total

    def active_params(self) -> int:
        """Parameters that one token meets."""
        idle = sum(self.kinds[k].params() - self.kinds[k].active_params() for k in self.order)
        return self.params() - idle
