"""The pipeline of one step as a page with a canvas that stays fluent with a million boxes."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from gangsaw.report import words
from gangsaw.report.colours import CAUSE_COLOURS, KIND_COLOURS
from gangsaw.simulate.timeline import COMPUTE, IDLE, PAIR, ROW_KINDS, Timeline
from gangsaw.spec.result import CAUSES
from gangsaw.units import format_frac, format_s

_STYLE = {
    "F": ("forward", KIND_COLOURS["forward"]),
    "B": ("backward", KIND_COLOURS["backward"]),
    "I": ("input gradient", KIND_COLOURS["backward_input"]),
    "W": ("weight gradient", KIND_COLOURS["backward_weight"]),
    "F+B": ("forward and backward at once", KIND_COLOURS["backward"]),
}


def page_data(timeline: Timeline, title: str) -> dict[str, object]:
    """What the page draws: per rank its boxes in order of time, packed as base64 arrays."""
    own = np.flatnonzero(timeline.stream == COMPUTE)
    own = own[np.lexsort((timeline.start_s[own], timeline.rank[own]))]
    first = np.searchsorted(timeline.rank[own], np.arange(timeline.ranks + 1))
    looks: list[tuple[str, str, bool]] = []
    look_of = {}
    idle = timeline.kind[own] == IDLE
    cause_of = timeline.cause[own].astype(np.int64)
    key = np.where(idle, 100 + cause_of, timeline.kind[own].astype(np.int64))
    other = (~idle) & (timeline.kind[own] > PAIR)
    key = np.where(other, 200 + cause_of, key)
    for value in np.unique(key).tolist():
        look_of[value] = len(looks)
        if value >= 100:
            cause = CAUSES[value % 100]
            looks.append((words.CAUSE_TITLES[cause], CAUSE_COLOURS[cause], value < 200))
        else:
            name, colour = _STYLE.get(ROW_KINDS[value], (ROW_KINDS[value], KIND_COLOURS["forward"]))
            looks.append((name, colour, False))
    look = np.asarray([look_of[v] for v in np.unique(key)])[np.searchsorted(np.unique(key), key)]
    return {
        "title": title,
        "caption": f"{format_s(timeline.makespan_s)},"
        f" {format_frac(timeline.bubble_frac)} of the rank time idle",
        "ranks": timeline.ranks,
        "span": timeline.makespan_s,
        "first": first.tolist(),
        "looks": looks,
        "start": _packed(timeline.start_s[own].astype(np.float64)),
        "lasts": _packed((timeline.end_s - timeline.start_s)[own].astype(np.float32)),
        "look": _packed(look.astype(np.uint8)),
        "stage": _packed(timeline.stage[own].astype(np.int32)),
        "microbatch": _packed(timeline.microbatch[own].astype(np.int32)),
    }


def _packed(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def timeline_html(timelines: Sequence[Timeline], titles: Sequence[str] = ()) -> str:
    """One page with all timelines on one axis of time; it needs nothing from elsewhere."""
    names = list(titles) or [each.name for each in timelines]
    data = [page_data(each, name) for each, name in zip(timelines, names, strict=True)]
    template = files("gangsaw.report") / "templates" / "timeline.html"
    heading = escape("Pipeline of one step: " + ", ".join(names))
    payload = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    text = template.read_text(encoding="utf-8")
    return text.replace("{{heading}}", heading).replace("{{data}}", payload)
