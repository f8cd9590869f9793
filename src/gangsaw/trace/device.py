"""What a device did and waited for, from its kernels laid over each other."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.simulate.timeline import CAUSE_OF, COMPUTE, DP, IDLE, OTHER, P2P
from gangsaw.trace.kernels import COLLECTIVE, OPTIMIZER
from gangsaw.trace.kernels import P2P as P2P_KERNEL
from gangsaw.trace.kineto import Group, RankTrace
from gangsaw.trace.rows import Rows

AXIS_CAUSES = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
_WORDS = (
    ("ep_comm", r"expert|(^|[_-])ep([_-]|$)"),
    ("tp_comm", r"tensor|(^|[_-])tp([_-]|$)"),
    ("cp_comm", r"context|(^|[_-])cp([_-]|$)"),
    ("pp_comm", r"pipeline|(^|[_-])pp([_-]|$)"),
    ("dp_comm", r"data|shard|replicate|(^|[_-])(dp|rep|fsdp|hsdp)([_-]|$)"),
)


def axis_of(group: Group | None, operation: str) -> str:
    """The cause of a collective: by its group's description, else by its operation.

    Without either, all-to-all is expert, send-receive pipeline, the rest data parallel.
    """
    if group is not None:
        for cause, rule in _WORDS:
            if re.search(rule, group.text.lower()):
                return cause
    return {"all_to_all": "ep_comm", "send_recv": "pp_comm"}.get(operation, "dp_comm")


def rows_of(trace: RankTrace, start_s: float, end_s: float) -> NDArray[np.int64]:
    """Device activities that were launched within a host interval."""
    when = np.where(np.isfinite(trace.launch_s), trace.launch_s, trace.start_s)
    return np.flatnonzero((when >= start_s) & (when < end_s))


def merged(start: Array, end: Array) -> tuple[Array, Array]:
    """The union of intervals as disjoint ones in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(start) - 1]))
    return start[fresh], reach[last]


def covers(union: tuple[Array, Array], points: Array) -> NDArray[np.bool_]:
    """Which points lie inside a union of disjoint intervals."""
    start, end = union
    if not len(start):
        return np.zeros(len(points), bool)
    at = np.searchsorted(start, points, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (points < end[np.maximum(at, 0)])
    return inside


def cause_of_rows(trace: RankTrace) -> NDArray[np.int8]:
    """Cause of each device activity: compute, optimizer, or the axis of a collective."""
    causes = np.full(len(trace.start_s), CAUSE_OF["compute"], np.int8)
    causes[trace.kind == OPTIMIZER] = CAUSE_OF["optimizer"]
    comm = (trace.kind == COLLECTIVE) | (trace.kind == P2P_KERNEL)
    pairs = np.stack([trace.group[comm], trace.op[comm]], axis=1)
    numbers = np.empty(len(pairs), np.int8)
    for group, op in {(int(g), int(o)) for g, o in pairs}:
        named = trace.groups[group] if group >= 0 else None
        said = trace.operations[op] if op >= 0 else ""
        same = (pairs[:, 0] == group) & (pairs[:, 1] == op)
        numbers[same] = CAUSE_OF[axis_of(named, said)]
    causes[comm] = numbers
    return causes


def device_rows(
    trace: RankTrace, number: int, window: tuple[float, float], wait: Array, shift: float
) -> tuple[list[Rows], dict[str, float]]:
    """Rows of one rank inside `window`, and its hidden communication by cause, seconds.

    `wait` is the part of each activity that waits for other ranks (its beginning); `shift` is
    added to the trace's times. The compute rows tile the window.
    """
    begin, finish = window
    keep = (trace.end_s + shift > begin) & (trace.start_s + shift < finish)
    start = np.clip(trace.start_s[keep] + shift, begin, finish)
    end = np.clip(trace.end_s[keep] + shift, begin, finish)
    causes = cause_of_rows(trace)[keep]
    comm = np.isin(causes, [CAUSE_OF[c] for c in AXIS_CAUSES])
    waits = np.minimum(wait[keep], end - start)
    layers = [
        (cause, merged(start[causes == CAUSE_OF[cause]], end[causes == CAUSE_OF[cause]]))
        for cause in ("compute", "optimizer", *AXIS_CAUSES)
    ]
    for cause, of in (("bubble", "pp_comm"), ("straggler", "")):
        mine = (causes == CAUSE_OF[of]) if of else comm & (causes != CAUSE_OF["pp_comm"])
        mine = mine & (waits > 0)
        layers.append((cause, merged(start[mine], start[mine] + waits[mine])))
    launches = trace.launch_s[keep] + shift
    launches = launches[(launches > begin) & (launches < finish)]
    bounds = [u for _, union in layers for u in union]
    edges = np.unique(np.concatenate([[begin, finish], launches, *bounds]))
    points = (edges[:-1] + edges[1:]) / 2
    inside = {cause: covers(union, points) for cause, union in layers}
    lengths = np.diff(edges)
    busy = inside["compute"] | inside["optimizer"]
    hidden = {c: float(lengths[inside[c] & busy].sum()) for c in AXIS_CAUSES}
    chosen = np.full(len(points), CAUSE_OF["unallocated"], np.int8)
    chosen[_host_bound(trace, points, shift)] = CAUSE_OF["host"]
    for cause in (*AXIS_CAUSES, "straggler", "bubble", "optimizer", "compute"):
        chosen[inside[cause]] = CAUSE_OF[cause]
    rows = [_tiles(number, edges, chosen)]
    rows.append(_transfers(number, trace, keep, (start, end), causes))
    return rows, {c: s for c, s in hidden.items() if s > 0}


def _host_bound(trace: RankTrace, points: Array, shift: float) -> NDArray[np.bool_]:
    """Moments at which the next activity had not been launched yet."""
    if not len(trace.start_s):
        return np.zeros(len(points), bool)
    at = np.searchsorted(trace.start_s + shift, points)
    known = at < len(trace.start_s)
    launch = trace.launch_s[np.minimum(at, len(trace.start_s) - 1)] + shift
    late: NDArray[np.bool_] = known & (np.nan_to_num(launch, nan=-np.inf) > points)
    # Behind the last activity of the trace nothing was launched at all.
    return late | ~known


def _tiles(number: int, edges: Array, chosen: NDArray[np.int8]) -> Rows:
    """Compute rows: neighbours of one cause are one row."""
    first = np.concatenate(([True], chosen[1:] != chosen[:-1]))
    start = edges[:-1][first]
    end = np.concatenate((start[1:], edges[-1:]))
    cause = chosen[first]
    work = np.isin(cause, [CAUSE_OF["compute"], CAUSE_OF["optimizer"]])
    kind = np.where(work, OTHER, IDLE)
    return Rows.of(number, COMPUTE, start, end, kind=kind, cause=cause)


def _transfers(
    number: int,
    trace: RankTrace,
    keep: NDArray[np.bool_],
    times: tuple[Array, Array],
    causes: NDArray[np.int8],
) -> Rows:
    """Rows of the two communication streams: stage transfers, and all other collectives."""
    comm = np.isin(causes, [CAUSE_OF[c] for c in AXIS_CAUSES])
    stream = np.where(causes[comm] == CAUSE_OF["pp_comm"], P2P, DP)
    moved = trace.bytes[keep][comm]
    start, end = times[0][comm], times[1][comm]
    return Rows.of(number, stream, start, end, kind=OTHER, cause=causes[comm], moved=moved)
