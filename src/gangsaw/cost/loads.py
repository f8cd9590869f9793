"""What each pipeline rank holds, from the layers of each chunk; equal ranks are told once."""

from __future__ import annotations

import numpy as np

from gangsaw.cost.types import Array, Loads
from gangsaw.jit import kernel

LOOP, V_SHAPE = 0, 1
"""How chunks lie on ranks: chunk c on rank c mod p, or down and up again."""


@kernel
def chunk_rank(chunk: int, p: int, shape: int) -> int:
    """The pipeline rank that holds a chunk."""
    turn = chunk // p
    place = chunk - turn * p
    if shape == V_SHAPE and turn % 2 == 1:
        return p - 1 - place
    return place


@kernel
def rank_table(
    order: Array, kinds: int, p: int, shape: int, counts: Array, ends: tuple[float, float]
) -> Array:
    """(p, kinds + 3): layers of each kind, largest chunk, embedding, loss heads of each rank.

    `order` is the kind of each decoder layer, `counts` the layers of each chunk in stage order.
    `ends`: layers of multi-token prediction (on the last chunk's rank; their kind is the last
    decoder kind + 1) and of the vision tower (on rank 0; the last kind).
    """
    mtp, vision = ends
    table = np.zeros((p, kinds + 3))
    start = 0
    chunks = len(counts)
    for c in range(chunks):
        rank = chunk_rank(c, p, shape)
        n = int(counts[c])
        for i in range(start, start + n):
            table[rank, int(order[i])] += 1.0
        table[rank, kinds] = max(table[rank, kinds], float(n))
        start += n
    last = chunk_rank(chunks - 1, p, shape)
    if vision > 0.0:
        table[0, kinds - 1] += vision
    if mtp > 0.0:
        table[last, kinds - 1 - (1 if vision > 0.0 else 0)] += mtp
    table[0, kinds + 1] = 1.0
    table[last, kinds + 2] = 1.0 + mtp
    return table


@kernel
def group_ranks(table: Array) -> Loads:
    """Ranks that hold the same as one row, in the order of their first rank."""
    p, width = table.shape
    kinds = width - 3
    group = np.zeros(p, np.int64)
    first = np.zeros(p, np.int64)
    groups = 0
    for rank in range(p):
        found = -1
        for g in range(groups):
            same = True
            for j in range(width):
                if table[first[g], j] != table[rank, j]:
                    same = False
                    break
            if same:
                found = g
                break
        if found < 0:
            found = groups
            first[groups] = rank
            groups += 1
        group[rank] = found
    layers = np.zeros((groups, kinds))
    ends = np.zeros((3, groups))
    ranks = np.zeros(groups)
    lowest = np.zeros(groups)
    highest = np.zeros(groups)
    for g in range(groups):
        lowest[g] = float(first[g])
        for j in range(kinds):
            layers[g, j] = table[first[g], j]
        for j in range(3):
            ends[j, g] = table[first[g], kinds + j]
    for rank in range(p):
        ranks[group[rank]] += 1.0
        highest[group[rank]] = float(rank)
    return Loads(layers, ends[0], ends[1], ends[2], ranks, lowest, highest)
