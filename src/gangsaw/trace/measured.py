"""Measured traces of one or more ranks as the Timeline that predictions have too.

On GPUs: kernels of all streams are laid over each other; communication that runs while nothing
else does is exposed and carries its axis as cause, what it waited for other ranks is straggler
(or bubble for stage transfers); a gap whose next kernel was not launched yet is the host's.
CPU ranks (gloo) have no device activity: there the recorded pipeline actions are the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gangsaw.errors import InputError
from gangsaw.simulate.timeline import Timeline
from gangsaw.trace.actions import action_rows
from gangsaw.trace.align import Clocks, clocks, waiting
from gangsaw.trace.device import axis_of, device_rows, rows_of
from gangsaw.trace.kernels import COLLECTIVE
from gangsaw.trace.kineto import Group, RankTrace, read_trace
from gangsaw.trace.rows import Rows, closed, join


@dataclass(frozen=True, eq=False)
class Measured:
    """A measured step: its timeline, the clocks of the ranks, and what could not be told.

    `hidden_s` by cause: communication that ran behind other work, rank-seconds.
    """

    timeline: Timeline
    clocks: Clocks
    step: str
    hidden_s: dict[str, float]
    notes: tuple[str, ...]


def measure_files(paths: Sequence[Path | str], step: int | None = None) -> Measured:
    """The timeline of one step of the ranks whose traces are given, one file a rank."""
    traces = [read_trace(p) for p in paths]
    traces.sort(key=lambda t: t.rank if t.rank is not None else 0)
    ranks = [t.rank for t in traces if t.rank is not None]
    if len(ranks) != len(set(ranks)):
        raise InputError(f"two traces are of the same rank ({', '.join(map(str, ranks))})")
    return measure_traces(traces, step)


def measure_traces(traces: Sequence[RankTrace], step: int | None = None) -> Measured:
    """The timeline of one step (default: the last whole one) of traces in order of rank."""
    if not traces:
        raise InputError("no trace is given")
    if len({t.on_device for t in traces}) > 1:
        raise InputError("some traces have device activity and some have none")
    time = clocks(traces)
    name, windows = _windows(traces, time, step)
    notes = [n for t in traces for n in t.notes] + list(time.notes)
    hidden: dict[str, float] = {}
    parts: list[Rows] = []
    origin = min(a for a, _ in windows)
    if traces[0].on_device:
        waits = waiting(traces, time)
        for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
            shift = float(time.shift_s[number]) - origin
            local = (window[0] - origin, window[1] - origin)
            rows, behind = device_rows(trace, number, local, waits[number], shift)
            parts += rows
            for cause, seconds in behind.items():
                hidden[cause] = hidden.get(cause, 0.0) + seconds
        notes += _untold(traces)
    else:
        for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
            local = (window[0] - origin, window[1] - origin)
            parts += action_rows(trace, number, local, float(time.shift_s[number]) - origin)
    end = max(b for _, b in windows) - origin
    timeline = join(closed(parts, len(traces), end), len(traces), name)
    return Measured(timeline, time, name, hidden, tuple(dict.fromkeys(notes)))


def _untold(traces: Sequence[RankTrace]) -> list[str]:
    notes = []
    comm = [t for t in traces if np.any(t.kind == COLLECTIVE)]
    if comm and len(traces) == 1:
        notes.append("one rank only: waiting for others inside collectives counts as communication")
    named = {g.text for t in traces for g in t.groups}
    plain = [n for n in named if axis_of(Group("", n, 0, ()), "?") == "dp_comm" and "d" not in n]
    if named and (plain or named == {"default_pg"}):
        notes.append("groups have no telling names: axes are taken from the operations")
    return notes


def _windows(
    traces: Sequence[RankTrace], time: Clocks, step: int | None
) -> tuple[str, list[tuple[float, float]]]:
    """Start and end of the step on each rank, on the common clock."""
    common = set.intersection(*({s.name for s in t.steps()} for t in traces))
    wanted = f"ProfilerStep#{step}"
    if step is not None and wanted not in common:
        legal = ", ".join(sorted(n.rpartition("#")[2] for n in common)) or "none is marked"
        raise InputError(f"step {step} is not in all traces. Legal: {legal}")
    if not common:
        name = "whole trace"
    else:
        order = [s.name for s in traces[0].steps() if s.name in common]
        whole = [n for n in order if all(_device_span(t, n) is not None for t in traces)]
        name = wanted if step is not None else (whole or order)[-1]
    windows = []
    for number, trace in enumerate(traces):
        span = _device_span(trace, name) or (0.0, float(trace.end_s.max(initial=0.0)))
        shift = float(time.shift_s[number])
        windows.append((span[0] + shift, span[1] + shift))
    return name, windows


def _device_span(trace: RankTrace, name: str) -> tuple[float, float] | None:
    """A step's interval: of its device activities where there are any, else on the host.

    It ends where the next step's activities begin, so that idle time behind the last kernel is
    in it.
    """
    steps = trace.steps()
    at = next((i for i, s in enumerate(steps) if s.name == name), None)
    if at is None:
        ends = [s.end_s for s in trace.spans]
        return None if trace.on_device or not ends else (0.0, max(ends))
    if not trace.on_device:
        return steps[at].start_s, steps[at].end_s
    mine = rows_of(trace, steps[at].start_s, steps[at].end_s)
    if not len(mine):
        return None
    end = float(trace.end_s[mine].max())
    if at + 1 < len(steps):
        later = rows_of(trace, steps[at + 1].start_s, steps[at + 1].end_s)
        if len(later):
            end = max(end, float(trace.start_s[later].min()))
    return float(trace.start_s[mine].min()), end
