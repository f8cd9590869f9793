"""A timeline as Chrome trace JSON: ranks are processes, streams threads, transfers have arrows.

The format is the Trace Event Format that ui.perfetto.dev and chrome://tracing open: complete
events (`X`) with times in microseconds, metadata (`M`), and flows from `s` to `f`. Events of a
thread must not overlap, or a viewer drops them: transfers that do get threads of their own, and
times are whole nanoseconds. Events are written one by one, so that a step of millions of actions
takes no more memory than its timeline.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from itertools import groupby
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.simulate.timeline import COMPUTE, IDLE, P2P, ROW_KINDS, STREAM_NAMES, Timeline
from gangsaw.spec.result import CAUSES

NS = 1e-9
SENDS, RECEIVES = 100, 200
"""First thread of a rank's sends and of the receiving ends of transfers to it."""
BLOCK = 1 << 12
"""Rows whose events are made at once."""
Whole = NDArray[np.int64]


def chrome_trace(timeline: Timeline) -> str:
    """The whole trace as JSON text, one event a line."""
    return "".join(pieces(timeline))


def write_trace(timeline: Timeline, out: TextIO) -> None:
    """Write the trace; what is held at once does not grow with it."""
    for piece in pieces(timeline):
        out.write(piece)


def pieces(timeline: Timeline) -> Iterator[str]:
    """The text of the trace, some thousand events a piece.

    Idle rows are left out: an empty place is what a viewer shows for them.
    """
    thread = timeline.stream.astype(np.int32)
    sends = np.flatnonzero(timeline.stream == P2P)
    thread[sends] = SENDS + _lanes(timeline, sends, timeline.rank)
    arrows = sends[timeline.peer[sends] >= 0]
    receive = np.full(timeline.rows, -1, np.int32)
    receive[arrows] = RECEIVES + _lanes(timeline, arrows, timeline.peer)
    named = ",\n".join(_names(timeline, thread, receive))
    yield '{"displayTimeUnit":"ms","traceEvents":[\n' + named
    rows = np.flatnonzero(timeline.kind != IDLE)
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        for event in _complete(timeline, block, thread):
            yield ",\n" + event
        block = block[receive[block] >= 0]
        for event in _arrows(timeline, block, thread, receive):
            yield ",\n" + event
    yield "\n]}\n"


def _names(
    timeline: Timeline, thread: NDArray[np.int32], receive: NDArray[np.int32]
) -> Iterator[str]:
    """Names and places of the processes and threads."""
    threads = {(r, k): name for r in range(timeline.ranks) for k, name in enumerate(STREAM_NAMES)
               if k != P2P}  # fmt: skip
    for lanes, ranks, first, name in (
        (thread, timeline.rank, SENDS, STREAM_NAMES[P2P]),
        (receive, timeline.peer, RECEIVES, "receives"),
    ):
        there = lanes >= first
        pairs = np.unique(np.stack((ranks[there], lanes[there]), axis=1), axis=0)
        for rank, lane in pairs.tolist():
            threads[rank, lane] = name + (f" {lane - first + 1}" if lane > first else "")
    for rank, named in groupby(sorted(threads.items()), key=lambda each: each[0][0]):
        yield from _named("process", rank, 0, f"rank {rank}", rank)
        for (_, number), name in named:
            yield from _named("thread", rank, number, name, number)


def _named(what: str, pid: int, tid: int, name: str, place: int) -> Iterator[str]:
    for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        event = {"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": tid, "args": args}
        yield json.dumps(event, separators=(",", ":"))


def _lanes(timeline: Timeline, rows: Whole, ranks: NDArray[np.int32]) -> Whole:
    """A lane for each row, the lowest in which no other row of its rank is still running."""
    lane = np.zeros(len(rows), np.int64)
    order = np.lexsort((timeline.start_s[rows], ranks[rows]))
    bounds = np.searchsorted(ranks[rows][order], np.arange(timeline.ranks + 1))
    for rank in range(timeline.ranks):
        mine = order[bounds[rank] : bounds[rank + 1]]
        begin, end = _span_ns(timeline, rows[mine])
        free, lanes = [0], 1
        running: list[tuple[int, int]] = []
        found = []
        for begins, ends in zip(begin.tolist(), end.tolist(), strict=True):
            while running and running[0][0] <= begins:
                heapq.heappush(free, heapq.heappop(running)[1])
            if not free:
                free.append(lanes)
                lanes += 1
            found.append(heapq.heappop(free))
            heapq.heappush(running, (ends, found[-1]))
        lane[mine] = found
    return lane


def _span_ns(timeline: Timeline, rows: Whole) -> tuple[Whole, Whole]:
    """Start and end of rows in whole nanoseconds, so that what follows does not overlap them."""
    first, last = np.rint(timeline.start_s[rows] / NS), np.rint(timeline.end_s[rows] / NS)
    return first.astype(np.int64), last.astype(np.int64)


def _us(ns: Whole) -> list[float]:
    """Nanoseconds as microseconds, of which 1,000 times is not less than them when cut off."""
    value: Array = ns / 1000
    short = (value * 1000).astype(np.int64) < ns
    found: list[float] = np.where(short, np.nextafter(value, np.inf), value).tolist()
    return found


def _complete(timeline: Timeline, rows: Whole, thread: NDArray[np.int32]) -> Iterator[str]:
    begin, end = _span_ns(timeline, rows)
    for kind, cause, rank, tid, ts, dur, stage, microbatch, stream, size in zip(
        timeline.kind[rows].tolist(), timeline.cause[rows].tolist(), timeline.rank[rows].tolist(),
        thread[rows].tolist(), _us(begin), _us(end - begin), timeline.stage[rows].tolist(),
        timeline.microbatch[rows].tolist(), timeline.stream[rows].tolist(),
        timeline.bytes[rows].tolist(), strict=True,
    ):  # fmt: skip
        name = f"{stage if stage >= 0 else ''}{ROW_KINDS[kind]}"
        moved = "" if stream == COMPUTE else f',"bytes":{size}'
        yield (
            f'{{"ph":"X","name":"{name}{microbatch if microbatch >= 0 else ""}",'
            f'"cat":"{CAUSES[cause] if cause >= 0 else "other"}","pid":{rank},"tid":{tid},'
            f'"ts":{ts},"dur":{dur},"args":{{"stage":{stage},"microbatch":{microbatch}{moved}}}}}'
        )


def _arrows(
    timeline: Timeline, rows: Whole, send: NDArray[np.int32], receive: NDArray[np.int32]
) -> Iterator[str]:
    """The receiving ends of transfers, and the arrows to them: they end inside those events."""
    begin, end = _span_ns(timeline, rows)
    inside = np.maximum(begin, end - 1)
    for row, sender, out, receiver, back, ts, dur, last in zip(
        rows.tolist(), timeline.rank[rows].tolist(), send[rows].tolist(),
        timeline.peer[rows].tolist(), receive[rows].tolist(), _us(begin), _us(end - begin),
        _us(inside), strict=True,
    ):  # fmt: skip
        flow = f'"name":"transfer","cat":"pp_comm","id":{row}'
        to = f'"pid":{receiver},"tid":{back}'
        yield (
            f'{{"ph":"X","name":"from rank {sender}","cat":"pp_comm",{to},'
            f'"ts":{ts},"dur":{dur},"args":{{}}}}'
        )
        yield f'{{"ph":"s",{flow},"pid":{sender},"tid":{out},"ts":{ts}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{to},"ts":{last}}}'
