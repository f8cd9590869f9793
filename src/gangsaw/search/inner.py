"""The search's inner loops: every plan of one stage layout, by the same formulas as one plan.

A plan is kept as one integer (its place in these loops), its step time and its peak; documents
are made of the few that are shown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.loads import group_ranks, rank_table
from gangsaw.cost.memory import Place, Sums, load_of, rank_peak, sum_layers
from gangsaw.cost.step import combine, rank_profiles, traffic
from gangsaw.cost.types import (
    BFS,
    DUALPIPE,
    DUALPIPE_V,
    FULL,
    INTERLEAVED,
    IZB,
    V_HALF,
    V_MIN,
    ZB_V,
    Array,
    Cut,
    Device,
    EndMem,
    Ends,
    Loads,
    Net,
    StackMem,
    StackT,
    State,
    Strides,
)
from gangsaw.jit import inlined, kernel
from gangsaw.search.layouts import FREE, MAYBE, SURE, Line, Tables, guard_of, layout

Ints = NDArray[np.int64]

NO, EVERY, SMALLEST = range(3)
TIERS = 2
"""How far a loop goes: not at all, over all values, or over those that can be best."""


class Space(NamedTuple):
    """What the inner loops run over."""

    schedules: Ints  # codes
    recomputes: Ints
    first_layers: int  # full recompute of the first N layers of each chunk: NO, EVERY, SMALLEST
    zeros: Ints
    hybrid: int  # sharding over parts of the data-parallel group: NO, EVERY, TIERS
    offload_optimizer: Array
    offload_activations: Array
    min_chunks: int  # chunks a rank
    max_chunks: int
    multiple: int  # 1: interleaving needs m to be a multiple of pp
    order: Array  # kind of each decoder layer
    kinds: int
    mtp: float
    vision: float
    global_batch: float
    first_only: int  # the user's own number of recomputed layers a chunk; -1: `first_layers`
    shard_only: int  # the user's own shard group; 0: `hybrid`
    stages: Array  # the user's own layers of each chunk; empty: solved


class Found(NamedTuple):
    """Where the results go: one entry a plan that is kept, and how many were evaluated and fit."""

    codes: Ints
    owner: NDArray[np.int32]  # block
    step_s: NDArray[np.float32]
    peak: NDArray[np.float32]
    tally: Ints  # plans evaluated, plans that may fit


class Machine(NamedTuple):
    """Device, network and stack as numbers."""

    device: Device
    net: Net
    stack: StackT
    memory: StackMem


class Worth(NamedTuple):
    """What a plan must keep under to be looked at."""

    room: float  # device bytes up to which a plan may fit
    sure: float  # device bytes up to which it surely fits
    step_s: float  # inf: every plan is looked at
    limited_s: float  # plans that do not surely fit, up to here, are laid out within memory too
    keep_s: float  # evaluated plans that are slower are counted and not kept
    everything: bool  # keep plans that do not fit too


class Ready(NamedTuple):
    """A layout ready for its plans: what does not change from plan to plan."""

    number: int  # of the block
    loads: Loads
    profiles: Array
    exchange: Array
    tables: Tables
    line: Line
    shape: int
    cut: Cut
    strides: Strides
    ends: Ends
    groups: Array
    hop_s: float
    tied: float
    most: int  # layers of a chunk, rounded up


@kernel
def chunks_of(schedule: int) -> int:
    """Chunks a rank that a schedule runs: 1, 2, or 0 for any number above one."""
    if schedule in (INTERLEAVED, BFS, IZB):
        return 0
    if schedule in (ZB_V, V_HALF, V_MIN, DUALPIPE_V):
        return 2
    return 1


@kernel
def schedule_runs(schedule: int, p: int, v: int, m: int, multiple: int) -> bool:
    """Whether a schedule can run v chunks on p ranks with m microbatches."""
    wanted = chunks_of(schedule)
    if p == 1:
        return v == 1 and wanted == 1 and schedule != DUALPIPE
    if wanted == 0 and v < 2:
        return False
    if wanted > 0 and v != wanted:
        return False
    if schedule == INTERLEAVED and multiple == 1 and m % p != 0:
        return False
    if schedule == DUALPIPE and p % 2 != 0:
        return False
    return not (schedule in (DUALPIPE, DUALPIPE_V) and m < 2 * p)


@kernel
def encode(
    schedule: int, v: int, rec: int, first: int, zero: int, choice: tuple[int, int, int], room: int
) -> int:
    """The place of a plan inside its block as one integer (see `decode`)."""
    code = schedule
    code = code * 256 + v
    code = code * 4 + rec
    code = code * 65536 + first
    code = code * 4 + zero
    code = code * 1024 + choice[0]
    code = code * 16 + choice[1]
    code = code * 16 + choice[2]
    return code * 4 + room


def decode(code: int) -> tuple[int, int, int, int, int, tuple[int, int, int], int]:
    """Schedule, chunks, recompute, first layers, zero, (shard, offload) indices, and the room."""
    out = []
    for size in (4, 16, 16, 1024, 4, 65536, 4, 256):
        code, rest = divmod(code, size)
        out.append(rest)
    room, off_a, off_o, shard, zero, first, rec, v = out
    return code, v, rec, first, zero, (shard, off_o, off_a), room


@kernel
def shard_choices(zero: int, groups: int) -> int:
    """How many shard groups a ZeRO stage has: one without sharding."""
    return 1 if zero == 0 else groups


@kernel
def sharding_matters(zero: int, first: bool, group: float, expert_group: float) -> bool:
    """Whether a ZeRO stage makes a plan of its own: on one rank only the first one does."""
    return first or zero == 0 or group > 1.0 or expert_group > 1.0


@kernel
def variant(
    state: State,
    schedule: float,
    recompute: float,
    first: float,
    zero: float,
    shard: float,
    offload: tuple[float, float],
) -> State:
    """The state with a plan's own choices put in."""
    return State(
        state.pp, state.vpp, state.m, schedule, recompute, first, zero, shard,
        state.expert_shard, state.dp, offload[0], offload[1], state.train_ends,
        state.frozen_bytes, state.fp8,
    )  # fmt: skip


@kernel
def sum_table(loads: Loads, mems: Array, state: State) -> Array:
    """(R, 11): the layers of each kind of rank added up for its memory, as `Sums`."""
    groups = loads.layers.shape[0]
    out = np.zeros((groups, 11))
    for g in range(groups):
        sums = sum_layers(load_of(loads, g, state), mems, state)
        for j in range(11):
            out[g, j] = sums[j]
    return out


@kernel
def place_table(loads: Loads, state: State) -> Array:
    """(R, 4): `Place` of the first rank of each kind, which holds most in flight."""
    groups = loads.layers.shape[0]
    out = np.zeros((groups, 4))
    for g in range(groups):
        load = load_of(loads, g, state)
        out[g, 0], out[g, 1], out[g, 2], out[g, 3] = load.rank, load.embedding, load.head, load.mtp
    return out


@kernel
def worst_device_bytes(
    sums: Array, places: Array, end_mem: EndMem, state: State, memory: StackMem
) -> float:
    """Largest device-visible peak of all ranks."""
    worst = 0.0
    for g in range(sums.shape[0]):
        s = sums[g]
        held = rank_peak(
            Sums(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10]),
            Place(places[g, 0], places[g, 1], places[g, 2], places[g, 3]),
            end_mem, state, memory,
        )  # fmt: skip
        worst = max(worst, held.device)
    return worst


@inlined
def least_device_bytes(
    sums: Array, places: Array, last: Array, end_mem: EndMem, state: State, memory: StackMem
) -> float:
    """Smallest device-visible peak of all ranks: at the first or the last of each kind of rank."""
    least = np.inf
    for g in range(sums.shape[0]):
        s = sums[g]
        for rank in (places[g, 0], last[g]):
            held = rank_peak(
                Sums(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10]),
                Place(rank, places[g, 1], places[g, 2], places[g, 3]),
                end_mem, state, memory,
            )  # fmt: skip
            least = min(least, held.device)
    return least


@inlined
def may_be_limited(
    space: Space, ready: Ready, held: tuple[Array, Array], one: State, machine: Machine,
    worth: Worth,
) -> bool:  # fmt: skip
    """Whether other stages may bring a plan into memory.

    With equal layers some rank has in any layout as many as in this one, or more: where no rank
    of this one keeps the room, none of another does.
    """
    if one.pp <= 1.0 or len(space.stages) > 0:
        return False
    if not ready.line.equal:
        return True
    room = worth.sure if np.isfinite(worth.limited_s) else worth.room
    least = least_device_bytes(
        held[0], held[1], ready.loads.last, ready.tables.end_mem, one, machine.memory
    )
    return least <= room


@inlined
def try_plan(
    at: int,
    ready: Ready,
    profiles: Array,
    exchange: Array,
    loads: tuple[Array, Array],
    one: State,
    choice: tuple[int, int, int],
    room: int,
    machine: Machine,
    found: Found,
) -> float:
    """Evaluate one plan into place `at`; returns its peak.

    `loads`: `sum_table` and `place_table`; `choice`: shard and offload indices; `room`: FREE, ...
    """
    cost = combine(
        profiles, exchange, ready.hop_s, ready.tied, one, machine.device, machine.stack
    )  # fmt: skip
    peak = worst_device_bytes(loads[0], loads[1], ready.tables.end_mem, one, machine.memory)
    found.step_s[at] = cost.step
    found.peak[at] = peak
    found.codes[at] = encode(
        int(one.schedule), int(one.vpp), int(one.recompute), int(one.recompute_layers),
        int(one.zero), choice, room,
    )  # fmt: skip
    found.owner[at] = ready.number
    return peak


@kernel
def try_limited(
    at: int,
    peak: float,
    space: Space,
    ready: Ready,
    one: State,
    choice: tuple[int, int, int],
    machine: Machine,
    found: Found,
    worth: Worth,
) -> int:
    """Evaluate a plan with its stages laid out within memory; returns the next free place.

    For what surely fits; and, as long as no plan of the search surely does, for what may fit.
    """
    p, v, tables = int(one.pp), int(one.vpp), ready.tables
    for which in range(SURE, MAYBE + 1):
        if which == MAYBE and (peak <= worth.room or np.isfinite(worth.limited_s)):
            break
        guard = guard_of(which, (worth.room, worth.sure), tables, one, machine.memory)
        counts = layout(ready.line, p, v, ready.shape, guard, False)
        if counts.sum() == 0.0:
            continue
        ends = (space.mtp, space.vision)
        loads = group_ranks(
            rank_table(space.order, space.kinds, p, ready.shape, counts, ends)
        )  # fmt: skip
        profiles = rank_profiles(
            loads, tables.layers, tables.mems, tables.end_times, ready.ends, ready.cut.tp,
            one.train_ends,
        )  # fmt: skip
        exchange = traffic(profiles, ready.cut, one, machine.net, ready.strides, machine.stack)
        held = (sum_table(loads, tables.mems, one), place_table(loads, one))
        try_plan(at, ready, profiles, exchange, held, one, choice, which, machine, found)
        return keep_plan(at, found, worth)
    return at


@inlined
def try_and_keep(
    at: int,
    space: Space,
    ready: Ready,
    held: tuple[Array, Array],
    one: State,
    choice: tuple[int, int, int],
    machine: Machine,
    found: Found,
    worth: Worth,
) -> tuple[int, float]:
    """Evaluate one plan, within memory too where it does not surely fit.

    Returns the next free place and the peak of the fastest layout.
    """
    exchange = ready.exchange[int(one.zero), choice[0]]
    peak = try_plan(
        at, ready, ready.profiles, exchange, held, one, choice, FREE, machine, found
    )  # fmt: skip
    step = found.step_s[at]
    at = keep_plan(at, found, worth)
    near = peak > worth.sure and step <= worth.limited_s
    if near and may_be_limited(space, ready, held, one, machine, worth):
        at = try_limited(at, peak, space, ready, one, choice, machine, found, worth)
    return at, peak


@inlined
def keep_plan(at: int, found: Found, worth: Worth) -> int:
    """Count the plan just written at place `at`, and keep it if it may be listed.

    Returns the next free place. Place 0 holds the smallest of the plans that do not fit.
    """
    found.tally[0] += 1
    if found.peak[at] <= worth.room:
        found.tally[1] += 1
        return at + 1 if worth.everything or found.step_s[at] <= worth.keep_s else at
    if found.peak[at] < found.peak[0]:
        found.codes[0], found.owner[0] = found.codes[at], found.owner[at]
        found.step_s[0], found.peak[0] = found.step_s[at], found.peak[at]
    return at + 1 if worth.everything else at


@kernel
def smallest_first(
    at: int,
    space: Space,
    ready: Ready,
    places: Array,
    one: State,
    choice: tuple[int, int, int],
    machine: Machine,
    found: Found,
    worth: Worth,
    room: float,
) -> int:
    """Bisect for the fewest recomputed layers a chunk that fit into `room` bytes.

    Time grows and memory falls with every recomputed layer, so no other number can be better.
    Returns the next free place.
    """
    low, high = 1, ready.most - 1
    while low <= high:
        middle = (low + high) // 2
        now = variant(
            one, one.schedule, one.recompute, float(middle), one.zero, one.shard,
            (one.offload_optimizer, one.offload_activations),
        )  # fmt: skip
        held = (sum_table(ready.loads, ready.tables.mems, now), places)
        at, peak = try_and_keep(at, space, ready, held, now, choice, machine, found, worth)
        if peak <= room:
            high = middle - 1
        else:
            low = middle + 1
    return at


@kernel
def search_forms(
    at: int, space: Space, ready: Ready, now: State, machine: Machine, found: Found, worth: Worth
) -> int:
    """Evaluate sharding and offload of one schedule and recompute; returns the next free place."""
    places = place_table(ready.loads, now)
    held = (sum_table(ready.loads, ready.tables.mems, now), places)
    bisect = int(now.recompute) == FULL and space.first_layers == SMALLEST and ready.most > 1
    bisect = bisect and space.first_only < 0
    for z in range(len(space.zeros)):
        zero = int(space.zeros[z])
        if not sharding_matters(zero, z == 0, now.dp, now.expert_shard):
            continue
        for d in range(shard_choices(zero, len(ready.groups))):
            for oo in range(len(space.offload_optimizer)):
                for oa in range(len(space.offload_activations)):
                    one = variant(
                        now, now.schedule, now.recompute, now.recompute_layers, float(zero),
                        ready.groups[d],
                        (space.offload_optimizer[oo], space.offload_activations[oa]),
                    )  # fmt: skip
                    choice = (d, oo, oa)
                    at, peak = try_and_keep(
                        at, space, ready, held, one, choice, machine, found, worth
                    )
                    for room in (worth.sure, worth.room):
                        if bisect and peak <= room:
                            at = smallest_first(
                                at, space, ready, places, one, choice, machine, found, worth, room
                            )
    return at


@kernel
def free_step_s(ready: Ready, now: State, machine: Machine) -> float:
    """Least seconds of a step of a layout: no recompute, the optimizer over the whole group, and
    data-parallel traffic for nothing."""
    fast = variant(now, now.schedule, 0.0, 0.0, 1.0, ready.groups[0], (0.0, 0.0))
    free = np.zeros((ready.profiles.shape[0], 2))
    cost = combine(ready.profiles, free, ready.hop_s, 0.0, fast, machine.device, machine.stack)
    return cost.step


@kernel
def worth_trying(space: Space, ready: Ready, now: State, machine: Machine, worth: Worth) -> bool:
    """Whether some plan of a layout and schedule can be fast enough and can fit.

    The fastest is `free_step_s`. The one that holds least shards over
    the whole group and offloads all that is asked for; which recompute and ZeRO stage that is
    depends on the layout (gathered parameters and recomputed layers stand whole), so all are
    looked at. 2 % more room allow for the layout, which differs a little with recompute.
    """
    if not np.isfinite(worth.step_s):
        return True
    if free_step_s(ready, now, machine) > worth.step_s:
        return False
    offload = (space.offload_optimizer.max(), space.offload_activations.max())
    places = place_table(ready.loads, now)
    for r in range(len(space.recomputes) - 1, -1, -1):
        for z in range(len(space.zeros) - 1, -1, -1):
            least = variant(
                now, now.schedule, float(space.recomputes[r]), 0.0, float(space.zeros[z]),
                ready.groups[0], offload,
            )  # fmt: skip
            sums = sum_table(ready.loads, ready.tables.mems, least)
            peak = worst_device_bytes(sums, places, ready.tables.end_mem, least, machine.memory)
            if peak <= 1.02 * worth.room:
                return True
    return False


@kernel
def search_schedule(
    at: int,
    space: Space,
    ready: Ready,
    state: State,
    schedule: int,
    full: bool,
    machine: Machine,
    found: Found,
    worth: Worth,
) -> int:
    """Evaluate the plans of one layout and schedule; returns the next free place.

    `full`: the layout is that of full recompute.
    """
    for r in range(len(space.recomputes)):
        rec = int(space.recomputes[r])
        if (rec == FULL) != full:
            continue
        low, high = 0, 1
        if rec == FULL and space.first_only >= 0:
            low, high = space.first_only, space.first_only + 1
        elif rec == FULL and space.first_layers == EVERY:
            high = ready.most
        for first in range(low, high):
            now = variant(state, float(schedule), float(rec), float(first), 0.0, 1.0, (0.0, 0.0))
            at = search_forms(at, space, ready, now, machine, found, worth)
    return at
