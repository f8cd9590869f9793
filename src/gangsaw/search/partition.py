"""Contiguous partition of layers over stages, and equal layers over ranks with heavy ends.

Minimising the largest of the sums of consecutive pieces is the chains-on-chains problem; with
limits a piece, "can it be done with no piece above T" is answered by letting every stage take as
many layers as it may (Pinar and Aykanat, J. Parallel Distrib. Comput. 64, 2004, section 3), so
bisection over T is exact. These functions serve one plan and a million plans; `search.refine`
goes on from here to the smallest simulated step.
"""

from __future__ import annotations

import numpy as np

from gangsaw.cost.loads import V_SHAPE
from gangsaw.cost.types import Array
from gangsaw.jit import kernel


@kernel
def reach(start: int, stage: int, limit_s: float, time: Array, extra: Array, far: Array) -> int:
    """How far stage `stage` gets from layer `start`: layers start to the result, exclusive.

    `time`: prefix sums over layers, [layers + 1]; extra[stage]: its seconds besides layers;
    far[stage, start]: the end of what its memory holds from `start` on. An empty `far` is no limit.
    """
    end = start
    most = len(time) - 1
    if len(far) > 0:
        most = int(far[stage, start])
    while end < most and time[end + 1] - time[start] + extra[stage] <= limit_s:
        end += 1
    return end


@kernel
def feasible(limit_s: float, time: Array, extra: Array, far: Array) -> bool:
    """Whether all layers fit on the stages with none above `limit_s` or above its memory."""
    at = 0
    for stage in range(len(extra)):
        if extra[stage] > limit_s or (len(far) > 0 and far[stage, at] < at):
            return False
        at = reach(at, stage, limit_s, time, extra, far)
    return at == len(time) - 1


@kernel
def bottleneck_s(time: Array, extra: Array, far: Array) -> float:
    """The smallest possible largest stage; inf when no partition fits into memory."""
    low = 0.0
    high = time[-1] + np.max(extra)
    if not feasible(high, time, extra, far):
        return np.inf
    for _ in range(60):
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            break
        if feasible(middle, time, extra, far):
            high = middle
        else:
            low = middle
    return float(high)


@kernel
def partition(
    time: Array, stages: int, first_extra_s: float, last_extra_s: float, far: Array
) -> Array:
    """Layers of each stage, float64 [stages], with the smallest possible largest stage.

    `time` [layers + 1]: prefix sums of the layers' seconds. far [stages, layers + 1]: where the
    layers that a stage's memory holds end, by the first of them (below it where not even the
    stage's own ends fit); it must grow with the first layer. Empty: no limit. Among all optima,
    cuts lie as near as they can to equal shares. All zeros when nothing fits.
    """
    extra = np.zeros(stages)
    extra[0] += first_extra_s
    extra[stages - 1] += last_extra_s
    counts = np.zeros(stages)
    best = bottleneck_s(time, extra, far)
    if not np.isfinite(best):
        return counts
    level_cuts(best, time, extra, far, counts)
    return counts


@kernel
def level_cuts(limit_s: float, time: Array, extra: Array, far: Array, counts: Array) -> None:
    """Write into `counts` a partition under `limit_s` whose cuts are nearest to equal shares."""
    n, stages = len(time) - 1, len(extra)
    least = np.zeros(stages + 1, np.int64)
    least[stages] = n
    for stage in range(stages - 1, 0, -1):
        start = least[stage + 1]
        while start > 0:
            if time[least[stage + 1]] - time[start - 1] + extra[stage] > limit_s:
                break
            if len(far) > 0 and far[stage, start - 1] < least[stage + 1]:
                break
            start -= 1
        least[stage] = start
    share = (time[n] + np.sum(extra)) / stages
    at = 0
    done = 0.0
    for stage in range(stages):
        end = reach(at, stage, limit_s, time, extra, far)
        done += extra[stage]
        target = share * (stage + 1) - done
        cut = max(at, least[stage + 1])
        while cut < end and abs(time[cut + 1] - target) <= abs(time[cut] - target):
            cut += 1
        cut = min(cut, end)
        if stage == stages - 1:
            cut = n
        counts[stage] = cut - at
        at = cut


@kernel
def balanced_counts(
    layers: int,
    p: int,
    v: int,
    shape: int,
    layer_s: float,
    first_s: float,
    last_s: float,
    max_layers: Array,
) -> Array:
    """Layers of each of p x v stages, float64 [p * v] in stage order, for equal layers.

    The largest rank (all its chunks, with `first_s` of the embedding and `last_s` of the head)
    is the smallest possible: ranks fill like water, later ranks first where equal, because they
    hold fewer microbatches. `max_layers` [p] is each rank's memory limit. `shape` is LOOP
    or V_SHAPE. All zeros when the layers do not fit.
    """
    counts = np.zeros(p * v)
    if np.sum(np.minimum(max_layers, float(layers))) < layers:
        return counts
    last_rank = last_rank_of(p, v, shape)
    extra = np.zeros(p)
    extra[0] += first_s
    extra[last_rank] += last_s
    level = water_level(layers * layer_s, extra)
    on_rank = np.zeros(p)
    left = float(layers)
    for rank in range(p):
        whole = np.floor((level - extra[rank]) / layer_s)
        on_rank[rank] = max(0.0, min(whole, max_layers[rank], left))
        left -= on_rank[rank]
    while left > 0.0:
        best = -1
        for rank in range(p - 1, -1, -1):
            if on_rank[rank] + 1.0 > max_layers[rank]:
                continue
            if best < 0 or (
                on_rank[rank] * layer_s + extra[rank] < on_rank[best] * layer_s + extra[best]
            ):
                best = rank
        on_rank[best] += 1.0
        left -= 1.0
    for rank in range(p):
        spread_chunks(rank, p, v, shape, on_rank[rank], last_rank, first_s, last_s, layer_s, counts)
    return counts


@kernel
def water_level(work_s: float, extra: Array) -> float:
    """The level to which work fills ranks that have `extra` already; those above it stay."""
    p = len(extra)
    level = 0.0
    for _ in range(p):
        below = 0
        total = work_s
        for rank in range(p):
            if level == 0.0 or extra[rank] < level:
                below += 1
                total += extra[rank]
        if total / below == level:
            break
        level = total / below
    return level


@kernel
def last_rank_of(p: int, v: int, shape: int) -> int:
    """The rank that holds the last stage."""
    if shape == V_SHAPE and v % 2 == 0:
        return 0
    return p - 1


@kernel
def spread_chunks(
    rank: int, p: int, v: int, shape: int, layers: float, last_rank: int, first_s: float,
    last_s: float, layer_s: float, counts: Array,
) -> None:  # fmt: skip
    """Share a rank's layers over its chunks, the chunks with an end taking fewer."""
    extra = np.zeros(v)
    if rank == 0:
        extra[0] += first_s
    if rank == last_rank:
        extra[v - 1] += last_s
    mine = np.zeros(v)
    left = layers
    while left > 0.0:
        # Where equal, the middle ones take more: fill and drain go through the outer chunks.
        best = (v - 1) // 2
        for step in range(1, v):
            chunk = (v - 1) // 2 + (step // 2 + 1 if step % 2 == 1 else -(step // 2))
            if mine[chunk] * layer_s + extra[chunk] < mine[best] * layer_s + extra[best]:
                best = chunk
        mine[best] += 1.0
        left -= 1.0
    for chunk in range(v):
        place = rank
        if shape == V_SHAPE and chunk % 2 == 1:
            place = p - 1 - rank
        counts[chunk * p + place] = mine[chunk]
