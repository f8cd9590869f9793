"""The search's outer loops: blocks of degrees, chunks a rank, and stage layouts.

A block fixes the degrees, the microbatch and the rank order; its layer tables are computed once.
Inside it run chunks and layouts, each solved exactly, and in them `search.inner`.
"""

from __future__ import annotations

import math

import numpy as np

from gangsaw.cost.collectives import group_path
from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.loads import V_SHAPE, group_ranks, rank_table
from gangsaw.cost.memory import end_memory, memory_table
from gangsaw.cost.step import rank_profiles, tied_s, traffic, transfer_s
from gangsaw.cost.types import FULL, ZB_H1, Array, Cut, Ends, Loads, Net, State, Strides
from gangsaw.jit import kernel
from gangsaw.search.inner import (
    EVERY,
    NO,
    TIERS,
    Found,
    Machine,
    Ready,
    Space,
    Worth,
    chunks_of,
    free_step_s,
    schedule_runs,
    search_schedule,
    shard_choices,
    sharding_matters,
    variant,
    worth_trying,
)
from gangsaw.search.layouts import (
    FREE,
    Line,
    Tables,
    guard_of,
    layer_seconds,
    layout,
    line_of,
)

TP, CP, PP, DP, EP, ETP, MBS, SP, ORDER = range(9)
"""Columns of a block; the seven strides follow."""
STRIDE_DP = 11
ENDS = 2
"""Chunks beyond the layers: embedding and loss head may have one of their own."""
LIMITED_SLACK = 1.02
"""How far behind the fastest plan that surely fits a plan's stages are laid out within memory."""


@kernel
def divisors_of(n: int) -> Array:
    """Divisors of n, descending: n itself first, 1 last."""
    count = 0
    for d in range(1, n + 1):
        if n % d == 0:
            count += 1
    out = np.zeros(count)
    at = 0
    for d in range(n, 0, -1):
        if n % d == 0:
            out[at] = float(d)
            at += 1
    return out


@kernel
def shard_groups(space: Space, group: int, stride: float, net: Net) -> Array:
    """Ranks over which state may be sharded, the whole group first.

    `hybrid` NO: only the whole group; EVERY: all its divisors above 1; TIERS: the whole, and the
    members that stand inside one domain of each tier: inside a tier a larger group holds less at
    the same bandwidth, so only those that end at a boundary can be best.
    """
    if space.shard_only > 0:
        return np.full(1, float(space.shard_only))
    if space.hybrid == EVERY:
        return divisors_of(group)[:-1] if group > 1 else divisors_of(group)
    out = np.zeros(net.size.size + 1)
    out[0] = float(group)
    n = 1
    if space.hybrid == TIERS:
        for tier in range(net.size.size - 1, -1, -1):
            inside = group_path(net, float(group), stride, tier)
            if 1.0 < inside < out[n - 1] and group % int(inside) == 0:
                out[n] = inside
                n += 1
    return out[:n].copy()


@kernel
def chunk_limit(space: Space, p: int) -> int:
    """Most chunks a rank: one layer a chunk, and one chunk each for embedding and head."""
    if p == 1:
        return min(1, space.max_chunks)
    most = (len(space.order) + ENDS) // p
    if len(space.stages) > 0:
        most = len(space.stages) // p if len(space.stages) % p == 0 else 0
    return min(most, space.max_chunks)


@kernel
def chunk_start(space: Space, p: int) -> int:
    """Fewest chunks a rank: as many as the user's own layout has."""
    if len(space.stages) > 0:
        return max(space.min_chunks, chunk_limit(space, p))
    return space.min_chunks


@kernel
def block_tables(
    block: Array, kinds: Array, ends: Ends, base: Cut, machine: Machine
) -> tuple[Cut, Strides, Tables]:
    """Layer and end tables of one block."""
    edp = block[TP] * block[CP] * block[DP] / (block[EP] * block[ETP])
    cut = Cut(
        block[TP], block[CP], block[EP], block[ETP], edp, block[SP], block[MBS],
        base.seq_len, base.act_bytes, base.fp8, base.imbalance,
    )  # fmt: skip
    strides = Strides(block[9], block[10], block[11], block[12], block[13], block[14], block[15])
    device, net, stack = machine.device, machine.net, machine.stack
    tables = Tables(
        time_table(kinds, cut, device, net, strides, stack),
        memory_table(kinds, cut, machine.memory),
        end_time(ends, cut, device, net, strides, stack),
        end_memory(ends, cut, block[PP], machine.memory),
    )
    return cut, strides, tables


@kernel
def exchange_tables(
    space: Space,
    profiles: Array,
    groups: Array,
    cut: Cut,
    state: State,
    strides: Strides,
    machine: Machine,
) -> Array:
    """(4, D, R, 2): `traffic` of each ZeRO stage by shard group."""
    out = np.zeros((4, len(groups), profiles.shape[0], 2))
    for z in range(len(space.zeros)):
        zero = int(space.zeros[z])
        for d in range(shard_choices(zero, len(groups))):
            now = variant(state, 0.0, 0.0, 0.0, float(zero), groups[d], (0.0, 0.0))
            out[zero, d] = traffic(profiles, cut, now, machine.net, strides, machine.stack)
    return out


@kernel
def count_plans(blocks: Array, space: Space, net: Net) -> int:
    """How many plans the blocks hold; with `first_layers` SMALLEST an upper limit."""
    total = 0
    for i in range(blocks.shape[0]):
        p, group = int(blocks[i, PP]), int(blocks[i, DP] * blocks[i, CP])
        m = int(space.global_batch / (blocks[i, DP] * blocks[i, MBS]) + 0.5)
        groups = len(shard_groups(space, group, blocks[i, STRIDE_DP], net))
        edp = blocks[i, TP] * blocks[i, CP] * blocks[i, DP] / (blocks[i, EP] * blocks[i, ETP])
        sharding = 0
        for z in range(len(space.zeros)):
            zero = int(space.zeros[z])
            if sharding_matters(zero, z == 0, float(group), edp):
                sharding += shard_choices(zero, groups)
        inner = sharding * len(space.offload_optimizer) * len(space.offload_activations)
        for v in range(chunk_start(space, p), chunk_limit(space, p) + 1):
            runs = 0
            for s in range(len(space.schedules)):
                if schedule_runs(int(space.schedules[s]), p, v, m, space.multiple):
                    runs += 1
                    if p == 1:
                        break
            total += runs * form_count(space, p, v) * inner
    return total


@kernel
def form_count(space: Space, p: int, v: int) -> int:
    """How many forms of recompute are tried with v chunks on p ranks, at most."""
    forms = 0
    for r in range(len(space.recomputes)):
        partial = int(space.recomputes[r]) == FULL and space.first_only < 0
        if not partial or space.first_layers == NO:
            forms += 1
        elif space.first_layers == EVERY:
            forms += mean_chunk(space, p, v)
        else:
            forms += 1 + 2 * (1 + math.ceil(math.log2(len(space.order))))
    return forms


@kernel
def mean_chunk(space: Space, p: int, v: int) -> int:
    """Layers of a chunk, rounded up."""
    return math.ceil(len(space.order) / (p * v))


@kernel
def block_work(space: Space, tables: Tables) -> tuple[float, float]:
    """Seconds of all layers and ends for one microbatch, and of the lightest layer.

    Every part that is counted here is exposed in every plan of the block.
    """
    total, least = 0.0, np.inf
    for i in range(len(space.order)):
        seconds = layer_seconds(tables.layers[int(space.order[i])], False)
        total += seconds
        least = min(least, seconds)
    t = tables.end_times
    total += t.embedding_fwd + (1.0 + space.mtp) * (t.head_fwd + t.head_bwd)
    return total, least


@kernel
def least_step_s(
    space: Space, work: tuple[float, float], p: int, v: int, m: int, shared: tuple[float, float]
) -> float:
    """Least seconds of any plan with v chunks on p ranks: no recompute, no data-parallel traffic.

    The slowest rank does at least the mean, and at least the layers of an even share rounded up;
    schedules that do not split the backward also fill and drain, by chunks of which the smallest
    may stand at the ends. `shared`: exposed seconds of one transfer, and of the host a microbatch
    and chunk.
    """
    steady = 2.0 * v * (shared[0] + shared[1])
    slowest = max(work[0] / p, math.ceil(len(space.order) / p) * work[1]) + steady
    for s in range(len(space.schedules)):
        if int(space.schedules[s]) >= ZB_H1:
            return m * slowest
    # Of chunks as even as they go, as many of the smaller ones as there are stand at the ends.
    least = len(space.order) // (p * v)
    smaller = p * v * (least + 1) - len(space.order)
    ends = (p * (least + 1) - min(p, smaller)) * work[1]
    filled = m * slowest + max(0.0, min(ends, work[0] / v) + (p * steady - slowest) / v)
    # A microbatch goes down and up through all layers, however few there are.
    return max(filled, work[0])


@kernel
def block_state(block: Array, v: int, m: int, edp: float, base: State) -> State:
    """The state of a block's plans before their own choices."""
    return State(
        block[PP], float(v), float(m), 0.0, 0.0, 0.0, 0.0, 1.0, edp, block[DP] * block[CP],
        0.0, 0.0, base.train_ends, base.frozen_bytes, base.fp8,
    )  # fmt: skip


@kernel
def free_counts(
    space: Space, line: Line, tables: Tables, p: int, v: int, shape: int, state: State,
    machine: Machine,
) -> Array:  # fmt: skip
    """Layers of each chunk for the fastest step, whatever they hold; the user's own as they are."""
    if len(space.stages) > 0:
        return space.stages
    guard = guard_of(FREE, (np.inf, np.inf), tables, state, machine.memory)
    return layout(line, p, v, shape, guard, False)


@kernel
def loads_for(space: Space, counts: Array, p: int, shape: int) -> Loads:
    """Ranks of a layout."""
    table = rank_table(space.order, space.kinds, p, shape, counts, (space.mtp, space.vision))
    return group_ranks(table)


@kernel
def search_layout(
    at: int,
    space: Space,
    ready: Ready,
    now: State,
    shape: int,
    full: bool,
    machine: Machine,
    found: Found,
    worth: Worth,
) -> int:
    """Evaluate the plans of one block, chunk number and layout; returns the next free place."""
    p, v, m = int(now.pp), int(now.vpp), int(now.m)
    priced = False
    for s in range(len(space.schedules)):
        schedule = int(space.schedules[s])
        if not schedule_runs(schedule, p, v, m, space.multiple):
            continue
        if (chunks_of(schedule) == 2) != (shape == V_SHAPE):
            continue
        one = variant(now, float(schedule), 0.0, 0.0, 0.0, 1.0, (0.0, 0.0))
        if not worth_trying(space, ready, one, machine, worth):
            continue
        if not priced:
            priced = True
            ready.exchange[:] = exchange_tables(
                space, ready.profiles, ready.groups, ready.cut, now, ready.strides, machine
            )
        at = search_schedule(at, space, ready, now, schedule, full, machine, found, worth)
        if p == 1:
            break  # without a pipeline all schedules are one
    return at


@kernel
def search_block(
    at: int,
    number: int,
    block: Array,
    space: Space,
    kinds: Array,
    ends: Ends,
    base: Cut,
    state: State,
    machine: Machine,
    found: Found,
    worth: Worth,
) -> int:
    """Evaluate every plan of one block that is worth it; returns the next free place."""
    p = int(block[PP])
    m = int(space.global_batch / (block[DP] * block[MBS]) + 0.5)
    cut, strides, tables = block_tables(block, kinds, ends, base, machine)
    work = block_work(space, tables)
    net, stack = machine.net, machine.stack
    groups = shard_groups(space, int(block[DP] * block[CP]), strides.dp, net)
    hop_s = transfer_s(ends, cut, block[PP], net, strides, stack)
    tied = tied_s(ends, cut, block[PP], net, strides, stack)
    shared = (stack.pp_exposed * hop_s, stack.microbatch_overhead_s)
    extra = (space.mtp, space.vision)
    plain = line_of(space.order, space.kinds, extra, tables, False)
    again = line_of(space.order, space.kinds, extra, tables, True)
    for v in range(chunk_start(space, p), chunk_limit(space, p) + 1):
        if least_step_s(space, work, p, v, m, shared) > worth.step_s:
            continue
        now = block_state(block, v, m, cut.edp, state)
        for shape in range(2):
            if (shape == V_SHAPE and v != 2) or not any_runs(space, p, v, m, shape):
                continue
            slow = False
            for full in range(2):
                if not any_form(space, full == 1) or (full == 1 and slow):
                    continue
                line = again if full == 1 else plain
                counts = free_counts(space, line, tables, p, v, shape, now, machine)
                loads = loads_for(space, counts, p, shape)
                profiles = rank_profiles(
                    loads, tables.layers, tables.mems, tables.end_times, ends, cut.tp,
                    state.train_ends,
                )  # fmt: skip
                exchange = np.zeros((4, len(groups), profiles.shape[0], 2))
                ready = Ready(
                    number, loads, profiles, exchange, tables, line, shape, cut, strides, ends,
                    groups, hop_s, tied, most_layers(space, loads, p, v),
                )  # fmt: skip
                # A layout for recompute is no faster than the one without, but for rounding.
                slow = not quick_enough(space, ready, now, shape, machine, 1.02 * worth.step_s)
                at = search_layout(at, space, ready, now, shape, full == 1, machine, found, worth)
    return at


@kernel
def quick_enough(
    space: Space, ready: Ready, now: State, shape: int, machine: Machine, limit_s: float
) -> bool:
    """Whether some schedule of a layout can stay under a step time."""
    if not np.isfinite(limit_s):
        return True
    for s in range(len(space.schedules)):
        schedule = int(space.schedules[s])
        if not schedule_runs(schedule, int(now.pp), int(now.vpp), int(now.m), space.multiple):
            continue
        if (chunks_of(schedule) == 2) == (shape == V_SHAPE):
            one = variant(now, float(schedule), 0.0, 0.0, 0.0, 1.0, (0.0, 0.0))
            if free_step_s(ready, one, machine) <= limit_s:
                return True
    return False


@kernel
def most_layers(space: Space, loads: Loads, p: int, v: int) -> int:
    """Up to how many layers of a chunk are recomputed: all of the largest, where it is bisected."""
    mean = mean_chunk(space, p, v)
    return mean if space.first_layers == EVERY else max(mean, int(loads.chunk.max()))


@kernel
def any_runs(space: Space, p: int, v: int, m: int, shape: int) -> bool:
    """Whether some schedule runs with these chunks in this shape."""
    for s in range(len(space.schedules)):
        schedule = int(space.schedules[s])
        if (chunks_of(schedule) == 2) != (shape == V_SHAPE):
            continue
        if schedule_runs(schedule, p, v, m, space.multiple):
            return True
    return False


@kernel
def any_form(space: Space, full: bool) -> bool:
    """Whether full recompute (or one of the others) is searched."""
    found = False
    for r in range(len(space.recomputes)):
        found = found or (int(space.recomputes[r]) == FULL) == full
    return found


@kernel
def block_bounds(
    blocks: Array, space: Space, kinds: Array, ends: Ends, base: Cut, machine: Machine
) -> Array:
    """(2, B): least seconds of any plan of each block, and of those with one chunk a rank."""
    out = np.zeros((2, blocks.shape[0]))
    for i in range(blocks.shape[0]):
        _, _, tables = block_tables(blocks[i], kinds, ends, base, machine)
        m = int(space.global_batch / (blocks[i, DP] * blocks[i, MBS]) + 0.5)
        work, p = block_work(space, tables), int(blocks[i, PP])
        # Filling and draining shrink with the chunks: the most of them bound all.
        out[0, i] = least_step_s(space, work, p, chunk_limit(space, p), m, (0.0, 0.0))
        out[1, i] = least_step_s(space, work, p, 1, m, (0.0, 0.0))
    return out


@kernel
def search_blocks(
    blocks: Array,
    bounds: Array,
    space: Space,
    kinds: Array,
    ends: Ends,
    base: Cut,
    state: State,
    machine: Machine,
    found: Found,
    rooms: tuple[float, float],
    slacks: tuple[float, float],
) -> int:
    """Evaluate the plans of all blocks into `found`; returns the next free place.

    `rooms`: bytes up to which a plan may fit, and surely fits. Blocks and layouts that cannot come
    within slacks[0] times the fastest plan that surely fits so far are passed over (inf: none is),
    so the answer within that factor is that of the whole space. Kept are plans that may fit and
    come within slacks[1] times it (inf: all), and at place 0 the one that holds least of those
    that do not fit.
    `bounds` are the blocks' `block_bounds`, those likely to be fast first, so that this plan is
    found early and most others are passed over at once; zeros where every plan is wanted.
    """
    at = 1
    best = np.inf
    found.peak[0] = np.inf
    found.tally[:] = 0
    for i in range(blocks.shape[0]):
        if bounds[i] > best * slacks[0]:
            continue
        start = at
        at = search_block(
            at, i, blocks[i], space, kinds, ends, base, state, machine, found,
            Worth(
                rooms[0], rooms[1], best * slacks[0], best * LIMITED_SLACK, best * slacks[1],
                slacks[1] >= np.inf,
            ),
        )  # fmt: skip
        for j in range(start, at):
            if found.peak[j] <= rooms[1] and found.step_s[j] < best:
                best = found.step_s[j]
    return at
