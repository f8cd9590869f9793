"""Event by event against closed forms, published records and exact laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from gangsaw.bill.expected import (
    effective_restart_s,
    expected_lost_s,
    goodput_frac,
    optimum_interval_s,
)
from gangsaw.bill.goodput import daly_interval_s, expected_wall_s, young_interval_s
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.reliability import load_reliability
from gangsaw.simulate.blast import blast_radius, coordinates, replicas_away
from gangsaw.simulate.failures import (
    FailureClass,
    RunPlan,
    Strategy,
    failure_classes,
    mtbf_s,
    play_run,
    restart_s,
    simulate_runs,
)
from gangsaw.simulate.spares import availability_of, hosts_down, spares_needed
from gangsaw.simulate.spot import (
    Restarts,
    gang_edges,
    recorded_spells,
    spot_result,
    up_edges,
    useful_s,
)
from gangsaw.spec import Plan

SOFT = FailureClass("soft", 1e-4, 1, False, "")
HARD = FailureClass("hard", 5e-5, 1, True, "")
RARE = FailureClass("rack", 1e-5, 4, True, "")


@pytest.mark.parametrize(
    ("interval", "block", "delay", "restart", "mean"),
    [
        (600.0, 30.0, 0.0, 300.0, 10_000.0),
        (600.0, 30.0, 0.0, 300.0, 2_000.0),
        (1200.0, 1.0, 500.0, 600.0, 11_000.0),
        (100.0, 0.5, 60.0, 900.0, 3_000.0),
    ],
)
def test_events_agree_with_the_closed_form(interval, block, delay, restart, mean):
    plan = RunPlan(200 * mean, interval, block, delay, 1.0, 0)
    only = (FailureClass("x", 1 / mean, 1, False, ""),)
    found = simulate_runs(plan, only, [(restart, restart)], runs=60, seed=1)
    assert found.goodput_frac == pytest.approx(
        goodput_frac(block, block + delay, interval, mean, restart), rel=0.02
    )
    assert 0 < found.error_frac < 0.01


def test_work_lost_by_a_failure():
    """What events redo a failure, against half an interval and what was not yet safe."""
    mean = 50_000.0
    plan = RunPlan(100 * mean, 600.0, 30.0, 200.0, 1.0, 0)
    only = (FailureClass("x", 1 / mean, 1, False, ""),)
    found = simulate_runs(plan, only, [(60.0, 60.0)], runs=60, seed=1)
    lost = expected_lost_s(30.0, 230.0, 600.0)
    assert found.redone_s / found.failures == pytest.approx(lost, rel=0.06)


def test_several_kinds_of_restart_agree_with_their_one_equivalent():
    classes = (SOFT, HARD, RARE)
    mean = mtbf_s(classes)
    restarts = [(300.0, 0.0), (1500.0, 0.0), (4000.0, 0.0)]
    one = effective_restart_s(
        [(c.per_s, r) for c, (r, _) in zip(classes, restarts, strict=True)], mean
    )
    # Less than the plain mean: long restarts are more often struck by the next failure.
    plain = sum(c.per_s * r for c, (r, _) in zip(classes, restarts, strict=True)) * mean
    assert 300 < one < plain
    plan = RunPlan(300 * mean, 400.0, 20.0, 0.0, 0.0, 10**6)
    found = simulate_runs(plan, classes, restarts, runs=60, seed=2)
    assert found.goodput_frac == pytest.approx(goodput_frac(20, 20, 400, mean, one), rel=0.02)


def test_one_run_by_hand():
    hosts, none = np.array([0, 1]), np.array([0.0, 0.0])
    swapped, waiting = np.array([10.0, 20.0]), np.array([10.0, 30.0])
    # 250 s of work, saves of 5 s after each 100: 260 s without failures.
    plan = RunPlan(250.0, 100.0, 5.0, 0.0, 1000.0, 1)
    play = (plan, np.array([1e9]), np.array([0]), hosts, swapped, waiting)
    assert play_run(*play) == (260.0, 0, 0, 0)
    # Fails at 150: 100 are safe, 45 lost (105 to 150); 10 to restart, then 150 + 5.
    play = (plan, np.array([150.0, 1e9]), np.array([0, 0]), hosts, swapped, waiting)
    assert play_run(*play) == (150 + 10 + 155, 1, 45.0, 0)
    # With the save safe only 60 s later nothing was safe at 150.
    late = plan._replace(delay_s=60.0)
    play = (late, np.array([150.0, 1e9]), np.array([0, 0]), hosts, swapped, waiting)
    assert play_run(*play) == (150 + 10 + 260, 1, 145.0, 0)
    # Two hosts lost, one spare: the second waits until the first is repaired, 1000 after 150.
    play = (plan, np.array([150.0, 50.0, 1e9]), np.array([1, 1, 0]), hosts, swapped, waiting)
    wall, failures, _, waited = play_run(*play)
    assert (failures, waited) == (2, 950.0)
    assert wall == 150 + 50 + 950 + 30 + 155
    # It never ends within the gaps that were drawn.
    assert play_run(plan, np.array([1.0]), np.array([0]), hosts, none, none)[0] == -1


def test_spares_shorten_waiting():
    classes = (HARD,)
    base = RunPlan(3e6, 600.0, 5.0, 0.0, 20_000.0, 0)
    waits = []
    for spares in (0, 1, 4):
        found = simulate_runs(
            base._replace(spares=spares), classes, [(300.0, 300.0)], runs=20, seed=3
        )
        waits.append(found.waited_s / found.wall_s)
    assert waits[0] > waits[1] > waits[2]
    assert waits[0] > 0.4  # 20,000 s of repair every 20,000 s of work
    assert waits[2] < 0.02


def test_without_spares_all_hosts_are_there_as_often_as_poisson_says():
    """Restarts and saves that cost nothing: what is left is P(no host away) = e^(-rate x repair)."""
    base = RunPlan(4e6, 10.0, 0.0, 0.0, 20_000.0, 0)
    classes = (HARD, SOFT)
    found = simulate_runs(base, classes, [(0.0, 0.0), (0.0, 0.0)], runs=40, seed=6)
    away = availability_of((HARD,), 20_000.0, 0)
    assert away == pytest.approx(math.exp(-1.0))
    assert found.goodput_frac == pytest.approx(away, rel=0.03)
    assert found.waited_s / found.wall_s == pytest.approx(1 - away, rel=0.02)
    two = simulate_runs(base._replace(spares=2), classes, [(0.0, 0.0)] * 2, runs=40, seed=6)
    assert two.goodput_frac == pytest.approx(availability_of((HARD,), 20_000.0, 2), rel=0.02)


def test_clustered_failures_cost_less_work_at_the_same_mean():
    plan = RunPlan(2e6, 600.0, 5.0, 0.0, 1.0, 0)
    even = simulate_runs(plan, (SOFT,), [(300.0, 300.0)], runs=40, seed=4)
    clustered = simulate_runs(plan, (SOFT,), [(300.0, 300.0)], runs=40, seed=4, shape=0.7)
    assert clustered.failures == pytest.approx(even.failures, rel=0.1)
    assert clustered.goodput_frac > even.goodput_frac - 0.005


def test_seed_decides():
    plan = RunPlan(1e6, 600.0, 5.0, 0.0, 1.0, 0)
    one, two, other = (
        simulate_runs(plan, (SOFT,), [(300.0, 300.0)], runs=5, seed=s) for s in (7, 7, 8)
    )
    assert one == two and one.wall_s != other.wall_s


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 500), st.floats(600, 1e6))
def test_exact_optimum_is_one(block, mean):
    best = optimum_interval_s(block, mean)
    exact = mean * (1.0 + float(lambertw(-np.exp(-1.0 - block / mean)).real))
    assert best == pytest.approx(exact, rel=1e-6)

    def wall(tau):
        return expected_wall_s(1.0, block, tau, mean, 300.0)

    assert wall(best) <= wall(best * 1.01) and wall(best) <= wall(best * 0.99)
    if block < 0.01 * mean:
        assert daly_interval_s(block, mean) == pytest.approx(best, rel=0.01)
        # Young's first order leaves out the save itself: off by about sqrt(d / 2M) relative.
        assert young_interval_s(block, mean) == pytest.approx(best, rel=0.12)


def test_optimum_waits_for_the_save_before():
    assert optimum_interval_s(0.01, 1e4, 50.0) == pytest.approx(49.99)
    with pytest.raises(InputError, match="no best interval"):
        optimum_interval_s(0.0, 1e4)


def test_interruption_record_of_54_days():
    """419 unexpected interruptions of 16,384 devices; effective training time above 90 %."""
    shipped, cluster = load_reliability(), load_cluster("h100-sxm:16384")
    classes = failure_classes(shipped, cluster, 16384)
    mean = mtbf_s(classes)
    assert 54 * 86400 / mean == pytest.approx(419, rel=0.02)
    restarts = [
        (c.per_s, restart_s(c, shipped.recovery, Strategy("", 9, True, False), 60.0, True))
        for c in classes
    ]
    once = effective_restart_s(restarts, mean)
    assert 300 < once < 1200  # published: 5 to 20 minutes, arXiv:2410.21680
    assert 0.90 < goodput_frac(0.6, 51.0, optimum_interval_s(0.6, mean, 51.0), mean, once) < 0.97


def test_published_mean_times_to_failure():
    """RSC-1: 6.5 failures in 1,000 host-days give 1.8 h at 16,384 and 0.23 h at 131,072."""
    per_s = 6.5 / (1000 * 86400)
    for devices, hours in ((16384, 1.8), (131072, 0.23)):
        assert 1 / (per_s * devices / 8) / 3600 == pytest.approx(hours, rel=0.03)


def test_published_share_of_useful_time():
    """(1 - N r (u0 + dt/2)) / (1 + w/dt), Kokolis et al. arXiv:2410.21680: 128 hosts of RSC-1."""
    per_s, hosts, save, every = 6.5 / (1000 * 86400), 128, 300.0, 3600.0
    for restart in (300.0, 900.0, 1200.0):
        published = (1 - hosts * per_s * (restart + every / 2)) / (1 + save / every)
        ours = goodput_frac(save, save, every, 1 / (hosts * per_s), restart)
        assert ours == pytest.approx(published, rel=0.005)
        assert ours == pytest.approx(0.9, abs=0.01)  # "about 0.9" for jobs above 1,024 devices


def test_hosts_down_is_the_compound_law():
    classes = (HARD, RARE, SOFT)
    p = hosts_down(classes, 20_000.0, 60)
    assert p.sum() == pytest.approx(1.0, abs=1e-6)
    mean = (HARD.per_s + 4 * RARE.per_s) * 20_000
    assert (p * np.arange(61)).sum() == pytest.approx(mean, rel=1e-4)
    rng = np.random.default_rng(0)
    drawn = rng.poisson(HARD.per_s * 2e4, 200_000) + 4 * rng.poisson(RARE.per_s * 2e4, 200_000)
    for spares in (0, 1, 4, 6):
        assert availability_of(classes, 2e4, spares) == pytest.approx(
            (drawn <= spares).mean(), abs=0.004
        )
    k = spares_needed(classes, 2e4, 0.99)
    assert availability_of(classes, 2e4, k) >= 0.99 > availability_of(classes, 2e4, k - 1)
    # One kind alone is Poisson: P(0) + P(1).
    lam = HARD.per_s * 2e4
    assert availability_of((HARD,), 2e4, 1) == pytest.approx(math.exp(-lam) * (1 + lam))
    with pytest.raises(InputError, match="between 0 and 1"):
        spares_needed(classes, 2e4, 1.0)


def test_units_of_a_job():
    shipped, cluster = load_reliability(), load_cluster("h100-sxm:2048")
    by = {c.name: c for c in failure_classes(shipped, cluster, 2048)}
    assert by["device"].per_s == pytest.approx(2048 * 268 / (16384 * 54 * 86400))
    assert by["host"].per_s == pytest.approx(256 * 53 / (2048 * 54 * 86400))
    assert by["switch"].hosts == shipped.site.rack_hosts and by["device"].hosts == 1
    with pytest.raises(InputError, match="no component"):
        failure_classes(shipped.model_copy(update={"components": {}}), cluster, 8)


def test_blast_radius_by_hand():
    plan = Plan(tp=4, pp=4, dp=4, num_microbatches=8)
    assert {k: v.max() for k, v in coordinates(plan).items()} == {
        "tp": 3,
        "cp": 0,
        "dp": 3,
        "pp": 3,
    }
    one = blast_radius(plan, 1, 4.0)
    assert (one.tensor_groups, one.stages, one.replicas, one.idle_devices) == (1, 1, 1, 16)
    # A host of eight: two tensor groups, which are two replicas of one stage.
    host = blast_radius(plan, 8, 4.0)
    assert (host.tensor_groups, host.stages, host.replicas, host.in_flight) == (2, 1, 2, 8.0)
    # With the pipeline inside, the same host holds two stages of one replica.
    inside = blast_radius(plan.model_copy(update={"rank_order": "tp-pp-cp-ep-dp"}), 8, 4.0)
    assert (inside.tensor_groups, inside.stages, inside.replicas) == (2, 2, 1)
    assert blast_radius(plan, 1000, 1.0).idle_devices == 64
    with pytest.raises(InputError, match="at least one"):
        blast_radius(plan, 0, 1.0)


def test_replicas_away_by_drawing_hosts():
    plan = Plan(tp=4, pp=4, dp=16, num_microbatches=8)  # 32 hosts of 8, two replicas each
    classes = (FailureClass("h", 2e-6, 1, True, ""), FailureClass("r", 1e-6, 2, True, ""), SOFT)
    found = replicas_away(plan, classes, 8, 20_000.0)
    rng = np.random.default_rng(0)
    where = coordinates(plan)["dp"]
    lacking = []
    for _ in range(20_000):
        hit: set[int] = set()
        for c in classes[:2]:
            for _ in range(rng.poisson(c.per_s * 20_000.0)):
                units = 256 // (8 * c.hosts)
                at = rng.integers(units) * 8 * c.hosts
                hit |= set(where[at : at + 8 * c.hosts].tolist())
        lacking.append(len(hit))
    assert found == pytest.approx(np.mean(lacking), rel=0.04)
    away = restart_s(
        HARD, load_reliability().recovery, Strategy("", 0, False, False, True), 9.0, False
    )
    assert away == load_reliability().recovery.detect_s + load_reliability().recovery.reschedule_s


def test_spot_records():
    spells = recorded_spells()
    shares = {"us-west-2a": 0.883, "us-west-2b": 0.905, "us-east-1a": 0.167}
    for zone, share in shares.items():
        alone = spot_result(zone, 1, True, Restarts(0.0, 1.0, 0.0))
        assert alone.available_frac == pytest.approx(share, abs=0.001)
        edges = up_edges(spells[zone])
        assert (edges[1:, 0] > edges[:-1, 1]).all()
        gang = spot_result(zone, 16, False, Restarts(600.0, 900.0, 10.0), seed=1)
        whole = spot_result(zone, 16, True, Restarts(600.0, 900.0, 10.0))
        assert gang.available_frac < whole.available_frac
        assert gang.useful_frac < whole.useful_frac < alone.available_frac
    with pytest.raises(InputError, match="Legal: us-east-1a"):
        spot_result("mars", 1, True, Restarts(0.0, 1.0, 0.0))


def test_spot_by_hand():
    edges = up_edges(((1, 10.0), (0, 5.0), (1, 5.0), (1, 5.0)))
    assert edges.tolist() == [[0, 10], [15, 25]]
    both = gang_edges(edges, 25.0, [0.0, 5.0])
    # Shifted by 5: up in 5-15 and 20-25 and 0-5.
    assert both.tolist() == [[0, 10], [20, 25]]
    assert useful_s(np.array([100.0, 30.0, 5.0]), Restarts(10.0, 20.0, 5.0)) == 60.0


def test_spot_losses_of_exponential_spells_agree_with_the_closed_form():
    rng = np.random.default_rng(5)
    mean, restart, interval, block = 5_000.0, 300.0, 600.0, 10.0
    up = rng.exponential(mean, 100_000)
    found = useful_s(up, Restarts(restart, interval, block)) / up.sum()
    # Restarts that are struck again begin anew, as in Daly's form.
    assert found == pytest.approx(goodput_frac(block, block, interval, mean, restart), rel=0.02)
