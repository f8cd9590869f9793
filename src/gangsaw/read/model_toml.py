"""gangsaw's own model form: groups of equal layers in TOML, read into a ModelSpec.

A document has the model's widths on top and one `[[layers]]` table a group, in order; a group is
`count` layers of one kind. What is left out follows from what is there: key-value heads are the
heads, a head is hidden / heads wide, the final norm is like the layers' norms.
docs/models.md shows examples, which the tests read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gangsaw.errors import InputError
from gangsaw.read.hf_keys import divisors
from gangsaw.read.toml import one_line, read_toml, shown, validate
from gangsaw.spec.base import Count, CountOrZero, Document
from gangsaw.spec.model import (
    AttentionSpec,
    LayerKind,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    RotarySpec,
    VisionSpec,
)


class AttentionTable(Document):
    """`[layers.attention]`: AttentionSpec with widths that may be left out."""

    heads: Count
    kv_heads: Count | None = None
    head_dim: Count | None = None
    v_head_dim: Count | None = None
    q_lora_rank: CountOrZero = 0
    kv_lora_rank: CountOrZero = 0
    rope_head_dim: CountOrZero = 0
    q_bias: bool = False
    kv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "head_layernorm", "full"] = "none"
    window: CountOrZero = 0
    sinks: bool = False
    causal: bool = True
    softcap: bool = False

    def spec(self, hidden: int) -> AttentionSpec:
        """The attention with every width; ValueError with the legal choices where none fits."""
        width = self.head_dim
        if width is None:
            if hidden % self.heads:
                raise ValueError(
                    f"heads={self.heads} does not divide hidden={hidden} and head_dim is not"
                    f" stated; legal here: {divisors(hidden)}"
                )
            width = hidden // self.heads
        kv = self.kv_heads or self.heads
        if self.heads % kv:
            raise ValueError(
                f"kv_heads={kv} does not divide heads={self.heads};"
                f" legal here: {divisors(self.heads)}"
            )
        if self.rope_head_dim >= width and self.kv_lora_rank:
            raise ValueError(f"rope_head_dim={self.rope_head_dim} must be below head_dim={width}")
        values = self.model_dump() | {
            "kv_heads": kv, "head_dim": width, "v_head_dim": self.v_head_dim or width,
        }  # fmt: skip
        return AttentionSpec(**values)


class LayersTable(Document):
    """`[[layers]]`: a group of equal layers."""

    count: int = Field(1, ge=1, le=10**4)
    name: str = ""
    hidden: Count | None = None
    attention: AttentionTable
    mlp: MlpSpec | None = None
    moe: MoeSpec | None = None
    norms: CountOrZero = 2
    norm_bias: bool = False
    norm_params: bool = True
    parallel: bool = False
    extra_params: CountOrZero = 0

    def kind(self, hidden: int) -> LayerKind:
        """The layer kind of the group."""
        if (self.mlp is None) == (self.moe is None):
            raise ValueError("a group of layers has either mlp or moe")
        if self.moe and self.moe.topk > self.moe.experts:
            raise ValueError(
                f"topk={self.moe.topk} is more than experts={self.moe.experts};"
                f" legal here: 1 to {self.moe.experts}"
            )
        width = self.hidden or hidden
        attention = self.attention.spec(width)
        name = self.name or ("moe" if self.moe else "dense")
        if attention.window and not self.name:
            name += f"-window{attention.window}"
        values = {k: getattr(self, k) for k in ("mlp", "moe", "norms", "norm_bias", "norm_params")}
        more = {k: getattr(self, k) for k in ("parallel", "extra_params")}
        return LayerKind(name=name, hidden=width, attention=attention, **values, **more)


class MtpTable(Document):
    """`[mtp]`: prediction layers like the last layer; projection and norms as in DeepSeek-V3."""

    layers: Count
    extra_params: CountOrZero | None = None


class VisionTable(Document):
    """`[vision]`: a tower of equal layers in front of the decoder."""

    layers: LayersTable
    embedding_params: CountOrZero
    projector_params: CountOrZero
    patches_per_image: Count
    tokens_per_image: Count


class ModelTable(Document):
    """The whole document."""

    name: str = ""
    family: str = ""
    hidden: int = Field(ge=1, le=10**6)
    vocab: int = Field(ge=1, le=10**8)
    layers: tuple[LayersTable, ...] = Field(min_length=1)
    tied: bool = False
    learned_positions: CountOrZero = 0
    rotary: RotarySpec | None = None
    embedding_width: CountOrZero = 0
    embedding_projection_params: CountOrZero = 0
    embedding_norm_params: CountOrZero = 0
    final_norm_params: CountOrZero | None = None
    head_bias: bool = False
    mtp: MtpTable | None = None
    vision: VisionTable | None = None
    source: str = ""


def read_model_toml(path: Path) -> ModelSpec:
    """The model of a TOML file; InputError in one line (file, key, value, rule)."""
    return model_of_table(read_toml(path), shown(path), path.stem)


def model_of_table(values: dict[str, Any], where: str, name: str) -> ModelSpec:
    """The model of a parsed TOML document."""
    table = validate(ModelTable, values, where)
    try:
        return _spec(table, name)
    except ValidationError as fault:
        raise one_line(fault, where) from None
    except ValueError as fault:
        raise InputError(f"{where}: {fault}") from None


def _spec(table: ModelTable, name: str) -> ModelSpec:
    """The ModelSpec of a valid document; ValueError where its numbers contradict each other."""
    found: dict[LayerKind, int] = {}
    order: list[int] = []
    for group in table.layers:
        kind = group.kind(table.hidden)
        if kind.hidden != table.hidden:
            raise ValueError(f"layers.hidden={kind.hidden} is not the model's {table.hidden}")
        order += [found.setdefault(kind, len(found))] * group.count
    last = table.layers[-1]
    norm = table.final_norm_params
    if norm is None:
        norm = table.hidden * (2 if last.norm_bias else 1) if last.norm_params else 0
    kinds = tuple(found)
    plain = table.model_dump(
        include={
            "family", "hidden", "vocab", "tied", "learned_positions", "rotary", "embedding_width",
            "embedding_projection_params", "embedding_norm_params", "head_bias", "source",
        }
    )  # fmt: skip
    return ModelSpec(
        name=table.name or name,
        kinds=kinds,
        order=tuple(order),
        final_norm_params=norm,
        mtp=_mtp(table.mtp, kinds[order[-1]]) if table.mtp else None,
        vision=_vision(table.vision) if table.vision else None,
        **plain,
    )


def _mtp(table: MtpTable, kind: LayerKind) -> MtpSpec:
    if table.extra_params is None:
        return MtpSpec.behind(kind, table.layers)
    return MtpSpec(kind=kind, layers=table.layers, extra_params=table.extra_params)


def _vision(table: VisionTable) -> VisionSpec:
    if table.layers.hidden is None:
        raise ValueError("missing keys vision.layers.hidden; a tower has its own width")
    return VisionSpec(
        kind=table.layers.kind(table.layers.hidden),
        layers=table.layers.count,
        embedding_params=table.embedding_params,
        projector_params=table.projector_params,
        patches_per_image=table.patches_per_image,
        tokens_per_image=table.tokens_per_image,
    )
