"""A timeline as Chrome trace JSON: ranks are processes, streams threads, transfers have arrows.

The format is the Trace Event Format that ui.perfetto.dev and chrome://tracing open: complete
events (`X`) with times in microseconds, metadata (`M`), and flows from `s` to `f`. Events of a
thread must not overlap, or a viewer drops them: transfers that do get threads of their own, and
times are whole nanoseconds.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gangsaw.simulate.timeline import IDLE, P2P, ROW_KINDS, STREAM_NAMES, Timeline
from gangsaw.spec.result import CAUSES

NS = 1e-9
SENDS, RECEIVES = 100, 200
"""First thread of a rank's sends and of the receiving ends of transfers to it."""


def events(timeline: Timeline) -> Iterator[dict[str, object]]:
    """All trace events: names of processes and threads, one event a row, flows of transfers.

    Idle rows are left out: an empty place is what a viewer shows for them.
    """
    sends = np.flatnonzero(timeline.stream == P2P)
    arrows = sends[timeline.peer[sends] >= 0]
    out = dict(zip(sends.tolist(), _lanes(timeline, sends, timeline.rank[sends]), strict=True))
    back = dict(zip(arrows.tolist(), _lanes(timeline, arrows, timeline.peer[arrows]), strict=True))
    threads = {(r, k): name for r in range(timeline.ranks) for k, name in enumerate(STREAM_NAMES)
               if k != P2P}  # fmt: skip
    for lanes, ranks, first, name in (
        (out, timeline.rank, SENDS, STREAM_NAMES[P2P]), (back, timeline.peer, RECEIVES, "receives")
    ):  # fmt: skip
        for row, lane in lanes.items():
            threads[int(ranks[row]), first + lane] = name + (f" {lane + 1}" if lane else "")
    for rank, named in groupby(sorted(threads.items()), key=lambda each: each[0][0]):
        yield _named("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0,
               "args": {"sort_index": rank}}  # fmt: skip
        for (_, thread), name in named:
            yield _named("thread_name", rank, thread, name)
            yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": thread,
                   "args": {"sort_index": thread}}  # fmt: skip
    for row in np.flatnonzero(timeline.kind != IDLE).tolist():
        thread = SENDS + out[row] if row in out else int(timeline.stream[row])
        yield _complete(timeline, row, thread)
        if row in back:
            yield from _flow(timeline, row, thread, RECEIVES + back[row])


def _lanes(
    timeline: Timeline, rows: NDArray[np.int64], ranks: NDArray[np.int32]
) -> Iterator[int]:  # fmt: skip
    """A lane for each row, the lowest in which no other row of its rank is still running."""
    lane = np.zeros(len(rows), np.int64)
    for rank in np.unique(ranks):
        mine = np.flatnonzero(ranks == rank)
        mine = mine[np.argsort(timeline.start_s[rows[mine]], kind="stable")]
        free, lanes = [0], 1
        running: list[tuple[int, int]] = []
        for at in mine.tolist():
            begins, ends = _span_ns(timeline, int(rows[at]))
            while running and running[0][0] <= begins:
                heapq.heappush(free, heapq.heappop(running)[1])
            if not free:
                free.append(lanes)
                lanes += 1
            lane[at] = heapq.heappop(free)
            heapq.heappush(running, (ends, int(lane[at])))
    return iter(lane.tolist())


def _span_ns(timeline: Timeline, row: int) -> tuple[int, int]:
    """Start and end of a row in whole nanoseconds, so that what follows does not overlap it."""
    return round(float(timeline.start_s[row]) / NS), round(float(timeline.end_s[row]) / NS)


def _us(ns: int) -> float:
    """Nanoseconds as microseconds, of which 1,000 times is not less than them when cut off."""
    value = ns / 1000
    return value if int(value * 1000) == ns else math.nextafter(value, math.inf)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(timeline: Timeline, row: int, thread: int) -> dict[str, object]:
    stage, microbatch = int(timeline.stage[row]), int(timeline.microbatch[row])
    kind = ROW_KINDS[timeline.kind[row]]
    start, end = _span_ns(timeline, row)
    cause = int(timeline.cause[row])
    return {
        "ph": "X",
        "name": f"{stage if stage >= 0 else ''}{kind}{microbatch if microbatch >= 0 else ''}",
        "cat": CAUSES[cause] if cause >= 0 else "other",
        "pid": int(timeline.rank[row]),
        "tid": thread,
        "ts": _us(start),
        "dur": _us(end - start),
        "args": {"stage": stage, "microbatch": microbatch, "bytes": float(timeline.bytes[row])},
    }


def _flow(timeline: Timeline, row: int, send: int, receive: int) -> Iterator[dict[str, object]]:
    """The receiving end of a transfer, and the arrow to it: it ends inside that event."""
    start, end = _span_ns(timeline, row)
    sender, receiver = int(timeline.rank[row]), int(timeline.peer[row])
    name = f"from rank {sender}"
    yield {"ph": "X", "name": name, "cat": "pp_comm", "pid": receiver, "tid": receive,
           "ts": _us(start), "dur": _us(end - start), "args": {}}  # fmt: skip
    flow = {"name": "transfer", "cat": "pp_comm", "id": row}
    yield {"ph": "s", "pid": sender, "tid": send, "ts": _us(start), **flow}
    inside = max(start, end - 1)
    yield {"ph": "f", "bp": "e", "pid": receiver, "tid": receive, "ts": _us(inside), **flow}


def chrome_trace(timeline: Timeline) -> str:
    """The whole trace as JSON text, one event a line."""
    lines = (json.dumps(event, separators=(",", ":")) for event in events(timeline))
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"
