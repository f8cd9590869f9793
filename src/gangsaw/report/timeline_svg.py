"""The pipeline of one step as a drawing: rows are ranks, boxes are actions, waits are hatched.

`boxes` is what there is to draw, as data; `timeline_svg` puts one or more timelines under each
other on one axis of time. Under each rank its transfers are a thin strip, and below it the
memory that it holds; the critical path is underlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gangsaw.errors import InputError
from gangsaw.report import svg, words
from gangsaw.report.colours import CAUSE_COLOURS, KIND_COLOURS
from gangsaw.report.memory_steps import amount, memory_steps
from gangsaw.simulate.timeline import COMPUTE, DP, IDLE, P2P, PAIR, ROW_KINDS, Timeline
from gangsaw.spec.result import CAUSES
from gangsaw.units import format_frac, format_s

MAX_BOXES = 30_000
WIDTH = 1180.0
LEFT, RIGHT = 58.0, 62.0
BOX, STRIP, CURVE, BETWEEN = 18.0, 4.0, 16.0, 5.0
CRITICAL = svg.ACCENT

_KIND_FILL = {
    "F": KIND_COLOURS["forward"],
    "B": KIND_COLOURS["backward"],
    "I": KIND_COLOURS["backward_input"],
    "W": KIND_COLOURS["backward_weight"],
}
_KIND_SAID = {
    "F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient",
    "F+B": "forward and backward at once",
}  # fmt: skip


class Box(NamedTuple):
    """One interval to draw, in seconds. `fill` and `fill_2` (lower half of an overlapped pair)."""

    rank: int
    start_s: float
    end_s: float
    kind: str
    chunk: int
    number: str
    fill: str
    fill_2: str
    idle_cause: str
    said: str


def boxes(timeline: Timeline) -> tuple[Box, ...]:
    """The boxes of the compute stream of all ranks, in the order of the rows."""
    chunk_of = _chunks(timeline)
    found = []
    for i in np.flatnonzero(timeline.stream == COMPUTE).tolist():
        kind = ROW_KINDS[timeline.kind[i]]
        cause = CAUSES[timeline.cause[i]] if timeline.cause[i] >= 0 else "bubble"
        idle = timeline.kind[i] == IDLE
        stage, microbatch = int(timeline.stage[i]), int(timeline.microbatch[i])
        first, last = float(timeline.start_s[i]), float(timeline.end_s[i])
        pair = timeline.kind[i] == PAIR
        fill = CAUSE_COLOURS[cause]
        if not idle and cause == "compute":
            fill = KIND_COLOURS["forward"] if pair else _KIND_FILL.get(kind, fill)
        what = words.CAUSE_TITLES[cause] if idle else _KIND_SAID.get(kind, kind)
        place = "" if idle else f", stage {stage}, microbatch {microbatch}"
        said = f"rank {timeline.rank[i]}: {what}{place}, {format_s(last - first)}"
        found.append(
            Box(
                int(timeline.rank[i]), first, last, kind, chunk_of.get(stage, 0),
                str(microbatch) if microbatch >= 0 and kind in _KIND_SAID else "", fill,
                KIND_COLOURS["backward"] if pair else "", cause if idle else "", said,
            )
        )  # fmt: skip
    return tuple(found)


def _chunks(timeline: Timeline) -> dict[int, int]:
    """Which of its rank's chunks a stage is."""
    own = (timeline.stream == COMPUTE) & (timeline.stage >= 0)
    pairs = sorted({(int(r), int(s)) for r, s in zip(
        timeline.rank[own], timeline.stage[own], strict=True)})  # fmt: skip
    count: dict[int, int] = {}
    chunk = {}
    for rank, stage in pairs:
        chunk[stage] = count.get(rank, 0)
        count[rank] = chunk[stage] + 1
    return chunk


def timeline_svg(
    timelines: Sequence[Timeline], titles: Sequence[str] = (), width: float = WIDTH
) -> str:
    """The drawing of one step of each timeline, on one axis of time.

    Raises InputError above MAX_BOXES boxes: `timeline_html` draws any number.
    """
    total = sum(int(np.count_nonzero(each.stream == COMPUTE)) for each in timelines)
    if total > MAX_BOXES:
        raise InputError(
            f"{total} boxes are too many for an SVG (at most {MAX_BOXES}). Legal here: --out"
            " FILE.html, which draws any number"
        )
    span_s = max(each.makespan_s for each in timelines)
    scale = (width - LEFT - RIGHT) / span_s if span_s > 0 else 1.0
    drawn, y = _legend(timelines, width)
    defs = ""
    for cause in sorted({b.idle_cause for t in timelines for b in boxes(t) if b.idle_cause}):
        defs += svg.hatch(f"wait-{cause}", CAUSE_COLOURS[cause], svg.SURFACE)
    body = [drawn]
    names = list(titles) or [each.name for each in timelines]
    most = max((float(t.memory.peak_bytes.max()) for t in timelines if t.memory), default=0.0)
    for timeline, title in zip(timelines, names, strict=True):
        part, y = _one(timeline, title, y, (scale, width), most)
        body.append(part)
    body.append(_axis(span_s, y, scale, width))
    label = "; ".join(_caption(t, n) for t, n in zip(timelines, names, strict=True))
    return svg.document((width, y + 26), f"Pipeline of one step: {label}", "".join(body), defs)


def _caption(timeline: Timeline, title: str) -> str:
    return (
        f"{title}: {format_s(timeline.makespan_s)},"
        f" {format_frac(timeline.bubble_frac)} of the rank time idle"
    )


def _one(
    timeline: Timeline, title: str, y: float, size: tuple[float, float], most_bytes: float
) -> tuple[str, float]:
    """All ranks of one timeline below y, and where they end; `size`: scale of time, and width."""
    scale, width = size
    name, _, rest = _caption(timeline, title).partition(": ")
    out = [
        svg.text((LEFT, y + 12), name, extra='font-weight="650"'),
        svg.text((width - RIGHT, y + 12), rest, anchor="end", fill=svg.MUTED),
    ]
    y += 20
    with_memory = timeline.memory is not None
    streams = bool(np.any(timeline.stream != COMPUTE))
    pitch = BOX + (STRIP if streams else 0) + (CURVE if with_memory else 0) + BETWEEN
    top = [y + rank * pitch for rank in range(timeline.ranks)]
    share = timeline.idle_s() / timeline.makespan_s if timeline.makespan_s > 0 else None
    for rank in range(timeline.ranks):
        out.append(svg.text((LEFT - 8, top[rank] + 13), f"rank {rank}", "end", svg.MUTED))
        if share is not None:
            said = format_frac(float(share[rank]))
            out.append(svg.text((width - RIGHT + 8, top[rank] + 13), said, fill=svg.MUTED))
    for box in boxes(timeline):
        out.append(_box(box, top[box.rank], scale, timeline.makespan_s))
    if streams:
        out.append(_strips(timeline, top, scale))
    if with_memory:
        low = BOX + (STRIP if streams else 0) + 1
        out.append(_memory(timeline, [t + low for t in top], size, most_bytes))
    out.append(_critical(timeline, top, scale))
    return "".join(out), y + timeline.ranks * pitch + 10


def _box(box: Box, y: float, scale: float, span_s: float) -> str:
    x, w = LEFT + box.start_s * scale, (box.end_s - box.start_s) * scale
    fill = f"url(#wait-{box.idle_cause})" if box.idle_cause else box.fill
    fade = 'fill-opacity="0.72"' if box.chunk % 2 and not box.idle_cause else ""
    rim = f'stroke="{svg.SURFACE}" stroke-width="0.6"' if w > 3 and not box.idle_cause else ""
    out = svg.rect((x, y, w, BOX), fill, box.said, " ".join(each for each in (fade, rim) if each))
    if box.fill_2:
        out += svg.rect((x, y + BOX / 2, w, BOX / 2), box.fill_2)
    said = box.number
    colour = "#ffffff"
    if box.idle_cause:
        said = format_frac((box.end_s - box.start_s) / span_s)
        colour = svg.INK
    if said and w >= svg.text_width(said, 10) + 3:
        rim = svg.HALO + " " if box.idle_cause else ""
        extra = f'font-size="10" {rim}pointer-events="none"'
        out += svg.text((x + w / 2, y + 12.6), said, "middle", colour, extra)
    return out


def _strips(timeline: Timeline, top: Sequence[float], scale: float) -> str:
    """Transfers and data-parallel collectives, thin, under their rank."""
    out = []
    for stream, cause in ((P2P, "pp_comm"), (DP, "dp_comm")):
        for i in np.flatnonzero(timeline.stream == stream).tolist():
            x = LEFT + float(timeline.start_s[i]) * scale
            w = max(0.8, float(timeline.end_s[i] - timeline.start_s[i]) * scale)
            y = top[int(timeline.rank[i])] + BOX
            peer = f" to rank {timeline.peer[i]}" if timeline.peer[i] >= 0 else ""
            said = f"{words.CAUSE_TITLES[cause]}{peer}"
            out.append(svg.rect((x, y + 0.6, w, STRIP - 1), CAUSE_COLOURS[cause], said))
    return "".join(out)


def _memory(
    timeline: Timeline, top: Sequence[float], size: tuple[float, float], most: float
) -> str:
    """The memory curve of each rank, one scale for all of all timelines."""
    scale, width = size
    memory = memory_steps(timeline.memory)
    if memory is None:
        return ""
    out = []
    for rank, y in enumerate(top):
        times, levels = memory.of_rank(rank)
        base = y + CURVE - 2
        before = float(memory.base_bytes[rank])
        points = [(LEFT, base), (LEFT, base - before / most * (CURVE - 3))]
        for when, level in zip(times.tolist(), levels.tolist(), strict=True):
            x = LEFT + when * scale
            points += [
                (x, base - before / most * (CURVE - 3)),
                (x, base - level / most * (CURVE - 3)),
            ]
            before = level
        end = LEFT + timeline.makespan_s * scale
        points.append((end, base - before / most * (CURVE - 3)))
        where = " ".join(f"{svg.num(x)},{svg.num(v)}" for x, v in points)
        out.append(
            f'<polygon points="{where} {svg.num(points[-1][0])},{svg.num(base)}"'
            f' fill="{svg.MUTED}" fill-opacity="0.28"/>'
        )
        said = amount(float(memory.peak_bytes[rank]))
        extra = 'font-size="9.5"'
        out.append(svg.text((width - RIGHT + 8, base), said, fill=svg.MUTED, extra=extra))
    return "".join(out)


def _critical(timeline: Timeline, top: Sequence[float], scale: float) -> str:
    """A line under the actions of the critical path, from rank to rank."""
    if timeline.critical is None or not len(timeline.critical):
        return ""
    points = []
    for i in timeline.critical.tolist():
        y = top[int(timeline.rank[i])] + BOX - 0.8
        points.append((LEFT + float(timeline.start_s[i]) * scale, y))
        points.append((LEFT + float(timeline.end_s[i]) * scale, y))
    return svg.polyline(points, CRITICAL, 'stroke-width="1.6" stroke-linejoin="round"')


def _axis(span_s: float, y: float, scale: float, width: float) -> str:
    out = [svg.line((LEFT, y), (width - RIGHT, y), svg.MUTED)]
    for tick in svg.linear_ticks(0.0, span_s, 8):
        x = LEFT + tick * scale
        out.append(svg.line((x, y), (x, y + 4), svg.MUTED))
        out.append(svg.text((x, y + 17), format_s(tick), "middle", svg.MUTED, 'font-size="11"'))
    return "".join(out)


def _legend(timelines: Sequence[Timeline], width: float) -> tuple[str, float]:
    """What the colours mean, of the kinds and causes that occur."""
    there = {b.kind for t in timelines for b in boxes(t)}
    waits = {b.idle_cause for t in timelines for b in boxes(t) if b.idle_cause}
    entries = []
    for kind in ("F", "B", "I", "W"):
        if kind in there or ("F+B" in there and kind in "FB"):
            entries.append((_KIND_FILL[kind], "", _KIND_SAID[kind]))
    if any(b.chunk % 2 for t in timelines for b in boxes(t)):
        entries.append((_KIND_FILL["F"], 'fill-opacity="0.72"', "lighter: a rank's second chunk"))
    drawn_as = {b.fill for t in timelines for b in boxes(t) if not b.idle_cause}
    for cause in (c for c in CAUSES if c != "compute" and CAUSE_COLOURS[c] in drawn_as):
        entries.append((CAUSE_COLOURS[cause], "", words.CAUSE_TITLES[cause]))
    for cause in (c for c in CAUSES if c in waits):
        entries.append((f"url(#wait-{cause})", "", f"waits: {words.CAUSE_TITLES[cause]}"))
    for stream, cause in ((P2P, "pp_comm"), (DP, "dp_comm")):
        if any(np.any(t.stream == stream) for t in timelines):
            entries.append((CAUSE_COLOURS[cause], "", f"strip: {words.CAUSE_TITLES[cause]}"))
    if any(t.critical is not None for t in timelines):
        entries.append((CRITICAL, "", "underlined: critical path"))
    drawn, high = svg.legend(entries, LEFT, 6, width - LEFT - 8)
    return drawn, high + 14
