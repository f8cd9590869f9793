"""Which plans to measure next, without looking at any measurement.

Greedy: the row whose measurement lowers the summed variance of all plans of interest most, then
the next given that one. Where runs may fail for memory, some of the rows are those whose fate is
least certain, since only these move the memory estimate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gangsaw.cost.doubt import View, Widths, covariance, load_widths, noise_sd
from gangsaw.cost.types import Array


def greedy(
    candidates: Sequence[View],
    targets: Sequence[View],
    count: int,
    widths: Widths | None = None,
    known: Sequence[View] = (),
) -> list[int]:
    """Indices of up to `count` candidates to measure for the sake of `targets`, best first.

    `known`: plans that are measured already.
    """
    w = widths or load_widths()
    every = [*candidates, *targets]
    c = covariance(every, every, w)
    if known:
        cross = covariance(every, known, w)
        seen = covariance(known, known, w) + np.diag([noise_sd(v, w) ** 2 for v in known])
        c = c - cross @ np.linalg.solve(seen, cross.T)
    noise = np.array([noise_sd(v, w) ** 2 for v in candidates])
    n = len(candidates)
    chosen: list[int] = []
    for _ in range(min(count, n)):
        gain = (c[:n, n:] ** 2).sum(axis=1) / (np.diag(c)[:n] + noise)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        c = c - np.outer(c[:, best], c[best, :]) / (c[best, best] + noise[best])
    return chosen


def with_memory(
    by_time: Sequence[int], margin: Array, known: Sequence[int], count: int
) -> list[int]:
    """`count` rows: the first three by time, then by time and by memory in turn.

    `by_time` is the greedy order, `margin` |ln(peak / capacity)| of each row, `known` the rows
    whose fate can be told.
    """
    by_memory = sorted(known, key=lambda i: (float(margin[i]), i))
    chosen: list[int] = []
    time_left, memory_left = list(by_time), list(by_memory)
    while len(chosen) < count and (time_left or memory_left):
        turn = memory_left if len(chosen) >= 3 and len(chosen) % 2 == 1 else time_left
        turn = turn or time_left or memory_left
        row = turn.pop(0)
        if row not in chosen:
            chosen.append(row)
    return chosen
