"""Stages under each stage's own memory limit."""

import itertools

import pytest

from gangsaw.cost.lower import lower
from gangsaw.cost.memory_doc import memory_doc
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import evaluate
from gangsaw.search.space import Breadth, Searched, orders_of, space_of
from gangsaw.search.tighten import tightened
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


def searched_for(job):
    space = space_of(job, Breadth(), {})
    return Searched(job, lower(job), None, None, space, orders_of({}))


def peaks(job, ev):
    return [s.peak_device_bytes for s in memory_doc(job, ev.plan, ev.counts).per_stage]


@pytest.fixture(scope="module")
def job():
    return Job(
        model=load_model("llama-3.1-70b"),
        cluster=load_cluster("h100-sxm:64"),
        recipe=Recipe(seq_len=4096, global_batch=256),
        stack=load_stack("megatron-core-te"),
    )


PLAN = Plan(tp=4, pp=4, dp=4, mbs=1, num_microbatches=64, stages=(20, 20, 21, 19))


@pytest.mark.parametrize("share", [0.99, 0.95])
def test_layers_move_to_later_stages_until_all_fit(job, share):
    ev = evaluate(job, PLAN)
    room = share * max(peaks(job, ev))
    found = tightened(searched_for(job), ev, room)
    assert found is not None
    assert max(peaks(job, found)) <= room
    assert sum(found.counts) == 80
    assert found.counts[0] < ev.counts[0]
    # The slowest stage cannot get faster; gradients of the fullest rank may move a little sooner.
    assert found.cost.step >= ev.cost.step * 0.998


def test_no_other_stages_that_fit_are_faster(job):
    ev = evaluate(job, PLAN)
    room = 0.97 * max(peaks(job, ev))
    found = tightened(searched_for(job), ev, room)
    best = float("inf")
    for a, b, c in itertools.product(range(16, 25), repeat=3):
        counts = (a, b, c, 80 - a - b - c)
        if 10 < counts[3] < 30:
            trial = evaluate(job, PLAN.model_copy(update={"stages": counts}))
            if trial.cost.step < best and max(peaks(job, trial)) <= room:
                best = trial.cost.step
    assert found.cost.step == pytest.approx(best, rel=1e-3)


def test_nothing_is_offered_where_nothing_fits(job):
    ev = evaluate(job, PLAN)
    assert tightened(searched_for(job), ev, 0.3 * max(peaks(job, ev))) is None
