"""Seconds of one optimizer step: rank times, pipeline, data parallelism, optimizer, host.

`step_cost` is where the parts come together. Its two halves stand alone, so that a search over
many plans does the first once for all plans that share it: `rank_profiles` adds up what each rank
does for one microbatch, `traffic` prices its data-parallel exchange, `combine` makes a step of
them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gangsaw.cost.bubble import pipeline_s
from gangsaw.cost.collectives import all_reduce_s, p2p_s
from gangsaw.cost.data_parallel import gather_s, gradient_s, offload_optimizer_s, optimizer_s
from gangsaw.cost.memory import (
    ADAPTER,
    DENSE,
    EXPERT,
    FROZEN_DENSE,
    FROZEN_EXPERT,
    KEPT_FULL,
    KEPT_NONE,
    KEPT_SELECTIVE,
)
from gangsaw.cost.types import (
    DUALPIPE_V,
    FULL,
    SELECTIVE,
    V_HALF,
    V_MIN,
    ZB_H1,
    ZB_V,
    Array,
    Cut,
    Device,
    Ends,
    EndTime,
    LayerTime,
    Loads,
    Net,
    StackT,
    State,
    StepCost,
    Strides,
)
from gangsaw.jit import inlined, kernel

FWD, BWD, WGRAD, R_SEL, R_FULL, TP_F, TP_B, TP_R, CP_F, CP_B, EP_F, EP_B, HOST_F, HOST_B, HOST_R = (
    range(len(LayerTime._fields))
)
"""Columns of a layer table, in the order of `LayerTime`."""


class Profile(NamedTuple):
    """What one pipeline rank does and holds for one microbatch, all its chunks together.

    Its first fields are those of `LayerTime`, summed; the forward's parts of recompute are added
    by `combine`, which knows the share of layers that is recomputed.
    """

    fwd: float
    bwd: float
    wgrad: float
    recompute_selective: float
    recompute_full: float
    tp_fwd: float
    tp_bwd: float
    tp_recompute: float
    cp_fwd: float
    cp_bwd: float
    ep_fwd: float
    ep_bwd: float
    host_fwd: float
    host_bwd: float
    host_recompute: float
    ranks: float  # ranks like this one
    dense: float  # parameters on the rank
    expert: float
    trained_dense: float  # those with gradients
    trained_expert: float
    depth: float  # layers of the rank
    chunk: float  # layers of its largest chunk
    kept_none: float  # bytes of activations
    kept_selective: float
    kept_full: float


PROFILE_FIELDS = 25  # len(Profile._fields); numba wants the number
(RANKS, P_DENSE, P_EXPERT, T_DENSE, T_EXPERT, DEPTH, CHUNK, K_NONE, K_SELECTIVE, K_FULL) = range(
    15, 25
)


@kernel
def rank_profiles(
    loads: Loads,
    layers: Array,
    mems: Array,
    times: EndTime,
    ends: Ends,
    tp: float,
    train_ends: float,
) -> Array:
    """(R, 25): the `Profile` of each kind of rank.

    `layers` (K, 15) and `mems` (K, 15) are one layer of each kind: `LayerTime` and `LayerMem`.
    """
    groups, kinds = loads.layers.shape
    out = np.zeros((groups, PROFILE_FIELDS))
    for r in range(groups):
        for k in range(kinds):
            n = loads.layers[r, k]
            for j in range(15):
                out[r, j] += n * layers[k, j]
            out[r, P_DENSE] += n * (mems[k, DENSE] + mems[k, ADAPTER])
            out[r, P_EXPERT] += n * mems[k, EXPERT]
            out[r, T_DENSE] += n * (mems[k, DENSE] + mems[k, ADAPTER] - mems[k, FROZEN_DENSE])
            out[r, T_EXPERT] += n * (mems[k, EXPERT] - mems[k, FROZEN_EXPERT])
            out[r, DEPTH] += n
            out[r, K_NONE] += n * mems[k, KEPT_NONE]
            out[r, K_SELECTIVE] += n * mems[k, KEPT_SELECTIVE]
            out[r, K_FULL] += n * mems[k, KEPT_FULL]
        end = 0.0
        if loads.embedding[r] > 0.0:
            out[r, FWD] += times.embedding_fwd
            out[r, BWD] += times.embedding_bwd * train_ends
            out[r, TP_F] += times.embedding_tp
            out[r, TP_B] += times.embedding_tp * train_ends
            vision = ends.vision_embedding_params + ends.projector_params
            end += (ends.embedding_params + vision) / tp
        h = loads.heads[r]
        if h > 0.0:
            out[r, FWD] += h * times.head_fwd
            out[r, BWD] += h * times.head_bwd
            out[r, WGRAD] += h * times.head_wgrad * train_ends
            out[r, TP_F] += h * times.head_tp
            out[r, TP_B] += h * times.head_tp
            if ends.tied <= 0.0 or loads.embedding[r] <= 0.0:
                end += ends.head_params / tp + ends.final_norm_params
        out[r, P_DENSE] += end
        out[r, T_DENSE] += end * train_ends
        out[r, RANKS] = loads.ranks[r]
        out[r, CHUNK] = loads.chunk[r]
    return out


@kernel
def traffic(
    profiles: Array, cut: Cut, state: State, net: Net, strides: Strides, stack: StackT
) -> Array:
    """(R, 2): seconds of one gradient reduction and of one parameter gather of each rank.

    Nothing is hidden here. Depends on the state by its ZeRO stage and shard group alone.
    """
    groups = profiles.shape[0]
    out = np.zeros((groups, 2))
    if state.dp <= 1.0 and cut.edp <= 1.0:
        return out
    for r in range(groups):
        dense, expert = profiles[r, T_DENSE], profiles[r, T_EXPERT]
        out[r, 0] = gradient_s(dense, expert, cut, state, net, strides, stack)
        if state.zero >= 3.0:
            dense, expert = profiles[r, P_DENSE], profiles[r, P_EXPERT]
        out[r, 1] = gather_s(dense, expert, cut, state, net, strides, stack)
    return out


@kernel
def transfer_s(ends: Ends, cut: Cut, pp: float, net: Net, strides: Strides, stack: StackT) -> float:
    """Seconds of handing one microbatch's activations to the next stage.

    Each tensor rank sends its slice: with sequence parallelism its own tokens, without it the
    scatter-gather of Megatron-LM (arXiv:2104.04473 section 4.1).
    """
    if pp <= 1.0:
        return 0.0
    size = cut.mbs * cut.seq_len / cut.cp * ends.hidden * cut.act_bytes / cut.tp
    return p2p_s(net, size, strides.pp, stack.collective_overhead_s, pp)


@kernel
def tied_s(ends: Ends, cut: Cut, pp: float, net: Net, strides: Strides, stack: StackT) -> float:
    """Seconds a step of adding the gradients of a tied embedding's two copies."""
    if ends.tied <= 0.0 or pp <= 1.0:
        return 0.0
    size = ends.head_params / cut.tp * stack.grad_bytes
    return all_reduce_s(net, size, 2.0, strides.pp * (pp - 1.0), stack.collective_overhead_s)


@kernel
def recompute_share(state: State, chunk: float) -> float:
    """Share of a rank's layers that full recompute covers: the first N of each chunk, or all.

    `chunk`: layers of one chunk; the mean of a rank's chunks is exact while N is below all of them.
    """
    if state.recompute != FULL:
        return 0.0
    if state.recompute_layers <= 0.0 or chunk <= 0.0:
        return 1.0
    return min(1.0, state.recompute_layers / chunk)


@kernel
def once_a_step(state: State) -> bool:
    """Whether data-parallel traffic is once a step and not once a microbatch."""
    return state.zero < 2.0 or (state.zero >= 3.0 and state.pp > 1.0)


@inlined
def exchange_s(
    reduce: float, gather: float, last_f: float, last_b: float, state: State, stack: StackT
) -> float:
    """Exposed seconds a step of gradient reduction and parameter gather that come once a step.

    What overlaps hides behind one microbatch: the last one's backward, the first one's forward.
    ZeRO-3 hides the share that its gathers hide elsewhere.
    """
    under_b, under_f = stack.dp_overlap_backward, stack.dp_overlap_forward
    if state.zero >= 3.0:
        under_b = under_f = stack.zero3_overlap
    total = 0.0
    if once_a_step(state):
        total += reduce - min(under_b * reduce, last_b)
    if state.zero < 3.0 or state.pp > 1.0:
        total += gather - min(under_f * gather, last_f)
    return total


@inlined
def sharded_extra(
    work_f: float,
    work_b: float,
    reduce: float,
    gather: float,
    depth: float,
    state: State,
    cover: float,
) -> tuple[float, float]:
    """Exposed seconds a microbatch of ZeRO-2's and ZeRO-3's traffic, forward and backward.

    The share `cover` may hide behind the rank's own work; the first layer's gather never does.
    Under a pipeline ZeRO-3 keeps a stage gathered from the first microbatch to the last, as its
    memory does (PyTorch's pipeline stages on FSDP2), so its traffic is once a step.
    """
    if state.zero < 2.0 or reduce <= 0.0 or once_a_step(state):
        return 0.0, 0.0
    if state.zero < 3.0:
        return 0.0, reduce - min(cover * reduce, work_b)
    both = gather + reduce
    extra_f = gather - min(cover * gather, work_f) + cover * gather / depth
    return extra_f, both - min(cover * both, work_b) + cover * reduce / depth


UNEVEN_SHARE = 0.7
"""What a chunk larger than its rank's mean adds to fill and drain, as a share of the longest that
it could: 126 layers on 16 ranks with 3, 5, 6 and 7 chunks in the event loop (0.64-0.78)."""


@kernel
def uneven_s(p: float, v: float, uneven: float, rank_s: float) -> float:
    """Seconds that unequal chunks add to a looped schedule's fill and drain.

    `uneven`: layers of the largest chunk over the mean of its rank; `rank_s`: one microbatch of the
    slowest rank.
    """
    if v <= 1.0 or p <= 1.0 or uneven <= 1.0:
        return 0.0
    return UNEVEN_SHARE * (uneven - 1.0) * (p - 1.0) / v * rank_s


@inlined
def combine(
    profiles: Array,
    exchange: Array,
    hop_s: float,
    tied: float,
    state: State,
    device: Device,
    stack: StackT,
) -> StepCost:
    """Seconds of one step and their causes (means over devices, summing to the step).

    `profiles` (R, 25) of `rank_profiles`, `exchange` (R, 2) of `traffic`, `hop_s` of `transfer_s`.
    """
    p, m = state.pp, state.m
    steady = stack.pp_exposed * hop_s * state.vpp
    overhead = stack.microbatch_overhead_s * state.vpp
    f_max = b_max = w_max = t_max = f_sum = b_sum = w_sum = 0.0
    compute = recompute = tp = cp = ep = host = zero3 = offload = 0.0
    reduce = gather = dense = expert = last_f = last_b = uneven = 0.0
    most = -1.0
    for r in range(profiles.shape[0]):
        row = profiles[r]
        n = row[RANKS]
        full = recompute_share(state, row[DEPTH] / state.vpp)
        again = full * row[R_FULL]
        kept = row[K_NONE]
        if state.recompute == SELECTIVE:
            again = row[R_SEL]
            kept = row[K_SELECTIVE]
        kept += full * (row[K_FULL] - kept)
        work_b = row[BWD] + row[WGRAD] + again
        tp_b = row[TP_B] + full * row[TP_R]
        cp_b = row[CP_B] + full * row[CP_F]
        ep_b = row[EP_B] + full * row[EP_F]
        host_f = row[HOST_F] + overhead
        host_b = row[HOST_B] + full * row[HOST_R] + overhead
        # Copies and collectives run on while the device computes or waits for launches.
        link = kept * state.offload_activations / (0.8 * device.pcie)
        wait_f = max(0.0, link - row[FWD] - host_f)
        wait_b = max(0.0, link - row[BWD] - row[WGRAD] - host_b)
        extra_f, extra_b = sharded_extra(
            row[FWD] + host_f + wait_f,
            work_b + host_b + wait_b,
            exchange[r, 0],
            exchange[r, 1],
            max(1.0, row[DEPTH]),
            state,
            stack.zero3_overlap,
        )
        f = row[FWD] + row[TP_F] + row[CP_F] + row[EP_F] + host_f + extra_f + wait_f + steady
        b = row[BWD] + again + tp_b + cp_b + ep_b + host_b + extra_b + wait_b + steady
        # Of the backward's launches the weight gradient has its share.
        late = host_b * row[WGRAD] / max(row[BWD] + row[WGRAD], 1e-300)
        b -= late
        w = row[WGRAD] + late
        compute += n * (row[FWD] + row[BWD] + row[WGRAD])
        recompute += n * again
        tp += n * (row[TP_F] + tp_b)
        cp += n * (row[CP_F] + cp_b)
        ep += n * (row[EP_F] + ep_b)
        host += n * (host_f + host_b)
        zero3 += n * (extra_f + extra_b)
        offload += n * (wait_f + wait_b)
        f_sum += n * f
        b_sum += n * b
        w_sum += n * w
        if f + b + w > t_max:
            t_max = f + b + w
            f_max, b_max, w_max = f, b, w
            uneven = row[CHUNK] * state.vpp / max(1.0, row[DEPTH])
        if row[T_DENSE] + row[T_EXPERT] > most:
            most = row[T_DENSE] + row[T_EXPERT]
            dense, expert = row[T_DENSE], row[T_EXPERT]
            reduce, gather = exchange[r, 0], exchange[r, 1]
            last_f, last_b = f, b + w
    if state.schedule < ZB_H1:
        b_max += w_max
        b_sum += w_sum
        w_max = 0.0
    # A transfer that a rank waits for is part of its work above; the others take their time on
    # the way. The event loop agrees: exactly so with blocking and with free transfers.
    way_s = max(0.0, 1.0 - stack.pp_exposed) * hop_s
    path = pipeline_s(
        state.schedule, p, state.vpp, m, f_max, b_max, w_max, f_sum, b_sum, way_s
    )  # fmt: skip
    path += uneven_s(p, state.vpp, uneven, t_max)
    dp = tied * state.train_ends
    if state.schedule in (ZB_V, V_HALF, V_MIN, DUALPIPE_V):
        dp = 0.0  # both ends are on the first rank, so a tied table is there once
    dp += exchange_s(reduce, gather, last_f, last_b, state, stack)
    optimizer = optimizer_s(dense, expert, state, device, stack)
    host_step = offload_optimizer_s(dense, expert, state, device, stack)
    busy = m * (compute + recompute + tp + cp + ep + host + zero3 + offload) / p
    busy += 2.0 * m * steady
    return StepCost(
        path + dp + optimizer + host_step + stack.step_overhead_s,
        m * compute / p,
        m * recompute / p,
        path - busy,
        m * tp / p,
        m * cp / p,
        m * ep / p,
        2.0 * m * steady,
        dp + m * zero3 / p,
        optimizer,
        m * host / p + stack.step_overhead_s,
        host_step + m * offload / p,
    )


@kernel
def step_cost(
    loads: Loads,
    layers: Array,
    mems: Array,
    end_times: EndTime,
    ends: Ends,
    cut: Cut,
    state: State,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> StepCost:
    """Seconds of one step of a plan and its parts.

    `layers` (K, len(LayerTime)) and `mems` (K, len(LayerMem)) are one layer of each kind.
    """
    profiles = rank_profiles(loads, layers, mems, end_times, ends, cut.tp, state.train_ends)
    exchange = traffic(profiles, cut, state, net, strides, stack)
    hop = transfer_s(ends, cut, state.pp, net, strides, stack)
    tied = tied_s(ends, cut, state.pp, net, strides, stack)
    return combine(profiles, exchange, hop, tied, state, device, stack)
