"""The step of a plan: sums, bounds, monotone in what the machine offers, limits of the bubble."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plan_cases import Case, cases, job_of

from gangsaw.cost import types as t
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_doc, memory_state
from gangsaw.cost.step import combine, rank_profiles, recompute_share
from gangsaw.schedule import generate
from gangsaw.search.estimate import bill_of, bounds_of, evaluate
from gangsaw.simulate import simulate
from gangsaw.simulate.times import StageTimes, Transfers
from gangsaw.spec.plan import Plan

MANY = settings(
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
ROUNDING = 1e-9
UNSPLIT = ("gpipe", "1f1b", "interleaved", "bfs")


def dearer(low, **device):
    return low.__class__(**{**low.__dict__, "device": low.device._replace(**device)})


def networked(low, **net):
    return low.__class__(**{**low.__dict__, "net": low.net._replace(**net)})


@MANY
@given(cases())
def test_causes_sum_to_the_step_and_none_is_negative(case):
    cost = case.step()
    parts = cost[1:]
    assert math.isfinite(cost.step) and cost.step > 0.0
    assert sum(parts) == pytest.approx(cost.step, rel=1e-9)
    for name, value in zip(cost._fields[1:], parts, strict=True):
        assert value >= -ROUNDING * cost.step, name


@MANY
@given(cases())
def test_bill_lines_sum_to_devices_times_step(case):
    cost = case.step()
    bill = bill_of(case.job, cost)
    devices = case.job.cluster.devices
    assert math.fsum(line.device_s for line in bill.lines) == pytest.approx(
        devices * cost.step, rel=1e-12
    )
    assert math.fsum(line.usd for line in bill.lines) == pytest.approx(bill.usd, rel=1e-12)


@MANY
@given(cases())
def test_step_is_above_its_physical_bounds(case):
    ev = evaluate(case.job, case.plan)
    for name, bound_s in bounds_of(ev).items():
        assert ev.cost.step > bound_s, name


@MANY
@given(cases(), st.integers(0, 5), st.sampled_from((1.1, 2.0, 10.0)))
def test_more_bandwidth_in_any_tier_is_never_slower(case, tier, times):
    low = lower(case.job)
    rates = low.net.bytes_per_s.copy()
    rates[tier % len(rates)] *= times
    faster = case.step(networked(low, bytes_per_s=rates))
    assert faster.step <= case.step(low).step * (1 + ROUNDING)


@MANY
@given(cases(), st.sampled_from((0.5, 0.1, 0.0)))
def test_less_latency_is_never_slower(case, share):
    low = lower(case.job)
    faster = case.step(networked(low, latency_s=low.net.latency_s * share))
    assert faster.step <= case.step(low).step * (1 + ROUNDING)


# Schedules that split the backward fill bubbles with weight gradients: where host copies or kernel
# launches bound the rest, a faster device leaves less to fill with, so they are left out here.
@MANY
@given(cases(schedules=UNSPLIT), st.sampled_from((1.05, 1.5, 4.0)))
def test_a_faster_device_is_never_slower(case, times):
    low = lower(case.job)
    d = low.device
    slow = case.step(low).step
    whole = dearer(low, peak=d.peak * times, peak_linear=d.peak_linear * times, hbm=d.hbm * times)
    assert case.step(whole).step <= slow * (1 + ROUNDING)
    assert case.step(dearer(low, pcie=d.pcie * times)).step <= slow * (1 + ROUNDING)


@MANY
@given(cases(schedules=UNSPLIT), st.sampled_from((1.05, 2.0)))
def test_each_part_of_a_device_alone_is_never_slower(case, times):
    low = lower(case.job)
    d = low.device
    slow = case.step(low).step
    sums = dearer(low, peak=d.peak * times, peak_linear=d.peak_linear * times)
    assert case.step(sums).step <= slow * (1 + ROUNDING)
    assert case.step(dearer(low, hbm=d.hbm * times)).step <= slow * (1 + ROUNDING)


def relabelled(job):
    """The same model with every second layer called a kind of its own."""
    kinds, order = job.model.kinds, job.model.order
    doubled = tuple(k.model_copy(update={"name": f"{k.name} again"}) for k in kinds)
    renamed = tuple(k + len(kinds) * (i % 2) for i, k in enumerate(order))
    changed = {"kinds": (*kinds, *doubled), "order": renamed}
    return job.model_copy(update={"model": job.model.model_copy(update=changed)})


@MANY
@given(cases())
def test_relabelled_equal_layers_change_nothing(case):
    other = Case(relabelled(case.job), case.plan)
    assert other.step().step == pytest.approx(case.step().step, rel=1e-12)
    counts = case.plan.stages or evaluate(case.job, case.plan).counts
    mine = memory_doc(case.job, case.plan, counts)
    again = memory_doc(other.job, case.plan, counts)
    assert again.peak_bytes == pytest.approx(mine.peak_bytes, rel=1e-12)


@MANY
@given(cases(schedules=("1f1b", "interleaved")))
def test_recompute_costs_time_and_none_of_it_is_compute(case):
    # Activations on the host would be fewer with recompute, and their copies shorter.
    base = {"recompute_layers": 0, "offload_activations": 0.0}
    again = {
        how: case.step(plan=case.plan.model_copy(update={"recompute": how, **base}))
        for how in ("none", "selective", "full")
    }
    assert again["none"].recompute == 0.0
    assert again["none"].compute == pytest.approx(again["full"].compute, rel=1e-12)
    # Longer backward may hide more of the gradients' traffic, never more than it lasts.
    assert again["none"].step <= again["full"].step * (1 + ROUNDING)


@MANY
@given(cases(), st.sampled_from((2, 3)))
def test_more_microbatches_cost_at_least_their_work(case, times):
    more = case.plan.model_copy(update={"num_microbatches": case.plan.num_microbatches * times})
    few, many = case.step(), case.step(plan=more)
    assert many.compute == pytest.approx(times * few.compute, rel=1e-12)
    assert many.step >= few.step * (1 - ROUNDING)
    if case.plan.schedule in ("gpipe", "1f1b"):
        # The others fill idle time with a second microbatch.
        assert many.step >= few.step + (times - 1) * few.compute * (1 - ROUNDING)


SILENT = {
    "pp_exposed": 0.0, "step_overhead_s": 0.0, "microbatch_overhead_s": 0.0,
    "launch_floor_layer_s": 0.0, "moe_layer_floor_s": 0.0, "optimizer_traffic": 0.0,
}  # fmt: skip


def equal_stages(schedule, p, v, m, layers=4.0):
    """A step of p equal ranks without ends, communication, optimizer and host."""
    job = job_of("gpt3-175b", 64)
    low = lower(job)
    plan = Plan(pp=p, num_microbatches=m)
    cut = cut_of(plan, job.recipe)
    stack = low.stack._replace(**SILENT)
    table = time_table(low.kinds, cut, low.device, low.net, strides_of(plan), stack)
    table[:, 12:] = 0.0  # nothing of the host
    loads = t.Loads(
        np.full((1, 1), layers * v), np.full(1, layers), np.zeros(1), np.zeros(1),
        np.full(1, float(p)), np.zeros(1), np.full(1, p - 1.0),
    )  # fmt: skip
    mems = np.zeros((1, 15))
    times = t.EndTime(*([0.0] * len(t.EndTime._fields)))
    profiles = rank_profiles(loads, table, mems, times, low.ends, 1.0, 1.0)
    state = memory_state(plan, job.recipe)._replace(
        vpp=float(v), schedule=float(schedule), zero=0.0
    )
    return combine(profiles, np.zeros((1, 2)), 0.0, 0.0, state, low.device, stack)


@pytest.mark.parametrize("p", [1, 2, 3, 8, 61])
@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize(
    ("schedule", "v"), [(t.GPIPE, 1), (t.ONE_F_ONE_B, 1), (t.INTERLEAVED, 2), (t.BFS, 4)]
)
def test_bubble_of_equal_stages_is_the_published_share(schedule, v, p, rounds):
    # arXiv:2104.04473 section 2.2: (p - 1) / (v m) of the ideal time, (p-1)/(vm+p-1) of the step.
    m = rounds * p
    v = v if p > 1 else 1
    cost = equal_stages(schedule, p, v, m)
    assert cost.bubble / cost.step == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)
    assert cost.step == pytest.approx(cost.compute + cost.bubble, rel=1e-12)


def test_the_slowest_of_unequal_stages_sets_the_pace():
    # Loads of 8, 8, 12, 8 layers: (m - 1) times the slowest, and each stage once.
    case = Case(
        job_of("llama-3.1-8b", 4, global_batch=16, stack_name="megatron-core-te"),
        Plan(pp=4, num_microbatches=16),
    )
    low = lower(case.job)
    plain = low.__class__(**{**low.__dict__, "stack": low.stack._replace(**SILENT)})
    level, skew = (
        case.step(plain, case.plan.model_copy(update={"stages": s}))
        for s in ((8, 8, 8, 8), (7, 7, 11, 7))
    )
    layer = (level.compute - equal_ends(plain, case)) / (16 * 8)
    assert skew.step - level.step == pytest.approx(15 * 3 * layer - gap(plain, case), rel=0.02)
    assert skew.compute == pytest.approx(level.compute, rel=1e-12)


def equal_ends(low, case):
    """Mean seconds a rank and step of embedding and head."""
    loads = loads_of(case.job.model, case.plan, (8, 8, 8, 8))
    return 16 * ends_s(low, case, loads) / 4


def ends_s(low, case, loads):
    from gangsaw.cost.ends import end_time

    found = end_time(
        low.ends, cut_of(case.plan, case.job.recipe), low.device, low.net, strides_of(case.plan),
        low.stack,
    )  # fmt: skip
    assert loads.heads.sum() == 1.0
    return sum(found[:2]) + sum(found[3:6])


def gap(low, case):
    """In the even layout the last stage is the slowest by its loss head: 15 times that is saved."""
    from gangsaw.cost.ends import end_time

    found = end_time(
        low.ends, cut_of(case.plan, case.job.recipe), low.device, low.net, strides_of(case.plan),
        low.stack,
    )  # fmt: skip
    return 15 * (found.head_fwd + found.head_bwd + found.head_wgrad)


@given(st.integers(0, 12), st.integers(1, 12))
def test_first_layers_recompute_no_more_than_there_are(first, chunk):
    state = memory_state(
        Plan(recompute="full", recompute_layers=first), job_of("gpt2-xl", 1).recipe
    )
    share = recompute_share(state, float(chunk))
    assert share == (1.0 if first == 0 else min(1.0, first / chunk))


@MANY
@given(cases(schedules=("1f1b", "interleaved")), st.sampled_from((2.0, 4.0)))
def test_data_parallel_traffic_hides_no_more_than_it_lasts(case, factor):
    assume(case.plan.zero < 2)
    low = lower(case.job)
    none = low.__class__(
        **{
            **low.__dict__,
            "stack": low.stack._replace(dp_overlap_backward=0.0, dp_overlap_forward=0.0),
        }
    )
    hidden, shown = case.step(low), case.step(none)
    assert 0.0 <= hidden.dp_comm <= shown.dp_comm * (1 + ROUNDING)
    more = low.__class__(
        **{**low.__dict__, "stack": low.stack._replace(dp_traffic=factor * low.stack.dp_traffic)}
    )
    assert case.step(more).dp_comm >= hidden.dp_comm * (1 - ROUNDING)


FREE, HELD = 0.0, 1.0
"""Transfers that nobody waits for, and those that a rank waits for."""


def path_of(schedule, p, v, m, hop, exposed):
    """Seconds along a pipeline of equal ranks (forward 1, backward 1, weights 1), no other cost."""
    low = lower(job_of("llama-3.1-8b", p))
    profile = np.zeros((1, 25))
    profile[0, :3] = 1.0
    profile[0, 15] = float(p)
    state = t.State(
        pp=float(p), vpp=float(v), m=float(m), schedule=float(schedule), recompute=0.0,
        recompute_layers=0.0, zero=0.0, shard=1.0, expert_shard=1.0, dp=1.0,
        offload_optimizer=0.0, offload_activations=0.0,
    )  # fmt: skip
    stack = low.stack._replace(pp_exposed=exposed, step_overhead_s=0.0, microbatch_overhead_s=0.0)
    return combine(profile, np.zeros((1, 2)), hop, 0.0, state, low.device, stack).step


@pytest.mark.parametrize("exposed", [FREE, HELD])
@pytest.mark.parametrize(
    ("name", "code", "p", "v"),
    [
        ("1f1b", t.ONE_F_ONE_B, 8, 1),
        ("gpipe", t.GPIPE, 4, 1),
        ("interleaved", t.INTERLEAVED, 4, 4),
        ("zb-h1", t.ZB_H1, 8, 1),
        ("izb", t.IZB, 4, 2),
    ],
)
def test_transfers_are_counted_once(name, code, p, v, exposed):
    """The event loop, where a sender waits or not, is an independent account of the same hops."""
    m, hop, chunks = 4 * p, 0.05, p * v
    each = [1.0 / v] * chunks
    loop = simulate(
        generate(name, p, m, v),
        StageTimes.of(chunks, each, each, each),
        Transfers.of(chunks, 1.0, 1.0 / hop, blocking=exposed == HELD),
    )
    assert path_of(code, p, v, m, hop, exposed) == pytest.approx(loop.makespan_s, rel=0.015)


def sharded_step(pp, m, zero):
    job = job_of("llama-3.1-8b", 64, global_batch=64 // pp * m)
    plan = Plan(tp=1, pp=pp, dp=64 // pp, num_microbatches=m, zero=zero)
    return evaluate(job, plan).cost


def test_zero3_under_a_pipeline_moves_its_traffic_once_a_step():
    """As its memory does: a stage stays gathered from the first microbatch to the last."""
    once, again = sharded_step(4, 8, 3), sharded_step(4, 32, 3)
    assert again.dp_comm == pytest.approx(once.dp_comm, rel=1e-9)
    assert once.dp_comm > 0.0
    alone, often = sharded_step(1, 2, 3), sharded_step(1, 8, 3)
    assert often.dp_comm == pytest.approx(4.0 * alone.dp_comm, rel=1e-6)
