"""Stage maps against exhaustive simulation."""

import itertools

import numpy as np
import pytest

from gangsaw.errors import InputError
from gangsaw.schedule import generate
from gangsaw.search.stages import (
    LayerItem,
    StageLimits,
    best_stages,
    devices_saved,
    megatron_layout,
    quick_stages,
    stage_times,
    torchtitan_modules,
)
from gangsaw.simulate.loop import execute


def item(seconds, symbol="t", module="", memory=1.0):
    return LayerItem(seconds, seconds, seconds, 0.0, memory, symbol, module)


def every(n, stages):
    for cuts in itertools.combinations(range(1, n), stages - 1):
        yield tuple(np.diff((0, *cuts, n)).tolist())


@pytest.mark.parametrize(("name", "p", "m", "v"), [
    ("1f1b", 3, 2, 1), ("1f1b", 4, 7, 1), ("zb-h1", 3, 4, 1), ("gpipe", 3, 3, 1),
    ("interleaved", 2, 4, 2), ("zb-v", 2, 5, 2), ("1f1b", 2, 16, 1),
])  # fmt: skip
def test_no_partition_is_faster(name, p, m, v):
    draw = np.random.default_rng(p * 100 + m)
    for _ in range(4):
        items = [LayerItem(*draw.uniform(0.2, 2.0, 3)) for _ in range(9)]
        schedule = generate(name, p, m, v)
        found = best_stages(items, schedule, budget=100_000)
        best = min(
            execute(schedule, stage_times(items, counts)).makespan_s for counts in every(9, p * v)
        )
        assert found.proved
        assert found.step_s == pytest.approx(best, rel=1e-12)
        assert sum(found.counts) == 9


def test_memory_limits_hold():
    items = [item(1.0) for _ in range(8)]
    schedule = generate("1f1b", 4, 8)
    limits = StageLimits(np.array([4.0, 6.0, 8.0, 4.0]), np.array([4.0, 3.0, 2.0, 1.0]))
    found = best_stages(items, schedule, limits)
    steps = {
        counts: execute(schedule, stage_times(items, counts)).makespan_s
        for counts in every(8, 4)
        if np.all(np.array(counts) * limits.in_flight <= limits.limit_bytes)
    }
    assert found.counts in steps and found.step_s == min(steps.values())
    with pytest.raises(InputError, match="memory limits"):
        best_stages(items, schedule, StageLimits(np.full(4, 1.0), limits.in_flight))
    with pytest.raises(InputError, match="do not fill"):
        best_stages(items[:3], schedule)


def test_vision_tower_in_front():
    """A tower of cheap layers, a decoder of dear ones: equal counts idle the tower's stages."""
    tower = [item(0.25, "t", f"vision.{i}") for i in range(24)]
    decoder = [item(1.0, "t", f"layers.{i}") for i in range(32)]
    items = [item(0.1, "E"), *tower, *decoder, item(1.5, "L")]
    schedule = generate("1f1b", 8, 32)
    even = tuple(len(part) for part in np.array_split(np.arange(len(items)), 8))
    before = execute(schedule, stage_times(items, even)).makespan_s
    found = best_stages(items, schedule)
    assert found.step_s < 0.75 * before
    assert found.counts[0] > 2 * found.counts[-1]
    assert devices_saved(before, found.step_s, 64) > 21


def test_large_model_is_quick_and_near_its_bound():
    items = [item(0.05, "E"), *(item(1.0) for _ in range(126)), item(2.2, "L")]
    schedule = generate("1f1b", 16, 64)
    found = best_stages(items, schedule)
    assert sum(found.counts) == 128
    quick = execute(schedule, stage_times(items, quick_stages(items, 16))).makespan_s
    assert found.step_s <= quick


def test_outputs():
    items = [
        item(0.1, "E", "tok_embeddings"), *(item(1.0, "t", f"layers.{i}") for i in range(5)),
        item(1.0, "L", "output"),
    ]  # fmt: skip
    counts = (3, 3, 1)
    assert megatron_layout(items, counts) == "Et*2|t*3|L"
    assert torchtitan_modules(items, counts) == [
        ["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "layers.3", "layers.4"], ["output"],
    ]  # fmt: skip
