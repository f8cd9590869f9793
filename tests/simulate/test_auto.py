"""Synthesised schedules: legal on torch, within memory, never slower than a named schedule."""

import sys
from pathlib import Path

import numpy as np
import pytest

from gangsaw.errors import InputError
from gangsaw.schedule import parse_csv, to_csv
from gangsaw.schedule.actions import F
from gangsaw.schedule.auto import lower_bound_s
from gangsaw.simulate import StageMemory, StageTimes, Transfers
from gangsaw.simulate.auto import _job, loop_map, synthesise, v_map
from gangsaw.simulate.loop import execute

sys.path.insert(0, str(Path(__file__).parent.parent / "schedule"))
import torch_oracle


def case(p, m, chunks, uneven, seed):
    draw = np.random.default_rng(seed)
    stages = p * chunks
    rank_of = loop_map(p, 1) if chunks == 1 else v_map(p)
    k = draw.uniform(0.8, 1.3, stages) if uneven else np.ones(stages)
    f, b, w = k, k * draw.uniform(0.9, 1.3), k * draw.uniform(0.6, 1.0)
    times = StageTimes.of(stages, f / chunks, b / chunks, w / chunks)
    return (
        rank_of, m, times, StageMemory.of(stages, p, 1.0 / chunks),
        Transfers.of(stages, 0.0, 1.0, 0.03),
    )  # fmt: skip


GRID = [
    (p, m, chunks, uneven, limit)
    for p in (2, 4, 8)
    for m in (4, 12)
    for chunks in (1, 2)
    for uneven in (False, True)
    for limit in (0.75, 1.0, 2.0)
]


def test_never_slower_and_faster_where_there_is_room():
    beaten, open_cases = 0, 0
    for number, (p, m, chunks, uneven, limit) in enumerate(GRID):
        rank_of, m, times, memory, transfers = case(p, m, chunks, uneven, number)
        limits = np.full(p, max(1.0, np.floor(limit * p * 2) / 2))
        made = synthesise(rank_of, m, times, memory, limits, transfers, rounds=20)
        assert made.lower_bound_s <= made.makespan_s * (1 + 1e-9), GRID[number]
        assert np.all(made.peak_bytes <= limits * (1 + 1e-9))
        again = execute(parse_csv(to_csv(made.schedule)), times, transfers).makespan_s
        assert again == made.makespan_s
        row = made.schedule.rank_row(int(rank_of[-1]))
        first = row.microbatch[(row.kind == F) & (row.stage == p * chunks - 1)]
        assert np.array_equal(first, np.arange(m))  # as torch's runtime files losses
        if made.named_s:
            named = min(made.named_s.values())
            assert made.makespan_s <= named
            if named > 1.02 * made.lower_bound_s:
                open_cases += 1
                beaten += made.makespan_s < named
    assert open_cases > 15
    assert beaten == open_cases


def test_runs_on_torch():
    for number, (p, m, chunks, uneven, limit) in enumerate(GRID[::7]):
        rank_of, m, times, memory, transfers = case(p, m, chunks, uneven, number)
        limits = np.full(p, max(1.0, limit * p))
        made = synthesise(rank_of, m, times, memory, limits, transfers, rounds=5)
        torch_oracle.accept(to_csv(made.schedule), p * chunks, m)


def test_whole_backward():
    rank_of, m, times, memory, transfers = case(4, 8, 1, True, 1)
    made = synthesise(rank_of, m, times, memory, np.full(4, 4.0), transfers, split=False)
    assert not made.schedule.splits_backward
    assert made.makespan_s <= made.named_s["1f1b"]


def test_bound_holds_for_every_order_of_a_small_case():
    """Two ranks, two microbatches: the bound against all legal orders."""
    rank_of, m, times, memory, transfers = case(2, 2, 1, True, 5)
    from itertools import permutations

    best = np.inf
    rows = []
    for rank in range(2):
        names = [f"{rank}{kind}{k}" for k in range(2) for kind in "FIW"]
        rows.append([
            order for order in permutations(names)
            if all(order.index(f"{rank}{a}{k}") < order.index(f"{rank}{b}{k}")
                   for k in range(2) for a, b in ("FI", "IW"))
        ])  # fmt: skip
    for one in rows[0]:
        for two in rows[1]:
            try:
                schedule = parse_csv(",".join(one) + "\n" + ",".join(two) + "\n")
            except InputError:
                continue
            best = min(best, execute(schedule, times, transfers).makespan_s)
    made = synthesise(rank_of, m, times, memory, np.full(2, 2.0), transfers)
    job = _job(rank_of, m, times, memory, np.full(2, 2.0), transfers, True)
    assert lower_bound_s(job) <= best + 1e-12
    assert made.makespan_s == pytest.approx(best)


def words(m):
    """Every order of m forwards, input and weight gradients of a rank, microbatches in turn."""
    found = [""]
    for _ in range(3 * m):
        found = [
            word + kind for word in found for kind in "FIW"
            if word.count(kind) < (m if kind == "F" else word.count("FI"["IW".index(kind)]))
        ]  # fmt: skip
    return found


def numbered(rank, word):
    return ",".join(f"{rank}{kind}{word[:i].count(kind)}" for i, kind in enumerate(word))


def test_bound_holds_within_memory():
    """Two ranks, three microbatches, room for one, two and three: against all orders in turn."""
    every = words(3)
    assert len(every) == 42  # standard tableaux of three rows of three
    tight = 0
    for seed, room in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 3)):
        rank_of, m, times, memory, transfers = case(2, 3, 1, True, seed)
        fits = [
            word for word in every
            if max(word[:i].count("F") - word[:i].count("W") for i in range(10)) <= room
        ]  # fmt: skip
        best = np.inf
        for one in fits:
            for two in fits:
                try:
                    schedule = parse_csv(numbered(0, one) + "\n" + numbered(1, two) + "\n")
                except InputError:
                    continue
                best = min(best, execute(schedule, times, transfers).makespan_s)
        limits = np.full(2, float(room))
        bound = lower_bound_s(_job(rank_of, m, times, memory, limits, transfers, True))
        assert bound <= best * (1 + 1e-12), (seed, room)
        made = synthesise(rank_of, m, times, memory, limits, transfers)
        assert made.makespan_s == pytest.approx(best), (seed, room)
        tight += bound > 0.999 * best
    assert tight > 0


def test_too_little_memory_is_said():
    rank_of, m, times, memory, transfers = case(2, 2, 1, False, 0)
    with pytest.raises(InputError, match="rank 0: one microbatch needs"):
        synthesise(rank_of, m, times, memory, np.full(2, 0.5), transfers)
