"""Stage layouts against trying them all: unequal layers, ends, and each stage's own memory."""

import itertools
import math

import numpy as np
import pytest

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.loads import LOOP, V_SHAPE
from gangsaw.cost.lower import cut_of, end_layers, kind_count, layer_order, lower, strides_of
from gangsaw.cost.memory import end_memory, memory_table
from gangsaw.cost.memory_doc import memory_doc, memory_state
from gangsaw.jit import compiled
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import closed_form
from gangsaw.search.layouts import (
    FREE,
    SURE,
    Tables,
    guard_of,
    layer_seconds,
    layout,
    line_of,
)
from gangsaw.search.ranking import finish
from gangsaw.search.space import Breadth, search_all
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


def job_of(name, order, devices=64, cluster="h100-sxm"):
    model = load_model(name)
    kinds = [model.order[i] for i in order]
    return Job(
        model=model.model_copy(update={"order": tuple(kinds)}),
        cluster=load_cluster(f"{cluster}:{devices}"),
        recipe=Recipe(seq_len=4096, global_batch=256),
        stack=load_stack("megatron-core-te"),
    )


JOBS = {
    "dense first": job_of("deepseek-v3", (0, 0, 0, 5, 5, 5, 5, 5, 5)),
    "local and global": job_of("gemma-3-27b", (0, 0, 5, 0, 0, 5, 0, 0, 5, 0)),
    "equal": job_of("llama-3.1-70b", (0,) * 9),
}


def plan_of(job, p, v, schedule, m=16):
    dp, tp = 8, job.cluster.devices // p // 8
    moe = any(k.moe is not None for k in job.model.kinds)
    return Plan(
        tp=tp, pp=p, vpp=v, dp=dp, ep=8 if moe else 1, mbs=256 // dp // m, num_microbatches=m,
        schedule=schedule, zero=1,
    )  # fmt: skip


def deal(job, plan):
    low = lower(job)
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    tables = Tables(
        time_table(low.kinds, cut, low.device, low.net, strides, low.stack),
        memory_table(low.kinds, cut, low.memory),
        end_time(low.ends, cut, low.device, low.net, strides, low.stack),
        end_memory(low.ends, cut, float(plan.pp), low.memory),
    )
    order = layer_order(job.model)
    line = line_of(order, kind_count(job.model), end_layers(job.model), tables, False)
    return low, tables, line


def solved(job, plan, shape, room=math.inf):
    low, tables, line = deal(job, plan)
    which = SURE if math.isfinite(room) else FREE
    guard = guard_of(which, (room, room), tables, memory_state(plan, job.recipe), low.memory)
    counts = compiled(layout)(line, plan.pp, plan.vpp, shape, guard, True)
    return tuple(int(n) for n in counts)


def slowest_s(job, plan, shape, counts):
    """The slowest rank, added up layer by layer."""
    _, tables, line = deal(job, plan)
    seconds = [layer_seconds(tables.layers[int(k)], False) for k in layer_order(job.model)]
    ranks = [0.0] * plan.pp
    start = 0
    for c, n in enumerate(counts):
        turn, place = divmod(c, plan.pp)
        rank = plan.pp - 1 - place if shape == V_SHAPE and turn % 2 else place
        ranks[rank] += sum(seconds[start : start + n])
        start += n
    ranks[0] += line.first_s
    ranks[rank] += line.last_s
    return max(ranks)


def largest_bytes(job, plan, counts):
    stages = memory_doc(job, plan, counts).per_stage
    return max(s.peak_device_bytes for s in stages)


def all_layouts(n, chunks):
    """No empty chunks but the first and the last, which have the ends."""
    for cuts in itertools.combinations_with_replacement(range(n + 1), chunks - 1):
        edges = (0, *cuts, n)
        counts = tuple(b - a for a, b in itertools.pairwise(edges))
        if all(counts[1:-1]):
            yield counts


def best_by_trying(job, plan, shape, room=math.inf):
    best = math.inf
    for counts in all_layouts(job.model.layers, plan.pp * plan.vpp):
        seconds = slowest_s(job, plan, shape, counts)
        if seconds < best and largest_bytes(job, plan, counts) <= room:
            best = seconds
    return best


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("share", [math.inf, 0.97, 0.92])
def test_one_chunk_a_rank_is_exact_in_time_and_memory(name, p, share):
    job = JOBS[name]
    plan = plan_of(job, p, 1, "1f1b")
    free = solved(job, plan, LOOP)
    room = share * largest_bytes(job, plan, free)
    best = best_by_trying(job, plan, LOOP, room)
    counts = solved(job, plan, LOOP, room)
    if math.isinf(best):
        assert sum(counts) == 0
        return
    assert sum(counts) == job.model.layers
    assert largest_bytes(job, plan, counts) <= room
    assert slowest_s(job, plan, LOOP, counts) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("shape", [LOOP, V_SHAPE])
@pytest.mark.parametrize("share", [math.inf, 0.97])
def test_two_chunks_a_rank(name, shape, share):
    job = JOBS[name]
    plan = plan_of(job, 2, 2, "interleaved" if shape == LOOP else "zb-v")
    room = share * largest_bytes(job, plan, solved(job, plan, shape))
    best = best_by_trying(job, plan, shape, room)
    counts = solved(job, plan, shape, room)
    if math.isinf(best):
        assert sum(counts) == 0
        return
    assert sum(counts) == job.model.layers
    assert largest_bytes(job, plan, counts) <= room
    assert slowest_s(job, plan, shape, counts) == pytest.approx(best, rel=1e-9)


def test_a_search_short_of_memory_moves_layers_to_later_stages():
    """70B on 40 GB devices: the fastest plan that fits has its own stages, none else is faster."""
    job = Job(
        model=load_model("llama-3.1-70b"),
        cluster=load_cluster("a100-sxm-40g:64"),
        recipe=Recipe(seq_len=4096, global_batch=256),
        stack=load_stack("megatron-core-te"),
    )
    found = search_all(job, {}, Breadth(schedules=("1f1b",), zeros=(0, 1)))
    sure = found.found.peak <= found.rooms[1]
    rooms = np.array([found.room_at(i) for i in range(len(sure))])
    fastest = int(np.argmin(np.where(sure, found.found.step_s, np.inf)))
    assert rooms[fastest] == SURE
    assert found.found.step_s[sure & (rooms == FREE)].min() > found.found.step_s[fastest]
    ev = finish(found, fastest)
    formula = closed_form(ev.job, ev.plan, ev.low).cost.step
    assert formula == pytest.approx(float(found.found.step_s[fastest]), rel=1e-6)
    assert ev.cost.step == pytest.approx(formula, rel=0.01)
    assert largest_bytes(job, ev.plan, ev.counts) <= found.rooms[1]
    assert ev.counts[0] < ev.counts[-2]
    # The same plan as frameworks lay it out does not fit.
    even = ev.plan.model_copy(update={"stages": None})
    each, more = divmod(80, ev.plan.pp)
    assert (
        largest_bytes(job, even, (each + 1,) * more + (each,) * (ev.plan.pp - more))
        > (found.rooms[1])
    )
