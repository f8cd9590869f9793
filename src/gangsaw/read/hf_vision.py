"""Vision towers and projectors of vision-language configs, as layer groups of their own."""

from __future__ import annotations

from collections.abc import Callable

from gangsaw.errors import InputError
from gangsaw.read.hf_keys import Keys, divisors
from gangsaw.spec.model import AttentionSpec, LayerKind, MlpSpec, VisionSpec

QWEN_PATCHES = 4096
"""Patches of an image where the config sets no size: 64 x 64 of 14 pixels (896 x 896)."""


def _attention(keys: Keys, hidden: int, heads_key: str = "num_attention_heads") -> AttentionSpec:
    """Bidirectional attention with all biases."""
    heads = keys.count(heads_key)
    if hidden % heads:
        raise InputError(
            f"{keys.where}: {heads_key}={heads} does not divide the width {hidden};"
            f" legal here: {divisors(hidden)}"
        )
    width = hidden // heads
    return AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        v_head_dim=width,
        q_bias=True,
        kv_bias=True,
        out_bias=True,
        causal=False,
    )


def _block(keys: Keys, hidden: int, ffn: int, heads_key: str = "num_attention_heads") -> LayerKind:
    """A pre-norm encoder layer with biases everywhere (CLIP, SigLIP, Llama 4, Qwen2-VL)."""
    act = keys.text("hidden_act", "gelu")
    return LayerKind(
        name="vision",
        hidden=hidden,
        attention=_attention(keys, hidden, heads_key),
        mlp=MlpSpec(ffn=ffn, gated=False, in_bias=True, out_bias=True, activation=act),
        norms=2,
        norm_bias=True,
    )


def _patches(keys: Keys) -> int:
    """Patches of a square image."""
    image, patch = keys.count("image_size"), keys.count("patch_size")
    if patch > image:
        raise InputError(f"{keys.where}: patch_size={patch} is larger than image_size={image}")
    return (image // patch) ** 2


def _clip(keys: Keys) -> tuple[LayerKind, int, int]:
    """CLIP: class token, patches without bias, positions, norms before and after."""
    h, patches = keys.count("hidden_size"), _patches(keys)
    pixels = keys.count("num_channels") * keys.count("patch_size") ** 2
    kind = _block(keys, h, keys.count("intermediate_size"))
    keys.raw("projection_dim")
    keys.raw("vocab_size")
    return kind, h + pixels * h + (patches + 1) * h + 4 * h, patches + 1


def _siglip(keys: Keys) -> tuple[LayerKind, int, int]:
    """SigLIP: patches with bias, positions, norm after, a pooling head where switched on."""
    h, patches, ffn = keys.count("hidden_size"), _patches(keys), keys.count("intermediate_size")
    pixels = keys.count("num_channels") * keys.count("patch_size") ** 2
    ends = pixels * h + h + patches * h + 2 * h
    if keys.flag("vision_use_head"):
        attention = 4 * h * h + 4 * h
        ends += h + attention + 2 * h + 2 * h * ffn + ffn + h
    return _block(keys, h, ffn), ends, patches


TOWERS: dict[str, Callable[[Keys], tuple[LayerKind, int, int]]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
}


def tower(keys: Keys, model_type: str) -> tuple[LayerKind, int, int]:
    """Layer kind, parameters around the layers, tokens of an image, of a named tower."""
    if model_type not in TOWERS:
        raise InputError(
            f"{keys.where}: model_type {model_type!r} is not a known vision tower;"
            f" legal here: {', '.join(TOWERS)}"
        )
    return TOWERS[model_type](keys)


def llava(top: Keys, vision: Keys, text_hidden: int) -> VisionSpec:
    """LLaVA 1.5: a tower, the features of one or more of its layers, and a projector of two
    matrices."""
    kind, ends, tokens = tower(vision, vision.text("model_type", "clip_vision_model"))
    features = top.raw("vision_feature_layer")
    width = kind.hidden * (len(features) if isinstance(features, list) else 1)
    bias = text_hidden if top.flag("multimodal_projector_bias") else 0
    full = top.text("vision_feature_select_strategy", "default") == "full"
    has_class_token = vision.text("model_type", "clip_vision_model") == "clip_vision_model"
    return VisionSpec(
        kind=kind,
        layers=vision.count("num_hidden_layers"),
        embedding_params=ends,
        projector_params=width * text_hidden + text_hidden * text_hidden + 2 * bias,
        patches_per_image=tokens,
        tokens_per_image=tokens if full or not has_class_token else tokens - 1,
    )


def gemma3(top: Keys, vision: Keys, text_hidden: int) -> VisionSpec:
    """Gemma 3: SigLIP, pooled to a fixed number of tokens, one matrix and a norm."""
    kind, ends, tokens = tower(vision, vision.text("model_type", "siglip_vision_model"))
    return VisionSpec(
        kind=kind,
        layers=vision.count("num_hidden_layers"),
        embedding_params=ends,
        projector_params=kind.hidden * text_hidden + kind.hidden,
        patches_per_image=tokens,
        tokens_per_image=top.count("mm_tokens_per_image"),
    )


def llama4(top: Keys, vision: Keys, text_hidden: int) -> VisionSpec:
    """Llama 4: unfolded patches, class token, pixel shuffle and an adapter of two matrices."""
    h, patches = vision.count("hidden_size"), _patches(vision)
    ffn = vision.count("intermediate_size")
    pixels = vision.count("num_channels") * vision.count("patch_size") ** 2
    out = vision.count("projector_output_dim")
    adapter = ffn * vision.count("projector_input_dim") + out * out
    ratio = vision.raw("pixel_shuffle_ratio")
    if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise InputError(f"{vision.where}: pixel_shuffle_ratio={ratio!r} is not in 0 to 1")
    ends = pixels * h + h + (patches + 1) * h + 4 * h + adapter
    return VisionSpec(
        kind=_block(vision, h, ffn),
        layers=vision.count("num_hidden_layers"),
        embedding_params=ends,
        projector_params=vision.count("vision_output_dim") * text_hidden,
        patches_per_image=patches + 1,
        tokens_per_image=max(1, round(patches * ratio * ratio)),
    )


def _qwen_shared(vision: Keys, width: int) -> tuple[int, int]:
    """Parameters of the patches, and patches that are merged into one token."""
    pixels = vision.count("in_channels") * vision.count("temporal_patch_size")
    vision.raw("in_chans")
    return pixels * vision.count("patch_size") ** 2 * width, vision.count("spatial_merge_size") ** 2


def _qwen_spec(
    vision: Keys, kind: LayerKind, patch_params: int, merge: int, merger: int
) -> VisionSpec:
    """The tower of Qwen-VL for an image of QWEN_PATCHES patches."""
    vision.notes.append(
        f"{vision.where}: no image size; {QWEN_PATCHES} patches an image assumed (896 x 896)"
    )
    return VisionSpec(
        kind=kind,
        layers=vision.count("depth"),
        embedding_params=patch_params,
        projector_params=merger,
        patches_per_image=QWEN_PATCHES,
        tokens_per_image=max(1, QWEN_PATCHES // merge),
    )


def qwen2_vl(top: Keys, vision: Keys, text_hidden: int) -> VisionSpec:
    """Qwen2-VL: layer norms, plain MLP, every layer sees the whole image."""
    h = vision.count("embed_dim")
    patch_params, merge = _qwen_shared(vision, h)
    wide = h * merge
    merger = 2 * h + wide * wide + wide + wide * vision.count("hidden_size")
    merger += vision.count("hidden_size")
    kind = _block(vision, h, h * vision.count("mlp_ratio"), "num_heads")
    return _qwen_spec(vision, kind, patch_params, merge, merger)


def qwen2_5_vl(top: Keys, vision: Keys, text_hidden: int) -> VisionSpec:
    """Qwen2.5-VL: RMS norms, gated MLP, windows in all but a few listed layers.

    The layers are one kind; its window is the mean number of keys over the layers.
    """
    h, out = vision.count("hidden_size"), vision.count("out_hidden_size")
    patch_params, merge = _qwen_shared(vision, h)
    wide = h * merge
    merger = h + wide * wide + wide + wide * out + out
    depth = vision.count("depth")
    full = len([i for i in vision.sequence("fullatt_block_indexes") or [] if i in range(depth)])
    side = vision.count("window_size") // vision.count("patch_size")
    window = max(1, min(side * side, QWEN_PATCHES))
    mean = (full * QWEN_PATCHES + (depth - full) * window) // depth
    attention = _attention(vision, h, "num_heads").model_copy(update={"window": mean})
    kind = LayerKind(
        name="vision",
        hidden=h,
        attention=attention,
        mlp=MlpSpec(
            ffn=vision.count("intermediate_size"),
            in_bias=True,
            out_bias=True,
            activation=vision.text("hidden_act", "silu"),
        ),
        norms=2,
    )
    return _qwen_spec(vision, kind, patch_params, merge, merger)
