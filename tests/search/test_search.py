"""The search: the same numbers as one plan, nothing lost by passing plans over, limits kept."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from search_jobs import JOBS, job_of

from gangsaw.cost.legal import check_plan
from gangsaw.cost.memory_doc import memory_doc
from gangsaw.errors import InputError
from gangsaw.jit import told_of_compiling
from gangsaw.search.estimate import closed_form, estimate, evaluate
from gangsaw.search.ranking import SAFE_SLACK, finish, short_list
from gangsaw.search.search import breadth_of, search
from gangsaw.search.space import (
    DOMINATED,
    Limits,
    blocks_of,
    capacity_bytes,
    exhaustive,
    legal_plans,
    search_all,
    stack_breadth,
    sure_bytes,
)
from gangsaw.search.timeline import ChunkCosts, plan_schedule, stage_times, stage_transfers
from gangsaw.simulate.loop import execute
from gangsaw.spec.plan import Plan

pytestmark = pytest.mark.xdist_group("compiled")


def whole(job, fixed=None, **changed):
    """Every plan evaluated and kept, with the partial recomputes of the ordinary search."""
    breadth = replace(stack_breadth(job.stack.name), slack=math.inf, keep=math.inf, **changed)
    return search_all(job, fixed or {}, breadth)


def fields_of(result):
    """What identifies a listed plan to a user."""
    return result.plan.model_dump(exclude={"stages"})


@pytest.mark.parametrize("name", JOBS)
def test_search_and_single_estimate_agree(name):
    job = JOBS[name]()
    found = whole(job)
    assert found.evaluated == len(found.found.codes) > 0
    rng = np.random.default_rng(3)
    for place in rng.choice(found.evaluated, size=min(40, found.evaluated), replace=False):
        ev = finish(found, int(place), thorough=False)
        check_plan(job, ev.plan)
        said = f"{name}: {ev.plan}"
        formula = closed_form(job, ev.plan, ev.low).cost.step
        assert formula == pytest.approx(float(found.found.step_s[place]), rel=1e-6), said
        peak = memory_doc(job, ev.plan, ev.counts, ev.low).peak_bytes
        assert peak == pytest.approx(float(found.found.peak[place]), rel=1e-6), said
        assert finish(found, int(place)).cost.step <= ev.cost.step, said


@pytest.mark.parametrize(
    "name", ["dense", "routed, windows", "vision", "low rank", "split backward"]
)
def test_all_plans_are_legal_and_different(name):
    found = whole(JOBS[name]())
    seen = {(int(o), int(c)) for o, c in zip(found.found.owner, found.found.codes, strict=True)}
    bisected = len(found.found.codes) - len(seen)
    # Only the two bisections of recomputed layers may meet the same plan twice.
    full = sum(found.plan_at(i).recompute == "full" for i in range(len(found.found.codes)))
    assert bisected <= full
    assert found.evaluated >= len(seen)


def passed_over(quick, every, room):
    """Plans within the search's slack of the fastest that it has not kept, of those it goes through.

    Partial groups of shards and first layers of full recompute are sampled, so not all are there,
    and a schedule that another dominates is left out.
    """
    f = every.found
    fits = f.peak <= room
    limit = 0.999 * SAFE_SLACK * float(f.step_s[fits].min())
    kept = {quick.plan_at(i) for i in range(len(quick.found.codes))}
    lost = []
    for i in np.flatnonzero(fits & (f.step_s <= limit)):
        plan = every.plan_at(int(i))
        sampled = plan.shard_group or plan.recompute == "full" or plan.schedule in DOMINATED
        if not sampled and plan not in kept:
            lost.append((float(f.step_s[i]), plan))
    return lost


@pytest.mark.parametrize(
    "name", ["dense", "dense, long", "uneven layers", "routed, windows", "vision", "split backward"]
)
def test_nothing_is_lost_by_passing_plans_over(name):
    job = JOBS[name]()
    quick = search_all(job, {}, stack_breadth(job.stack.name))
    every = search_all(job, {}, exhaustive(stack_breadth(job.stack.name)))
    assert quick.evaluated < every.evaluated
    room = capacity_bytes(job)
    lists = [short_list(s, room, 8) for s in (quick, every)]
    mine, best = ({label: m.index for m in merits for label in m.labels} for merits in lists)
    # Sharding over part of a group that ends inside a tier may gain a little latency.
    for label in ("fastest", "simplest"):
        for column, close in (("step_s", 2e-3), ("peak", 0.05)):
            want = float(getattr(every.found, column)[best[label]])
            got = float(getattr(quick.found, column)[mine[label]])
            assert got == pytest.approx(want, rel=close), (label, column)
    assert passed_over(quick, every, room) == []
    # The safest may recompute a few layers fewer than it could in the time that it is given.
    want, got = (float(s.found.peak[m["safest"]]) for s, m in ((every, best), (quick, mine)))
    assert want * (1 - 1e-6) <= got <= 1.06 * want
    times = [
        np.array([s.found.step_s[m.index] for m in merits if not m.labels])
        for s, merits in zip((quick, every), lists, strict=True)
    ]
    both = min(len(t[t <= 1.2 * t[0]]) if len(t) else 0 for t in times)
    # Of plans of one choice within half a per cent of its fastest the simplest is listed.
    assert times[0][:both] == pytest.approx(times[1][:both], rel=1e-2)


def test_exhaustive_evaluates_every_legal_plan():
    job = JOBS["dense"]()
    every = search_all(job, {}, exhaustive(stack_breadth(job.stack.name)))
    assert every.evaluated == legal_plans(job, {}, stack_breadth(job.stack.name))


def test_counts_by_hand():
    # llama-3.2-1b, one device, batch 32: microbatches 1, 2, 4, 8, 16, 32; recompute none,
    # selective, and full of 1..16 layers (16 is all); nothing else can differ.
    job = job_of("llama-3.2-1b", "h100-sxm:1")
    every = search_all(job, {}, exhaustive(stack_breadth("unknown")))
    assert every.evaluated == 6 * (2 + 16)
    # Two devices, batch 1: tp 2, pp 2 or cp 2 (dp 2 needs two sequences).
    splits = {
        tuple(b[:4]) for b in blocks_of(job_of("llama-3.2-1b", "h100-sxm:2", global_batch=1), {})
    }
    assert splits == {(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1)}


def test_device_count_does_not_enter():
    """For given degrees as many blocks on 4,096 devices as on 64, if each holds as many sequences."""
    counts = []
    for devices in (64, 4096):
        job = job_of("llama-3.1-8b", f"h100-sxm:{devices}", global_batch=devices)
        rows = [b for b in blocks_of(job, {}) if b[0] * b[1] * b[2] <= 32 and b[6] == 1]
        counts.append(len(rows))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", ["dense", "routed, windows"])
def test_more_memory_never_fits_fewer(name):
    job = JOBS[name]()
    fits, fastest = [], []
    for times in (0.5, 0.75, 1.0, 2.0):
        device = job.cluster.device
        device = device.model_copy(update={"memory_bytes": device.memory_bytes * times})
        cluster = job.cluster.model_copy(update={"device": device})
        found = whole(job.model_copy(update={"cluster": cluster}), first_layers=0)
        fits.append(found.fit)
        ok = found.found.peak <= capacity_bytes(found.job)
        fastest.append(float(found.found.step_s[ok].min()) if ok.any() else math.inf)
    assert fits == sorted(fits) and fits[-1] > fits[0]
    assert fastest == sorted(fastest, reverse=True)


def test_more_headroom_is_kept():
    job = JOBS["dense"]()
    for share in (0.0, 0.3, 0.6):
        result = search(job, Limits(headroom_frac=share))
        room = sure_bytes(capacity_bytes(job, share), job.stack.memory_doubt_frac)
        for p in result.plans:
            if "fastest if it fits" not in p.labels:
                assert p.memory.peak_bytes <= room * (1 + 1e-6)
                assert p.memory.headroom_frac >= share - 1e-6


FIXED = [
    {"tp": 4}, {"pp": 2, "vpp": 2}, {"cp": 2}, {"dp": 4, "mbs": 2}, {"zero": 3}, {"zero": 0},
    {"schedule": "zb-h1"}, {"schedule": "zb-v"}, {"schedule": "izb"}, {"schedule": "dualpipe"},
    {"schedule": "auto"}, {"recompute": "full", "recompute_layers": 3}, {"recompute": "none"},
    {"recompute": "full", "recompute_layers": 0}, {"shard_group": 2}, {"num_microbatches": 4},
    {"sequence_parallel": False, "tp": 2}, {"rank_order": "pp-tp-cp-ep-dp"},
    {"stages": (9, 8, 8, 7), "pp": 4}, {"stages": (9, 8, 8, 7)},
    {"offload_optimizer": 0.5}, {"offload_activations": 1.0}, {"pp": 16, "stages": (2,) * 16},
]  # fmt: skip


@pytest.mark.parametrize("fixed", FIXED, ids=str)
def test_what_the_user_fixed_is_kept(fixed):
    result = search(job_of("llama-3.1-8b", "h100-sxm:16"), Limits(fixed=fixed, top=3))
    listed = (*result.plans, *result.pareto)
    assert result.plans
    for row in listed:
        got = row.plan.model_dump()
        for name, value in fixed.items():
            if name == "recompute":
                assert got["recompute"].split(":")[0] == value
            elif name == "recompute_layers":
                assert got["recompute"] == ("full" if value == 0 else f"full:{value}")
            else:
                assert got[name] == value, (name, got)


def test_expert_degrees_that_are_fixed_are_kept():
    job = JOBS["routed, windows"]()
    for fixed in ({"ep": 4}, {"tp": 4, "etp": 2, "ep": 2}, {"ep": 1}):
        for row in search(job, Limits(fixed=fixed, top=3)).plans:
            assert {k: row.plan.model_dump()[k] for k in fixed} == fixed


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"tp": 3}, r"tp=3 does not divide num_attention_heads=32"),
        ({"pp": 64}, r"no legal plan"),
        ({"dp": 5}, r"no legal plan"),
        ({"shard_group": 5}, r"no legal plan"),
        ({"stages": (16, 16), "pp": 4}, r"no legal plan"),
        ({"schedule": "dualpipe", "num_microbatches": 1}, r"no legal plan"),
        ({"ep": 2}, r"has no experts"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fixed, said):
    with pytest.raises(InputError, match=said) as caught:
        search(job_of("llama-3.1-8b", "h100-sxm:16"), Limits(fixed=fixed))
    assert "\n" not in str(caught.value)


def test_deadline_and_budget():
    job = job_of("llama-3.1-8b", "h100-sxm:16", tokens=1e10)
    free = search(job, Limits())
    run_s = free.plans[0].bill.run_s
    kept = search(job, Limits(deadline_s=run_s * 1.1, top=50))
    assert kept.plans and all(p.bill.run_s <= run_s * 1.1 * (1 + 1e-6) for p in kept.plans)
    missed = search(job, Limits(deadline_s=run_s * 0.5))
    assert not missed.plans and "days" in str(missed.nearest[0]["lacks"])
    assert missed.nearest[0]["run_s"] == pytest.approx(run_s, rel=1e-5)
    usd = free.plans[0].bill.usd_per_run
    assert search(job, Limits(budget_usd=usd * 1.1)).plans
    poor = search(job, Limits(budget_usd=usd * 0.5))
    assert not poor.plans and "USD" in str(poor.nearest[0]["lacks"])


def test_where_nothing_fits_the_nearest_say_what_they_lack():
    job = job_of("llama-3.1-405b", "h100-sxm:16", "megatron-core-te", global_batch=16)
    result = search(job, Limits())
    assert not result.plans and result.searched.fit == 0 and result.searched.legal > 0
    lacks = [str(m["lacks"]) for m in result.nearest]
    assert any("GiB of device memory" in x for x in lacks)
    assert any("devices" in x and int(x.split()[0]) > 0 for x in lacks)
    for miss in result.nearest:
        fits = float(miss["peak_bytes"]) <= float(miss["capacity_bytes"])
        assert fits != ("GiB" in str(miss["lacks"]))


def test_fewer_devices_are_searched_when_asked_for():
    job = job_of("llama-3.1-8b", "h100-sxm:16", "megatron-core-te", tokens=1e10)
    result = search(job, Limits(max_devices=16, fewer_devices=True, top=4))
    devices = {
        p.plan.tp * p.plan.cp * p.plan.pp * p.plan.dp for p in (*result.plans, *result.pareto)
    }
    assert 16 in devices and min(devices) < 16
    cheapest = next(p for p in result.plans if "cheapest" in p.labels)
    assert cheapest.bill.usd_per_million_tokens == min(
        p.bill.usd_per_million_tokens for p in result.plans
    )
    front = [
        (p.step_time_s, p.memory.peak_bytes, p.plan.tp * p.plan.cp * p.plan.pp * p.plan.dp)
        for p in result.pareto
    ]
    for one in front:
        beaten = [
            o
            for o in front
            if o != one and all(a <= b * (1 - 1e-9) for a, b in zip(o, one, strict=True))
        ]
        assert not beaten


def test_the_same_twice():
    job = JOBS["routed, windows"]()
    first, second = search(job, Limits()), search(job, Limits())
    assert first.plans == second.plans and first.pareto == second.pareto


def test_listed_by_time_and_each_says_why():
    result = search(JOBS["dense"](), Limits(top=6))
    times = [p.step_time_s for p in result.plans]
    assert times == sorted(times)
    labels = [label for p in result.plans for label in p.labels]
    assert {"fastest", "cheapest", "safest", "simplest"} <= set(labels)
    assert sum(p.group_prob_frac for p in result.plans) == pytest.approx(1.0, abs=0.3)
    for p in result.plans:
        assert p.why and "\n" not in p.why
        assert p.step_time_lo_s < p.step_time_s < p.step_time_hi_s
        assert sum(line.device_s for line in p.bill.lines) == pytest.approx(16 * p.step_time_s)


def test_relabelled_layers_give_the_same_list():
    job = JOBS["dense"]()
    kinds = job.model.kinds
    twin = kinds[0].model_copy(update={"name": "again"})
    order = tuple(i % 2 for i in range(job.model.layers))
    model = job.model.model_copy(update={"kinds": (kinds[0], twin), "order": order})
    mine = search(job, Limits())
    other = search(job.model_copy(update={"model": model}), Limits())
    assert [p.step_time_s for p in other.plans] == pytest.approx(
        [p.step_time_s for p in mine.plans], rel=1e-6
    )
    assert [fields_of(p) for p in other.plans] == [fields_of(p) for p in mine.plans]


def test_one_compilation_serves_all_models():
    search(JOBS["dense"](), Limits())
    told = []
    with told_of_compiling(lambda: told.append(1)):
        for name in ("routed, latent", "vision", "one device"):
            search(JOBS[name](), Limits())
    assert told == []


def test_stacks_search_what_they_run():
    for stack in ("megatron-core-te", "zero-bubble", "torchtitan", "fsdp1"):
        breadth = breadth_of(job_of("llama-3.1-8b", "h100-sxm:16", stack), Limits())
        result = search(job_of("llama-3.1-8b", "h100-sxm:16", stack), Limits(top=20))
        assert {p.plan.schedule for p in result.plans} <= set(breadth.schedules)
        assert {p.plan.zero for p in result.plans} <= set(breadth.zeros)


@pytest.mark.parametrize("name", ["dense", "vision", "split backward"])
def test_a_listed_plan_is_what_estimate_says_of_it(name):
    """To the last digit, its pipeline from the event loop; the bill sums to devices x step."""
    job = JOBS[name]()
    listed = search(job, Limits(fixed={"pp": 4})).plans
    assert listed
    for shown in listed:
        fields = shown.plan.model_dump()
        how, _, first = fields.pop("recompute").partition(":")
        plan = Plan(**fields, recompute=how, recompute_layers=int(first or 0))
        alone = estimate(job, plan)
        assert alone.step_time_s == shown.step_time_s
        assert alone.bill == shown.bill and alone.memory == shown.memory
        if shown.plan.schedule == "zb-h2":  # timed by its period, in closed form
            assert alone.step_time_s == closed_form(job, plan).cost.step
            continue
        loop = execute(
            plan_schedule(ev := evaluate(job, plan)), stage_times(ev), stage_transfers(ev)
        )
        rest = ChunkCosts(ev).closed_form_s(ev.counts)[1]
        assert alone.step_time_s == loop.makespan_s + rest
        spent = sum(line.device_s for line in alone.bill.lines)
        assert spent == pytest.approx(job.cluster.devices * alone.step_time_s, rel=1e-12)
    times = [p.step_time_s for p in listed]
    assert times == sorted(times)
