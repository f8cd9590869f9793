"""The collectives of one plan: how often, how large, over which tier, how long."""

from __future__ import annotations

from gangsaw.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    p2p_s,
    reduce_scatter_s,
)
from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import Lowered, cut_of, loads_of, strides_of
from gangsaw.cost.lower_cluster import tier_name_for
from gangsaw.cost.memory import memory_table
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.moe import dispatch_bytes
from gangsaw.cost.step import (
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    P_DENSE,
    T_DENSE,
    TP_B,
    TP_F,
    rank_profiles,
)
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.result import CollectiveDoc


def collectives_of(
    job: Job, plan: Plan, counts: tuple[int, ...], low: Lowered
) -> tuple[CollectiveDoc, ...]:
    """One row an axis and operation, of the rank that holds most layers."""
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    loads = loads_of(job.model, plan, counts)
    table = time_table(low.kinds, cut, low.device, low.net, strides, low.stack)
    at = int(loads.layers.sum(axis=1).argmax())
    m = plan.num_microbatches
    over = low.stack.collective_overhead_s
    layers = loads.layers[at]
    seconds = layers @ table
    tokens = cut.mbs * cut.seq_len / cut.cp
    hidden = tokens * low.ends.hidden * cut.act_bytes
    net = low.net
    rows: list[CollectiveDoc] = []

    def row(
        axis: str, operation: str, group: int, stride: float, count: float, size: float,
        each: float, exposed: float,
    ) -> None:  # fmt: skip
        rows.append(
            CollectiveDoc(
                axis=axis,
                operation=operation,
                group=group,
                tier=tier_name_for(job.cluster, group, stride),
                count_per_step=count,
                bytes_each=size,
                seconds_each=each,
                exposed_s_per_step=exposed,
            )
        )

    n = float(layers.sum())
    if plan.tp > 1:
        exposed = m * float(seconds[TP_F] + seconds[TP_B])
        if cut.sp:
            each = all_gather_s(net, hidden, cut.tp, strides.tp, over)
            each += reduce_scatter_s(net, hidden, cut.tp, strides.tp, over)
            name = "all-gather + reduce-scatter"
        else:
            each, name = all_reduce_s(net, hidden, cut.tp, strides.tp, over), "all-reduce"
        row("tp", name, plan.tp, strides.tp, 4 * n * m, hidden, each, exposed)
    if plan.cp > 1:
        kind = low.kinds[0]
        width = max(kind.kv_heads / cut.tp, 1.0) * (kind.head_dim + kind.v_head_dim)
        size = cut.mbs * cut.seq_len * width * cut.act_bytes
        each = all_gather_s(net, size, cut.cp, strides.cp, over)
        exposed = m * float(seconds[CP_F] + seconds[CP_B])
        row("cp", "key-value exchange", plan.cp, strides.cp, 3 * n * m, size, each, exposed)
    moe = [(k, kind) for k, kind in enumerate(low.kinds) if kind.experts > 0]
    if plan.ep > 1 and moe:
        index, kind = moe[0]
        size = dispatch_bytes(kind, cut)
        each = all_to_all_s(net, size, cut.ep, strides.ep, over)
        exposed = m * float(seconds[EP_F] + seconds[EP_B])
        count = 4 * float(layers[index]) * m
        row("ep", "all-to-all", plan.ep, strides.ep, count, size, each, exposed)
    if plan.pp > 1:
        size = hidden / cut.tp
        each = p2p_s(net, size, strides.pp, over, float(plan.pp))
        exposed = 2 * m * plan.vpp * low.stack.pp_exposed * each
        row("pp", "send/receive", plan.pp, strides.pp, 2 * m * plan.vpp, size, each, exposed)
    rows += _data_parallel(job, plan, low, at, counts)
    return tuple(rows)


def _data_parallel(
    job: Job, plan: Plan, low: Lowered, at: int, counts: tuple[int, ...]
) -> list[CollectiveDoc]:
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    state = memory_state(plan, job.recipe)
    loads = loads_of(job.model, plan, counts)
    mems = memory_table(low.kinds, cut, low.memory)
    table = time_table(low.kinds, cut, low.device, low.net, strides, low.stack)
    times = end_time(low.ends, cut, low.device, low.net, strides, low.stack)
    profile = rank_profiles(loads, table, mems, times, low.ends, cut.tp, state.train_ends)[at]
    over, net, stack = low.stack.collective_overhead_s, low.net, low.stack
    group = plan.dp * plan.cp
    if group == 1:
        return []
    steps = plan.num_microbatches if plan.zero >= 2 else 1
    grad = float(profile[T_DENSE]) * stack.grad_bytes
    out = []
    if plan.zero == 0:
        each, name = all_reduce_s(net, grad, float(group), strides.dp, over), "all-reduce"
    else:
        each = reduce_scatter_s(net, grad, state.shard, strides.dp, over)
        name = "reduce-scatter"
    hidden = stack.zero3_overlap if plan.zero >= 2 else stack.dp_overlap_backward
    tier = tier_name_for(job.cluster, group, strides.dp)
    out.append(
        CollectiveDoc(
            axis="dp",
            operation=f"gradients {name}",
            group=group,
            tier=tier,
            count_per_step=steps,
            bytes_each=grad,
            seconds_each=each,
            exposed_s_per_step=steps * each * (1.0 - hidden),
        )
    )
    if plan.zero >= 1:
        gathers = 2 * plan.num_microbatches if plan.zero == 3 else 1
        size = float(profile[P_DENSE]) * stack.param_bytes
        each = all_gather_s(net, size, state.shard, strides.dp, over)
        cover = stack.zero3_overlap if plan.zero == 3 else stack.dp_overlap_forward
        out.append(
            CollectiveDoc(
                axis="dp",
                operation="parameters all-gather",
                group=group,
                tier=tier,
                count_per_step=gathers,
                bytes_each=size,
                seconds_each=each,
                exposed_s_per_step=gathers * each * (1.0 - cover),
            )
        )
    return out
