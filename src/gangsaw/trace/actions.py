"""CPU ranks: the recorded pipeline actions of a step as timeline rows.

torch's runtime waits for what it received inside the action that needs it, so a forward or
backward range begins with its waiting: until the matching receive has ended. TP collectives show
as waits inside the range, FSDP's gathers and reductions by their own names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gangsaw.schedule.actions import KIND_NAMES
from gangsaw.simulate.timeline import CAUSE_OF, COMPUTE, IDLE, OTHER
from gangsaw.trace.kineto import RankTrace, Span
from gangsaw.trace.rows import Rows

_ACTION = re.compile(
    r"^PP:\(?(\d+)(F|I|W|B|SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(\d*)"
)
_WORK = ("F", "B", "I", "W")
_SHARDING = re.compile(r"FSDP::(all_gather|post_backward_reduce|post_backward_rs_wait)")


class _Piece(NamedTuple):
    """A part of a rank's time with what it went to."""

    start_s: float
    end_s: float
    cause: str
    kind: int = OTHER
    stage: int = -1
    microbatch: int = -1


def action_rows(
    trace: RankTrace, number: int, window: tuple[float, float], shift: float
) -> list[Rows]:
    """Rows of one CPU rank inside `window`; `shift` is added to the trace's times."""
    moved = [s._replace(start_s=s.start_s + shift, end_s=s.end_s + shift) for s in trace.spans]
    begin, finish = window
    spans = [s for s in moved if s.end_s > begin and s.start_s < finish]
    received = _received(spans)
    pieces: list[_Piece] = []
    for span in spans:
        found = _ACTION.match(span.name)
        if found:
            pieces += _pieces(span, found, received, spans)
        elif span.name == "gangsaw:optimizer":
            pieces.append(_Piece(span.start_s, span.end_s, "optimizer"))
    piped = any("RECV" in s.name or "SEND" in s.name for s in spans if s.name.startswith("PP:"))
    pieces = _with_gaps(sorted(pieces), window, spans, "bubble" if piped else "dp_comm")
    start = np.asarray([p.start_s for p in pieces])
    end = np.asarray([p.end_s for p in pieces])
    return [
        Rows.of(
            number, COMPUTE, start, end,
            kind=np.asarray([p.kind for p in pieces]),
            cause=np.asarray([CAUSE_OF[p.cause] for p in pieces]),
            stage=np.asarray([p.stage for p in pieces]),
            microbatch=np.asarray([p.microbatch for p in pieces]),
        )
    ]  # fmt: skip


def _received(spans: Sequence[Span]) -> dict[tuple[int, str, int], Span]:
    """The transfer behind each receive action: the k-th one posted is the k-th that ran."""
    posted = []
    for span in spans:
        found = _ACTION.match(span.name)
        if found and found.group(2) in ("RECV_F", "RECV_B"):
            posted.append((int(found.group(1)), found.group(2)[-1], int(found.group(3))))
    ran = [s for s in spans if s.name == "gloo:recv"]
    return dict(zip(posted, ran, strict=False)) if len(ran) == len(posted) else {}


def _pieces(
    span: Span,
    found: re.Match[str],
    received: dict[tuple[int, str, int], Span],
    spans: Sequence[Span],
) -> list[_Piece]:
    stage, name = int(found.group(1)), found.group(2)
    microbatch = int(found.group(3) or -1)
    if name not in _WORK:
        cause = "dp_comm" if name in ("UNSHARD", "RESHARD", "REDUCE_GRAD") else "pp_comm"
        return [_Piece(span.start_s, span.end_s, cause, IDLE, stage, microbatch)]
    pieces: list[_Piece] = []
    start = span.start_s
    arrived = received.get((stage, "F" if name == "F" else "B", microbatch))
    if name != "W" and arrived is not None and arrived.end_s > start:
        until = min(arrived.end_s, span.end_s)
        least = _least(arrived, received)
        middle = max(start, until - least)
        pieces.append(_Piece(start, middle, "bubble", IDLE, stage, microbatch))
        pieces.append(_Piece(middle, until, "pp_comm", IDLE, stage, microbatch))
        start = until
    for inner in spans:
        cause = _inner_cause(inner, span)
        if not cause or inner.end_s <= start or inner.start_s >= span.end_s:
            continue
        low = max(start, inner.start_s)
        pieces.append(_Piece(start, low, "compute", KIND_NAMES.index(name), stage, microbatch))
        start = min(inner.end_s, span.end_s)
        pieces.append(_Piece(low, start, cause, IDLE, stage, microbatch))
    pieces.append(_Piece(start, span.end_s, "compute", KIND_NAMES.index(name), stage, microbatch))
    return [p for p in pieces if p.end_s > p.start_s]


def _least(arrived: Span, received: dict[tuple[int, str, int], Span]) -> float:
    """The shortest transfer of the same size: what the transfer itself takes."""
    same = [s for s in received.values() if s.bytes == arrived.bytes]
    return min(s.end_s - s.start_s for s in same)


def _inner_cause(inner: Span, outer: Span) -> str:
    if inner.thread != outer.thread:
        return ""
    if _SHARDING.match(inner.name):
        return "dp_comm"
    return "tp_comm" if inner.name == "_c10d_functional::wait_tensor" else ""


def _with_gaps(
    pieces: Sequence[_Piece], window: tuple[float, float], spans: Sequence[Span], waiting: str
) -> list[_Piece]:
    """Pieces that tile the window: between them the host, or a collective of all ranks."""
    reductions = [s for s in spans if s.name.startswith("gloo:all_reduce")]
    result: list[_Piece] = []
    at = window[0]
    for piece in [*pieces, _Piece(window[1], window[1], "host")]:
        low, high = max(piece.start_s, at), min(max(piece.end_s, at), window[1])
        low = min(low, window[1])
        for gap in reductions:
            if gap.start_s < low and gap.end_s > at:
                first, last = max(at, gap.start_s), min(low, gap.end_s)
                result.append(_Piece(at, first, "host", IDLE))
                result.append(_Piece(first, last, waiting, IDLE))
                at = last
        result.append(_Piece(at, low, "host", IDLE))
        result.append(piece._replace(start_s=low, end_s=high))
        at = max(at, high)
    return [p for p in result if p.end_s > p.start_s]
