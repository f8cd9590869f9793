"""The pipeline of one plan as a timeline: stage times from the same formulas, then the event loop.

What is drawn is the pipeline itself: forward, backward and the transfers between stages. Gradient
reduction, parameter gather, optimizer and host overhead that no microbatch covers come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.loads import LOOP, rank_table
from gangsaw.cost.lower import (
    cut_of,
    end_layers,
    kind_count,
    layer_order,
    loads_of,
    strides_of,
)
from gangsaw.cost.memory import memory_table
from gangsaw.cost.memory_doc import capacity_of, memory_state, rank_memories
from gangsaw.cost.step import (
    Profile,
    combine,
    rank_profiles,
    recompute_share,
    sharded_extra,
    tied_s,
    traffic,
    transfer_s,
)
from gangsaw.cost.types import SELECTIVE, Array, Loads, StepCost
from gangsaw.errors import InputError
from gangsaw.schedule import Schedule, generate
from gangsaw.search.estimate import Evaluated, evaluate, ordered
from gangsaw.search.own_schedule import own_schedule
from gangsaw.simulate import StageMemory, StageTimes, Timeline, Transfers, simulate
from gangsaw.simulate.auto import AutoResult, loop_map, synthesise, v_map
from gangsaw.simulate.loop import execute
from gangsaw.spec.job import Job
from gangsaw.spec.plan import OWN_FILES, Plan

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


def stage_times(ev: Evaluated, costs: ChunkCosts | None = None) -> StageTimes:
    """Seconds of one microbatch on each stage, exposed communication included."""
    found = (costs or ChunkCosts(ev)).rows(chunk_loads(ev))
    return StageTimes.of(found.shape[1], found[0], found[1], found[2])


class ChunkCosts:
    """Seconds and kept bytes of chunks of a plan, whatever layers they hold.

    The same sums as `cost.step.step_cost` makes for a rank, for each chunk alone. Stage transfers
    are left out, since the event loop places them; but where a rank waits for its receives too,
    one after the other with its sends, that wait is part of its work.
    """

    def __init__(self, ev: Evaluated) -> None:
        plan, low = ev.plan, ev.low
        self.model, self.plan, self.low = ev.job.model, plan, low
        self.cut, self.strides = cut_of(plan, ev.job.recipe), strides_of(plan)
        self.state = memory_state(plan, ev.job.recipe)
        args = (self.cut, low.device, low.net, self.strides, low.stack)
        self.layers = time_table(low.kinds, *args)
        self.mems = memory_table(low.kinds, self.cut, low.memory)
        self.ends = end_time(low.ends, *args)
        self.receive_s = max(0.0, low.stack.pp_exposed - 1.0) * hop_s(ev)

    def rows(self, loads: Loads) -> Array:
        """[4, chunks]: seconds of forward, input gradient, weight gradient; bytes kept."""
        low, state, stack = self.low, self.state, self.low.stack
        # Most chunks hold the same: each sort is timed once.
        table = np.column_stack((loads.layers, loads.chunk, loads.embedding, loads.heads))
        first: dict[bytes, int] = {}
        place = [first.setdefault(row.tobytes(), len(first)) for row in table]
        alone = np.unique(place, return_index=True)[1]
        loads = Loads(*(column[alone] for column in loads))
        profiles = rank_profiles(
            loads, self.layers, self.mems, self.ends, low.ends, self.cut.tp, state.train_ends
        )
        exchange = traffic(profiles, self.cut, state, low.net, self.strides, stack)
        out = np.zeros((4, len(profiles)))
        for i, (row, (reduce, gather)) in enumerate(zip(profiles, exchange, strict=True)):
            t = Profile(*row.tolist())
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
            each_s = stack.microbatch_overhead_s + self.receive_s
            more_f += max(0.0, link - t.fwd) + t.host_fwd + each_s
            more_b += max(0.0, link - t.bwd - t.wgrad) + t.host_bwd + each_s
            more_b += full * (t.tp_recompute + t.cp_fwd + t.ep_fwd + t.host_recompute)
            out[0, i] = t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd + more_f
            out[1, i] = t.bwd + again + t.tp_bwd + t.cp_bwd + t.ep_bwd + more_b
            out[2, i] = t.wgrad
            out[3, i] = kept * (1.0 - state.offload_activations)
        return out[:, place]

    def closed_form_s(self, counts: Sequence[int]) -> tuple[float, float]:
        """Seconds of the step by the closed form, and of them those not in the pipeline."""
        low, state = self.low, self.state
        profiles = rank_profiles(
            loads_of(self.model, self.plan, counts), self.layers, self.mems, self.ends, low.ends,
            self.cut.tp, state.train_ends,
        )  # fmt: skip
        exchange = traffic(profiles, self.cut, state, low.net, self.strides, low.stack)
        where = (low.ends, self.cut, state.pp, low.net, self.strides, low.stack)
        hop, tied = transfer_s(*where), tied_s(*where)
        step = combine(profiles, exchange, hop, tied, state, low.device, low.stack).step
        # What stays in the pipeline: gradients that are reduced every microbatch.
        inside = exchange * (0.0 if state.zero < 2.0 else 1.0)
        if state.zero < 3.0:
            inside[:, 1] = 0.0
        bare = low.stack._replace(optimizer_traffic=0.0, step_overhead_s=0.0)
        alone = state._replace(offload_optimizer=0.0)
        return step, step - combine(profiles, inside, hop, 0.0, alone, low.device, bare).step


def stage_memory(ev: Evaluated) -> StageMemory:
    """What each rank holds all the time, and what a microbatch keeps on each stage."""
    held = None if ordered(ev.plan) else held_by(ev)
    static = [
        found.params + found.grads + found.optimizer + found.logits + found.buffers
        for _, found in rank_memories(ev.job, ev.plan, ev.counts, ev.low, held)
    ]
    kept = ChunkCosts(ev).rows(chunk_loads(ev))[3]
    return StageMemory.of(len(kept), ev.plan.pp, kept, static)


def synthesised(ev: Evaluated) -> AutoResult:
    """The order that `auto` finds for a plan, within what its devices can allocate.

    Two chunks a rank lie as a V, more of them loop. Raises InputError where one microbatch does
    not fit.
    """
    plan, mem = ev.plan, ev.low.memory
    rank_of = v_map(plan.pp) if plan.vpp == 2 else loop_map(plan.pp, plan.vpp)
    fixed = mem.workspace_bytes + mem.context_bytes
    limit = (capacity_of(ev.job.cluster) - fixed) / mem.reserved_factor
    return synthesise(
        rank_of, plan.num_microbatches, stage_times(ev), stage_memory(ev),
        np.full(plan.pp, limit), stage_transfers(ev),
    )  # fmt: skip


def order_within(ev: Evaluated) -> AutoResult | None:
    """The order that `auto` finds; None where no microbatch fits."""
    try:
        return synthesised(ev)
    except InputError:
        return None


def held_by(ev: Evaluated) -> list[float] | None:
    """Microbatches of a whole rank that each holds at its peak; None where a formula knows them.

    For a schedule file and for `auto` the event loop counts them, each chunk by the bytes that it
    keeps. What waits for its weight gradient counts whole.
    """
    if ordered(ev.plan):
        found = order_within(ev)
        if found is None:
            return None
        schedule = found.schedule
    elif ev.plan.schedule.startswith(OWN_FILES):
        schedule = own_schedule(ev.plan)
    else:
        return None
    kept = ChunkCosts(ev).rows(chunk_loads(ev))[3]
    run = execute(schedule, stage_times(ev), memory=StageMemory.of(len(kept), schedule.ranks, kept))
    whole = np.bincount(schedule.rank_of, weights=kept)
    if run.memory is None or np.any(whole <= 0.0):
        return [float(schedule.microbatches)] * schedule.ranks
    return [float(x) for x in run.memory.peak / whole]


def simulated_cost(ev: Evaluated) -> StepCost:
    """The step with its pipeline from the event loop; what is busy as the closed form has it.

    The closed form's where `auto` finds no order, since nothing fits.
    """
    if ordered(ev.plan) and order_within(ev) is None:
        return ev.cost
    costs = ChunkCosts(ev)
    times = stage_times(ev, costs)
    pipe_s = execute(plan_schedule(ev), times, stage_transfers(ev)).makespan_s
    step = pipe_s + costs.closed_form_s(ev.counts)[1]
    bubble = ev.cost.bubble + step - ev.cost.step
    less = min(ev.cost.pp_comm, max(0.0, -bubble))
    return ev.cost._replace(step=step, bubble=bubble + less, pp_comm=ev.cost.pp_comm - less)


def plan_schedule(ev: Evaluated) -> Schedule:
    """The schedule of a plan: generated by name, or synthesised for `auto`."""
    plan = ev.plan
    if plan.schedule == "auto":
        return synthesised(ev).schedule
    if plan.schedule.startswith(OWN_FILES):
        return own_schedule(plan)
    return named_schedule(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp)


@lru_cache(maxsize=16)
def named_schedule(name: str, p: int, m: int, v: int) -> Schedule:
    """The schedule of plans with the same numbers, made once."""
    return generate(name, p, m, v)


def hop_s(ev: Evaluated) -> float:
    """Seconds of one transfer of activations between stages; 0 without a pipeline."""
    if ev.plan.pp == 1:
        return 0.0
    cut, low = cut_of(ev.plan, ev.job.recipe), ev.low
    hop: float = transfer_s(
        low.ends, cut, float(ev.plan.pp), low.net, strides_of(ev.plan), low.stack
    )
    return hop


def stage_transfers(ev: Evaluated) -> Transfers | None:
    """How activations move between stages; None without a pipeline.

    The share of a transfer that the stack does not hide keeps its sender waiting, the rest only
    its receiver's data, as in `cost.step.combine`.
    """
    plan, hop = ev.plan, hop_s(ev)
    if plan.pp == 1:
        return None
    cut, shown = cut_of(plan, ev.job.recipe), min(1.0, ev.low.stack.pp_exposed)
    size = cut.mbs * cut.seq_len / cut.cp * ev.low.ends.hidden * cut.act_bytes / cut.tp
    chunks = plan.pp * plan.vpp
    if shown == 0.0:
        return Transfers.of(chunks, size, size / hop)
    return Transfers.of(chunks, size, size / (shown * hop), (1.0 - shown) * hop, blocking=True)


def plan_timeline(job: Job, plan: Plan) -> Timeline:
    """The pipeline of one step. Raises InputError where the plan or its schedule is not legal."""
    return timeline_of(evaluate(job, plan))


def timeline_of(ev: Evaluated, schedule: Schedule | None = None) -> Timeline:
    """The pipeline of one step of an evaluated plan, with the memory of each rank.

    A schedule that runs two copies of the model has the stages of the plan twice.
    """
    schedule = schedule or plan_schedule(ev)
    times, transfers, memory = stage_times(ev), stage_transfers(ev), stage_memory(ev)
    if schedule.pipes > 1:
        twice = (schedule.pipes,)
        times = StageTimes(
            np.tile(times.forward_s, twice), np.tile(times.backward_s, twice),
            np.tile(times.weight_s, twice), np.tile(times.whole_s, twice), times.overlap_frac,
        )  # fmt: skip
        memory = StageMemory.of(
            schedule.stages, schedule.ranks, np.tile(memory.activation_bytes, twice),
            memory.static_bytes,
        )  # fmt: skip
        if transfers is not None:
            transfers = Transfers.of(
                schedule.stages, np.tile(transfers.bytes_each, twice),
                np.tile(transfers.bytes_per_s, twice), blocking=transfers.blocking,
            )  # fmt: skip
    return simulate(schedule, times, transfers, memory=memory)
