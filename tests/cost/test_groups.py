"""Groups of ranks by enumeration of a whole job: strides, members a node, hybrid sharding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gangsaw.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    group_path,
    reduce_scatter_s,
)
from gangsaw.cost.data_parallel import gather_s, gradient_s, optimizer_s, stage_net
from gangsaw.cost.lower import cut_of, lower, state_of, strides_of
from gangsaw.cost.memory import expert_shards
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp")
DEGREES = [
    (tp, cp, pp, dp, ep, etp)
    for tp, cp, pp, dp, ep, etp in itertools.product(
        (1, 2, 4), (1, 2), (1, 2, 4, 16), (1, 4, 16), (1, 2, 8), (1, 2)
    )
    if (tp * cp * dp) % (ep * etp) == 0
]


def job_of(devices, model="mixtral-8x7b", stack="torchtitan"):
    return Job(
        model=load_model(model), recipe=Recipe(seq_len=4096, global_batch=1024),
        cluster=load_cluster(f"h100-sxm:{devices}"), stack=load_stack(stack),
    )  # fmt: skip


def stages(plan):
    """Devices of each stage, shape (pp, dp, cp, tp): numbered by the rank order, innermost first."""
    order = [a for a in reversed(plan.rank_order.split("-")) if a != "ep"]
    grid = np.arange(plan.devices).reshape([getattr(plan, a) for a in order])
    return grid.transpose([order.index(a) for a in ("pp", "dp", "cp", "tp")])


def dense_groups(plan):
    """Every dp x cp group, in the order in which its collectives number it."""
    grid = stages(plan).transpose(0, 3, 1, 2)
    return grid.reshape(-1, plan.dp * plan.cp)


def expert_groups(plan):
    """Every group that holds the same experts: a stage's ranks as (edp, ep, etp), etp innermost."""
    grid = stages(plan).reshape(plan.pp, plan.expert_dp, plan.ep, plan.etp)
    return grid.transpose(0, 2, 3, 1).reshape(-1, plan.expert_dp)


def fewest_in_a_domain(groups, domain):
    """Members of a group in the least filled domain that it touches, of all groups."""
    return min(np.unique(g // domain, return_counts=True)[1].min() for g in groups)


@pytest.mark.parametrize("order", ORDERS)
def test_members_of_a_domain_are_those_of_the_enumerated_groups(order):
    for tp, cp, pp, dp, ep, etp in DEGREES:
        plan = Plan(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, rank_order=order)
        job = job_of(max(plan.devices, 8))
        cut, state, strides = cut_of(plan, job.recipe), state_of(plan), strides_of(plan)
        net, stride = stage_net(cut, state, lower(job).net, strides)
        for domain in (2, 4, 8, 32):
            # One tier of this domain below a tier of everything.
            sizes = np.array([float(domain), float(plan.devices)])
            inside, _ = stage_net(cut, state, net._replace(size=sizes), strides)
            if domain >= plan.devices:
                continue
            found = group_path(inside, float(dp * cp), stride, 0)
            assert found == fewest_in_a_domain(dense_groups(plan), domain), (plan, domain)
            found = group_path(inside, float(plan.expert_dp), float(ep * etp), 0)
            assert found == fewest_in_a_domain(expert_groups(plan), domain), (plan, domain)


@pytest.mark.parametrize("order", ORDERS)
def test_strides_are_those_of_neighbours(order):
    for tp, cp, pp, dp, ep, etp in DEGREES:
        plan = Plan(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, rank_order=order)
        grid, strides = stages(plan), strides_of(plan)
        experts = grid.reshape(plan.pp, plan.expert_dp, ep, etp)
        for size, at, stride in (
            (tp, grid[0, 0, 0, :], strides.tp), (cp, grid[0, 0, :, 0], strides.cp),
            (pp, grid[:, 0, 0, 0], strides.pp), (dp * cp, dense_groups(plan)[0], strides.dp),
            (etp, experts[0, 0, 0, :], strides.etp), (ep, experts[0, 0, :, 0], strides.ep),
            (plan.expert_dp, experts[0, :, 0, 0], strides.edp),
        ):  # fmt: skip
            if size > 1:
                assert at[1] - at[0] == stride, (plan, size)


def test_pipeline_inside_data_parallelism_leaves_one_context_pair_a_node():
    # tp 1, cp 2: with the pipeline innermost but for cp, a node of 8 holds 4 stages of one pair.
    job = job_of(64, "llama-3.1-8b")
    low, plan = lower(job), Plan(cp=2, pp=4, dp=8, zero=1)
    cut, inside = cut_of(plan, job.recipe), plan.model_copy(update={"rank_order": ORDERS[1]})
    args = (1e9, 0.0, cut, state_of(plan), low.net)
    far = gradient_s(*args, strides_of(inside), low.stack)
    near = gradient_s(*args, strides_of(plan), low.stack)
    over = low.stack.collective_overhead_s
    size = 1e9 * low.stack.grad_bytes
    # What crosses nodes leaves over two devices' links, not over eight: a fourth of each domain.
    pair = low.net._replace(size=low.net.size / 4.0)
    expected = reduce_scatter_s(pair, size, 16.0, 1.0, over) * low.stack.dp_traffic
    assert far == pytest.approx(expected)
    assert far > 2 * near


def test_experts_are_sharded_within_a_shard_group_and_reduced_between():
    job = job_of(64)
    low = lower(job)
    # 64 ranks, 8 experts' shards of 8 ranks each; four groups of 16 hold two of the 8 each.
    plan = Plan(dp=64, ep=8, zero=3, shard_group=16)
    cut, state, strides = cut_of(plan, job.recipe), state_of(plan), strides_of(plan)
    assert expert_shards(state) == 2.0
    over, stack = low.stack.collective_overhead_s, low.stack
    size = 1e9 * stack.grad_bytes
    expected = reduce_scatter_s(low.net, size, 2.0, 8.0, over)
    expected += all_reduce_s(low.net, size / 2, 4.0, 16.0, over)
    assert gradient_s(0.0, 1e9, cut, state, low.net, strides, stack) == pytest.approx(expected)
    gathered = all_gather_s(low.net, 1e9 * stack.param_bytes, 2.0, 8.0, over)
    assert gather_s(0.0, 1e9, cut, state, low.net, strides, stack) == pytest.approx(gathered)
    whole = state_of(plan.model_copy(update={"shard_group": 0}))
    assert expert_shards(whole) == 8.0
    own = optimizer_s(0.0, 1e9, state, low.device, stack)
    assert own == pytest.approx(4 * optimizer_s(0.0, 1e9, whole, low.device, stack))


def test_experts_spread_over_more_than_a_shard_group_are_whole():
    assert expert_shards(state_of(Plan(dp=64, ep=32, zero=3, shard_group=16))) == 1.0
    assert expert_shards(state_of(Plan(dp=64, ep=32, zero=3))) == 2.0
