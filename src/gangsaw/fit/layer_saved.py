"""Saved tensors of one recorded layer, sorted by what the physical entries of a stack count.

A tensor is sorted by its shape where that is known (scores, heads, experts), else by its width:
elements a token against the widths of the model's layer on that rank. What no width explains is
kept apart and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gangsaw.cost.types import Cut, Kind

HIDDEN, ATTENTION, STATISTICS, SCORES, INNER, ROUTED, ROUTER, MASK, OTHER = (
    "hidden", "attention", "statistics", "scores", "inner", "routed", "router", "mask", "other",
)  # fmt: skip
CLASSES = (HIDDEN, ATTENTION, STATISTICS, SCORES, INNER, ROUTED, ROUTER, MASK, OTHER)
ROUNDING_BYTES = 512
"""CUDA's allocator hands out multiples of this; sizes from its events are rounded up."""
DTYPE_BYTES = {
    "float32": 4, "float": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "half": 2,
    "fp16": 2, "float64": 8, "int64": 8, "long": 8, "int32": 4, "int": 4, "bool": 1, "uint8": 1,
    "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1,
}  # fmt: skip
_OUT_NAMES = ("o_proj", "out_proj", "wo", "linear_proj", "proj_out", "attention.dense")

_INNER_NAMES = ("mlp", "ffn", "feed", "act", "silu", "gelu", "swiglu", "fc", "down_proj", "w_out")
_SCORE_NAMES = ("softmax", "bmm", "score", "mask")


class Saved(NamedTuple):
    """One storage that autograd keeps for the backward pass of the layer."""

    bytes: float
    name: str = ""  # module or operation that saved it
    shapes: tuple[tuple[int, ...], ...] = ()  # of the tensors on it
    dtype: str = ""


class Times(NamedTuple):
    """Measured seconds of one layer and microbatch; 0 where the recording does not tell.

    `host_s` is what the host needs to launch a forward pass; the three kinds are sums over
    forward and backward.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    host_s: float = 0.0
    products_s: float = 0.0
    attention_s: float = 0.0
    other_s: float = 0.0


class Widths(NamedTuple):
    """Elements a token of the layer's tensors on one rank."""

    hidden: float
    q: float
    k: float
    v: float
    out: float
    inner: float
    moe_inner: float
    heads: float
    kv_heads: float
    head_dims: tuple[float, ...]
    latents: tuple[float, ...]  # of MLA
    experts: float
    topk: float
    keys: float
    tokens: float
    own_tokens: float  # of a rank under sequence parallelism


def widths_of(kind: Kind, cut: Cut) -> Widths:
    """Widths of a layer kind under a cut."""
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    heads, kv = kind.heads / cut.tp, max(kind.kv_heads / cut.tp, 1.0)
    if kind.kv_lora > 0.0:
        kv = heads
    return Widths(
        hidden=kind.hidden,
        q=heads * kind.head_dim,
        k=kv * kind.head_dim,
        v=kv * kind.v_head_dim,
        out=heads * kind.v_head_dim,
        inner=(kind.ffn or kind.shared_ffn) / cut.tp,
        moe_inner=kind.moe_ffn / cut.etp,
        heads=heads,
        kv_heads=kv,
        head_dims=(kind.head_dim, kind.v_head_dim, kind.head_dim - kind.rope_dim, kind.rope_dim),
        latents=(kind.q_lora, kind.kv_lora, kind.kv_lora + kind.rope_dim)
        if kind.kv_lora > 0.0
        else (),
        experts=kind.experts,
        topk=kind.topk,
        keys=kind.seq_len if kind.seq_len > 0.0 else cut.seq_len,
        tokens=tokens,
        own_tokens=tokens / cut.tp if cut.sp > 0.0 else tokens,
    )


def element_bytes(saved: Saved, act_bytes: float) -> float:
    """Bytes of an element of a saved tensor; that of activations where it is not stated."""
    return float(DTYPE_BYTES.get(saved.dtype.removeprefix("torch.").lower(), act_bytes))


def _is(saved: Saved, elements: float, size: float) -> bool:
    """Whether the storage holds so many elements, a rounded allocation included."""
    wanted = elements * size
    slack = ROUNDING_BYTES if not saved.shapes and wanted >= ROUNDING_BYTES else 0.0
    return 0.0 < wanted <= saved.bytes <= wanted + slack


def _by_shape(saved: Saved, w: Widths) -> str:
    """The class that the shapes tell, or nothing."""
    for shape in saved.shapes:
        last = float(shape[-1]) if shape else 0.0
        if last == w.keys and saved_rows(shape) * last == w.heads * w.keys * w.tokens:
            return SCORES
        by_head = len(shape) >= 3 and set(shape[-2:]) & set(w.head_dims) and last != w.hidden
        if by_head and saved_rows(shape) * last / w.tokens in (w.q, w.k, w.v, w.out):
            return ATTENTION
    for shape in saved.shapes:
        rows = saved_rows(shape)
        if w.experts > 0.0 and shape:
            if shape[-1] in (w.experts, w.topk) and rows in (w.tokens, w.own_tokens):
                return ROUTER
            if shape[-1] in (w.moe_inner, 2.0 * w.moe_inner):
                return INNER
            if shape[-1] == w.hidden and rows not in (w.tokens, w.own_tokens):
                return ROUTED
    return ""


def saved_rows(shape: Sequence[int]) -> float:
    """Rows of a tensor: all but its last dimension."""
    rows = 1.0
    for n in shape[:-1]:
        rows *= n
    return rows


def _by_width(saved: Saved, w: Widths, size: float) -> str:
    """The class that the elements a token tell."""

    def holds(*widths: float) -> bool:
        return any(_is(saved, t * n, size) for n in widths for t in {w.tokens, w.own_tokens})

    def named(names: Sequence[str]) -> bool:
        return any(n in saved.name.lower() for n in names)

    # Without a shape an fp32 copy of hidden width may be as large as scores of a short sequence.
    copy = not saved.shapes and _is(saved, w.tokens * w.hidden, 4.0)
    scores = not copy or named(_SCORE_NAMES)
    inner = w.inner != w.hidden or named(_INNER_NAMES)
    fused = w.q + w.k + w.v
    tests: tuple[tuple[str, Callable[[], bool]], ...] = (
        (SCORES, lambda: scores and _is(saved, w.heads * w.keys * w.tokens, size)),
        (INNER, lambda: inner and holds(w.inner)),
        (ROUTED, lambda: w.topk > 0 and holds(w.topk * w.hidden)),
        (INNER, lambda: w.topk > 0 and holds(w.topk * w.moe_inner, 2.0 * w.topk * w.moe_inner)),
        (MASK, lambda: size == 1.0 and holds(w.hidden)),
        (ATTENTION, lambda: holds(w.hidden) and named(_OUT_NAMES)),
        (HIDDEN, lambda: holds(w.hidden)),
        (INNER, lambda: holds(2.0 * w.inner)),
        (ATTENTION, lambda: holds(w.q, w.k, w.v, w.out, fused, w.k + w.v, *w.latents)),
        (ROUTER, lambda: w.experts > 0 and holds(w.experts, w.topk)),
        (STATISTICS, lambda: holds(w.heads) and w.heads > 1.0),
        (HIDDEN, lambda: holds(1.0, 2.0)),  # the statistics of a norm
    )
    return next((name for name, test in tests if test()), "")


def class_of(saved: Saved, w: Widths, act_bytes: float) -> str:
    """What a saved tensor is, one of CLASSES."""
    found = _by_shape(saved, w)
    if found:
        return found
    sizes = [element_bytes(saved, act_bytes)]
    if not saved.dtype:
        sizes += [s for s in (2.0, 4.0, 1.0) if s not in sizes]
        if "mask" in saved.name.lower():
            sizes.insert(0, 1.0)
        square = w.heads * w.keys * w.tokens
        named = any(n in saved.name.lower() for n in _SCORE_NAMES)
        if named and any(_is(saved, square, s) for s in sizes):
            return SCORES
    for size in sizes:
        found = _by_width(saved, w, size)
        if found:
            return found
    return OTHER


class Sorted(NamedTuple):
    """Bytes of each class, and the tensors of each."""

    bytes: dict[str, float]
    members: dict[str, list[Saved]]
    gathered: bool  # full hidden tensors under sequence parallelism


def sort_saved(saved: Sequence[Saved], w: Widths, act_bytes: float) -> Sorted:
    """All saved tensors of a layer by class."""
    members: dict[str, list[Saved]] = {name: [] for name in CLASSES}
    for item in saved:
        members[class_of(item, w, act_bytes)].append(item)
    gathered = w.own_tokens < w.tokens and any(
        _is(item, w.tokens * w.hidden, element_bytes(item, act_bytes)) for item in members[HIDDEN]
    )
    totals = {name: sum(i.bytes for i in items) for name, items in members.items()}
    return Sorted(totals, members, gathered)
