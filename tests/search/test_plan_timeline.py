"""The drawn pipeline against the closed form that the estimate uses."""

import numpy as np
import pytest

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import evaluate
from gangsaw.search.timeline import plan_timeline, stage_times
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe


def job(model="llama-3.1-70b", cluster="h100-sxm:256", batch=256):
    return Job(
        model=load_model(model),
        cluster=load_cluster(cluster),
        stack=load_stack("megatron-core-te"),
        recipe=Recipe(seq_len=8192, global_batch=batch),
    )


def plan(**change):
    return Plan(**{"tp": 8, "pp": 4, "dp": 8, "num_microbatches": 32, **change})


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_event_loop_agrees_with_the_closed_form(schedule, pp):
    given, cut = job(), plan(pp=pp, dp=32 // pp, num_microbatches=8 * pp, schedule=schedule)
    ev = evaluate(given, cut)
    cost = ev.cost
    pipeline = cost.step - cost.dp_comm - cost.optimizer - ev.low.stack.step_overhead_s
    assert plan_timeline(given, cut).makespan_s == pytest.approx(pipeline, rel=0.01)


def test_stage_times_add_up_to_those_of_the_step():
    given, cut = job(), plan()
    ev = evaluate(given, cut)
    times = stage_times(ev)
    work = cut.num_microbatches * float(np.sum(times.forward_s + times.whole_s)) / cut.pp
    cost = ev.cost
    busy = cost.compute + cost.recompute + cost.tp_comm + cost.cp_comm + cost.ep_comm
    busy += cost.host - ev.low.stack.step_overhead_s
    assert work == pytest.approx(busy, rel=1e-9)


def test_chunks_of_an_interleaved_plan_are_stages_of_their_own():
    times = stage_times(evaluate(job(), plan(vpp=2, schedule="interleaved")))
    assert times.stages == 8
    # The head makes the last chunk dearer than one in the middle with as many layers.
    assert times.forward_s[-1] > times.forward_s[3]


def test_full_recompute_shows_in_the_backward_alone():
    none = stage_times(evaluate(job(), plan()))
    full = stage_times(evaluate(job(), plan(recompute="full")))
    assert np.allclose(full.forward_s, none.forward_s)
    assert np.all(full.backward_s > none.backward_s + 0.9 * none.forward_s * 0.8)


def test_one_stage_has_no_idle_time():
    assert plan_timeline(job(), plan(pp=1, dp=32, num_microbatches=8)).bubble_frac == 0.0
