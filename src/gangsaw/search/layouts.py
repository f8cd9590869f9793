"""Stage layouts: which layers stand on which chunk, for the fastest step that memory allows.

One chunk a rank: an exact partition of the layers in their order, equal or not, with each rank's
own memory limit (`search.partition`). More chunks a rank: exact for equal layers, under the same
limits; where layers differ, layouts of mean layers and of even chunks are improved by moving single
layers until no move makes the slowest rank faster, and few chunks are gone through altogether.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gangsaw.cost.loads import LOOP, chunk_rank
from gangsaw.cost.memory import Place, rank_load, rank_peak, sum_layers
from gangsaw.cost.step import (
    BWD,
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    FWD,
    HOST_B,
    HOST_F,
    HOST_R,
    R_FULL,
    TP_B,
    TP_F,
    TP_R,
    WGRAD,
    uneven_s,
)
from gangsaw.cost.types import Array, EndMem, EndTime, StackMem, State
from gangsaw.jit import kernel
from gangsaw.search.partition import balanced_counts, last_rank_of, partition

FEW_CHUNKS, TRIES = 9, 3000
"""Up to how many chunks layouts of unequal layers are gone through, and how many cuts of them."""
RETRIES = 8
"""Layouts of mean layers tried with less on the ranks whose own layers are too large."""
MOVES = 64
"""Layers moved one by one until a layout of unequal layers is left as it is."""


FREE, SURE, MAYBE = range(3)
"""Which memory the stages are laid out for: none, what surely fits, what may fit."""
ROUNDING = 1.0 - 1e-6
"""Peaks are kept in single precision: what is laid out for a room stays this share below it."""


class Tables(NamedTuple):
    """What one block computes once."""

    layers: Array
    mems: Array
    end_times: EndTime
    end_mem: EndMem


class Line(NamedTuple):
    """The layers in order as prefix sums, and what stands before and behind them."""

    seconds: Array  # (layers + 1,) of one microbatch, recomputed in full or not
    kinds: Array  # (layers + 1, K) layers of each kind
    first_s: float  # embedding and vision tower
    last_s: float  # loss heads and layers of multi-token prediction
    equal: bool  # all layers are of one kind
    mtp: float
    vision: float


class Guard(NamedTuple):
    """What a rank's memory is held against."""

    room: float  # device bytes; inf: no limit
    mems: Array
    end_mem: EndMem
    state: State
    memory: StackMem


@kernel
def guard_of(
    which: int, rooms: tuple[float, float], tables: Tables, state: State, memory: StackMem
) -> Guard:
    """The guard of FREE, SURE or MAYBE; `rooms`: bytes up to which a plan may and surely fits."""
    room = np.inf
    if which == SURE:
        room = rooms[1] * ROUNDING
    elif which == MAYBE:
        room = rooms[0] * ROUNDING
    return Guard(room, tables.mems, tables.end_mem, state, memory)


@kernel
def layer_seconds(row: Array, full: bool) -> float:
    """Seconds of one layer and microbatch, recomputed in full or not: what a layout balances."""
    total = row[FWD] + row[BWD] + row[WGRAD] + row[TP_F] + row[TP_B]
    total += row[CP_F] + row[CP_B] + row[EP_F] + row[EP_B] + row[HOST_F] + row[HOST_B]
    if full:
        total += row[R_FULL] + row[TP_R] + row[CP_F] + row[EP_F] + row[HOST_R]
    return float(total)


@kernel
def line_of(
    order: Array, kinds: int, ends: tuple[float, float], tables: Tables, full: bool
) -> Line:
    """The layers as prefix sums. `ends`: layers of multi-token prediction and vision tower.

    The vision tower stands with the embedding; layers of multi-token prediction, each with a loss
    head, with the head.
    """
    mtp, vision = ends
    n = len(order)
    seconds, count = np.zeros(n + 1), np.zeros((n + 1, kinds))
    equal = True
    for i in range(n):
        kind = int(order[i])
        seconds[i + 1] = seconds[i] + layer_seconds(tables.layers[kind], full)
        count[i + 1] = count[i]
        count[i + 1, kind] += 1.0
        equal = equal and order[i] == order[0]
    t = tables.end_times
    first = t.embedding_fwd + t.embedding_bwd
    last = t.head_fwd + t.head_bwd + t.head_wgrad
    if vision > 0.0:
        first += vision * layer_seconds(tables.layers[kinds - 1], full)
    if mtp > 0.0:
        place = kinds - 1 - (1 if vision > 0.0 else 0)
        last += mtp * (last + layer_seconds(tables.layers[place], full))
    return Line(seconds, count, first, last, equal, mtp, vision)


@kernel
def rank_bytes(rank: int, layers: Array, last: int, line: Line, guard: Guard) -> float:
    """Device bytes of a rank at its peak with decoder `layers` (K,); `last` has the loss head."""
    state = guard.state
    own = layers.copy()
    kinds = len(own)
    if rank == 0 and line.vision > 0.0:
        own[kinds - 1] += line.vision
    if rank == last and line.mtp > 0.0:
        own[kinds - 1 - (1 if line.vision > 0.0 else 0)] += line.mtp
    embedding = 1.0 if rank == 0 else 0.0
    heads = 1.0 + line.mtp if rank == last else 0.0
    load = rank_load(own, float(rank), embedding, heads, state)
    place = Place(load.rank, load.embedding, load.head, load.mtp)
    sums = sum_layers(load, guard.mems, state)
    return float(rank_peak(sums, place, guard.end_mem, state, guard.memory).device)


@kernel
def most_of(rank: int, last: int, line: Line, guard: Guard) -> int:
    """How many layers of the mean mix a rank holds; -1: not even its ends."""
    n = len(line.seconds) - 1
    whole = line.kinds[n]
    if rank_bytes(rank, 0.0 * whole, last, line, guard) > guard.room:
        return -1
    low, high = 0, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if rank_bytes(rank, whole * (middle / n), last, line, guard) <= guard.room:
            low = middle
        else:
            high = middle
    return low


@kernel
def held_end(rank: int, at: int, end: int, p: int, line: Line, guard: Guard) -> int:
    """Where the layers end that a rank holds from layer `at` on, known to reach `end`."""
    n = len(line.seconds) - 1
    while end < n:
        layers = line.kinds[end + 1] - line.kinds[at]
        if rank_bytes(rank, layers, p - 1, line, guard) > guard.room:
            break
        end += 1
    return end


@kernel
def far_ends(line: Line, p: int, guard: Guard) -> Array:
    """(p, layers + 1): where the layers that a rank holds end, by the first; empty: too few."""
    n = len(line.seconds) - 1
    held = 0
    if not line.equal:
        # As many as each rank can take, one after the other, must be all.
        for rank in range(p):
            held = held_end(rank, held, held, p, line, guard)
        if held < n:
            return np.zeros((0, 0))
    far = np.zeros((p, n + 1))
    held = 0
    for rank in range(p):
        if line.equal:
            most = most_of(rank, p - 1, line, guard)
            held += most
            for at in range(n + 1):
                far[rank, at] = min(n, at + most)
            continue
        end = 0
        for at in range(n + 1):
            end = held_end(rank, at, max(end, at), p, line, guard)
            far[rank, at] = end
        held += n
    return far if held >= n else np.zeros((0, 0))


@kernel
def layout(line: Line, p: int, v: int, shape: int, guard: Guard, thorough: bool) -> Array:
    """Layers of each of p x v chunks, with the smallest slowest rank; zeros where none fits.

    `thorough` goes on for unequal layers in several chunks a rank; a search over many plans goes
    without it, and with it for those that it lists.
    """
    n = len(line.seconds) - 1
    free = not np.isfinite(guard.room)
    if v == 1 and shape == LOOP:
        far = np.zeros((0, 0))
        if not free:
            far = far_ends(line, p, guard)
            if len(far) == 0:
                return np.zeros(p)
        return partition(line.seconds, p, line.first_s, line.last_s, far)
    last = last_rank_of(p, v, shape)
    most = np.full(p, np.inf)
    if not free:
        for rank in range(p):
            most[rank] = most_of(rank, last, line, guard)
        if most.min() < 0.0:
            return np.zeros(p * v)
    mean = line.seconds[n] / n
    counts = balanced_counts(n, p, v, shape, mean, line.first_s, line.last_s, most)
    if line.equal:
        return counts
    fits = free
    for _ in range(RETRIES):
        if fits or counts.sum() == 0.0:
            break
        held = bytes_of_ranks(counts, p, shape, line, guard)
        fits = held.max() <= guard.room
        for rank in range(p):
            if held[rank] > guard.room:
                most[rank] = rank_count(rank, counts, p, shape) - 1.0
        if not fits:
            counts = balanced_counts(n, p, v, shape, mean, line.first_s, line.last_s, most)
    if not fits:
        if not thorough:
            return np.zeros(p * v)
        most[:] = np.inf
        counts = balanced_counts(n, p, v, shape, mean, line.first_s, line.last_s, most)
    best, best_s = np.zeros(p * v), np.inf
    for more in range(2 if thorough else 1):
        start = counts
        if more == 1:
            none = np.zeros((0, 0))
            start = partition(line.seconds, p * v, line.first_s, line.last_s, none)
        if free or (fits and more == 0) or shrink(start, p, v, shape, line, guard):
            improve(start, p, v, shape, line, guard, thorough)
            seconds = stretch_s(start, p, v, shape, line, guard.state.m)
            if seconds < best_s * (1.0 - 1e-12):
                best, best_s = start, seconds
    if thorough and p * v <= FEW_CHUNKS:
        try_all(best, best_s, p, v, shape, line, guard)
    return best


@kernel
def try_all(
    best: Array, best_s: float, p: int, v: int, shape: int, line: Line, guard: Guard
) -> None:
    """Depth first through all layouts, what cannot beat `best` left out; writes the best into it.

    `best_s`: its `stretch_s`. After TRIES cuts the best so far stays.
    """
    m = guard.state.m
    n, chunks = len(line.seconds) - 1, p * v
    sums = np.zeros((chunks + 1, p))
    sums[0, 0] = line.first_s
    sums[0, chunk_rank(chunks - 1, p, shape)] += line.last_s
    cuts = np.full(chunks + 1, -1, np.int64)
    cuts[0] = 0
    k = 1
    for _ in range(TRIES):
        if k == 0:
            return
        least = cuts[k - 1] + int(fewest(k - 1, chunks))
        cuts[k] = max(cuts[k] + 1, least)
        if k == chunks:
            cuts[k] = max(cuts[k], n)
        rank = chunk_rank(k - 1, p, shape)
        mine = line.seconds[min(cuts[k], n)] - line.seconds[cuts[k - 1]]
        sums[k] = sums[k - 1]
        sums[k, rank] += mine
        room = best_s / m * p - sums[k].sum()
        if cuts[k] > n or sums[k, rank] * m >= best_s * (1.0 - 1e-12):
            cuts[k] = -1
            k -= 1
            continue
        if line.seconds[n] - line.seconds[cuts[k]] > room:
            continue
        if k < chunks:
            k += 1
            continue
        trial = np.diff(cuts).astype(np.float64)
        seconds = stretch_s(trial, p, v, shape, line, m)
        if seconds < best_s and whole_fits(trial, p, shape, line, guard):
            best[:] = trial
            best_s = seconds


@kernel
def shrink(counts: Array, p: int, v: int, shape: int, line: Line, guard: Guard) -> bool:
    """Move layers off the ranks that hold too much until all keep the room; whether they do."""
    chunks = p * v
    for _ in range(MOVES):
        held = bytes_of_ranks(counts, p, shape, line, guard)
        worst, top = int(np.argmax(held)), held.max()
        if top <= guard.room:
            return True
        from_c = to_c = -1
        for a in range(chunks):
            if chunk_rank(a, p, shape) != worst or counts[a] <= fewest(a, chunks):
                continue
            counts[a] -= 1.0
            for b in range(chunks):
                if chunk_rank(b, p, shape) == worst:
                    continue
                counts[b] += 1.0
                now = bytes_of_ranks(counts, p, shape, line, guard).max()
                counts[b] -= 1.0
                if now < top:
                    top, from_c, to_c = now, a, b
            counts[a] += 1.0
        if from_c < 0:
            return False
        counts[from_c] -= 1.0
        counts[to_c] += 1.0
    return False


@kernel
def rank_count(rank: int, counts: Array, p: int, shape: int) -> float:
    """Layers of a rank, over all its chunks."""
    total = 0.0
    for c in range(len(counts)):
        if chunk_rank(c, p, shape) == rank:
            total += counts[c]
    return total


@kernel
def fewest(chunk: int, chunks: int) -> float:
    """Layers that a chunk must keep: none where it has an end of the model, else one."""
    return 0.0 if chunk == 0 or chunk == chunks - 1 else 1.0


@kernel
def bytes_of_ranks(counts: Array, p: int, shape: int, line: Line, guard: Guard) -> Array:
    """(p,): device bytes of each rank of a layout."""
    layers = np.zeros((p, line.kinds.shape[1]))
    at = 0
    for c in range(len(counts)):
        end = at + int(counts[c])
        layers[chunk_rank(c, p, shape)] += line.kinds[end] - line.kinds[at]
        at = end
    last = chunk_rank(len(counts) - 1, p, shape)
    held = np.zeros(p)
    for rank in range(p):
        held[rank] = rank_bytes(rank, layers[rank], last, line, guard)
    return held


@kernel
def stretch_s(counts: Array, p: int, v: int, shape: int, line: Line, m: float) -> float:
    """Seconds of a step that depend on the layout: the slowest rank's, and a large chunk's way.

    A chunk above an even share of the slowest rank lengthens fill and drain (`cost.step.uneven_s`).
    """
    top = rank_seconds(counts, p, shape, line).max()
    largest = 0.0
    at = 0
    for c in range(len(counts)):
        end = at + int(counts[c])
        largest = max(largest, line.seconds[end] - line.seconds[at])
        at = end
    return float(m * top + uneven_s(float(p), float(v), largest * v / top, top))


@kernel
def rank_seconds(counts: Array, p: int, shape: int, line: Line) -> Array:
    """(p,): seconds of each rank for one microbatch, ends and all chunks."""
    sums = np.zeros(p)
    at = 0
    for c in range(len(counts)):
        end = at + int(counts[c])
        sums[chunk_rank(c, p, shape)] += line.seconds[end] - line.seconds[at]
        at = end
    sums[0] += line.first_s
    sums[chunk_rank(len(counts) - 1, p, shape)] += line.last_s
    return sums


@kernel
def improve(
    counts: Array, p: int, v: int, shape: int, line: Line, guard: Guard, thorough: bool
) -> None:
    """Move single layers between chunks while that makes the slowest rank and `stretch_s` faster.

    A layer that leaves one chunk for another shifts the borders of all chunks between, so that
    kinds change places too. Of equal slowest ranks the sum of squares decides. Chunks are not
    emptied, but for the first and the last, which have the ends. Unless `thorough`, layers go from
    the slowest rank to clearly faster ones only.
    """
    lightest = np.diff(line.seconds).min()
    chunks = p * v
    ranks = np.zeros(chunks, np.int64)
    for c in range(chunks):
        ranks[c] = chunk_rank(c, p, shape)
    ends = np.zeros(chunks, np.int64)
    for _ in range(MOVES):
        at = 0
        for c in range(chunks):
            at += int(counts[c])
            ends[c] = at
        sums = rank_seconds(counts, p, shape, line)
        worst = int(np.argmax(sums))
        best = (sums[worst], (sums * sums).sum())
        limit = stretch_s(counts, p, v, shape, line, guard.state.m) * (1.0 + 1e-12)
        from_c = to_c = -1
        for a in range(chunks):
            if counts[a] <= fewest(a, chunks) or not (thorough or ranks[a] == worst):
                continue
            for way in (-1, 1):
                moved = sums.copy()
                b = a
                while 0 <= b + way < chunks:
                    # The layer at the border goes over, and so at each border up to `b`.
                    border = ends[b] - 1 if way > 0 else ends[b - 1]
                    layer = line.seconds[border + 1] - line.seconds[border]
                    moved[ranks[b]] -= layer
                    b += way
                    moved[ranks[b]] += layer
                    near = sums[ranks[b]] > sums[worst] - 0.5 * lightest
                    if moved[worst] > best[0] or (near and not thorough):
                        continue
                    if not better_than(best, moved):
                        continue
                    trial = counts.copy()
                    trial[a] -= 1.0
                    trial[b] += 1.0
                    if stretch_s(trial, p, v, shape, line, guard.state.m) > limit:
                        continue
                    if whole_fits(trial, p, shape, line, guard):
                        best = (moved.max(), (moved * moved).sum())
                        from_c, to_c = a, b
        if from_c < 0:
            return
        counts[from_c] -= 1.0
        counts[to_c] += 1.0


@kernel
def better_than(best: tuple[float, float], sums: Array) -> bool:
    """Whether ranks have a smaller slowest one, or an equal one and a smaller sum of squares."""
    top, squares = float(sums.max()), float((sums * sums).sum())
    if top > best[0] * (1.0 + 1e-12):
        return False
    return top < best[0] * (1.0 - 1e-12) or squares < best[1] * (1.0 - 1e-12)


@kernel
def whole_fits(counts: Array, p: int, shape: int, line: Line, guard: Guard) -> bool:
    """Whether every rank of a layout keeps under the guard's room."""
    if not np.isfinite(guard.room):
        return True
    return bool(bytes_of_ranks(counts, p, shape, line, guard).max() <= guard.room)
