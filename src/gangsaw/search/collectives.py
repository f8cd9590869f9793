"""The collectives of one plan: how often, how large, over which tier, how long."""

from __future__ import annotations

from dataclasses import dataclass

from gangsaw.cost.collectives import (
    all_gather_bound_s,
    all_gather_s,
    all_reduce_bound_s,
    all_reduce_s,
    all_to_all_bound_s,
    all_to_all_s,
    p2p_bound_s,
    p2p_s,
    reduce_scatter_s,
)
from gangsaw.cost.data_parallel import stage_net
from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import Lowered, cut_of, loads_of, strides_of
from gangsaw.cost.lower_cluster import tier_name_for
from gangsaw.cost.memory import expert_shards, memory_table
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.moe import dispatch_bytes
from gangsaw.cost.step import (
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    P_DENSE,
    T_DENSE,
    T_EXPERT,
    TP_B,
    TP_F,
    once_a_step,
    rank_profiles,
)
from gangsaw.cost.types import Array, Cut, Strides
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.result import CollectiveDoc


@dataclass(frozen=True)
class Rank:
    """The pipeline rank that holds most layers, ready to be asked for its traffic."""

    job: Job
    plan: Plan
    low: Lowered
    cut: Cut
    strides: Strides
    layers: Array  # of each kind
    seconds: Array  # of one microbatch, by the columns of a layer table
    profile: Array

    @property
    def overhead_s(self) -> float:
        """Host time of one collective."""
        return self.low.stack.collective_overhead_s


@dataclass(frozen=True)
class Group:
    """An axis, its size and the distance of its ranks."""

    axis: str
    size: int
    stride: float


@dataclass(frozen=True)
class Traffic:
    """What a group exchanges in a step."""

    operation: str
    count: float
    bytes_each: float
    seconds_each: float
    bound_s: float
    exposed_s: float


def _row(rank: Rank, group: Group, t: Traffic) -> CollectiveDoc:
    return CollectiveDoc(
        axis=group.axis,
        operation=t.operation,
        group=group.size,
        tier=tier_name_for(rank.job.cluster, group.size, group.stride),
        count_per_step=t.count,
        bytes_each=t.bytes_each,
        seconds_each=t.seconds_each,
        exposed_s_per_step=t.exposed_s,
        bound_s=t.bound_s,
    )


def rank_of(job: Job, plan: Plan, counts: tuple[int, ...], low: Lowered) -> Rank:
    """The rank with most layers."""
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    loads = loads_of(job.model, plan, counts)
    table = time_table(low.kinds, cut, low.device, low.net, strides, low.stack)
    at = int(loads.layers.sum(axis=1).argmax())
    times = end_time(low.ends, cut, low.device, low.net, strides, low.stack)
    mems = memory_table(low.kinds, cut, low.memory)
    trained = memory_state(plan, job.recipe).train_ends
    profile = rank_profiles(loads, table, mems, times, low.ends, cut.tp, trained)[at]
    layers = loads.layers[at]
    return Rank(job, plan, low, cut, strides, layers, layers @ table, profile)


def collectives_of(
    job: Job, plan: Plan, counts: tuple[int, ...], low: Lowered
) -> tuple[CollectiveDoc, ...]:
    """One row an axis and operation, of the rank that holds most layers."""
    rank = rank_of(job, plan, counts, low)
    rows = [*tensor_rows(rank), *context_rows(rank), *expert_rows(rank), *stage_rows(rank)]
    return (*rows, *data_rows(rank))


def hidden_bytes(rank: Rank) -> float:
    """Bytes of one microbatch's activations on a context-parallel rank."""
    cut = rank.cut
    return cut.mbs * cut.seq_len / cut.cp * rank.low.ends.hidden * cut.act_bytes


def tensor_rows(rank: Rank) -> list[CollectiveDoc]:
    """Tensor parallelism: two exchanges a layer and direction."""
    plan, net, cut = rank.plan, rank.low.net, rank.cut
    if plan.tp == 1:
        return []
    size, stride = hidden_bytes(rank), rank.strides.tp
    bound = all_gather_bound_s(net, size, cut.tp, stride)
    if cut.sp:
        each = all_gather_s(net, size, cut.tp, stride, rank.overhead_s)
        each += reduce_scatter_s(net, size, cut.tp, stride, rank.overhead_s)
        name, bound = "all-gather + reduce-scatter", 2.0 * bound
    else:
        each, name = all_reduce_s(net, size, cut.tp, stride, rank.overhead_s), "all-reduce"
        bound = all_reduce_bound_s(net, size, cut.tp, stride)
    count = 4.0 * float(rank.layers.sum()) * plan.num_microbatches
    exposed = plan.num_microbatches * float(rank.seconds[TP_F] + rank.seconds[TP_B])
    traffic = Traffic(name, count, size, each, bound, exposed)
    return [_row(rank, Group("tp", plan.tp, stride), traffic)]


def context_rows(rank: Rank) -> list[CollectiveDoc]:
    """Context parallelism: keys and values gathered forward and backward, gradients reduced."""
    plan, net, cut = rank.plan, rank.low.net, rank.cut
    if plan.cp == 1:
        return []
    kind, stride = rank.low.kinds[0], rank.strides.cp
    heads = kind.heads / cut.tp if kind.kv_lora > 0.0 else max(kind.kv_heads / cut.tp, 1.0)
    size = cut.mbs * cut.seq_len * heads * (kind.head_dim + kind.v_head_dim) * cut.act_bytes
    each = all_gather_s(net, size, cut.cp, stride, rank.overhead_s)
    bound = all_gather_bound_s(net, size, cut.cp, stride)
    count = 3.0 * float(rank.layers.sum()) * plan.num_microbatches
    exposed = plan.num_microbatches * float(rank.seconds[CP_F] + rank.seconds[CP_B])
    traffic = Traffic("key-value exchange", count, size, each, bound, exposed)
    return [_row(rank, Group("cp", plan.cp, stride), traffic)]


def expert_rows(rank: Rank) -> list[CollectiveDoc]:
    """Expert parallelism: dispatch and combine in each direction of a routed layer."""
    plan, net, cut = rank.plan, rank.low.net, rank.cut
    routed = [k for k, kind in enumerate(rank.low.kinds) if kind.experts > 0.0]
    if plan.ep == 1 or not routed:
        return []
    size, stride = dispatch_bytes(rank.low.kinds[routed[0]], cut), rank.strides.ep
    each = all_to_all_s(net, size, cut.ep, stride, rank.overhead_s)
    bound = all_to_all_bound_s(net, size, cut.ep, stride)
    count = 4.0 * float(rank.layers[routed].sum()) * plan.num_microbatches
    exposed = plan.num_microbatches * float(rank.seconds[EP_F] + rank.seconds[EP_B])
    traffic = Traffic("all-to-all", count, size, each, bound, exposed)
    return [_row(rank, Group("ep", plan.ep, stride), traffic)]


def stage_rows(rank: Rank) -> list[CollectiveDoc]:
    """Pipeline parallelism: activations down and gradients up between stages."""
    plan, net, stride = rank.plan, rank.low.net, rank.strides.pp
    if plan.pp == 1:
        return []
    size = hidden_bytes(rank) / rank.cut.tp
    each = p2p_s(net, size, stride, rank.overhead_s, float(plan.pp))
    bound = p2p_bound_s(net, size, stride, float(plan.pp))
    count = 2.0 * plan.num_microbatches * plan.vpp
    exposed = count * rank.low.stack.pp_exposed * each
    traffic = Traffic("send/receive", count, size, each, bound, exposed)
    return [_row(rank, Group("pp", plan.pp, stride), traffic)]


def data_rows(rank: Rank) -> list[CollectiveDoc]:
    """Data parallelism: gradients reduced and parameters gathered, experts over their own group."""
    plan, stack, strides = rank.plan, rank.low.stack, rank.strides
    state = memory_state(plan, rank.job.recipe)
    net, stride_in = stage_net(rank.cut, state, rank.low.net, strides)
    steps = 1 if once_a_step(state) else plan.num_microbatches
    hidden = stack.zero3_overlap if plan.zero >= 2 else stack.dp_overlap_backward
    rows = []
    groups = [
        (Group("dp", plan.dp * plan.cp, strides.dp), "gradients", state.shard, stride_in,
         rank.profile[T_DENSE]),
        (Group("edp", plan.expert_dp, strides.edp), "expert gradients", expert_shards(state),
         rank.cut.ep * rank.cut.etp, rank.profile[T_EXPERT]),
    ]  # fmt: skip
    for group, what, shard, stride, params in groups:
        size = group.size
        if size == 1 or params <= 0.0:
            continue
        amount = float(params) * stack.grad_bytes
        if plan.zero == 0:
            each = all_reduce_s(net, amount, float(size), stride, rank.overhead_s)
            bound, name = all_reduce_bound_s(net, amount, float(size), stride), "all-reduce"
        else:
            each = reduce_scatter_s(net, amount, shard, stride, rank.overhead_s)
            bound, name = all_gather_bound_s(net, amount, shard, stride), "reduce-scatter"
        exposed = steps * each * (1.0 - hidden)
        traffic = Traffic(f"{what} {name}", steps, amount, each, bound, exposed)
        rows.append(_row(rank, group, traffic))
    if plan.zero == 0 or plan.dp * plan.cp == 1:
        return rows
    gathers = 1 if once_a_step(state) else 2 * plan.num_microbatches if plan.zero == 3 else 1
    amount = float(rank.profile[P_DENSE]) * stack.param_bytes
    each = all_gather_s(net, amount, state.shard, stride_in, rank.overhead_s)
    cover = stack.zero3_overlap if plan.zero == 3 else stack.dp_overlap_forward
    traffic = Traffic(
        "parameters all-gather", gathers, amount, each,
        all_gather_bound_s(net, amount, state.shard, stride_in),
        gathers * each * (1.0 - cover),
    )  # fmt: skip
    return [*rows, _row(rank, Group("dp", plan.dp * plan.cp, strides.dp), traffic)]
