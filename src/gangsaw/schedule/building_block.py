"""V schedules from a repeated building block (arXiv:2405.15362, sections 3 and 4).

A microbatch visits rank r of a V four times: forward of chunk 0 and of chunk 1, backward of
chunk 1 and of chunk 0. The block fixes by how many time units each visit moves from one rank to
the next; repeated every six units (three actions of two chunks, all of one unit) it fills every
rank. How long activations live, and so the memory, follows from the four offsets alone.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from gangsaw.schedule.actions import F, I, Row, Schedule, W, from_rows
from gangsaw.schedule.weave import by_time

PERIOD = 6


class Offsets(NamedTuple):
    """Units from rank to rank of: forward 0 (down), forward 1 (up), backward 1, backward 0."""

    forward_0: int
    forward_1: int
    backward_1: int
    backward_0: int


class Block(NamedTuple):
    """Times of the visits at each rank, for microbatch 0; six tuples of length p."""

    forward_0: tuple[int, ...]
    forward_1: tuple[int, ...]
    backward_1: tuple[int, ...]
    backward_0: tuple[int, ...]
    weight_1: tuple[int, ...]
    weight_0: tuple[int, ...]


@lru_cache(maxsize=256)
def block(p: int, offsets: Offsets) -> Block:
    """The shortest block without two visits of a rank in one unit of the period.

    Only the three turning points are free: when the last rank goes on with chunk 1, when the
    first starts the backward, and when the last goes on with chunk 0. All of 1 to 6 are tried.
    """
    best: tuple[int, Block] | None = None
    for turns in product(range(1, PERIOD + 1), repeat=3):
        visits = _visits(p, offsets, turns)
        residues = [{times[r] % PERIOD for times in visits} for r in range(p)]
        if any(len(each) < 4 for each in residues):
            continue
        weight_1, weight_0, held = _weights(p, visits, residues)
        if best is None or held < best[0]:
            best = held, Block(visits[0], visits[1], visits[2], visits[3], weight_1, weight_0)
    if best is None:
        raise ValueError(f"no building block for p={p} with offsets {offsets}")
    return best[1]


def block_schedules(p: int, m: int) -> list[Schedule]:
    """One schedule for each choice of offsets 1 to 3, from the least memory to that of ZB-V."""
    found = []
    for offsets in product((1, 2, 3), repeat=4):
        try:
            built = block(p, Offsets(*offsets))
        except ValueError:
            continue
        rows = [block_row(r, p, m, built) for r in range(p)]
        found.append(from_rows("auto", rows, 2 * p, m))
    return found


def _visits(p: int, o: Offsets, turns: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    forward_0 = tuple(o.forward_0 * r for r in range(p))
    at = forward_0[-1] + turns[0]
    forward_1 = tuple(at + o.forward_1 * (p - 1 - r) for r in range(p))
    at = forward_1[0] + turns[1]
    backward_1 = tuple(at + o.backward_1 * r for r in range(p))
    at = backward_1[-1] + turns[2]
    backward_0 = tuple(at + o.backward_0 * (p - 1 - r) for r in range(p))
    return forward_0, forward_1, backward_1, backward_0


def _weights(
    p: int, visits: tuple[tuple[int, ...], ...], residues: list[set[int]]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Weight gradients in the two free units of each rank, the way that holds least."""
    forward_0, forward_1, backward_1, backward_0 = visits
    weight_1, weight_0, worst = [], [], 0
    for r in range(p):
        one, two = sorted(set(range(PERIOD)) - residues[r])
        options = []
        for first, second in ((one, two), (two, one)):
            w1 = backward_1[r] + 1 + (first - backward_1[r] - 1) % PERIOD
            w0 = backward_0[r] + 1 + (second - backward_0[r] - 1) % PERIOD
            options.append((w1 - forward_1[r] + w0 - forward_0[r], w1, w0))
        held, w1, w0 = min(options)
        weight_1.append(w1)
        weight_0.append(w0)
        worst = max(worst, held)
    return tuple(weight_1), tuple(weight_0), worst


def block_row(rank: int, p: int, m: int, built: Block) -> Row:
    """The row of a rank: the block repeated m times, in the order of its times."""
    k = np.arange(m, dtype=np.int64)
    down, up = rank, 2 * p - 1 - rank
    parts = (
        (F, down, built.forward_0), (F, up, built.forward_1), (I, up, built.backward_1),
        (I, down, built.backward_0), (W, up, built.weight_1), (W, down, built.weight_0),
    )  # fmt: skip
    return by_time(
        np.repeat([kind for kind, _, _ in parts], m),
        np.repeat([stage for _, stage, _ in parts], m),
        np.tile(k, len(parts)),
        np.concatenate([times[rank] + PERIOD * k for _, _, times in parts]),
    )
