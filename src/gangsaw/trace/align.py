"""Several ranks on one clock, and what a rank waited for the others inside a collective.

Clocks of hosts differ by up to milliseconds. A collective ends on all its members at nearly the
same moment, so the median difference of matched ends is the difference of two clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.trace.kernels import COLLECTIVE, P2P
from gangsaw.trace.kineto import RankTrace

MATCHES_NEEDED = 3
AGREE_S = 1e-3
"""Ends of one collective on two ranks, on one clock, lie within this."""
CANDIDATES = 500


@dataclass(frozen=True, eq=False)
class Clocks:
    """`shift_s` [ranks]: to add to a rank's times to have them on the clock of the first.

    `residual_s` [ranks]: median absolute deviation of the matches; `matches` [ranks]: their
    number, 0 where the shift rests on the files' own time stamps alone.
    """

    shift_s: Array
    residual_s: Array
    matches: tuple[int, ...]
    notes: tuple[str, ...]


def collective_rows(trace: RankTrace) -> dict[tuple[object, ...], list[int]]:
    """Rows of collectives by what identifies them across ranks, each list in order of start.

    The key is group, operation and bytes where the trace has them, else the kernel's name.
    Send-receives are left out: their two sides have different peers.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for row in np.flatnonzero(trace.kind == COLLECTIVE):
        at = int(trace.group[row])
        name = trace.names[trace.name[row]]
        if at >= 0:
            group = trace.groups[at]
            key: tuple[object, ...] = (
                group.ranks or group.name, trace.operations[trace.op[row]], trace.bytes[row],
            )  # fmt: skip
        else:
            key = (name, trace.operations[trace.op[row]] if trace.op[row] >= 0 else "")
        found.setdefault(key, []).append(int(row))
    return found


def _gaps(first: RankTrace, other: RankTrace) -> Array:
    """Differences of the ends of collectives that may be the same one, seconds.

    Where both ranks have equally many of a key, the k-th of one is the k-th of the other; where
    a trace is sampled or cut, every pair of a key is a candidate.
    """
    mine, theirs = collective_rows(first), collective_rows(other)
    paired, every = [], []
    for key, rows in mine.items():
        a, b = first.end_s[rows], other.end_s[theirs.get(key, [])]
        if len(a) == len(b):
            paired.append(a - b)
        a, b = a[:CANDIDATES], b[:CANDIDATES]
        every.append((a[:, None] - b[None, :]).ravel())
    straight = np.concatenate([np.zeros(0), *paired])
    if len(straight) >= MATCHES_NEEDED and _agreement(straight)[1] > len(straight) / 2:
        return straight
    return np.concatenate([np.zeros(0), *every])


def _agreement(gaps: Array) -> tuple[float, int]:
    """The value about which most gaps lie within AGREE_S, and how many do."""
    order = np.sort(gaps)
    count = np.searchsorted(order, order + 2 * AGREE_S, side="right") - np.arange(len(order))
    best = int(np.argmax(count))
    inside = order[best : best + int(count[best])]
    return float(np.median(inside)), int(count[best])


def clocks(traces: Sequence[RankTrace]) -> Clocks:
    """The clocks of ranks against that of the first one."""
    first = traces[0]
    shift, residual, matches, notes = [0.0], [0.0], [0], []
    for other in traces[1:]:
        stamped = (other.origin_us - first.origin_us) * 1e-6
        gaps = _gaps(first, other)
        middle, count = _agreement(gaps) if len(gaps) else (0.0, 0)
        if count < MATCHES_NEEDED:
            shift.append(stamped)
            residual.append(0.0)
            matches.append(0)
            if first.on_device or other.on_device:
                notes.append(
                    f"rank {other.rank}: too few shared collectives to set its clock; the file's"
                    " time stamps are taken"
                )
            continue
        near = gaps[np.abs(gaps - middle) <= AGREE_S]
        shift.append(middle)
        residual.append(float(np.median(np.abs(near - middle))))
        matches.append(count)
        skew = middle - stamped
        if abs(skew) > AGREE_S:
            notes.append(f"rank {other.rank}: its clock is {skew * 1e3:+.3f} ms off")
    return Clocks(np.asarray(shift), np.asarray(residual), tuple(matches), tuple(notes))


def waiting(traces: Sequence[RankTrace], time: Clocks) -> list[Array]:
    """Seconds of each device activity that are waiting for another rank, one array a trace.

    Of one collective on several ranks (same key, ends within AGREE_S on the common clock), the
    shortest stay is what the transfer itself takes; the rest is waiting. Send-receives: the
    shortest one of the same size on the same rank stands for the transfer. Activities that
    cannot be compared have 0.
    """
    result = [np.zeros(len(t.start_s)) for t in traces]
    for number, trace in enumerate(traces):
        _point_to_point(trace, result[number])
    tables = [collective_rows(t) for t in traces]
    for key in {k for table in tables for k in table}:
        ends = sorted(
            (float(traces[i].end_s[row] + time.shift_s[i]), i, row)
            for i, table in enumerate(tables)
            for row in table.get(key, ())
        )
        together: list[tuple[float, int, int]] = []
        for item in [*ends, (np.inf, -1, -1)]:
            if together and (
                item[0] - together[0][0] > AGREE_S or item[1] in {t[1] for t in together}
            ):
                _spread(traces, together, result)
                together = []
            together.append(item)
    return result


def _spread(
    traces: Sequence[RankTrace], together: list[tuple[float, int, int]], result: list[Array]
) -> None:
    """Enter the waiting of one collective that several ranks took part in."""
    if len(together) < 2:
        return
    spent = [float(traces[i].end_s[row] - traces[i].start_s[row]) for _, i, row in together]
    for (_, i, row), seconds in zip(together, spent, strict=True):
        result[i][row] = seconds - min(spent)


def _point_to_point(trace: RankTrace, wait: Array) -> None:
    rows = np.flatnonzero((trace.kind == P2P) & (trace.bytes > 0))
    spent = trace.end_s - trace.start_s
    for size in np.unique(trace.bytes[rows]):
        same = rows[trace.bytes[rows] == size]
        if len(same) > 1:
            wait[same] = spent[same] - spent[same].min()
