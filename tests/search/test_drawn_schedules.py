"""Timelines of a plan under several schedules: named, against another, synthesised, two-way."""

import numpy as np
import pytest

from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.drawn import drawings
from gangsaw.search.estimate import closed_form, estimate
from gangsaw.search.timeline import ChunkCosts
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe


@pytest.fixture(scope="module")
def job():
    return Job(
        model=load_model("llama-3.1-70b"),
        recipe=Recipe(seq_len=4096, global_batch=32),
        cluster=load_cluster("h100-sxm:64"),
        stack=load_stack("megatron-core-te"),
    )


def plan(**changed):
    base = {"tp": 8, "pp": 4, "dp": 2, "mbs": 1, "num_microbatches": 16, "schedule": "1f1b"}
    return Plan(**{**base, **changed})


def pipelines(*args):
    return [(each.schedule, each.timeline) for each in drawings(*args)]


def test_against_keeps_the_plan_and_has_its_own_chunks(job):
    (one, first), (two, second) = pipelines(job, plan(), "zb-v")
    assert (one.name, two.name) == ("1f1b", "zb-v")
    assert two.chunks == 2 and second.makespan_s < first.makespan_s
    # The same work, to the rounding of stage times; memory as 1F1B's on the first rank.
    work = first.by_cause_s()["compute"]
    assert second.by_cause_s()["compute"] == pytest.approx(work, rel=0.01)
    assert second.memory.peak_bytes.max() == pytest.approx(first.memory.peak_bytes[0], rel=0.1)
    with pytest.raises(InputError, match="is not known"):
        pipelines(job, plan(), "nope")


def test_auto_is_within_memory_and_not_slower(job):
    ((_, named),) = pipelines(job, plan())
    ((schedule, auto),) = pipelines(job, plan(schedule="auto"))
    assert auto.makespan_s <= named.makespan_s
    assert auto.memory.peak_bytes.max() < job.cluster.device.memory_bytes
    assert schedule.microbatches == 16


def test_estimate_of_auto_is_the_synthesised_order_s(job):
    """The step is the drawn pipeline and what is behind it, the memory what that order holds."""
    auto = plan(schedule="auto")
    ((_, drawn),) = pipelines(job, auto)
    ev = closed_form(job, auto)
    found = estimate(job, auto)
    behind = ChunkCosts(ev).closed_form_s(ev.counts)[1]
    assert found.step_time_s == pytest.approx(drawn.makespan_s + behind, rel=1e-9)
    named = [estimate(job, plan(schedule=name)).step_time_s for name in ("1f1b", "zb-h1")]
    assert found.step_time_s <= min(named)
    assert found.step_time_s >= ev.cost.step - ev.cost.bubble  # work alone
    held = drawn.memory.peak_bytes - drawn.memory.base_bytes
    shown = [stage.activations_bytes for stage in found.memory.per_stage]
    assert shown == pytest.approx(held.tolist(), rel=0.05)


def test_auto_without_room_is_the_closed_form_s(job):
    """Nothing fits on two devices: memory says so, and there is still a step."""
    small = job.model_copy(update={"cluster": load_cluster("h100-sxm:2")})
    tight = Plan(tp=1, pp=2, dp=1, mbs=1, num_microbatches=32, schedule="auto")
    found = estimate(small, tight)
    assert found.step_time_s == pytest.approx(closed_form(small, tight).cost.step)
    assert found.memory.fits == "no"


def test_two_way_pipe_runs_both_copies(job):
    ((schedule, made),) = pipelines(job, plan(schedule="dualpipe"))
    assert schedule.pipes == 2 and schedule.total_microbatches == 16
    assert np.all(made.idle_s() < made.makespan_s)
