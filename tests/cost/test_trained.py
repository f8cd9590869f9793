"""Parameters that a plan trains, counted three ways: memory, the step's traffic, a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from gangsaw.cost.checkpoint import trained_params
from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory import memory_table, recomputed_frac, sum_layers
from gangsaw.cost.memory_doc import memory_state, rank_memories
from gangsaw.cost.step import P_DENSE, P_EXPERT, RANKS, T_DENSE, T_EXPERT, rank_profiles
from gangsaw.cost.types import RankLoad
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import evaluate
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe


@pytest.mark.parametrize("task", ["pretrain", "lora"])
@pytest.mark.parametrize("name", ["deepseek-v3", "llava-1.5-7b", "mixtral-8x7b", "llama-3.1-8b"])
def test_memory_traffic_and_checkpoint_count_the_same(name, task):
    # torchtitan pads no vocabulary, so nothing but the model's own parameters is held.
    job = Job(
        model=load_model(name), recipe=Recipe(seq_len=2048, global_batch=32, task=task),
        cluster=load_cluster("h100-sxm:8"), stack=load_stack("torchtitan"),
    )  # fmt: skip
    # More microbatches than a rank holds: every gradient is there when the rank holds most.
    plan, layers = Plan(pp=4, dp=2, zero=0, num_microbatches=16), job.model.layers
    counts = tuple(layers // 4 + (1 if i < layers % 4 else 0) for i in range(4))
    trained, _ = trained_params(job)
    low, state = lower(job), memory_state(plan, job.recipe)
    held = sum(found.grads for _, found in rank_memories(job, plan, counts, low))
    assert held == pytest.approx(low.memory.grad_bytes * trained, rel=1e-12)

    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    rows = rank_profiles(
        loads_of(job.model, plan, counts),
        time_table(low.kinds, cut, low.device, low.net, strides, low.stack),
        memory_table(low.kinds, cut, low.memory),
        end_time(low.ends, cut, low.device, low.net, strides, low.stack), low.ends, cut.tp,
        state.train_ends,
    )  # fmt: skip
    reduced = sum(row[RANKS] * (row[T_DENSE] + row[T_EXPERT]) for row in rows)
    assert reduced == pytest.approx(trained, rel=1e-12)
    whole = float(job.model.params() + (job.model.mtp.params() if job.model.mtp else 0))
    adapters = trained if task == "lora" else 0.0
    gathered = sum(row[RANKS] * (row[P_DENSE] + row[P_EXPERT]) for row in rows)
    assert gathered == pytest.approx(whole + adapters, rel=1e-12)


@pytest.mark.parametrize("schedule", ["zb-v", "v-half", "v-min", "dualpipe-v"])
def test_a_tied_table_is_held_once_where_both_ends_meet(schedule):
    # A V of stages starts and ends on rank 0 (arXiv:2405.15362): one table, nothing to add up.
    job = Job(
        model=load_model("llama-3.2-1b"), recipe=Recipe(seq_len=2048, global_batch=32),
        cluster=load_cluster("h100-sxm:4"), stack=load_stack("torchtitan"),
    )  # fmt: skip
    plan = Plan(pp=4, vpp=2, zero=0, schedule=schedule, num_microbatches=32)
    low, table = lower(job), 128256 * 2048
    ranks = rank_memories(job, plan, (2,) * 8, low)
    held = sum(found.params for _, found in ranks) / low.memory.param_bytes
    assert job.model.tied
    assert held == job.model.params()
    loop = plan.model_copy(update={"schedule": "interleaved"})
    ranks = rank_memories(job, loop, (2,) * 8, low)
    held = sum(found.params for _, found in ranks) / low.memory.param_bytes
    assert held == job.model.params() + table
    assert evaluate(job, plan).cost.dp_comm == 0.0
    assert evaluate(job, loop).cost.dp_comm > 0.0


def test_first_layers_of_unequal_chunks_are_recomputed_in_time_as_in_memory():
    job = Job(
        model=load_model("gpt-22b"), recipe=Recipe(seq_len=2048, global_batch=16),
        cluster=load_cluster("h100-sxm:16"), stack=load_stack("megatron-core-te"),
    )  # fmt: skip
    whole = Plan(
        tp=8, pp=2, vpp=2, schedule="interleaved", recompute="full", stages=(16, 8, 8, 16),
        num_microbatches=16,
    )  # fmt: skip
    four = whole.model_copy(update={"recompute_layers": 4})
    none = whole.model_copy(update={"recompute": "none"})
    # Four of 16 and four of 8 on either rank: a third of its 24 layers.
    share = evaluate(job, four).cost.recompute / evaluate(job, whole).cost.recompute
    assert share == pytest.approx(8 / 24)
    low = lower(job)
    column = memory_table(low.kinds, cut_of(whole, job.recipe), low.memory)[0]
    kept, all_kept, checkpoints = (
        sum_layers(load, column[None, :], memory_state(plan, job.recipe)).kept
        for plan in (four, none, whole)
        for load, _ in rank_memories(job, plan, whole.stages, low)[:1]
    )
    assert (all_kept - kept) / (all_kept - checkpoints) == pytest.approx(share)


def test_dualpipe_recomputes_the_first_layers_of_both_its_chunks():
    state = memory_state(
        Plan(pp=2, schedule="dualpipe", recompute="full", recompute_layers=3),
        Recipe(seq_len=2048, global_batch=4),
    )
    both = RankLoad(0.0, 2.0, np.array([12.0]), np.array([6.0]), 1.0, 1.0, 0.0)
    assert recomputed_frac(both, state) == 3 / 6
