"""Plans on a bad day: sums, directions, the quick expectation, and what decides the ranking."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from gangsaw.bill.goodput import job_mtbf_s
from gangsaw.cost.checkpoint import checkpoint_of, trained_params
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import load_prices
from gangsaw.read.reliability import load_reliability, parse_reliability
from gangsaw.read.stacks import load_stack
from gangsaw.search.bad_day import Wishes, failures_of, spare_rows, strategies_of
from gangsaw.search.day_law import step_law
from gangsaw.search.estimate import evaluate
from gangsaw.search.fabric_health import network_health, zero3_need_bytes_per_s
from gangsaw.search.goodput import best_goodput, saved_on
from gangsaw.search.keep_rows import keep_rows
from gangsaw.search.rank_rows import fabric_shares, rank_loads
from gangsaw.search.tail import Conditions, step_graph, step_tail
from gangsaw.search.tail_answer import TailQuestion, tail_answer, value_of
from gangsaw.search.tail_docs import OBJECTIVES
from gangsaw.simulate.failures import failure_classes, mtbf_s, restart_s
from gangsaw.simulate.noise import Fleet
from gangsaw.simulate.tail import play_vector
from gangsaw.spec import Job, Plan, Recipe

FIGURES = load_reliability()
QUIET = FIGURES.model_copy(
    update={
        "noise": FIGURES.noise.model_copy(
            update={
                "op_cv": 0.0, "device_cv": 0.0, "slow_host_frac": 0.0, "pause_s": 0.0,
                "background_frac": 0.0,
            }
        )
    }
)  # fmt: skip


@lru_cache
def job(batch=256, devices=256):
    return Job(
        model=load_model("llama-2-70b"),
        recipe=Recipe(seq_len=4096, global_batch=batch),
        cluster=load_cluster(f"h100-sxm:{devices}"),
        stack=load_stack("megatron-core-te"),
    )


def evaluated(**cut):
    plan = {"tp": 8, "pp": 4, "dp": 8, "num_microbatches": 32, **cut}
    return evaluate(job(), Plan.model_validate(plan))


def day(figures=FIGURES, **changes):
    return Conditions(figures, **{"steps": 1000, "clusters": 20, **changes})


def test_nothing_slow_is_the_estimate():
    ev = evaluated()
    tail = step_tail(ev, day(QUIET, routing="sprayed"))
    assert tail.mean_s == pytest.approx(ev.cost.step, rel=1e-6)
    assert tail.p95_over_p50 == pytest.approx(1.0)


def test_parts_sum_and_errors_are_stated():
    tail = step_tail(evaluated(), day())
    added = sum(tail.added_s_by_axis.values())
    assert added == pytest.approx(tail.mean_s - tail.estimate_s, rel=1e-6)
    assert sum(tail.variance_by_axis.values()) == pytest.approx(1.0)
    assert tail.draws == 1000 and tail.seed == 0
    # Sprayed packets do not collide: there is nothing to switch off.
    assert tail.variance_by_source["fabric"] == 0.0 < tail.variance_by_source["devices"]
    assert tail.mean_error_s > 0 and all(p.error_s > 0 for p in tail.percentiles)
    p50, p95, p99 = (p.step_s for p in tail.percentiles)
    assert tail.estimate_s < p50 <= p95 <= p99


def test_seed_decides_every_figure():
    one, two, other = (step_tail(evaluated(), day(seed=s)) for s in (3, 3, 4))
    assert one == two and one.mean_s != other.mean_s


def test_a_slow_device_costs_what_its_stage_weighs():
    ev = evaluated()
    tail = step_tail(ev, day(QUIET, routing="sprayed"))
    graph = step_graph(ev)
    # By hand: the slowest stage of a step of m microbatches paces m of its m + p - 1 slots.
    slow = np.ones((4, 1))
    slow[3] = 1.1
    by_hand = play_vector(graph, slow).max() - play_vector(graph, np.ones((4, 1))).max()
    assert tail.slow_device_worst_s >= by_hand * 0.999
    assert 0.05 * ev.cost.step < tail.slow_device_mean_s <= tail.slow_device_worst_s
    assert tail.slow_device_worst_s < 0.1001 * ev.cost.step
    hour = 256 * job().cluster.usd_per_device_hour
    assert tail.slow_device_usd_per_h == pytest.approx(
        hour * tail.slow_device_mean_s / ev.cost.step
    )


def test_hot_racks_slow_links_and_neighbours_cost():
    ev = evaluated()
    base = step_tail(ev, day()).mean_s
    for changed in (
        day(fleet=Fleet(hot_racks=2, hot_rack_loss=0.2)),
        day(fleet=Fleet(slow_link_loss=1.0)),
        day(
            FIGURES.model_copy(
                update={"noise": FIGURES.noise.model_copy(update={"background_frac": 0.5})}
            )
        ),
        day(
            FIGURES.model_copy(
                update={"noise": FIGURES.noise.model_copy(update={"sequence_cv": 0.3})}
            )
        ),
    ):
        assert step_tail(ev, changed).mean_s > base * 1.001


def test_routing_follows_the_fabric_unless_stated():
    ib, roce = load_cluster("h100-sxm:256"), load_cluster("h100-roce-llama3:256")
    assert (day().routing_of(ib), day().routing_of(roce)) == ("sprayed", "hashed")
    assert day(routing="hashed").routing_of(ib) == "hashed"
    ev = evaluated()
    assert step_tail(ev, day(routing="hashed")).mean_s > step_tail(ev, day()).mean_s


def test_experts_over_the_fabric_feel_its_collisions():
    """All-to-all between nodes against inside one: shares by hand, and what hashing costs."""
    moe = Job(
        model=load_model("mixtral-8x7b"), recipe=Recipe(seq_len=4096, global_batch=512),
        cluster=load_cluster("h100-sxm:128"), stack=load_stack("megatron-core-te"),
    )  # fmt: skip
    near, far = (
        evaluate(moe, Plan(tp=4, pp=2, dp=16, ep=8, etp=etp, num_microbatches=32)) for etp in (1, 4)
    )
    assert fabric_shares(near) == (0.0, 1.0)
    share, _ = fabric_shares(far)
    busy = 32 * float(rank_loads(far)[0].max())
    assert share == pytest.approx(far.cost.ep_comm / busy, rel=0.05) and 0.05 < share < 0.9
    added = []
    for ev in (near, far):
        plain, hashed = (step_tail(ev, day(routing=r)) for r in ("sprayed", "hashed"))
        added.append((hashed.mean_s - plain.mean_s) / ev.cost.step)
        parts = sum(hashed.added_s_by_axis.values())
        assert parts == pytest.approx(hashed.mean_s - hashed.estimate_s, rel=1e-6)
    assert added[1] > 2 * added[0]
    # The law of the ranking sees the same.
    roce = moe.cluster.model_copy(update={"name": "h100-roce"})
    law = step_law(replace(far, job=moe.model_copy(update={"cluster": roce})), FIGURES)
    drawn = step_tail(far, day(routing="hashed"))
    assert law.mean_s == pytest.approx(drawn.mean_s, rel=0.03)


def test_lock_step_of_everything_feels_the_slowest_device_in_full():
    sharded = evaluated(tp=1, pp=1, dp=256, num_microbatches=1, zero=3)
    tail = step_tail(sharded, day())
    assert (tail.lock_step_devices, tail.replicas) == (256, 1)
    assert tail.added_s_by_axis["data parallel"] == 0.0


def test_checkpoints_and_failures():
    ev = evaluated()
    found = failures_of(ev, FIGURES, load_prices(), ev.cost.step, Wishes(recovery_s=300.0), 0)
    rows = {(c.tier, c.mode): c for c in found.checkpoints}
    assert len(rows) == 2 * len(FIGURES.storage)
    for name in FIGURES.storage:
        quick, slow = rows[name, "asynchronous"], rows[name, "synchronous"]
        assert quick.goodput_frac >= slow.goodput_frac
        assert quick.save_s == slow.save_s == slow.block_s > quick.block_s
        assert quick.usd_month == quick.lost_usd_month + quick.storage_usd_month
        assert quick.interval_s >= ev.cost.step
        assert not quick.recovery_reached and "detection" in quick.recovery_needs
    assert (
        rows["nvme", "asynchronous"].readable_frac
        < rows["peer-memory", "asynchronous"].readable_frac
    )
    assert rows["parallel-fs", "asynchronous"].readable_frac == pytest.approx(1.0)
    assert rows["nvme", "asynchronous"].storage_usd_month > 0  # wear
    reached = failures_of(ev, FIGURES, load_prices(), ev.cost.step, Wishes(recovery_s=3600.0), 0)
    assert all(c.recovery_reached and not c.recovery_needs for c in reached.checkpoints)
    for s in found.strategies[1:]:
        assert s.goodput_closed_frac == pytest.approx(s.goodput_frac, rel=0.02)
    *spared, dropped = found.strategies
    assert spared[0].goodput_frac < dropped.goodput_frac < 1 and dropped.spares == 0
    goods = [s.goodput_frac for s in spared]
    assert goods == sorted(goods) and found.strategies[0].waiting_frac > 0.01
    assert found.goodput_frac == best_goodput(ev, FIGURES, ev.cost.step)
    blast = {b.lost: b for b in found.blast}
    assert (blast["host"].tensor_groups, blast["host"].replicas) == (1, 1)
    assert blast["device"].idle_devices == 32


def test_spares_for_an_availability_against_drawn_failures():
    """Time is up where the last failure's restart is over and no more hosts are away than spares."""
    classes = failure_classes(FIGURES, load_cluster("h100-sxm:8192"), 8192)
    rows = spare_rows(classes, FIGURES, 0.96, (30.0, 2.0))
    assert [r.kind.split()[-2] for r in rows] == ["cold", "warm", "warm"]
    assert rows[0].spares is None and rows[0].available_frac < 0.96
    rng, mean = np.random.default_rng(0), mtbf_s(classes)
    rates = np.array([c.per_s for c in classes])
    count = 100_000
    at = np.cumsum(rng.exponential(mean, count))
    kind = rng.choice(len(classes), count, p=rates * mean)
    hosts = np.array([c.hosts if c.replace else 0 for c in classes])[kind]
    repair = FIGURES.recovery.repair_s
    grid = rng.uniform(at[100], at[-100], 400_000)
    last = np.searchsorted(at, grid) - 1
    gone = np.searchsorted(at, grid - repair)
    total = np.concatenate(([0], np.cumsum(hosts)))
    away = total[last + 1] - total[gone]
    for row, strategy in zip(rows, strategies_of(1)[1:4], strict=True):
        load = 2.0 if strategy.remap else 30.0
        restart = np.array([restart_s(c, FIGURES.recovery, strategy, load, True) for c in classes])
        started = grid - at[last] > restart[kind[last]]
        up = started if row.spares is None else started & (away <= row.spares)
        assert row.available_frac == pytest.approx(up.mean(), abs=0.003)
        if row.spares:
            assert row.available_frac >= 0.96
            assert (started & (away <= row.spares - 1)).mean() < 0.963


def test_feeds_and_racks_take_many_hosts_and_ask_for_more_spares():
    tables = {"components": {"feed": {
        "rate": "0.3/year", "unit": "feed", "cure": "replace", "hits": "feed", "source": "own",
        "as_of": "2026",
    }}}  # fmt: skip
    figures = parse_reliability(tables, "here", FIGURES)
    ev = evaluated()
    found, plain = (
        failures_of(ev, f, load_prices(), 5.0, Wishes(availability_frac=0.9999), 0)
        for f in (figures, FIGURES)
    )
    (feed,) = (k for k in found.kinds if k.name == "feed")
    site = FIGURES.site
    assert feed.hosts == min(32, site.rack_hosts * site.feed_racks)
    feeds = -(-32 // (site.rack_hosts * site.feed_racks))
    assert feed.mtbf_s == pytest.approx(365.25 * 86400 / (0.3 * feeds))
    assert found.spares_wanted >= feed.hosts > plain.spares_wanted
    rows = {c.tier: c.readable_frac for c in found.checkpoints}
    assert rows["parallel-fs"] == pytest.approx(1.0)
    before = {c.tier: c.readable_frac for c in plain.checkpoints}
    assert rows["peer-memory"] < before["peer-memory"]  # a feed takes the peer as well


def test_first_checkpoint_of_adapters_and_those_after_it():
    lora = job().model_copy(update={"recipe": Recipe(seq_len=4096, global_batch=256, task="lora")})
    ev = evaluate(lora, Plan(tp=8, pp=4, dp=8, num_microbatches=32))
    found = failures_of(ev, FIGURES, load_prices(), 5.0, Wishes(), 0)
    weights = 2.0 * float(lora.model.params())
    assert found.full_bytes - found.increment_bytes == pytest.approx(weights)
    assert found.increment_bytes == 14.0 * trained_params(lora)[0] < 0.03 * weights
    # What a restart reads has the frozen weights in it, whenever it comes.
    assert checkpoint_of(lora, ev.plan).read == pytest.approx(found.full_bytes)
    dense = failures_of(evaluated(), FIGURES, load_prices(), 5.0, Wishes(), 0)
    assert dense.full_bytes == dense.increment_bytes
    # ZeRO 1 holds master and moments once, and bf16 weights eight times.
    assert dense.copies_bytes == pytest.approx(dense.full_bytes * (12 + 8 * 2) / 14)


def test_failure_rate_is_that_of_the_price_book():
    found = failures_of(evaluated(), FIGURES, load_prices(), 5.0, Wishes(), 0)
    book = load_prices().value("failure.device.mtbf", "hours")
    assert found.mtbf_s == pytest.approx(job_mtbf_s(book, 256), rel=0.02)


def test_what_reaches_a_recovery_objective_is_a_faster_read():
    slow = FIGURES.storage["object-store"].model_copy(update={"read_bytes_per_s": 1e9})
    figures = FIGURES.model_copy(update={"storage": {**FIGURES.storage, "object-store": slow}})
    ev = evaluated()
    found = failures_of(ev, figures, load_prices(), 5.0, Wishes(recovery_s=1500.0), 0)
    row = next(c for c in found.checkpoints if c.tier == "object-store")
    assert not row.recovery_reached and row.recovery_needs.startswith("read at")
    # What it names is enough.
    rest = row.restart_s - row.load_s
    quick = slow.model_copy(update={"read_bytes_per_s": row.bytes / (1500.0 - rest) * 1.01})
    again = figures.model_copy(update={"storage": {**figures.storage, "object-store": quick}})
    saved = saved_on(ev, again, "object-store", True, 5.0, checkpoint_of(ev.job, ev.plan))
    assert saved.restart_s <= 1500.0 * 1.01


def test_no_progress_is_said():
    rate = FIGURES.components["device"].model_copy(update={"per_s": 0.5})
    figures = FIGURES.model_copy(update={"components": {"device": rate}})
    with pytest.raises(InputError, match="the run never ends"):
        best_goodput(evaluated(), figures, 5.0)


def test_network():
    ev = evaluated()
    health = network_health(ev, FIGURES, "hashed", 6.0, 0)
    assert {c.axis for c in health.collectives} == {"tp", "pp", "dp"}
    for c in health.collectives:
        assert c.p99_s >= c.expected_s and c.timeout_frac < 0.05
        assert c.p99_error_s >= 0 and (c.tier != "node" or c.p99_error_s == 0)
    node = next(t for t in health.tiers if t.tier == "node")
    # Four times a layer and microbatch, each 2 (n-1)/n of the activations of a microbatch.
    hidden = 4096 * 8192 * 2
    assert node.bytes_per_device == pytest.approx(4 * 20 * 32 * 2 * 7 / 8 * hidden)
    assert node.headroom_frac < 1
    rows = {(r.oversubscription, r.routing): r for r in health.congestion}
    for (over, routing), r in rows.items():
        assert over <= r.mean <= r.p95 <= r.p99 or routing.startswith("sprayed")
        assert (r.draws, r.seed) == (2000, 0)
        # Counts of flows are whole, so a percentile may be sure.
        assert r.p95_error >= 0 and (r.p99_error == 0 or not routing.startswith("sprayed"))
    assert any(r.p99_error > 0 for r in rows.values())
    assert rows[1.0, "hashed, 1 flow a pair"].mean > rows[1.0, "hashed, 16 flows a pair"].mean > 1


def test_zero3_is_carried_or_not_by_tokens_a_device():
    small, large = (
        evaluate(job(batch), Plan(tp=8, pp=4, dp=8, num_microbatches=batch // 8))
        for batch in (64, 2048)
    )
    assert zero3_need_bytes_per_s(small, 8.0) > 10 * zero3_need_bytes_per_s(large, 8.0)
    assert not network_health(small, FIGURES, "sprayed", 6.0, 0).zero3_carried
    assert network_health(large, FIGURES, "sprayed", 6.0, 0).zero3_carried


def test_keep_when_memory_is_short():
    ev = evaluated(mbs=8, num_microbatches=4)
    rows = keep_rows(ev, FIGURES.storage["nvme"])
    assert [r.stage for r in rows] == [0, 3]
    for r in rows:
        assert r.keep + r.recompute + r.host + r.nvme in (r.layers, 0)
    assert rows[0].keep < rows[0].layers  # the first rank holds most in flight
    assert rows[0].cost_s["nvme"] > rows[0].cost_s["recompute"]
    assert "slower than recomputing" in rows[0].note
    for r in rows:
        assert r.optimizer_s["device"] < r.optimizer_s["host"] <= r.optimizer_s["nvme"]
        hour = 256 * ev.job.cluster.usd_per_device_hour
        assert r.added_usd == pytest.approx(hour * r.added_s / 3600)  # nothing on the drives
        assert r.nvme_life_months is None


def test_keep_moves_the_optimizer_where_it_is_most_of_the_state():
    """70 billion parameters on 8 devices, state unsharded: 12 bytes of 18 are the optimizer's."""
    small = Job(
        model=load_model("llama-2-70b"), recipe=Recipe(seq_len=4096, global_batch=256),
        cluster=load_cluster("h100-sxm:16"), stack=load_stack("megatron-core-te"),
    )  # fmt: skip
    ev = evaluate(small, Plan(tp=8, dp=2, num_microbatches=128, zero=0))
    tier = FIGURES.storage["nvme"]
    for r in keep_rows(ev, tier):
        away = r.optimizer_host_frac + r.optimizer_nvme_frac
        assert away > 0.5 and r.optimizer_added_s > 0.0
        assert r.added_s >= r.optimizer_added_s * 0.999
        assert r.optimizer_s["host"] > 10 * r.optimizer_s["device"]
    # Host memory too small for it: the drives, and their wear is paid.
    host = small.cluster.host.model_copy(update={"memory_bytes": 1e11})
    cluster = small.cluster.model_copy(update={"host": host})
    poor = evaluate(
        small.model_copy(update={"cluster": cluster}),
        Plan(tp=8, dp=2, num_microbatches=128, zero=0),
    )
    for r in keep_rows(poor, tier):
        assert r.optimizer_nvme_frac > 0.5 and r.nvme_pays_from_bytes_per_s == 0.0
        assert r.note == "nothing fits without NVMe"
        # By hand: bytes a step of the eight devices of a host against what its drives take.
        hour = 16 * cluster.usd_per_device_hour
        wear = r.added_usd - hour * r.added_s / 3600
        steps = r.nvme_life_months * 365.25 * 86400 / 12 / (ev.cost.step + r.added_s)
        assert wear == pytest.approx(2 * tier.drive_usd / steps, rel=1e-6)


def test_ranking_by_each_objective():
    plans = [
        ("tp8", evaluated()),
        ("tp4", evaluated(tp=4, dp=16, num_microbatches=16)),
        ("zero3", evaluated(tp=1, pp=1, dp=256, num_microbatches=1, zero=3)),
    ]
    asked = TailQuestion(day(), objective="predictability")
    answer = tail_answer(plans, asked, load_prices())
    by = {p.name: p for p in answer.plans}
    assert set(answer.best) == {"estimate", *OBJECTIVES}
    for objective in OBJECTIVES:
        values = {n: value_of(p, objective) for n, p in by.items()}
        assert answer.best[objective] == min(values, key=values.get)
    assert list(answer.order) == sorted(by, key=lambda n: by[n].step.p95_over_p50)
    by_estimate = sorted(by, key=lambda n: by[n].step.estimate_s)
    assert answer.order_changes == (list(answer.order) != by_estimate)
    for p in by.values():
        assert p.usd_per_million_tokens > p.usd_per_million_tokens_mean
        assert p.expected_step_s == pytest.approx(p.step.mean_s / p.failures.goodput_frac)
    assert any("other trainings" in n for n in answer.notes)


def test_wrong_conditions():
    with pytest.raises(InputError, match="at least one step a cluster"):
        Conditions(FIGURES, steps=5, clusters=10)
