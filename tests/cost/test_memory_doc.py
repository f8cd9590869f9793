"""The memory document: one row a rank, capacity, interval, host and the other moments."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.cost.lower import lower
from gangsaw.cost.memory_doc import (
    HOST_RANK_BYTES,
    capacity_of,
    fits_of,
    interval,
    memory_doc,
    rank_loads,
    rank_memories,
)
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


def job_of(model: str, cluster: str, stack: str = "megatron-core-te", **recipe: object) -> Job:
    values: dict[str, object] = {"seq_len": 4096, "global_batch": 256, **recipe}
    return Job(
        model=load_model(model), recipe=Recipe.model_validate(values),
        cluster=load_cluster(cluster), stack=load_stack(stack),
    )  # fmt: skip


def test_every_rank_has_its_own_row() -> None:
    job = job_of("llama-3.1-405b", "h100-sxm:1024", global_batch=512)
    plan = Plan(tp=8, pp=16, dp=8, num_microbatches=64, recompute="full")
    counts = (7, *[8] * 14, 7)
    doc = memory_doc(job, plan, counts)
    assert [s.stage for s in doc.per_stage] == list(range(16))
    assert [s.layers for s in doc.per_stage] == list(counts)
    assert [s.in_flight for s in doc.per_stage] == [16.0 - r for r in range(16)]
    assert doc.peak_bytes == max(s.peak_device_bytes for s in doc.per_stage)
    assert doc.per_stage[1].peak_device_bytes > doc.per_stage[2].peak_device_bytes
    for row in doc.per_stage:
        parts = row.params_bytes + row.grads_bytes + row.optimizer_bytes
        parts += row.activations_bytes + row.logits_bytes + row.buffers_bytes
        assert parts == pytest.approx(row.peak_allocated_bytes)
    assert doc.headroom_frac == pytest.approx(1 - doc.peak_bytes / doc.capacity_bytes)
    assert doc.capacity_bytes == capacity_of(job.cluster)


def test_parameters_of_all_ranks_sum_to_the_model() -> None:
    job = job_of("llama-3.1-8b", "h100-sxm:8")
    plan = Plan(tp=1, pp=8, dp=1, mbs=1, num_microbatches=256)
    found = rank_memories(job, plan, (4,) * 8)
    total = sum(f.params for _, f in found) / job.stack.memory.param_bytes
    assert total == pytest.approx(job.model.params(), rel=1e-3)


def test_mixture_of_experts_with_prediction_layers_and_dense_first() -> None:
    job = job_of("deepseek-v3", "h100-sxm:2048")
    plan = Plan(tp=1, pp=16, dp=128, ep=64, num_microbatches=2)
    counts = (4, *[4] * 14, 1)
    loads = rank_loads(job.model, plan, counts)
    assert sum(load.layers.sum() for load in loads) == 61 + job.model.mtp.layers
    assert loads[-1].mtp == job.model.mtp.layers == loads[-1].layers[len(job.model.kinds)]
    assert len(loads[0].layers) == len(lower(job).kinds)
    with_mtp = memory_doc(job, plan, counts).per_stage[-1]
    without = job.model_copy(update={"model": job.model.model_copy(update={"mtp": None})})
    bare = memory_doc(without, plan, counts).per_stage[-1]
    assert bare.layers == with_mtp.layers == 1
    assert with_mtp.params_bytes > bare.params_bytes
    assert with_mtp.logits_bytes > bare.logits_bytes


def test_imbalance_of_experts_raises_the_peak() -> None:
    plan = Plan(tp=1, pp=4, dp=16, ep=8, num_microbatches=16)
    even = memory_doc(job_of("mixtral-8x7b", "h100-sxm:64"), plan, (8,) * 4)
    uneven = memory_doc(job_of("mixtral-8x7b", "h100-sxm:64", moe_imbalance=1.5), plan, (8,) * 4)
    assert uneven.peak_bytes > even.peak_bytes


def test_dualpipe_holds_two_stages() -> None:
    job = job_of("llama-3.1-8b", "h100-sxm:4")
    one = memory_doc(job, Plan(pp=4, num_microbatches=256), (8,) * 4)
    two = memory_doc(job, Plan(pp=4, num_microbatches=256, schedule="dualpipe"), (8,) * 4)
    assert [s.layers for s in two.per_stage] == [16] * 4
    assert two.per_stage[0].in_flight == 2.5
    assert two.per_stage[1].params_bytes == pytest.approx(2 * one.per_stage[1].params_bytes)
    assert two.per_stage[0].params_bytes == two.per_stage[3].params_bytes


@pytest.mark.parametrize("task", ["lora", "qlora"])
def test_adapters_need_little(task: str) -> None:
    plan = Plan(dp=8, num_microbatches=32)
    full = memory_doc(job_of("llama-3.1-8b", "h100-sxm:8"), plan, (32,)).per_stage[0]
    job = job_of("llama-3.1-8b", "h100-sxm:8", task=task)
    small = memory_doc(job, plan, (32,)).per_stage[0]
    assert small.grads_bytes < 0.02 * full.grads_bytes
    assert small.optimizer_bytes < 0.02 * full.optimizer_bytes
    per_weight = small.params_bytes / job.model.params()
    assert per_weight == pytest.approx(2.0 if task == "lora" else 0.71, abs=0.03)


def test_moments_and_host() -> None:
    job = job_of("llama-3.1-8b", "h100-sxm:8")
    plan = Plan(dp=8, num_microbatches=32)
    doc = memory_doc(job, plan, (32,))
    row = doc.per_stage[0]
    state = row.params_bytes + row.grads_bytes + row.optimizer_bytes
    assert set(doc.moments) == {"build", "load", "step", "save"}
    assert doc.moments["build"] < doc.moments["load"] == doc.moments["save"]
    assert doc.moments["load"] > state
    assert doc.moments["step"] == doc.peak_bytes
    assert doc.host_bytes == 8 * HOST_RANK_BYTES
    away = memory_doc(job, plan.model_copy(update={"offload_optimizer": 1.0}), (32,))
    assert away.host_bytes - doc.host_bytes == pytest.approx(8 * row.optimizer_bytes)


@given(
    peak=st.floats(1e9, 1e12), capacity=st.floats(1e9, 1e12), doubt=st.floats(0.005, 0.3),
)  # fmt: skip
def test_risky_is_capacity_within_the_interval(peak: float, capacity: float, doubt: float) -> None:
    lo, hi = interval(peak, doubt)
    assert lo < peak < hi
    assert math.isclose(lo * hi, peak * peak, rel_tol=1e-9)
    verdict = fits_of(peak, capacity, doubt)
    assert (verdict == "risky") == (lo <= capacity <= hi)
    assert (verdict == "yes") == (hi < capacity)


@given(st.sampled_from([40e9, 80e9, 141e9, 192e9]))
def test_more_device_memory_never_fits_less(memory: float) -> None:
    job = job_of("llama-3.1-8b", "h100-sxm:8")
    order = {"no": 0, "risky": 1, "yes": 2}
    plan = Plan(dp=8, mbs=2, num_microbatches=16)

    def verdict(bytes_: float) -> int:
        device = job.cluster.device.model_copy(update={"memory_bytes": bytes_})
        other = job.cluster.model_copy(update={"device": device})
        return order[memory_doc(job.model_copy(update={"cluster": other}), plan, (32,)).fits]

    assert verdict(memory * 1.2) >= verdict(memory)
