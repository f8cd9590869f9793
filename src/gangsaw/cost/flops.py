"""FLOPs of a model, counted from shapes: one multiply-add is two.

Forward FLOPs a token of a layer are twice the weights of the matrices that the token meets, plus
the attention core, 2 heads (d_qk + d_v) keys for the scores and the weighted sum of the values.
Training costs three times the forward: the gradients of input and of weights cost the same each.
Norms, rotary embedding, softmax, biases, activations and the embedding lookup are not counted, as
in the published definitions of MFU (Chowdhery et al. 2022, arXiv:2204.02311, appendix B;
Narayanan et al. 2021, arXiv:2104.04473, section 5.1). Recomputed FLOPs are not model FLOPs.

`causal=True` counts the keys that a causal query really sees, (s + 1) / 2 on average, rounded to
s / 2 as kernels' own counts are; `causal=False` counts the full square, as Megatron-LM and the
formula of Narayanan et al. do. A window is counted either way.
"""

from __future__ import annotations

from gangsaw.cost.attention import keys_seen
from gangsaw.cost.lower_model import kind_of
from gangsaw.cost.types import Kind
from gangsaw.jit import kernel
from gangsaw.spec.model import LayerKind, ModelSpec
from gangsaw.spec.recipe import Recipe

BACKWARD_AND_FORWARD = 3.0


@kernel
def projection_flops(kind: Kind) -> float:
    """Forward FLOPs a token of the projections around attention, latent ones included."""
    h, d, dv = kind.heads, kind.head_dim, kind.v_head_dim
    total = h * dv * kind.hidden
    if kind.kv_lora > 0.0:
        total += kind.hidden * (kind.kv_lora + kind.rope_dim)
        total += kind.kv_lora * h * (d - kind.rope_dim + dv)
        if kind.q_lora > 0.0:
            total += kind.hidden * kind.q_lora + kind.q_lora * h * d
        else:
            total += kind.hidden * h * d
    else:
        total += kind.hidden * (h * d + kind.kv_heads * (d + dv))
    return 2.0 * total


@kernel
def dense_flops(kind: Kind) -> float:
    """Forward FLOPs a token of the dense MLP and of the shared experts."""
    ins = 2.0 if kind.gated > 0.0 else 1.0
    return 2.0 * (ins + 1.0) * kind.hidden * (kind.ffn + kind.shared_ffn)


@kernel
def routed_flops(kind: Kind) -> float:
    """Forward FLOPs a token of the router and of the experts that the token is sent to."""
    ins = 2.0 if kind.gated > 0.0 else 1.0
    experts = (ins + 1.0) * kind.hidden * kind.moe_ffn * kind.topk
    return 2.0 * (experts + kind.hidden * kind.experts)


@kernel
def core_flops(kind: Kind, seq_len: float, causal: bool) -> float:
    """Forward FLOPs a token of the attention core at `seq_len` keys (its own where it has one).

    `causal=False` counts a causal layer as the full square.
    """
    s = kind.seq_len if kind.seq_len > 0.0 else seq_len
    seen = keys_seen(s, kind.window, kind.causal if causal else 0.0)
    return 2.0 * kind.heads * (kind.head_dim + kind.v_head_dim) * seen


@kernel
def layer_flops(kind: Kind, seq_len: float, causal: bool) -> float:
    """Forward FLOPs a token of one layer."""
    linear = projection_flops(kind) + dense_flops(kind) + routed_flops(kind)
    return linear + core_flops(kind, seq_len, causal)


@kernel
def logit_flops(hidden: float, vocab: float) -> float:
    """Forward FLOPs a token of the output projection, tied or not."""
    return 2.0 * hidden * vocab


def _numbers(kind: LayerKind, seq_len: int, own_seq_len: float = 0.0) -> Kind:
    """A layer kind as numbers; no field that FLOPs depend on comes from the recipe."""
    return kind_of(kind, Recipe(seq_len=seq_len, global_batch=1), 1.0, own_seq_len)


def layer_flops_per_token(kind: LayerKind, seq_len: int, causal: bool = True) -> float:
    """Forward FLOPs a token of a layer kind at a sequence length."""
    return layer_flops(_numbers(kind, seq_len), float(seq_len), causal)


def mtp_flops_per_token(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Forward FLOPs a token of all multi-token prediction layers: layer, projection, logits."""
    if model.mtp is None:
        return 0.0
    h = model.hidden
    one = layer_flops_per_token(model.mtp.kind, seq_len, causal)
    one += 2.0 * 2.0 * h * h + logit_flops(h, model.vocab)
    return model.mtp.layers * one


def vision_flops_per_image(model: ModelSpec) -> float:
    """Forward FLOPs of the vision tower and the projector for one image; bidirectional."""
    v = model.vision
    if v is None:
        return 0.0
    patches = v.patches_per_image
    tower = layer_flops(_numbers(v.kind, patches, float(patches)), float(patches), True)
    projector = 2.0 * v.tokens_per_image * v.projector_params
    return patches * v.layers * tower + projector


def forward_flops_per_token(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Forward FLOPs a token of decoder layers and logits; prediction layers and tower apart."""
    kinds = [layer_flops_per_token(k, seq_len, causal) for k in model.kinds]
    width = model.embedding_width or model.hidden
    total = sum(kinds[k] for k in model.order) + logit_flops(width, model.vocab)
    return total + 2.0 * model.embedding_projection_params


def model_flops_per_token(
    model: ModelSpec, seq_len: int, causal: bool = True, images_per_sequence: float = 0.0
) -> float:
    """Training FLOPs a token without recompute, what MFU counts: three times the forward.

    Multi-token prediction is trained and counted; a vision tower is counted for the images that a
    sequence holds.
    """
    forward = forward_flops_per_token(model, seq_len, causal)
    forward += mtp_flops_per_token(model, seq_len, causal)
    forward += vision_flops_per_image(model) * images_per_sequence / seq_len
    return BACKWARD_AND_FORWARD * forward


def core_flops_per_token(
    model: ModelSpec, seq_len: int, causal: bool = True, images_per_sequence: float = 0.0
) -> float:
    """Forward FLOPs a token of all attention cores, prediction layers and tower included."""

    def core(kind: LayerKind, s: float, own: float = 0.0) -> float:
        return core_flops(_numbers(kind, int(s), own), s, causal)

    kinds = [core(k, float(seq_len)) for k in model.kinds]
    total = sum(kinds[k] for k in model.order)
    if model.mtp is not None:
        total += model.mtp.layers * core(model.mtp.kind, float(seq_len))
    if model.vision is not None:
        v, patches = model.vision, float(model.vision.patches_per_image)
        images = patches * images_per_sequence / seq_len
        total += images * v.layers * core(v.kind, patches, patches)
    return total


def frozen_flops_per_token(
    model: ModelSpec, seq_len: int, causal: bool = True, images_per_sequence: float = 0.0
) -> float:
    """Training FLOPs a token where no weight has a gradient (LoRA, arXiv:2106.09685).

    Matrices cost a forward and an input gradient, twice the forward. Attention has no weights: the
    gradients of its queries, keys and values stay, three times the forward. Adapters are left out.
    """
    full = model_flops_per_token(model, seq_len, causal, images_per_sequence)
    core = core_flops_per_token(model, seq_len, causal, images_per_sequence)
    return 2.0 / 3.0 * full + core


def layers_flops_per_token(
    model: ModelSpec, seq_len: int, causal: bool = True, images_per_sequence: float = 0.0
) -> float:
    """Forward FLOPs a token of everything that recompute runs again: no embedding, no logits."""
    kinds = [layer_flops_per_token(k, seq_len, causal) for k in model.kinds]
    total = sum(kinds[k] for k in model.order)
    if model.mtp is not None:
        total += model.mtp.layers * layer_flops_per_token(model.mtp.kind, seq_len, causal)
    v = model.vision
    if v is not None:
        patches = float(v.patches_per_image)
        tower = layer_flops(_numbers(v.kind, v.patches_per_image, patches), patches, True)
        total += patches * images_per_sequence / seq_len * v.layers * tower
    return total
