"""The pipeline of one plan as a timeline: stage times from the same formulas, then the event loop.

What is drawn is the pipeline itself: forward, backward and the transfers between stages. Gradient
reduction, parameter gather, optimizer and host overhead that no microbatch covers come after it.
"""

from __future__ import annotations

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.loads import LOOP, rank_table
from gangsaw.cost.lower import cut_of, end_layers, kind_count, layer_order, strides_of
from gangsaw.cost.memory import memory_table
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.step import (
    Profile,
    rank_profiles,
    recompute_share,
    sharded_extra,
    traffic,
    transfer_s,
)
from gangsaw.cost.types import SELECTIVE, Loads
from gangsaw.schedule import generate
from gangsaw.search.estimate import Evaluated, evaluate
from gangsaw.simulate import StageTimes, Timeline, Transfers, simulate
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

HOST_LINK_SHARE = 0.8
"""Share of the host link's rate that offloading reaches, as in `cost.step`."""


def chunk_loads(ev: Evaluated) -> Loads:
    """What each chunk holds, in stage order: as if every chunk were a rank of its own."""
    chunks, kinds = ev.plan.pp * ev.plan.vpp, kind_count(ev.job.model)
    table = rank_table(
        layer_order(ev.job.model), kinds, chunks, LOOP, np.array(ev.counts, dtype=np.float64),
        end_layers(ev.job.model),
    )  # fmt: skip
    number = np.arange(chunks, dtype=np.float64)
    return Loads(
        table[:, :kinds], table[:, kinds], table[:, kinds + 1], table[:, kinds + 2],
        np.ones(chunks), number, number,
    )  # fmt: skip


def stage_times(ev: Evaluated) -> StageTimes:
    """Seconds of one microbatch on each stage, exposed communication included.

    The same sums as `cost.step.step_cost` makes for a rank, for each chunk alone; stage transfers
    are left out, since the event loop places them.
    """
    plan, low = ev.plan, ev.low
    cut, strides, stack = cut_of(plan, ev.job.recipe), strides_of(plan), low.stack
    state = memory_state(plan, ev.job.recipe)
    layers = time_table(low.kinds, cut, low.device, low.net, strides, stack)
    mems = memory_table(low.kinds, cut, low.memory)
    ends = end_time(low.ends, cut, low.device, low.net, strides, stack)
    profiles = rank_profiles(
        chunk_loads(ev), layers, mems, ends, low.ends, cut.tp, state.train_ends
    )
    exchange = traffic(profiles, cut, state, low.net, strides, stack)
    forward, backward, weight = [], [], []
    for row, (reduce, gather) in zip(profiles, exchange, strict=True):
        t = Profile(*row)
        full = recompute_share(state, t.chunk)
        again, kept = full * t.recompute_full, t.kept_none
        if state.recompute == SELECTIVE:
            again, kept = t.recompute_selective, t.kept_selective
        kept += full * (t.kept_full - kept)
        work_b = t.bwd + t.wgrad + again
        depth = max(1.0, t.depth)
        more_f, more_b = sharded_extra(
            t.fwd, work_b, reduce, gather, depth, state, stack.zero3_overlap
        )
        link = kept * state.offload_activations / (HOST_LINK_SHARE * low.device.pcie)
        more_f += max(0.0, link - t.fwd) + t.host_fwd + stack.microbatch_overhead_s
        more_b += max(0.0, link - t.bwd - t.wgrad) + t.host_bwd + stack.microbatch_overhead_s
        more_b += full * (t.tp_recompute + t.cp_fwd + t.ep_fwd + t.host_recompute)
        forward.append(t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd + more_f)
        backward.append(t.bwd + again + t.tp_bwd + t.cp_bwd + t.ep_bwd + more_b)
        weight.append(t.wgrad)
    return StageTimes.of(len(forward), forward, backward, weight)


def stage_transfers(ev: Evaluated) -> Transfers | None:
    """How activations move between stages; None without a pipeline.

    A transfer that the stack does not hide keeps its sender waiting.
    """
    plan, low = ev.plan, ev.low
    if plan.pp == 1:
        return None
    cut = cut_of(plan, ev.job.recipe)
    hop = transfer_s(low.ends, cut, float(plan.pp), low.net, strides_of(plan), low.stack)
    size = cut.mbs * cut.seq_len / cut.cp * low.ends.hidden * cut.act_bytes / cut.tp
    chunks = plan.pp * plan.vpp
    return Transfers.of(chunks, size, size / hop, blocking=low.stack.pp_exposed > 0.5)


def plan_timeline(job: Job, plan: Plan) -> Timeline:
    """The pipeline of one step. Raises InputError where the plan or its schedule is not legal."""
    ev = evaluate(job, plan)
    schedule = generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp)
    return simulate(schedule, stage_times(ev), stage_transfers(ev))
