"""The pipeline of one step as a page with a canvas that stays fluent with a million boxes.

Under each rank is the memory that it holds, one scale for all; the critical path is underlined.
Where many actions fall into a pixel, the page shows the mean colour of the time in it, the least
and the most memory held, and the critical share of the time.
"""

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
from gangsaw.report.memory_steps import MemorySteps, amount, memory_steps
from gangsaw.simulate.timeline import COMPUTE, IDLE, PAIR, ROW_KINDS, Timeline
from gangsaw.spec.result import CAUSES
from gangsaw.units import format_frac, format_s

_STYLE = {
    "F": ("forward", KIND_COLOURS["forward"]),
    "B": ("backward", KIND_COLOURS["backward"]),
    "I": ("input gradient", KIND_COLOURS["backward_input"]),
    "W": ("weight gradient", KIND_COLOURS["backward_weight"]),
    "F+B": ("forward and backward at once", KIND_COLOURS["forward"]),
}


def page_data(timeline: Timeline, title: str) -> dict[str, object]:
    """What the page draws: per rank its boxes in order of time, packed as base64 arrays.

    `critical` are the places of the critical path's boxes, in its order; `memory` is None or each
    rank's levels from their time on, `idle` the share of each rank's time that it waits.
    """
    own = np.flatnonzero(timeline.stream == COMPUTE)
    own = own[np.lexsort((timeline.start_s[own], timeline.rank[own]))]
    first = np.searchsorted(timeline.rank[own], np.arange(timeline.ranks + 1))
    look, looks = _looks(timeline, own)
    place = np.full(timeline.rows, -1, np.int64)
    place[own] = np.arange(len(own))
    path = place[timeline.critical] if timeline.critical is not None else place[:0]
    span_s = timeline.makespan_s
    shares = timeline.idle_s() / span_s if span_s > 0.0 else np.zeros(timeline.ranks)
    steps = memory_steps(timeline.memory)
    return {
        "title": title,
        "caption": f"{format_s(timeline.makespan_s)},"
        f" {format_frac(timeline.bubble_frac)} of the rank time idle",
        "ranks": timeline.ranks,
        "span": timeline.makespan_s,
        "idle": [format_frac(share) for share in shares.tolist()],
        "first": first.tolist(),
        "looks": looks,
        "start": _packed(timeline.start_s[own].astype(np.float64)),
        "lasts": _packed((timeline.end_s - timeline.start_s)[own].astype(np.float32)),
        "look": _packed(look),
        "stage": _packed(timeline.stage[own].astype(np.int32)),
        "microbatch": _packed(timeline.microbatch[own].astype(np.int32)),
        "critical": _packed(path[path >= 0].astype(np.int32)),
        "memory": None if steps is None else _memory(steps),
    }


def _memory(steps: MemorySteps) -> dict[str, object]:
    most = float(steps.peak_bytes.max())
    return {
        "first": steps.first.tolist(),
        "when": _packed(steps.time_s.astype(np.float64)),
        "level": _packed(steps.level_bytes.astype(np.float32)),
        "base": steps.base_bytes.tolist(),
        "most": most,
        "said": amount(most),
        "peaks": [amount(peak) for peak in steps.peak_bytes.tolist()],
        "sized": most >= 1e6,
    }


def _looks(
    timeline: Timeline, own: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], list[tuple[str, str, bool, str]]]:
    """The number of each box's look, and the looks: name, colour, whether it waits, lower half."""
    looks: list[tuple[str, str, bool, str]] = []
    idle = timeline.kind[own] == IDLE
    cause_of = timeline.cause[own].astype(np.int64)
    key = np.where(idle, 100 + cause_of, timeline.kind[own].astype(np.int64))
    key = np.where((~idle) & (timeline.kind[own] > PAIR), 200 + cause_of, key)
    found, look = np.unique(key, return_inverse=True)
    for value in found.tolist():
        if value >= 100:
            cause = CAUSES[value % 100]
            looks.append((words.CAUSE_TITLES[cause], CAUSE_COLOURS[cause], value < 200, ""))
        else:
            name, colour = _STYLE.get(ROW_KINDS[value], (ROW_KINDS[value], KIND_COLOURS["forward"]))
            lower = KIND_COLOURS["backward"] if value == PAIR else ""
            looks.append((name, colour, False, lower))
    return look.astype(np.uint8), looks


def _packed(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def timeline_html(timelines: Sequence[Timeline], titles: Sequence[str] = ()) -> str:
    """One page with all timelines on one axis of time; it needs nothing from elsewhere."""
    names = list(titles) or [each.name for each in timelines]
    data = [page_data(each, name) for each, name in zip(timelines, names, strict=True)]
    template = files("gangsaw.report") / "templates" / "timeline.html"
    short = " and ".join(name.partition(": ")[0] for name in names)
    heading = escape(f"Pipeline of one step: {short}")
    payload = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    text = template.read_text(encoding="utf-8")
    return text.replace("{{heading}}", heading).replace("{{data}}", payload)
