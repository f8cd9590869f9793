"""The model of a measured row, by its stated shapes; the named model fills what it leaves out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gangsaw.errors import InputError
from gangsaw.read.models import load_model
from gangsaw.spec import AttentionSpec, LayerKind, MlpSpec, ModelSpec, MoeSpec, MtpSpec

DEFAULT_VOCAB = 50304
USUAL_HEADS = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 128, 160, 192, 256)


def whole(value: object) -> int:
    """A whole number, 0 or more, from what a row states; ValueError says what it is not."""
    try:
        number = float(str(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not math.isfinite(number) or number != int(number) or number < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


@lru_cache(maxsize=256)
def named(name: str) -> ModelSpec | None:
    """The catalog's model that a row's name means, or None."""
    bare = re.sub(r"\(.*?\)", "", name).strip()
    cut = re.sub(r"(truncated|proxy|[0-9]+-node).*$", "", bare, flags=re.IGNORECASE).strip()
    for text in dict.fromkeys((name, bare, cut, cut.replace("_", "-").replace(" ", "-"))):
        if text and "/" not in text and not text.endswith((".toml", ".json")):
            try:
                return load_model(text)
            except (InputError, OSError):
                continue
    return None


def likely_heads(hidden: int) -> int:
    """Heads of usual counts that divide `hidden`, their width nearest to 128."""
    usual = [h for h in USUAL_HEADS if hidden % h == 0]
    if not usual:
        return max(1, hidden // 128)
    return min(usual, key=lambda h: abs(math.log(hidden / h / 128)))


def _attention(m: Mapping[str, Any], assumed: list[str]) -> AttentionSpec:
    hidden = whole(m["hidden"])
    if str(m.get("attention") or "").upper().startswith("MLA"):
        heads = whole(m.get("heads") or 128)
        deep = hidden >= 4096
        return AttentionSpec(
            heads=heads, kv_heads=heads, head_dim=192, v_head_dim=128,
            q_lora_rank=1536 if deep else 0, kv_lora_rank=512, rope_head_dim=64,
        )  # fmt: skip
    if m.get("heads"):
        heads = whole(m["heads"])
    else:
        heads = likely_heads(hidden)
        assumed.append(f"heads={heads}")
    dim = whole(m.get("head_dim") or m.get("kv_channels") or max(1, hidden // heads))
    return AttentionSpec(
        heads=heads, kv_heads=whole(m.get("kv_heads") or heads), head_dim=dim, v_head_dim=dim
    )


def _ffn(m: Mapping[str, Any], gated: bool, assumed: list[str]) -> int:
    if m.get("ffn"):
        return whole(m["ffn"])
    hidden = whole(m["hidden"])
    ffn = 4 * hidden if not gated else int(8 * hidden / 3 / 256 + 1) * 256
    if not m.get("experts"):
        assumed.append(f"ffn={ffn}")
    return ffn


def _kinds(
    m: Mapping[str, Any], gated: bool, assumed: list[str]
) -> tuple[list[LayerKind], list[int]]:
    """Layer kinds and their order."""
    hidden, layers = whole(m["hidden"]), whole(m["layers"])
    attention = _attention(m, assumed)
    ffn = _ffn(m, gated, assumed)
    bias = not gated
    dense = LayerKind(
        name="dense", hidden=hidden, attention=attention,
        mlp=MlpSpec(ffn=ffn, gated=gated, in_bias=bias, out_bias=bias), norm_bias=bias,
    )  # fmt: skip
    if not m.get("experts"):
        return [dense], [0] * layers
    experts = whole(m["experts"])
    expert = MlpSpec(ffn=whole(m.get("moe_ffn") or ffn), gated=gated)
    shared = whole(m.get("shared_experts") or 0)
    first = 0
    if attention.is_mla:
        first = min(layers - 1, 3 if layers >= 61 and experts == 256 else 1)
        if not shared:
            shared = 2 if experts in (64, 160) else 1
            assumed.append(f"shared_experts={shared}, dense first layers={first}")
    moe = MoeSpec(
        experts=experts, topk=whole(m.get("topk") or 1), expert=expert,
        shared=MlpSpec(ffn=shared * expert.ffn, gated=gated) if shared else None,
    )  # fmt: skip
    routed = LayerKind(name="moe", hidden=hidden, attention=attention, moe=moe)
    kinds = [dense, routed] if first else [routed]
    return kinds, [0] * first + [len(kinds) - 1] * (layers - first)


def _of_catalog(m: Mapping[str, Any], assumed: list[str]) -> ModelSpec | None:
    """The named model where the row states no shapes of its own."""
    if m.get("layers") and m.get("hidden"):
        return None
    found = named(str(m.get("name") or ""))
    if found is None:
        return None
    assumed.append(f"shapes of the named model {found.name}")
    layers = whole(m["layers"]) if m.get("layers") else found.layers
    if layers == found.layers:
        return found
    order = (found.order * (layers // found.layers + 1))[:layers]
    return found.model_copy(update={"order": order})


def model_of(row: Mapping[str, Any], assumed: list[str]) -> ModelSpec:
    """The model of a row; what the row leaves out is noted in `assumed`. ValueError, InputError."""
    m = row["model"]
    catalog = _of_catalog(m, assumed)
    if catalog is not None:
        return catalog
    gated = bool(m.get("gated_mlp", False))
    hidden = whole(m["hidden"])
    kinds, order = _kinds(m, gated, assumed)
    vocab = m.get("vocab")
    if not vocab:
        known = named(str(m.get("name") or ""))
        vocab = known.vocab if known else DEFAULT_VOCAB
        assumed.append(f"vocab={vocab}")
    tied = m.get("untied") is False or (m.get("untied") is None and not gated)
    mtp = whole(m.get("mtp_layers") or 0)
    return ModelSpec(
        name=str(m.get("name") or row["id"]), hidden=hidden, vocab=whole(vocab),
        kinds=tuple(kinds), order=tuple(order), tied=tied,
        final_norm_params=hidden if gated else 2 * hidden,
        learned_positions=0 if gated else whole(m["seq_len"]),
        mtp=MtpSpec(kind=kinds[-1], layers=mtp, extra_params=2 * hidden * hidden) if mtp else None,
    )  # fmt: skip
