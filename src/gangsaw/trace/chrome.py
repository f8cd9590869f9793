"""A timeline as Chrome trace JSON: ranks are processes, streams threads, transfers have arrows.

The format is the Trace Event Format that ui.perfetto.dev and chrome://tracing open: complete
events (`X`) with times in microseconds, metadata (`M`), and flows from `s` to `f`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gangsaw.simulate.timeline import (
    IDLE,
    P2P,
    ROW_KINDS,
    STREAM_NAMES,
    Timeline,
)
from gangsaw.spec.result import CAUSES
from gangsaw.units import US

RECEIVES = len(STREAM_NAMES)
"""Thread of the receiving end of transfers."""


def events(timeline: Timeline) -> Iterator[dict[str, object]]:
    """All trace events: names of processes and threads, one event a row, flows of transfers.

    Idle rows are left out: an empty place is what a viewer shows for them.
    """
    threads = (*STREAM_NAMES, "receives")
    for rank in range(timeline.ranks):
        yield _named("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0,
               "args": {"sort_index": rank}}  # fmt: skip
        for thread, name in enumerate(threads):
            yield _named("thread_name", rank, thread, name)
    for row in range(timeline.rows):
        if timeline.kind[row] == IDLE:
            continue
        yield _complete(timeline, row)
        if timeline.stream[row] == P2P and timeline.peer[row] >= 0:
            yield from _flow(timeline, row)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(timeline: Timeline, row: int) -> dict[str, object]:
    stage, microbatch = int(timeline.stage[row]), int(timeline.microbatch[row])
    kind = ROW_KINDS[timeline.kind[row]]
    start, end = float(timeline.start_s[row]), float(timeline.end_s[row])
    cause = int(timeline.cause[row])
    return {
        "ph": "X",
        "name": f"{stage if stage >= 0 else ''}{kind}{microbatch if microbatch >= 0 else ''}",
        "cat": CAUSES[cause] if cause >= 0 else "other",
        "pid": int(timeline.rank[row]),
        "tid": int(timeline.stream[row]),
        "ts": start / US,
        "dur": (end - start) / US,
        "args": {"stage": stage, "microbatch": microbatch, "bytes": float(timeline.bytes[row])},
    }


def _flow(timeline: Timeline, row: int) -> Iterator[dict[str, object]]:
    """The receiving end of a transfer, and the arrow to it."""
    start, end = float(timeline.start_s[row]) / US, float(timeline.end_s[row]) / US
    sender, receiver = int(timeline.rank[row]), int(timeline.peer[row])
    name = f"from rank {sender}"
    yield {"ph": "X", "name": name, "cat": "pp_comm", "pid": receiver, "tid": RECEIVES,
           "ts": start, "dur": end - start, "args": {}}  # fmt: skip
    flow = {"name": "transfer", "cat": "pp_comm", "id": row}
    yield {"ph": "s", "pid": sender, "tid": P2P, "ts": start, **flow}
    yield {"ph": "f", "bp": "e", "pid": receiver, "tid": RECEIVES, "ts": end, **flow}


def chrome_trace(timeline: Timeline) -> str:
    """The whole trace as JSON text, one event a line."""
    lines = (json.dumps(event, separators=(",", ":")) for event in events(timeline))
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"
