"""One layer out of a PyTorch profiler trace: memory events of its forward pass, and its kernels.

The forward pass is the annotation `gangsaw:layer` where there is one, else everything in front of
the first event of the autograd engine; the backward pass is what follows. Allocations of the
forward pass that are alive at its end are what the layer keeps: its output, which the next layer
keeps, stands for its input. Sizes are those of the allocator, rounded up on a GPU.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gangsaw.errors import InputError
from gangsaw.fit.layer_saved import Saved, Times
from gangsaw.fit.layer_stack import Recording
from gangsaw.read.toml import shown
from gangsaw.trace.layer_file import operation_seconds
from gangsaw.trace.stream import Event, EventStream

ANNOTATION = "gangsaw:layer"
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d*$")
US = 1e-6
HEAD_BYTES = 1 << 16


def is_trace(path: Path) -> bool:
    """Whether a file is a profiler trace, plain or gzipped; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path, "rb") as packed:
                head = packed.read(HEAD_BYTES)
    except (OSError, EOFError, ValueError):
        return False
    return b'"traceEvents"' in head or b'"ph"' in head


class _Op(NamedTuple):
    name: str
    start: float
    end: float
    tid: Any


class _Events(NamedTuple):
    """What is used of the trace: operations of the host, device activity, memory events."""

    ops: list[_Op]
    kernels: list[_Op]
    memory: list[tuple[float, Any, int, float]]  # time, thread, address, bytes
    marks: list[_Op]
    notes: tuple[str, ...]


def _events(path: Path) -> _Events:
    found = _Events([], [], [], [], ())
    stream = EventStream(path)
    for block in stream:
        for event in block:
            if event.ph == "X":
                _take(found, event)
            elif event.name == "[memory]" and event.args.addr is not None:
                size, at = event.args.size, event.args.addr
                if isinstance(size, (int, float)) and isinstance(at, int):
                    found.memory.append((event.ts, event.tid, at, float(size)))
    if stream.ended_early:
        found = found._replace(notes=("the trace ends inside its events",))
    if not found.ops:
        raise InputError(f"{shown(path)} has no operations of the host. Legal: a profiler trace")
    found.ops.sort(key=lambda o: o.start)
    found.memory.sort(key=lambda m: m[0])
    return found


def _take(found: _Events, event: Event) -> None:
    op = _Op(event.name, event.ts, event.ts + event.dur, event.tid)
    if event.cat == "cpu_op":
        found.ops.append(op)
    elif event.cat in ("kernel", "gpu_memcpy", "gpu_memset"):
        found.kernels.append(op)
    elif event.cat == "user_annotation" and event.name == ANNOTATION:
        found.marks.append(op)


def _passes(found: _Events) -> tuple[_Op, _Op | None]:
    """The forward and the backward pass as intervals of the host."""
    back = [o for o in found.ops if _BACKWARD.match(o.name)]
    if found.marks:
        forward = min(found.marks, key=lambda m: m.start)
        later = [m for m in found.marks if m.start > forward.end]
        until = min((m.start for m in later), default=float("inf"))
        back = [o for o in back if forward.end <= o.start < until]
    else:
        first = back[0].start if back else float("inf")
        own = [o for o in found.ops if o.end <= first]
        if not own:
            raise InputError("the trace begins in a backward pass. Legal: one layer from its start")
        forward = _Op("forward", own[0].start, max(o.end for o in own), own[0].tid)
    if not back:
        return forward, None
    return forward, _Op("backward", back[0].start, max(o.end for o in back), back[0].tid)


def _kept(found: _Events, forward: _Op) -> list[Saved]:
    """Allocations of the forward pass that outlive it, by the innermost operation around each."""
    alive: dict[int, Saved] = {}
    ops = [o for o in found.ops if o.start >= forward.start and o.end <= forward.end]
    at, open_ops = 0, []
    for time, tid, address, size in found.memory:
        if not forward.start <= time <= forward.end:
            continue
        while at < len(ops) and ops[at].start <= time:
            open_ops.append(ops[at])
            at += 1
        open_ops = [o for o in open_ops if o.end >= time]
        if size > 0:
            inner = [o.name for o in open_ops if o.tid == tid]
            alive[address] = Saved(size, inner[-1] if inner else "")
        else:
            alive.pop(address, None)
    return list(alive.values())


def _own_seconds(ops: Sequence[_Op], window: tuple[float, float]) -> list[tuple[str, float]]:
    """Seconds of each operation of the host without those inside it."""
    inside = [o for o in ops if window[0] <= o.start and o.end <= window[1]]
    rows: list[tuple[str, float]] = []
    stacks: dict[Any, list[tuple[float, int]]] = {}
    for op in sorted(inside, key=lambda o: (o.start, -o.end)):
        stack = stacks.setdefault(op.tid, [])
        while stack and stack[-1][0] <= op.start:
            stack.pop()
        if stack:
            name, seconds = rows[stack[-1][1]]
            rows[stack[-1][1]] = (name, seconds - US * (op.end - op.start))
        stack.append((op.end, len(rows)))
        rows.append((op.name, US * (op.end - op.start)))
    return rows


def _times(found: _Events, forward: _Op, backward: _Op | None) -> Times:
    """Seconds of both passes: of the device where there is one, else of the host."""
    if backward is None:
        return Times()
    end = backward.end
    host = US * (forward.end - forward.start)
    if not found.kernels:
        parts = operation_seconds(_own_seconds(found.ops, (forward.start, end)))
        return Times(forward_s=host, backward_s=US * (end - backward.start), **parts)
    mine = [k for k in found.kernels if forward.start <= k.start]
    parts = operation_seconds([(k.name, US * (k.end - k.start)) for k in mine])
    return Times(host_s=host, **parts)


def read_kineto_layer(path: Path) -> Recording:
    """Saved bytes and times of the layer in a trace.

    InputError where it has no memory events: then a table of saved tensors is needed.
    """
    found = _events(path)
    forward, backward = _passes(found)
    saved = tuple(_kept(found, forward))
    if not saved:
        raise InputError(
            f"{shown(path)} has no memory events in the forward pass. Legal: a trace made with"
            " profile_memory=True, or what gangsaw.run.record writes"
        )
    notes = (*found.notes, "sizes are those of the allocator; the output stands for the input")
    return Recording(saved, _times(found, forward, backward), {}, notes)
