"""Partitions against exhaustive enumeration."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.loads import LOOP, V_SHAPE
from gangsaw.jit import compiled
from gangsaw.search.partition import balanced_counts, partition


def memory_ends(held, room):
    """Where the layers that each stage has room for end, by the first, from prefix sums of bytes."""
    ends = np.array([np.searchsorted(held, held + r, side="right") - 1 for r in room], np.float64)
    ends[room < 0.0] = -1.0
    return ends


def compositions(n, parts):
    for cuts in itertools.combinations_with_replacement(range(n + 1), parts - 1):
        edges = (0, *cuts, n)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def stage_sums(values, counts):
    edges = np.concatenate(([0], np.cumsum(counts))).astype(int)
    return [sum(values[a:b]) for a, b in itertools.pairwise(edges)]


layer = st.floats(0.1, 3.0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(layer, layer), min_size=1, max_size=8),
    st.integers(1, 4),
    st.floats(0, 2),
    st.floats(0, 4),
    st.lists(st.floats(0.5, 10.0), min_size=4, max_size=4),
)
def test_largest_stage_is_the_smallest_possible(layers, chunks, first, last, limits):
    time = np.array([t for t, _ in layers])
    held = np.array([b for _, b in layers])
    limit = np.array(limits[:chunks])

    def largest(counts):
        sums = stage_sums(time, counts)
        sums[0] += first
        sums[-1] += last
        return max(sums)

    legal = [
        c
        for c in compositions(len(layers), chunks)
        if all(b <= m + 1e-12 for b, m in zip(stage_sums(held, c), limit, strict=True))
    ]
    far = memory_ends(np.concatenate(([0.0], np.cumsum(held))), limit)
    counts = partition(np.concatenate(([0.0], np.cumsum(time))), chunks, first, last, far)
    if not legal:
        assert counts.sum() == 0
        return
    assert counts.sum() == len(layers)
    assert all(b <= m + 1e-9 for b, m in zip(stage_sums(held, counts), limit, strict=True))
    assert abs(largest(counts) - min(map(largest, legal))) < 1e-9


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 14),
    st.integers(1, 4),
    st.integers(1, 3),
    st.floats(0, 3),
    st.floats(0, 5),
    st.lists(st.integers(0, 14), min_size=4, max_size=4),
    st.sampled_from((LOOP, V_SHAPE)),
)
def test_equal_layers(layers, p, v, first, last, caps, shape):
    cap = np.array(caps[:p], float)
    counts = balanced_counts(layers, p, v, shape, 1.0, first, last, cap)
    if cap.sum() < layers:
        assert counts.sum() == 0
        return
    last_rank = 0 if shape == V_SHAPE and v % 2 == 0 else p - 1
    extra = np.zeros(p)
    extra[0] += first
    extra[last_rank] += last
    rank_of = [
        (p - 1 - s % p) if shape == V_SHAPE and (s // p) % 2 else s % p for s in range(p * v)
    ]
    on_rank = np.bincount(rank_of, weights=counts, minlength=p)
    assert counts.sum() == layers
    assert np.all(on_rank <= cap)
    best = min(
        max(np.array(n) + extra)
        for n in itertools.product(range(layers + 1), repeat=p)
        if sum(n) == layers and np.all(np.array(n) <= cap)
    )
    assert abs(max(on_rank + extra) - best) < 1e-9


def test_405b_takes_one_layer_off_each_end():
    # Llama 3.1 405B: 126 layers on 16 stages with the ends lightened (arXiv:2407.21783, 3.3.2).
    counts = balanced_counts(126, 16, 1, LOOP, 1.0, 1.0, 1.0, np.full(16, 126.0))
    assert counts[0] == 7 and counts[-1] == 7 and set(counts[1:-1]) == {8.0}


def test_compiled_gives_the_same():
    time = np.cumsum([0.0, 0.2, *[1.0] * 10, 2.0, 2.0])
    args = (time, 4, 0.5, 1.5, memory_ends(np.arange(14.0), np.full(4, 6.0)))
    assert compiled(partition)(*args).tolist() == partition(*args).tolist()
    same = (126, 8, 2, V_SHAPE, 1.0, 0.3, 2.2, np.full(8, 20.0))
    assert compiled(balanced_counts)(*same).tolist() == balanced_counts(*same).tolist()
