"""Sweeps on a formula that stands in for the estimate: what is swept, and what is marked."""

from dataclasses import dataclass

import pytest
from report_fixtures import memory, plan_result

from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.report.sweeps import bandwidth_sweep, microbatch_sweep, plan_of, report_sweeps
from gangsaw.spec.job import Job
from gangsaw.spec.recipe import Recipe
from gangsaw.spec.result import MemoryDoc


@dataclass(frozen=True)
class Made:
    step_time_s: float
    memory: MemoryDoc


def job(cluster="h100-sxm:16384", batch=2048):
    return Job(
        model=load_model("llama-3.1-405b"),
        cluster=load_cluster(cluster),
        stack=load_stack("megatron-core-te"),
        recipe=Recipe(seq_len=8192, global_batch=batch),
    )


def formula(given, plan):
    bandwidth = given.cluster.tiers[1].bytes_per_s
    time_s = 5.0 * (1 + (plan.pp - 1) / plan.num_microbatches) + plan.dp * 2e8 / bandwidth
    _, held = memory(plan.pp, plan.tp, plan.dp, 0.2 * plan.mbs)
    return Made(time_s, held)


def test_plan_comes_back_from_its_document():
    doc = plan_result(recompute="full").plan.model_copy(update={"recompute": "full:3"})
    plan = plan_of(doc)
    assert (plan.recompute, plan.recompute_layers) == ("full", 3)
    assert plan.stages == doc.stages
    assert (plan.tp, plan.pp, plan.dp, plan.mbs) == (doc.tp, doc.pp, doc.dp, doc.mbs)


def test_microbatch_sweep_keeps_the_batch_and_marks_the_chosen_count():
    chosen = plan_result()
    sweep = microbatch_sweep(job(), chosen, formula)
    counts = [p.num_microbatches for p in sweep.points]
    assert counts == [1, 2, 4, 8, 16]
    assert all(p.num_microbatches * p.mbs * chosen.plan.dp == 2048 for p in sweep.points)
    assert sweep.chosen == chosen.plan.num_microbatches
    times = [p.step_time_s for p in sweep.points]
    assert times == sorted(times, reverse=True)
    peaks = [p.peak_bytes for p in sweep.points]
    assert peaks == sorted(peaks, reverse=True)


def test_microbatch_counts_that_are_not_legal_are_left_out():
    def picky(given, plan):
        if plan.num_microbatches % 4:
            raise InputError("num_microbatches must be a multiple of 4")
        return formula(given, plan)

    sweep = microbatch_sweep(job(), plan_result(), picky)
    assert [p.num_microbatches for p in sweep.points] == [4, 8, 16]


def test_one_way_to_split_the_batch_is_no_sweep():
    chosen = plan_result(dp=2048, pp=1, tp=8)
    assert microbatch_sweep(job(), chosen, formula) is None


def test_far_counts_are_dropped_first():
    chosen = plan_result(dp=128, mbs=1)
    many = job(batch=128 * 5040)
    at = chosen.model_copy(
        update={"plan": chosen.plan.model_copy(update={"num_microbatches": 60, "mbs": 84})}
    )
    sweep = microbatch_sweep(many, at, formula)
    counts = [p.num_microbatches for p in sweep.points]
    assert len(counts) == 8
    assert counts[0] < 60 < counts[-1]


def test_bandwidth_sweep_scales_links_between_nodes_and_finds_the_crossing():
    first, other = plan_result(), plan_result(pp=8, dp=256)
    given = job()
    sweep = bandwidth_sweep(given, [first, first, other], formula)
    assert [c.name for c in sweep.curves] == [
        "plan 1: TP 8 PP 16 DP 128",
        "plan 2: TP 8 PP 8 DP 256",
    ]
    now = given.cluster.tiers[1].bytes_per_s
    assert sweep.now_bytes_per_s == pytest.approx(now)
    assert sweep.bytes_per_s[0] == pytest.approx(now / 8)
    assert sweep.bytes_per_s[-1] == pytest.approx(now * 8)
    middle = sweep.curves[0].step_time_s[4]
    assert middle == pytest.approx(formula(given, plan_of(first.plan)).step_time_s)
    # 5 x 15/16 + 128 x 2e8/b = 5 x 7/8 + 256 x 2e8/b
    at = 128 * 2e8 / (5.0 * (15 / 16 - 7 / 8))
    (found,) = sweep.crossings
    assert found.at == pytest.approx(at, rel=1e-9)
    assert found.faster_below == "plan 1: TP 8 PP 16 DP 128"


def test_a_single_domain_has_no_links_to_sweep():
    given = job("h100-sxm:8", 16)
    assert len(given.cluster.tiers) == 1
    assert bandwidth_sweep(given, [plan_result()], formula) is None


def test_both_sweeps_of_a_report():
    found = report_sweeps(job(), plan_result(), [plan_result()], formula)
    assert found.microbatches is not None
    assert len(found.bandwidth.curves) == 1
    assert found.bandwidth.crossings == ()
