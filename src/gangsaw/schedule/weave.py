"""Building rows from sequences: forwards, backwards and weight gradients woven into one order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gangsaw.schedule.actions import I32, B, F, I, Row, W

Sequence2 = tuple[I32, I32]
"""Stage and microbatch of consecutive actions, two int32 arrays of equal length."""


def weave(forward: Sequence2, backward: Sequence2, warmup: int, weight_lag: int = -1) -> Row:
    """`warmup` forwards, then forward and backward by turns, then the remaining backwards.

    With `weight_lag` >= 0 the backward is split: the weight gradient of a backward follows
    `weight_lag` backwards later, and what is left stands at the end.
    """
    n = len(forward[0])
    warmup = min(warmup, n)
    k = np.arange(n, dtype=np.int64)
    f_slot = np.where(k < warmup, k, warmup + 2 * (k - warmup))
    turns = n - warmup
    b_slot = np.where(k < turns, warmup + 2 * k + 1, warmup + turns + k)
    slots = [2 * f_slot, 2 * b_slot]
    kinds = [np.full(n, F, np.int8), np.full(n, B if weight_lag < 0 else I, np.int8)]
    parts = [forward, backward]
    if weight_lag >= 0:
        behind = k + weight_lag
        w_slot = np.where(behind < n, 2 * b_slot[np.minimum(behind, n - 1)] + 1, 4 * n + behind)
        slots.append(w_slot)
        kinds.append(np.full(n, W, np.int8))
        parts.append(backward)
    order = np.argsort(np.concatenate(slots), kind="stable")
    return Row.of(
        np.concatenate(kinds)[order],
        np.concatenate([stage for stage, _ in parts])[order],
        np.concatenate([microbatch for _, microbatch in parts])[order],
    )


def by_time(
    kind: NDArray[np.integer],
    stage: NDArray[np.integer],
    microbatch: NDArray[np.integer],
    when: NDArray[np.integer],
) -> Row:
    """A row of the given actions, ordered by `when`; equal times keep their order."""
    order = np.argsort(when, kind="stable")
    return Row.of(kind[order], stage[order], microbatch[order])


def rounds(m: int, p: int) -> NDArray[np.int64]:
    """Sizes of the groups in which m microbatches loop over the chunks: near p, never below.

    max(1, m // p) groups whose sizes differ by one at most, larger ones first; where m is a
    multiple of the groups these are the rounds of torch's interleaved schedules.
    """
    groups = max(1, m // p)
    sizes = np.full(groups, m // groups, np.int64)
    sizes[: m % groups] += 1
    return sizes


def looped(rank: int, p: int, v: int, m: int, reverse: bool) -> Sequence2:
    """Stage and microbatch in the order of an interleaved pass of one rank.

    Each group of microbatches goes through all chunks, the first chunk first (`reverse`: last).
    """
    stages, microbatches = [], []
    first = 0
    chunks = np.arange(v)[::-1] if reverse else np.arange(v)
    for size in rounds(m, p).tolist():
        stages.append(np.repeat(chunks * p + rank, size))
        microbatches.append(np.tile(np.arange(first, first + size), v))
        first += size
    return (
        np.concatenate(stages).astype(np.int32),
        np.concatenate(microbatches).astype(np.int32),
    )


def straight(stage: int, m: int) -> Sequence2:
    """One stage, microbatches 0 to m - 1."""
    return np.full(m, stage, np.int32), np.arange(m, dtype=np.int32)
