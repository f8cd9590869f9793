"""A stack profile of one's own from one recorded layer, as a document and as TOML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field

from gangsaw.cost.lower import cut_of, stack_memory_of
from gangsaw.cost.lower_model import kinds_of
from gangsaw.cost.memory_layers import layer_memory
from gangsaw.cost.types import Cut, Kind
from gangsaw.errors import InputError
from gangsaw.fit.layer_profile import (
    Entry,
    LayerMemory,
    distances,
    memory_of,
    profile_of_module,
    solve_memory,
)
from gangsaw.fit.layer_saved import Saved, Times, sort_saved, widths_of
from gangsaw.fit.layer_times import LayerTimes, Recorded, solve_times
from gangsaw.read.stacks import load_stack
from gangsaw.spec.base import Document
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.job import Job
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe
from gangsaw.spec.stack import StackProfile


class Recording(NamedTuple):
    """What a file says of one layer; `facts` as it states them."""

    saved: tuple[Saved, ...]
    times: Times
    facts: Mapping[str, object]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerJob:
    """Which layer was recorded: the model, its cut, and the device where it is known."""

    model: ModelSpec
    recipe: Recipe
    plan: Plan
    kind: int
    cluster: ClusterSpec | None = None


class LayerStack(Document):
    """A stack profile made of a recorded layer, beside what it was made of."""

    name: str
    base: str = Field(description="catalog profile that gave what the layer does not tell")
    base_distance_frac: float = Field(description="its counts against the layer's, of all bytes")
    base_by: Literal["stated", "module", "nearest"] = Field(
        description="how it was chosen: by the user, by the layer's Python module, by its counts"
    )
    kept_bytes: float = Field(description="that autograd kept, as recorded")
    counted_bytes: float = Field(description="the same as this profile counts it")
    forward_s: float | None = None
    backward_s: float | None = None
    predicted_forward_s: float | None = Field(None, description="as this profile predicts it")
    predicted_backward_s: float | None = None
    entries: tuple[Entry, ...]
    stack: StackProfile
    notes: tuple[str, ...] = ()


def usual_kind(model: ModelSpec) -> int:
    """The layer kind that most layers of a model are."""
    return Counter(model.order).most_common(1)[0][0]


def layer_stack(
    name: str, recording: Recording, layer: LayerJob, base_name: str | None = None
) -> LayerStack:
    """The profile. InputError where the recording is not of that layer."""
    kind, cut = kinds_of(layer.model, layer.recipe)[layer.kind], cut_of(layer.plan, layer.recipe)
    found = sort_saved(recording.saved, widths_of(kind, cut), cut.act_bytes)
    if sum(found.bytes.values()) <= 0.0:
        raise InputError("no saved tensor is recorded. Legal: rows of name and bytes")
    base, distance, how, near = _base(recording, distances(found, kind, cut), base_name)
    memory = solve_memory(recording.saved, kind, cut, base)
    stack = base.model_copy(
        update={
            "name": name,
            "title": f"recorded: one layer of {layer.model.name}; the rest is {base.name}",
            "base": base.name,
            "memory": memory_of(base, memory),
        }
    )
    kernel = _attention_kernel(base, memory)
    time = stack.time.model_copy(update={**kernel, "notes": ""})
    stack = stack.model_copy(update={"time": time})
    times = LayerTimes({}, {}, (), 0.0, 0.0)
    notes = [*recording.notes, *near, *memory.notes]
    if layer.cluster is not None:
        job = Job(model=layer.model, recipe=layer.recipe, cluster=layer.cluster, stack=stack)
        times = solve_times(Recorded(job, layer.plan, layer.kind), recording.times)
        notes += times.notes
        if not times.values:
            notes.append(f"no times are recorded: all time entries are those of {base.name}")
    else:
        notes.append(f"no --cluster: all time entries are those of {base.name}")
    stack = stack.model_copy(update={"time": stack.time.model_copy(update=dict(times.values))})
    entries = _entries(base, stack, {**_kernel_said(kernel), **memory.said, **times.said})
    stack = stack.model_copy(update={"sources": _sources(base, entries, layer.model.name)})
    return _document(
        _Made(recording, kind, cut, times, layer.cluster is not None),
        LayerStack(
            name=name, base=base.name, base_distance_frac=distance,
            base_by=how, kept_bytes=0.0, counted_bytes=0.0, entries=entries,
            stack=stack, notes=tuple(notes),
        ),
    )  # fmt: skip


How = Literal["stated", "module", "nearest"]
ALIKE = 0.01
"""Profiles within this distance of the nearest are named beside it."""


def _base(
    recording: Recording, far: Mapping[str, float], stated: str | None
) -> tuple[StackProfile, float, How, tuple[str, ...]]:
    """The profile for the rest: the stated one, that of the layer's package, or the nearest."""
    if stated is not None:
        base = load_stack(stated)
        return base, far.get(base.name, 0.0), "stated", ()
    module = profile_of_module(str(recording.facts.get("module", "")))
    if module is not None:
        return load_stack(module), far[module], "module", ()
    names = [name for name in far if far[name] <= min(far.values()) + ALIKE]
    also = f"as near as {names[0]}: {', '.join(names[1:])}; --stack NAME takes another"
    return load_stack(names[0]), far[names[0]], "nearest", (also,) if names[1:] else ()


class _Made(NamedTuple):
    recording: Recording
    kind: Kind
    cut: Cut
    times: LayerTimes
    timed: bool


def _document(made: _Made, doc: LayerStack) -> LayerStack:
    """The document with the recorded figures and the profile's own beside them."""
    measured = made.recording.times
    counted = layer_memory(made.kind, made.cut, stack_memory_of(doc.stack)).kept_none
    predicted = made.timed and bool(made.times.values)
    return doc.model_copy(
        update={
            "kept_bytes": sum(s.bytes for s in made.recording.saved),
            "counted_bytes": counted,
            "forward_s": measured.forward_s or None,
            "backward_s": measured.backward_s or None,
            "predicted_forward_s": made.times.forward_s if predicted else None,
            "predicted_backward_s": made.times.backward_s if predicted else None,
        }
    )


def _attention_kernel(base: StackProfile, memory: LayerMemory) -> dict[str, str]:
    """The attention kernel, where the kept scores say another kind than the base's."""
    unfused = memory.values["unfused_score_bytes"] > 0.0
    if unfused == (base.time.attention_kernel == "unfused"):
        return {}
    return {"attention_kernel": "unfused" if unfused else "flash"}


def _kernel_said(kernel: Mapping[str, str]) -> dict[str, str]:
    kept = "kept" if kernel.get("attention_kernel") == "unfused" else "not kept"
    return dict.fromkeys(kernel, f"scores are {kept}")


def _entries(base: StackProfile, stack: StackProfile, said: Mapping[str, str]) -> tuple[Entry, ...]:
    """Every entry of the profile with where it comes from; `said` of the measured ones."""
    out = []
    for table in ("memory", "time"):
        for key, value in getattr(stack, table).model_dump().items():
            if key == "notes":
                continue
            out.append(
                Entry(
                    entry=f"{table}.{key}",
                    value=value,
                    measured=key in said,
                    said=said.get(key, f"from {base.name}"),
                )
            )
    return tuple(out)


def _sources(base: StackProfile, entries: Sequence[Entry], model: str) -> tuple[str, ...]:
    measured = ", ".join(e.entry.partition(".")[2] for e in entries if e.measured)
    return (
        f"measured on one recorded layer of {model}: {measured}",
        f"all other entries from the catalog profile {base.name}",
        *(f"{base.name}: {s}" for s in base.sources),
    )


def toml_of_stack(doc: LayerStack) -> str:
    """The profile as TOML that `--stack FILE` reads; each entry says where it comes from."""
    stack = doc.stack
    lines = [
        "# A stack profile from one recorded layer, made by `gangsaw calibrate --layer-trace`.",
        f"# Recorded: {doc.kept_bytes:.0f} bytes kept; counted here: {doc.counted_bytes:.0f}.",
        *(f"# {_plain(note)}" for note in doc.notes),
        f"name = {_text(stack.name)}",
        f"title = {_text(stack.title)}",
        f"base = {_text(stack.base)}  # legal plans and fitted factors are those of it",
        f"time_doubt_frac = {stack.time_doubt_frac!r}",
        f"memory_doubt_frac = {stack.memory_doubt_frac!r}",
        "sources = [",
        *(f"  {_text(s)}," for s in stack.sources),
        "]",
    ]
    for table in ("memory", "time"):
        lines += ["", f"[{table}]"]
        for e in doc.entries:
            section, _, key = e.entry.partition(".")
            if section == table:
                kind = "measured: " if e.measured else ""
                lines.append(f"{key} = {_value(e.value)}  # {kind}{_plain(e.said)}")
    return "\n".join(lines) + "\n"


def _value(value: float | int | str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return str(value)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _plain(escaped) + '"'
