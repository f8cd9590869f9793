"""One rank's PyTorch profiler (Kineto) trace as arrays: kernels, collectives, steps, actions.

Reads plain or gzipped Chrome traces of any length in bounded memory. What a trace does not say
(rank, groups, steps) is noted in `notes` and never guessed silently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.schedule.actions import I8, I32
from gangsaw.trace.kernels import COLLECTIVE, COPY, P2P, kernel_kind, operation
from gangsaw.trace.stream import Event, EventStream

US = 1e-6
_DTYPE_BYTES = {
    "float": 4, "int": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "char": 1, "byte": 1,
    "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::bfloat16": 2, "c10::half": 2,
    "unsigned char": 1, "signed char": 1, "long int": 8,
}  # fmt: skip
_KEPT_SPANS = re.compile(
    r"PP:|ProfilerStep#|Optimizer\.step|gangsaw:|gloo:|nccl:|FSDP::|_c10d_functional::wait_tensor"
)
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """A named interval on a thread of the host, seconds from the trace's origin."""

    name: str
    start_s: float
    end_s: float
    thread: int
    bytes: float


class Group(NamedTuple):
    """A process group as the trace names it; `ranks` empty when it does not list them."""

    name: str
    text: str
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RankTrace:
    """Device activity of one rank. Arrays have one entry a device activity, in order of start.

    start_s, end_s, launch_s float64 (launch NaN: not in the trace); stream int32; kind int8
    (kernels.KINDS); name int32 (index into `names`); bytes float64 moved by copies and
    collectives; group int32 (index into `groups`, -1 unknown); operation of collectives in
    `operations` by index `op` (-1 none). Times are from `origin_us`, absolute microseconds.
    """

    path: str
    rank: int | None
    world_size: int | None
    backend: str
    origin_us: float
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    operations: tuple[str, ...]
    start_s: Array
    end_s: Array
    launch_s: Array
    stream: I32
    kind: I8
    name: I32
    bytes: Array
    group: I32
    op: I32
    spans: tuple[Span, ...]
    events: int
    notes: tuple[str, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether there is any device activity; False for a trace of CPU ranks."""
        return len(self.start_s) > 0

    def steps(self) -> tuple[Span, ...]:
        """Profiler steps on the host, in order."""
        found = [s for s in self.spans if s.name.startswith("ProfilerStep#")]
        return tuple(sorted(found, key=lambda s: s.start_s))


@dataclass
class _Reading:
    """What is collected while the blocks go by."""

    origin: float | None = None
    rows: list[NDArray[np.float64]] = field(default_factory=list)
    launches: list[NDArray[np.float64]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    groups: dict[Group, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    threads: dict[Any, int] = field(default_factory=dict)
    events: int = 0


def read_trace(path: Path | str) -> RankTrace:
    """The trace of one rank. InputError where the file is no trace."""
    stream = EventStream(Path(path))
    found = _Reading()
    for block in stream:
        _take(found, block)
    if not found.events:
        raise InputError(f"{path}: the trace holds no events")
    return _finish(str(path), stream, found)


def _take(found: _Reading, block: Sequence[Event]) -> None:
    rows, launches = [], []
    found.events += len(block)
    for event in block:
        if event.ph != "X":
            continue
        if found.origin is None:
            found.origin = event.ts
        start = (event.ts - found.origin) * US
        end = start + event.dur * US
        if event.cat in _GPU_CATEGORIES:
            rows.append(_device_row(found, event, start, end))
        elif event.cat in ("cuda_runtime", "cuda_driver", "hip_runtime"):
            number = _number(event.args.correlation)
            if number >= 0:
                launches.append((number, start))
        elif _KEPT_SPANS.match(event.name) and event.cat != "gpu_user_annotation":
            thread = found.threads.setdefault(event.tid, len(found.threads))
            found.spans.append(Span(event.name, start, end, thread, _input_bytes(event)))
    if rows:
        found.rows.append(np.asarray(rows, np.float64))
    if launches:
        found.launches.append(np.asarray(launches, np.float64))


def _number(value: object, otherwise: float = -1.0) -> float:
    """A number out of whatever the file has there."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return otherwise


def _device_row(found: _Reading, event: Event, start: float, end: float) -> tuple[float, ...]:
    """start, end, correlation, stream, kind, name, bytes, group, operation of one activity."""
    args = event.args
    name = found.names.setdefault(event.name, len(found.names))
    stream = _number(args.stream, _number(event.tid))
    kind, moved, group, op = COPY, _number(args.bytes, 0.0), -1, -1
    if event.cat == "kernel":
        kind = kernel_kind(event.name)
    if kind in (COLLECTIVE, P2P):
        moved, group = _message_bytes(event), _group_of(found, event)
        said = operation(str(args.collective or event.name))
        if said not in ("send_recv", ""):
            kind = COLLECTIVE
        op = found.operations.setdefault(said, len(found.operations))
    return (start, end, _number(args.correlation), stream, kind, name, moved, group, op)


def _message_bytes(event: Event) -> float:
    size = _DTYPE_BYTES.get(str(event.args.dtype).lower(), 0)
    elements = max(_number(event.args.in_elements, 0.0), _number(event.args.out_elements, 0.0))
    return elements * size


def _input_bytes(event: Event) -> float:
    """Bytes of the first input of an annotated CPU collective; 0 when shapes were not recorded."""
    dims, types = event.args.input_dims, event.args.input_type
    if not isinstance(dims, list) or not dims or not isinstance(types, list) or not types:
        return 0.0
    size = float(_DTYPE_BYTES.get(str(types[0]).lower(), 0))
    for width in dims[0] if isinstance(dims[0], list) else []:
        size *= _number(width, 0.0)
    return size


def _group_of(found: _Reading, event: Event) -> int:
    args = event.args
    if args.group_name is None:
        return -1
    ranks = tuple(int(n) for n in re.findall(r"\d+", str(args.group_ranks or "")))
    if "..." in str(args.group_ranks):
        ranks = ()
    size = int(_number(args.group_size, len(ranks)))
    group = Group(str(args.group_name), str(args.group_text or ""), size, ranks)
    return found.groups.setdefault(group, len(found.groups))


def _finish(path: str, stream: EventStream, found: _Reading) -> RankTrace:
    rows = np.concatenate(found.rows) if found.rows else np.zeros((0, 9))
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    launch = _launch_times(rows[:, 2], found.launches)
    info = stream.head.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    base_us = _number(stream.head.get("baseTimeNanoseconds"), 0.0) / 1e3
    notes = _notes(stream, found, info, rows)
    trace = RankTrace(
        path=path,
        rank=int(info["rank"]) if isinstance(info.get("rank"), int) else None,
        world_size=int(info["world_size"]) if isinstance(info.get("world_size"), int) else None,
        backend=str(info.get("backend", "")),
        origin_us=base_us + (found.origin or 0.0),
        names=tuple(found.names),
        groups=tuple(found.groups),
        operations=tuple(found.operations),
        start_s=rows[:, 0],
        end_s=rows[:, 1],
        launch_s=launch,
        stream=rows[:, 3].astype(np.int32),
        kind=rows[:, 4].astype(np.int8),
        name=rows[:, 5].astype(np.int32),
        bytes=rows[:, 6],
        group=rows[:, 7].astype(np.int32),
        op=rows[:, 8].astype(np.int32),
        spans=tuple(sorted(found.spans, key=lambda s: (s.start_s, -s.end_s))),
        events=found.events,
        notes=notes,
    )
    return _name_by_annotation(trace)


def _launch_times(correlation: Array, launches: list[NDArray[np.float64]]) -> Array:
    """Host time at which each device activity was launched; NaN when that is not in the trace."""
    result = np.full(len(correlation), np.nan)
    if not launches or not len(correlation):
        return result
    table = np.concatenate(launches)
    table = table[np.argsort(table[:, 0], kind="stable")]
    at = np.searchsorted(table[:, 0], correlation)
    at = np.minimum(at, len(table) - 1)
    hit = table[at, 0] == correlation
    result[hit] = table[at[hit], 1]
    return result


def _notes(
    stream: EventStream, found: _Reading, info: dict[str, Any], rows: Array
) -> tuple[str, ...]:
    notes = []
    if stream.ended_early:
        notes.append("the file ends inside its events: what came later is missing")
    if "rank" not in info:
        notes.append("no distributedInfo: rank and world size are not known")
    comm = rows[(rows[:, 4] == COLLECTIVE) | (rows[:, 4] == P2P)]
    if len(comm) and not found.groups:
        notes.append(
            "collectives without group and message size: their axis and bandwidth are not known"
        )
    if not any(s.name.startswith("ProfilerStep#") for s in found.spans):
        notes.append("no profiler steps are marked: the whole trace is taken as one step")
    return tuple(notes)


def _name_by_annotation(trace: RankTrace) -> RankTrace:
    """Send-receive kernels without metadata take the name of the `nccl:` call that launched them.

    NCCL runs all-to-all on its send-receive kernel; only the host's annotation tells them apart.
    """
    calls = [s for s in trace.spans if s.name.startswith("nccl:")]
    open_rows = np.flatnonzero((trace.kind == P2P) & (trace.group < 0))
    if not calls or not len(open_rows):
        return trace
    kind, op, operations = trace.kind.copy(), trace.op.copy(), list(trace.operations)
    starts = np.asarray([c.start_s for c in calls])
    for row in open_rows:
        at = int(np.searchsorted(starts, trace.launch_s[row], side="right")) - 1
        if at < 0 or not trace.launch_s[row] <= calls[at].end_s:
            continue
        said = operation(calls[at].name.removeprefix("nccl:"))
        if said and said != "send_recv":
            if said not in operations:
                operations.append(said)
            kind[row], op[row] = COLLECTIVE, operations.index(said)
    from dataclasses import replace

    return replace(trace, kind=kind, op=op, operations=tuple(operations))
