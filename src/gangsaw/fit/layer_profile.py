"""A stack profile from one recorded layer: entries solved so that the program counts what it kept.

The bytes that `cost.memory_layers` counts for a layer are linear in each entry of a stack; every
entry is set so that the class of tensors that it stands for sums to what was recorded. The rest of
the profile comes from the catalog's nearest one: the one whose counts of the same layer are
nearest, class by class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gangsaw.cost.lower import stack_memory_of
from gangsaw.cost.memory_layers import (
    attention_bytes,
    hidden_bytes,
    layer_memory,
    mlp_bytes,
    score_bytes,
)
from gangsaw.cost.types import Cut, Kind, StackMem
from gangsaw.errors import InputError
from gangsaw.fit.layer_saved import (
    ATTENTION,
    HIDDEN,
    INNER,
    MASK,
    OTHER,
    ROUTED,
    ROUTER,
    SCORES,
    STATISTICS,
    Saved,
    Sorted,
    Widths,
    sort_saved,
    widths_of,
)
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.spec.base import Document
from gangsaw.spec.stack import StackMemory, StackProfile

MODULES = (
    ("transformers.", "hf-eager"),
    ("megatron.", "megatron-core-te"),
    ("transformer_engine.", "megatron-core-te"),
    ("torchtitan.", "torchtitan"),
    ("nemo_automodel.", "automodel"),
    ("nanotron.", "nanotron"),
    ("llmfoundry.", "fsdp1"),
    ("composer.", "fsdp1"),
    ("internlm.", "internevo"),
    ("internevo.", "internevo"),
)
"""Packages whose layers belong to a profile of the catalog."""
RECOMPUTED = 0.5
"""Share of a fused stack's bytes below which a layer without its MLP's tensors was recomputed."""
MOST_UNKNOWN = 0.5
"""Share of the bytes without a class beyond which the recording is not of that layer."""


class Entry(Document):
    """One entry of the profile: its value, and what it was measured from or taken from."""

    entry: str
    value: float | int | str | bool
    measured: bool
    said: str


class LayerMemory(NamedTuple):
    """The memory entries that a recorded layer tells, with the words for each."""

    values: dict[str, float | bool]
    said: dict[str, str]
    notes: tuple[str, ...]


def _parts(kind: Kind, cut: Cut, mem: StackMem) -> dict[str, float]:
    """Bytes that a profile counts for the layer, by the classes that can be told apart."""
    scale = cut.act_bytes / 2.0
    return {
        "attention": attention_bytes(kind, cut, mem) * scale,
        "scores": score_bytes(kind, cut, mem) * scale,
        "hidden": hidden_bytes(kind, cut, mem) * scale,
        "mlp": mlp_bytes(kind, cut, mem) * scale,
    }


def _measured_parts(found: Sorted, kind: Kind, cut: Cut) -> dict[str, float]:
    """The same of a recording: hidden-wide tensors that attention must have are attention's."""
    b = dict(found.bytes)
    attention = b[ATTENTION] + b[STATISTICS]
    hidden = b[HIDDEN] + b[MASK] + b[OTHER]
    unfused = b[SCORES] > 0.0
    least = _least_attention(kind, cut, unfused)
    norms = 2.0 * kind.norms * kind.hidden * widths_of(kind, cut).own_tokens * cut.act_bytes / 2.0
    moved = min(max(0.0, least - attention), max(0.0, hidden - norms))
    return {
        "attention": attention + moved,
        "scores": b[SCORES],
        "hidden": hidden - moved,
        "mlp": b[INNER] + b[ROUTED] + b[ROUTER],
    }


_NOTHING = {
    "norm_bytes": 0.0, "residual_bytes": 0.0, "dropout": 0.0, "mlp_gated_bytes": 0.0,
    "mlp_plain_bytes": 0.0, "rope_bytes": 0.0, "qkv_copy_bytes": 0.0, "unfused_score_bytes": 0.0,
    "moe_hidden_bytes": 0.0, "moe_router_bytes": 0.0, "tp_keeps_gathered_input": 0.0,
}  # fmt: skip


def _least_attention(kind: Kind, cut: Cut, unfused: bool) -> float:
    mem = stack_memory_of(load_stack("unknown"))._replace(**_NOTHING)
    if unfused:
        mem = mem._replace(unfused_score_bytes=1.0)
    return attention_bytes(kind, cut, mem) * cut.act_bytes / 2.0


def profile_of_module(module: str) -> str | None:
    """The catalog profile that the Python module of a layer belongs to, if it is a known one."""
    return next((name for prefix, name in MODULES if module.startswith(prefix)), None)


def distances(found: Sorted, kind: Kind, cut: Cut) -> dict[str, float]:
    """How far the counts of each catalog profile are from the layer's, nearest first.

    Summed over classes, as a share of all bytes.
    """
    # Scores only decide between equals: the kernel is a choice of its own in each framework.
    wanted = _measured_parts(found, kind, cut)
    scores = wanted.pop("scores")
    total = sum(wanted.values())

    def distance(name: str) -> float:
        counted = _parts(kind, cut, stack_memory_of(load_stack(name)))
        return sum(abs(counted[k] - wanted[k]) for k in wanted) / total

    def order(name: str) -> tuple[float, float, str]:
        counted = _parts(kind, cut, stack_memory_of(load_stack(name)))["scores"]
        return round(distance(name), 3), abs(counted - scores), name

    return {n: distance(n) for n in sorted(list_stacks(), key=order) if n != "unknown"}


class _Solver:
    """Sets one entry after the other on top of a profile's entries."""

    def __init__(self, kind: Kind, cut: Cut, base: StackMem) -> None:
        self.kind, self.cut, self.mem = kind, cut, base
        self.scale = cut.act_bytes / 2.0

    def linear(
        self, name: str, count: Callable[[Kind, Cut, StackMem], float], wanted: float
    ) -> float:
        """Value of `name` with which `count` gives `wanted` bytes; 0 where it does not matter."""
        at = [
            count(self.kind, self.cut, self.mem._replace(**{name: v})) * self.scale
            for v in (1.0, 2.0)
        ]
        slope = at[1] - at[0]
        if slope <= 0.0:
            return 0.0
        value = 1.0 + (wanted - at[0]) / slope
        value = 0.0 if abs(value) < 1e-9 else value
        self.mem = self.mem._replace(**{name: value})
        return value


def _attention_entries(s: _Solver, found: Sorted, w: Widths, wanted: float) -> dict[str, float]:
    """Copies for rotary and for the kernel: told apart by the widths of queries and keys."""
    s.mem = s.mem._replace(rope_bytes=0.0, qkv_copy_bytes=0.0)
    over = wanted - attention_bytes(s.kind, s.cut, s.mem) * s.scale
    if over <= 1e-6 * wanted:
        return {"rope_bytes": 0.0, "qkv_copy_bytes": 0.0}
    copies = 0.0
    if w.q != w.k and s.kind.kv_lora <= 0.0:
        unit = w.tokens * s.scale
        by_width = {
            width: sum(
                i.bytes
                for i in found.members[ATTENTION]
                if i.bytes in (2.0 * unit * width, 4.0 * unit * width)
            )
            for width in (w.q, w.k)
        }
        extra_q = by_width[w.q] / (unit * w.q) - 2.0 - (2.0 if w.out == w.q else 0.0)
        extra_kv = by_width[w.k] / (unit * w.k) - 4.0
        if extra_q >= 0.0 and extra_kv >= 0.0:
            copies = min(max(0.0, extra_kv - extra_q), over / (unit * (w.q + w.k + w.v)))
    s.mem = s.mem._replace(qkv_copy_bytes=copies)
    rope = s.linear("rope_bytes", attention_bytes, wanted)
    if rope < 0.0:
        s.mem = s.mem._replace(rope_bytes=0.0)
        return {
            "rope_bytes": 0.0,
            "qkv_copy_bytes": s.linear("qkv_copy_bytes", attention_bytes, wanted),
        }
    return {"rope_bytes": rope, "qkv_copy_bytes": copies}


def _mlp_entries(s: _Solver, found: Sorted) -> dict[str, float]:
    """Inner tensors of the MLP and the experts; of a routed layer also its rows and its router."""
    out: dict[str, float] = {}
    gated = "mlp_gated_bytes" if s.kind.gated > 0.0 else "mlp_plain_bytes"
    s.mem = s.mem._replace(moe_hidden_bytes=0.0, moe_router_bytes=0.0)
    out[gated] = s.linear(gated, mlp_bytes, found.bytes[INNER])
    if s.kind.experts > 0.0:
        known = found.bytes[INNER] + found.bytes[ROUTED]
        out["moe_hidden_bytes"] = s.linear("moe_hidden_bytes", mlp_bytes, known)
        known += found.bytes[ROUTER]
        out["moe_router_bytes"] = s.linear("moe_router_bytes", mlp_bytes, known)
    return out


def solve_memory(saved: Sequence[Saved], kind: Kind, cut: Cut, base: StackProfile) -> LayerMemory:
    """Memory entries with which the layer counts exactly the bytes that were recorded.

    InputError where the tensors are not those of the layer, or were recorded under recompute.
    """
    w = widths_of(kind, cut)
    found = sort_saved(saved, w, cut.act_bytes)
    total = sum(found.bytes.values())
    _check(found, w, total, kind, cut)
    parts = _measured_parts(found, kind, cut)
    s = _Solver(kind, cut, stack_memory_of(base)._replace(residual_bytes=0.0))
    values: dict[str, float | bool] = {"residual_bytes": 0.0}
    values["dropout"] = found.bytes[MASK] > 0.0 and cut.fp8 <= 0.0
    if w.own_tokens < w.tokens:
        values["tp_keeps_gathered_input"] = found.gathered
    s.mem = s.mem._replace(
        dropout=float(values["dropout"]),
        tp_keeps_gathered_input=float(values.get("tp_keeps_gathered_input", 0.0)),
    )
    values["unfused_score_bytes"] = s.linear("unfused_score_bytes", score_bytes, parts["scores"])
    values.update(_attention_entries(s, found, w, parts["attention"]))
    values.update(_mlp_entries(s, found))
    # What is left over goes to the norms, so that the layer as a whole holds.
    counted = _parts(kind, cut, s.mem)
    left = total - counted["attention"] - counted["scores"] - counted["mlp"]
    values["norm_bytes"] = s.linear("norm_bytes", hidden_bytes, left)
    if values["norm_bytes"] < 0.0:
        raise InputError(_recomputed(total, kind, cut))
    if s.kind.experts <= 0.0 and w.inner <= 0.0:
        raise InputError("the layer kind has neither an MLP nor experts")
    return LayerMemory(values, _words(found, kind, values), _notes(found, parts, counted, total))


def _check(found: Sorted, w: Widths, total: float, kind: Kind, cut: Cut) -> None:
    if total <= 0.0:
        raise InputError("no saved tensor is recorded. Legal: rows of name and bytes")
    if found.bytes[OTHER] > MOST_UNKNOWN * total:
        odd = max(found.members[OTHER], key=lambda i: i.bytes)
        raise InputError(
            f"{100 * found.bytes[OTHER] / total:.0f} % of the saved bytes fit no tensor of the"
            f" layer at {w.tokens:.0f} tokens (as {odd.name or 'one'} of {odd.bytes:.0f} bytes)."
            " Legal: --model, --seq-len, --mbs and --tp of the recorded layer"
        )
    if found.bytes[INNER] > 0.0:
        return
    if total < RECOMPUTED * _usual(kind, cut):
        raise InputError(_recomputed(total, kind, cut))
    width = w.inner or w.moe_inner
    raise InputError(
        f"no saved tensor has the width of the MLP, {width:.0f} elements a token at"
        f" {w.tokens:.0f} tokens. Legal: --model, --seq-len, --mbs and --tp of the recorded layer"
    )


def _usual(kind: Kind, cut: Cut) -> float:
    """Bytes that a fused stack keeps of the layer."""
    return layer_memory(kind, cut, stack_memory_of(load_stack("megatron-core-te"))).kept_none


def _recomputed(total: float, kind: Kind, cut: Cut) -> str:
    usual = _usual(kind, cut)
    return (
        f"the layer keeps {total:.4g} bytes, {100 * total / usual:.0f} % of a fused one: recompute"
        " was on, or the hooks did not see all. Legal: a layer recorded without recompute"
    )


def _names(items: Sequence[Saved]) -> str:
    """The largest of them by name, a few."""
    order = sorted(items, key=lambda i: -i.bytes)
    names = list(dict.fromkeys(i.name for i in order if i.name))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_OF_CLASS = {
    "norm_bytes": (HIDDEN, MASK, OTHER), "residual_bytes": (HIDDEN,), "dropout": (MASK,),
    "tp_keeps_gathered_input": (HIDDEN,), "unfused_score_bytes": (SCORES,),
    "rope_bytes": (ATTENTION, STATISTICS), "qkv_copy_bytes": (ATTENTION, STATISTICS),
    "mlp_gated_bytes": (INNER,), "mlp_plain_bytes": (INNER,), "moe_hidden_bytes": (ROUTED,),
    "moe_router_bytes": (ROUTER,),
}  # fmt: skip


def _words(found: Sorted, kind: Kind, values: Mapping[str, float | bool]) -> dict[str, str]:
    """What each entry was measured from."""
    out = {}
    for name in values:
        items = [i for c in _OF_CLASS[name] for i in found.members[c]]
        size = sum(i.bytes for i in items)
        text = f"{len(items)} tensors, {size:.0f} bytes" if items else "no such tensor"
        if name == "norm_bytes":
            text += f" over {kind.norms:.0f} norms"
        if name == "residual_bytes":
            text = "counted in norm_bytes"
        names = _names(items)
        out[name] = text + (f" ({names})" if names and name != "residual_bytes" else "")
    return out


def _notes(
    found: Sorted, parts: Mapping[str, float], counted: Mapping[str, float], total: float
) -> tuple[str, ...]:
    notes = []
    other = found.bytes[OTHER]
    if other > 0.01 * total:
        notes.append(
            f"{100 * other / total:.1f} % of the saved bytes have a width that no entry stands"
            f" for ({_names(found.members[OTHER])}): counted in norm_bytes"
        )
    short = counted["attention"] - parts["attention"]
    if short > 0.005 * total:
        notes.append(
            f"attention keeps {short:.0f} bytes less than queries, keys, values and output: taken"
            " off norm_bytes, so that the layer's sum holds"
        )
    return tuple(notes)


def memory_of(base: StackProfile, found: LayerMemory) -> StackMemory:
    """The base's memory entries with the measured ones in their place."""
    return base.memory.model_copy(update={**found.values, "notes": ""})
