"""Closed forms of the step time against the event loop."""

import itertools

import numpy as np
import pytest

from gangsaw.cost.bubble import pipeline_s
from gangsaw.schedule import INFOS, generate
from gangsaw.simulate import StageTimes, Transfers
from gangsaw.simulate.loop import execute
from gangsaw.spec.plan import SCHEDULES


def both(name, p, m, v, fbw, latency_s=0.0, ends=0.0):
    """Closed form and event loop; `ends` makes the last stage heavier, the first by 40 % of it."""
    schedule = generate(name, p, m, v)
    stages, pipes = schedule.stages, schedule.pipes
    chunks = stages // p // pipes
    weight = np.ones(stages // pipes)
    weight[-1] += ends * chunks
    weight[0] += 0.4 * ends * chunks
    weight = np.tile(weight, pipes)
    f, b, w = (x * weight / chunks for x in fbw)
    transfers = Transfers.of(stages, 0.0, 1.0, latency_s) if latency_s else None
    run = execute(schedule, StageTimes.of(stages, f, b, w), transfers)
    f, b, w = (np.bincount(schedule.rank_of, weights=x, minlength=p) / pipes for x in (f, b, w))
    worst = int(np.argmax(f + b + w))
    closed = pipeline_s(
        float(SCHEDULES.index(name)), p, v, m, f[worst], b[worst], w[worst], f.sum(), b.sum(),
        latency_s,
    )  # fmt: skip
    looped = run.makespan_s
    if name == "zb-h2":  # its time is the period: ranks need not wait for each other
        rows = run.schedule.row
        looped = max(
            run.result.end[a:z].max() - run.result.start[a] for a, z in itertools.pairwise(rows)
        )
    return closed, looped


def shapes(name, counts=(1, 2, 4, 8, 16)):
    info = INFOS[name]
    for p in (2, 4, 8):
        for factor in counts:
            m = p * factor // 2
            for v in (info.fixed_chunks,) if info.fixed_chunks else (1, 2, 4):
                if m and not info.refuse(p, m, v):
                    yield p, m, v


TIMES = ((1.0, 1.0, 1.0), (1.0, 1.3, 0.8), (1.0, 2.1, 0.9))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2"])
def test_exact_for_equal_stages(name):
    for p, m, v in shapes(name):
        for fbw in TIMES:
            closed, looped = both(name, p, m, v, fbw)
            assert closed == pytest.approx(looped, rel=1e-9), (p, m, v, fbw)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_exact_with_transfers_and_heavy_ends(name):
    for p, m, v in shapes(name):
        for latency_s, ends in ((0.05, 0.0), (0.0, 0.3), (0.05, 0.3)):
            closed, looped = both(name, p, m, v, TIMES[1], latency_s, ends)
            assert closed == pytest.approx(looped, rel=1e-9), (p, m, latency_s, ends)


@pytest.mark.parametrize(
    ("name", "equal", "uneven"),
    [
        ("interleaved", 0.001, 0.05), ("bfs", 0.001, 0.09), ("zb-h1", 0.001, 0.04),
        ("zb-h2", 0.001, 0.08), ("izb", 0.001, 0.07), ("zb-v", 0.05, 0.09), ("v-half", 0.08, 0.09),
        ("v-min", 0.09, 0.13), ("dualpipe", 0.03, 0.09), ("dualpipe-v", 0.03, 0.09),
    ],
)  # fmt: skip
def test_near_the_event_loop(name, equal, uneven):
    """m >= p, without recompute; V-Half and V-Min are fits."""
    for p, m, v in shapes(name, counts=(2, 4, 8, 16)):
        for fbw in TIMES[:2]:
            closed, looped = both(name, p, m, v, fbw)
            assert closed == pytest.approx(looped, rel=equal), (p, m, v, fbw)
            closed, looped = both(name, p, m, v, fbw, 0.02, 0.2)
            assert closed == pytest.approx(looped, rel=uneven), (p, m, v, fbw)
