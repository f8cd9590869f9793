"""Steps with noise: against the event loop, exact laws, a second implementation, recorded jobs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from gangsaw.errors import InputError
from gangsaw.read.reliability import load_reliability
from gangsaw.schedule import generate
from gangsaw.simulate import StageTimes, Transfers, simulate
from gangsaw.simulate.noise import (
    TABLE,
    Fleet,
    congestion_factors,
    coupled_members,
    device_factors,
    fabric_of,
    group_factors,
    group_of_devices,
    lognormal_table,
    quantile_table,
)
from gangsaw.simulate.replay import Replay
from gangsaw.simulate.tail import (
    After,
    Tables,
    draw_steps,
    graph_of,
    percentiles,
    play_vector,
    variance_by_axis,
)
from gangsaw.spec import Plan
from gangsaw.trace.straggler import read_recorded_ops

DATA = Path(__file__).parent.parent / "data" / "straggler"
NOISE = load_reliability().noise
ONES = np.ones(TABLE, np.float32)
QUIET = Tables(ONES, ONES, ONES, 0.0, 0.0)
NAMED = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("bfs", 2), ("zb-h1", 1), ("zb-v", 2),
         ("izb", 2), ("dualpipe", 1), ("dualpipe-v", 2))  # fmt: skip


@pytest.mark.parametrize(("name", "chunks"), NAMED)
@pytest.mark.parametrize("blocking", [None, False, True])
def test_without_noise_a_step_is_the_event_loops(name, chunks, blocking):
    schedule = generate(name, 4, 8, chunks)
    rng = np.random.default_rng(1)
    f, b, w = (rng.uniform(0.5, 2.0, schedule.stages) for _ in range(3))
    hops = None
    if blocking is not None:
        hops = Transfers.of(schedule.stages, 1.0, 2.0, 0.05, blocking=blocking)
    pace = rng.uniform(1.0, 1.5, (2, 4))
    overlap = 0.3 if name.startswith("dual") else 0.0
    graph = graph_of(schedule, StageTimes.of(schedule.stages, f, b, w, overlap), hops)
    drawn = draw_steps(graph, pace[None], QUIET, After(2.0, 1.0), 3, 0)
    ends = []
    for replica in range(2):
        slow = pace[replica][schedule.rank_of]
        times = StageTimes.of(schedule.stages, f * slow, b * slow, w * slow, overlap)
        ends.append(simulate(schedule, times, hops).makespan_s)
    assert np.allclose(drawn.step_s, max(ends) + 3.0)
    assert np.allclose(drawn.mean_replica_s, np.mean(ends))
    assert np.allclose(play_vector(graph, pace.T).max(axis=0), ends)


def test_two_implementations_draw_the_same_distribution():
    schedule = generate("1f1b", 4, 8, 1)
    graph = graph_of(schedule, StageTimes.of(4, 1.0, 1.0, 1.0), Transfers.of(4, 0.1, 1.0))
    table = lognormal_table(0.2, 3)
    drawn = draw_steps(
        graph, np.ones((1, 1, 4)), QUIET._replace(operation=table), After(0, 0), 20_000, 3
    )
    rng = np.random.default_rng(9)
    plain = play_vector(
        graph, np.ones((4, 20_000)), lambda i: table[rng.integers(TABLE, size=20_000)]
    ).max(axis=0)
    for q in (0.05, 0.5, 0.95, 0.99):
        assert np.quantile(drawn.step_s, q) == pytest.approx(np.quantile(plain, q), rel=0.004)
    assert drawn.step_s.std() == pytest.approx(plain.std(), rel=0.03)


def test_seeds_and_threads():
    graph = graph_of(generate("1f1b", 2, 4, 1), StageTimes.of(2, 1.0, 1.0, 1.0))
    tables = QUIET._replace(operation=lognormal_table(0.1))
    paces = np.ones((4, 3, 2))
    one, two, other = (draw_steps(graph, paces, tables, After(0, 0), 50, s) for s in (1, 1, 2))
    assert np.array_equal(one.step_s, two.step_s)
    assert not np.array_equal(one.step_s, other.step_s)
    assert len(np.unique(one.step_s)) == 200  # no two steps share their numbers
    with pytest.raises(InputError, match="at least one step"):
        draw_steps(graph, paces, tables, After(0, 0), 0, 1)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 0.5), st.integers(1, 64))
def test_largest_of_n_is_drawn_exactly(cv, n):
    table = lognormal_table(cv, n).astype(float)
    sigma = np.sqrt(np.log1p(cv * cv))
    for q in (0.1, 0.5, 0.9):
        x = np.quantile(table, q)
        assert ndtr((np.log(x) + sigma**2 / 2) / sigma) ** n == pytest.approx(q, abs=0.002)
    if n == 1:
        assert table.mean() == pytest.approx(1.0, rel=2e-4)
        assert table.std() == pytest.approx(cv, rel=0.02)


def test_slowest_replica_and_stage_set_the_pace():
    """One stage, no dependencies: a step is the largest of R sums of m factors."""
    graph = graph_of(generate("1f1b", 1, 32, 1), StageTimes.of(1, 1.0, 1.0, 1.0))
    tables = QUIET._replace(operation=lognormal_table(0.1))
    drawn = draw_steps(graph, np.ones((1, 16, 1)), tables, After(0, 0), 4000, 0)
    rng = np.random.default_rng(0)
    sigma = np.sqrt(np.log1p(0.01))
    x = np.exp(sigma * rng.standard_normal((4000, 16, 64)) - sigma**2 / 2)
    sums = (x * np.tile([1.0, 2.0], 32)).sum(axis=2)
    assert drawn.step_s.mean() == pytest.approx(sums.max(axis=1).mean(), rel=0.001)
    assert drawn.mean_replica_s.mean() == pytest.approx(96.0, rel=0.001)
    share = variance_by_axis(drawn)
    assert sum(share.values()) == pytest.approx(1.0)
    assert share["data parallel"] > 0.5  # that of the largest of 16


def test_pauses_and_lengths():
    graph = graph_of(generate("1f1b", 1, 4, 1), StageTimes.of(1, 1.0, 1.0, 1.0))
    tables = QUIET._replace(pause_prob=0.25, pause_s=5.0)
    drawn = draw_steps(graph, np.ones((1, 1, 1)), tables, After(0, 0), 20_000, 0).step_s
    assert set(np.unique(drawn)) == {12.0, 17.0}
    assert (drawn == 17.0).mean() == pytest.approx(0.25, abs=0.01)
    lengths = quantile_table(np.array([0.5, 1.5]))
    drawn = draw_steps(
        graph, np.ones((1, 1, 1)), QUIET._replace(length=lengths), After(0, 0), 20_000, 0
    ).step_s
    assert drawn.mean() == pytest.approx(12.0, rel=0.01)
    assert drawn.std() == pytest.approx(np.sqrt(4) * 3 / np.sqrt(12), rel=0.03)


def test_a_slow_fabric_slows_operations_and_hops_by_their_share():
    """Factor 2 on the fabric: a quarter of every operation and all of every hop, by a graph of
    those times."""
    schedule = generate("1f1b", 4, 8, 1)
    graph = graph_of(schedule, StageTimes.of(4, 1.0, 2.0, 0.0), Transfers.of(4, 1.0, 4.0))
    tables = QUIET._replace(fabric=np.full(TABLE, 2.0, np.float32))
    drawn = draw_steps(graph, np.ones((1, 1, 4)), tables, After(3.0, 1.0, 0.25, 1.0), 2, 0)
    slow = graph_of(schedule, StageTimes.of(4, 1.25, 2.5, 0.0), Transfers.of(4, 1.0, 2.0))
    alone = play_vector(slow, np.ones((4, 1))).max()
    assert np.allclose(drawn.step_s, alone + 6.0 + 1.0)
    assert np.allclose(drawn.fabric_s, 6.0)
    still = draw_steps(graph, np.ones((1, 1, 4)), tables, After(3.0, 1.0), 2, 0)
    assert np.allclose(still.step_s, play_vector(graph, np.ones((4, 1))).max() + 7.0)


def test_percentile_errors_cover():
    rng = np.random.default_rng(0)
    exact = np.quantile(rng.lognormal(0, 0.5, 10**6), 0.95)
    inside = 0
    for k in range(60):
        own = rng.lognormal(0, 0.5, (1, 400))
        _, _, rows = percentiles(own, (0.95,), k)
        inside += abs(rows[0].value_s - exact) < 2 * rows[0].error_s
    assert inside >= 48  # of 60; 57 are expected
    clusters = np.repeat(rng.normal(1.0, 0.1, 25), 400).reshape(25, 400)
    mean, error, _ = percentiles(clusters, (0.5,), 0)
    assert error == pytest.approx(0.1 / 5, rel=0.5)  # not 0.1 / 100: steps of a cluster are alike
    assert abs(mean - 1.0) < 3 * error


def test_groups_in_lock_step():
    plan = Plan(tp=4, pp=2, dp=4, num_microbatches=4)
    assert coupled_members(plan) == 4
    assert coupled_members(plan.model_copy(update={"zero": 2})) == 16
    assert coupled_members(plan.model_copy(update={"zero": 3})) == 4  # once a step
    assert coupled_members(plan.model_copy(update={"zero": 3, "pp": 1, "dp": 8})) == 32
    assert coupled_members(plan.model_copy(update={"ep": 8})) == 8
    groups = group_of_devices(plan, 4)
    assert np.array_equal(np.bincount(groups), np.full(8, 4))
    assert groups[0] == groups[3] and groups[0] != groups[4]
    # One device slow by 10 %: its group feels nearly all of it, the others nothing.
    factors = np.ones(32)
    factors[5] = 1.10
    pace = group_factors(plan, 4, factors, 0.01, np.random.default_rng(0))
    assert pace.shape == (4, 2)
    assert pace.max() == pytest.approx(1.09, abs=0.01)
    assert np.sort(pace.ravel())[-2] == pytest.approx(1.0)
    # A spread far below the noise is felt as its mean.
    even = group_factors(plan, 4, np.full(32, 1.02), 0.05, np.random.default_rng(0))
    assert np.allclose(even, 1.02)


def test_devices_of_a_fleet():
    rng = np.random.default_rng(0)
    quiet = NOISE.model_copy(update={"device_cv": 0.0, "slow_host_frac": 0.25})
    found = device_factors(quiet, 8000, 8, 16, Fleet(), rng).reshape(-1, 8)
    assert np.all(found == found[:, :1])
    assert (found[:, 0] > 1).mean() == pytest.approx(0.25, abs=0.04)
    hot = quiet.model_copy(update={"slow_host_frac": 0.0})
    found = device_factors(hot, 64, 8, 16, Fleet(hot_racks=1, hot_rack_loss=0.2), rng)
    assert (found == 1.2).sum() == 16


def test_congestion():
    one = fabric_of(32, 1.0, 1)
    assert one == (32, 32, 1)
    hashed = congestion_factors(one, "hashed", 0.0, 20_000, 0)
    # The fullest of 32 bins with 32 balls, by a second way of drawing.
    rng = np.random.default_rng(1)
    fullest = [np.bincount(rng.integers(32, size=32)).max() for _ in range(20_000)]
    assert hashed.mean() == pytest.approx(np.mean(fullest), rel=0.01)
    many = congestion_factors(fabric_of(32, 1.0, 64), "hashed", 0.0, 5000, 0)
    assert 1.0 < many.mean() < 1.4 < hashed.mean()
    assert np.all(congestion_factors(one, "sprayed", 0.2, 10, 0) == 1.25)
    busy = congestion_factors(one, "hashed", 0.3, 5000, 0)
    assert busy.mean() > 1.2 * hashed.mean()
    with pytest.raises(InputError, match="below 1"):
        congestion_factors(one, "hashed", 1.0, 10, 0)


def _stage_means(record, name):
    op = np.array(record.operation)
    stages = int(record.stage.max()) + 1
    return np.array(
        [record.duration_s[(op == name) & (record.stage == s)].mean() for s in range(stages)]
    )


def test_recorded_job_with_a_slow_last_stage():
    """ST: 4 stages, 2 replicas; published slowdown 1.1787 over stages of equal work."""
    record = read_recorded_ops(DATA / "ST.parquet")
    replay = Replay(record)
    f, b = (_stage_means(record, f"{way}-compute") for way in ("forward", "backward"))
    schedule = generate("1f1b", 4, 4, 1)
    tables = QUIET._replace(operation=lognormal_table(0.027))
    paces = np.ones((1, 2, 4))
    zero = np.zeros(4)
    actual = graph_of(schedule, StageTimes.of(4, f, b, zero))
    even = graph_of(schedule, StageTimes.of(4, f.mean(), b.mean(), zero))
    ideal = play_vector(even, np.ones((4, 1))).max()
    after = After(0.0, replay.ideal_step_s() - ideal)
    found = draw_steps(actual, paces, tables, after, 2000, 0)
    assert found.step_s.mean() == pytest.approx(replay.no_delay_s(), rel=0.02)
    assert found.step_s.mean() / replay.ideal_step_s() == pytest.approx(1.178702, rel=0.02)


def test_recorded_job_with_a_slow_worker():
    """AR: 4 replicas of 4 stages, one worker 2.4 times slower; published slowdown 1.9730."""
    record = read_recorded_ops(DATA / "AR.parquet")
    replay = Replay(record)
    op = np.array(record.operation)
    work = np.isin(op, ["forward-compute", "backward-compute"])
    busy = np.zeros((4, 4))
    np.add.at(busy, (record.dp_rank[work], record.stage[work]), record.duration_s[work])
    f, b = (np.median(record.duration_s[op == f"{way}-compute"]) for way in ("forward", "backward"))
    pace = busy / np.median(busy)
    assert pace[0, 0] == pytest.approx(2.37, rel=0.02)
    schedule = generate("1f1b", 4, 32, 1)
    graph = graph_of(schedule, StageTimes.of(4, f, b, 0.0))
    tables = QUIET._replace(operation=lognormal_table(0.022))
    even = graph_of(schedule, StageTimes.of(4, f * pace.mean(), b * pace.mean(), 0.0))
    after = After(0.0, replay.ideal_step_s() - play_vector(even, np.ones((4, 1))).max())
    found = draw_steps(graph, pace[None], tables, after, 500, 0)
    assert found.step_s.mean() / replay.ideal_step_s() == pytest.approx(1.973045, rel=0.02)
