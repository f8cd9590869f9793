"""What each rank of a timeline holds, as steps in order of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.simulate.timeline import MemoryCurve
from gangsaw.units import format_gib


class MemorySteps(NamedTuple):
    """Bytes held: `level_bytes[k]` from `time_s[k]` on, rank r in `first[r]` to `first[r + 1]`.

    `base_bytes` [ranks] is held before the first step. Times of a rank never fall.
    """

    first: NDArray[np.int64]
    time_s: Array
    level_bytes: Array
    base_bytes: Array
    peak_bytes: Array

    def of_rank(self, rank: int) -> tuple[Array, Array]:
        """Times and levels of one rank."""
        span = slice(int(self.first[rank]), int(self.first[rank + 1]))
        return self.time_s[span], self.level_bytes[span]


def memory_steps(memory: MemoryCurve | None) -> MemorySteps | None:
    """The curve with the steps of each rank in order of time; None where nothing is held.

    A curve lists levels in the order of the actions. An action beside another one (a gather, the
    second half of an overlapped pair) may begin before the one in front of it has ended: what each
    adds is put in the order of time.
    """
    if memory is None or not memory.peak_bytes.max(initial=0.0) > 0.0:
        return None
    first, time_s = memory.first, memory.time_s
    rank = np.repeat(np.arange(len(first) - 1), np.diff(first))
    order = np.lexsort((time_s, rank))
    level = memory.level_bytes
    if not np.array_equal(order, np.arange(len(order))):
        gain = np.diff(level, prepend=0.0)
        starts = first[:-1][np.diff(first) > 0]
        gain[starts] = level[starts] - memory.base_bytes[rank[starts]]
        total = np.cumsum(gain[order])
        before = np.concatenate(([0.0], total))[first[:-1]]
        level = total - before[rank] + memory.base_bytes[rank]
        time_s = time_s[order]
    return MemorySteps(first, time_s, level, memory.base_bytes, memory.peak_bytes)


def amount(value_bytes: float) -> str:
    """Bytes in GiB; small numbers are microbatches of a simulation without sizes."""
    return format_gib(value_bytes) if value_bytes >= 1e6 else f"{value_bytes:.3g} mb"
