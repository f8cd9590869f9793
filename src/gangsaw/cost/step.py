"""Seconds of one optimizer step: rank times, pipeline, data parallelism, optimizer, host.

`step_cost` is the one place where the parts come together; the estimate of one plan and the
search over millions call it alike.
"""

from __future__ import annotations

from typing import NamedTuple

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
    FULL,
    SELECTIVE,
    ZB_H1,
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
from gangsaw.jit import kernel

FWD, BWD, WGRAD, R_SEL, R_FULL, TP_F, TP_B, TP_R, CP_F, CP_B, EP_F, EP_B, HOST_F, HOST_B, HOST_R = (
    range(len(LayerTime._fields))
)


class RankTime(NamedTuple):
    """Seconds of one microbatch on one rank (all its chunks), by cause."""

    fwd: float
    bwd: float
    wgrad: float
    recompute: float
    tp_fwd: float
    tp_bwd: float
    cp_fwd: float
    cp_bwd: float
    ep_fwd: float
    ep_bwd: float
    host_fwd: float
    host_bwd: float


@kernel
def recompute_share(state: State, chunk: float) -> float:
    """Share of a rank's layers that full recompute covers: the first N of each chunk, or all."""
    if state.recompute != FULL:
        return 0.0
    if state.recompute_layers <= 0.0 or chunk <= 0.0:
        return 1.0
    return min(1.0, state.recompute_layers / chunk)


@kernel
def rank_time(
    r: int, loads: Loads, layers: Array, ends: EndTime, state: State, overhead_s: float
) -> RankTime:
    """Sum the layers and ends of one kind of rank. `layers` is (K, len(LayerTime))."""
    full = recompute_share(state, loads.chunk[r])
    f = b = w = rec = tf = tb = cf = cb = ef = eb = hf = hb = 0.0
    for k in range(layers.shape[0]):
        n = loads.layers[r, k]
        f += n * layers[k, FWD]
        b += n * layers[k, BWD]
        w += n * layers[k, WGRAD]
        tf += n * layers[k, TP_F]
        tb += n * (layers[k, TP_B] + full * layers[k, TP_R])
        cf += n * layers[k, CP_F]
        cb += n * (layers[k, CP_B] + full * layers[k, CP_F])
        ef += n * layers[k, EP_F]
        eb += n * (layers[k, EP_B] + full * layers[k, EP_F])
        hf += n * layers[k, HOST_F]
        hb += n * (layers[k, HOST_B] + full * layers[k, HOST_R])
        rec += n * full * layers[k, R_FULL]
        if state.recompute == SELECTIVE:
            rec += n * layers[k, R_SEL]
    if loads.embedding[r] > 0.0:
        f += ends.embedding_fwd
        b += ends.embedding_bwd
        tf += ends.embedding_tp
        tb += ends.embedding_tp
    h = loads.heads[r]
    if h > 0.0:
        f += h * ends.head_fwd
        b += h * ends.head_bwd
        w += h * ends.head_wgrad * state.train_ends
        tf += h * ends.head_tp
        tb += h * ends.head_tp
    hf += overhead_s * state.vpp
    hb += overhead_s * state.vpp
    return RankTime(f, b, w, rec, tf, tb, cf, cb, ef, eb, hf, hb)


class RankParams(NamedTuple):
    """Parameters on one rank: all of them, and those with gradients."""

    dense: float
    expert: float
    trained_dense: float
    trained_expert: float


@kernel
def rank_params(
    r: int, loads: Loads, mems: Array, ends: Ends, tp: float, train_ends: float
) -> RankParams:
    """Parameters of a rank. `mems` is the table of `cost.memory`, one layer of each kind."""
    dense = expert = frozen_dense = frozen_expert = 0.0
    for k in range(mems.shape[0]):
        n = loads.layers[r, k]
        dense += n * (mems[k, DENSE] + mems[k, ADAPTER])
        expert += n * mems[k, EXPERT]
        frozen_dense += n * mems[k, FROZEN_DENSE]
        frozen_expert += n * mems[k, FROZEN_EXPERT]
    end = 0.0
    if loads.embedding[r] > 0.0:
        end += (ends.embedding_params + ends.vision_embedding_params) / tp
    if loads.heads[r] > 0.0 and (ends.tied <= 0.0 or loads.embedding[r] <= 0.0):
        end += ends.head_params / tp + ends.final_norm_params
    trained = dense - frozen_dense + end * train_ends
    return RankParams(dense + end, expert, trained, expert - frozen_expert)


@kernel
def offload_link_s(r: int, loads: Loads, mems: Array, state: State, device: Device) -> float:
    """Seconds of moving a microbatch's offloaded activations over the host link, one way."""
    if state.offload_activations <= 0.0:
        return 0.0
    full = recompute_share(state, loads.chunk[r])
    kept = 0.0
    for k in range(mems.shape[0]):
        plain = mems[k, KEPT_SELECTIVE] if state.recompute == SELECTIVE else mems[k, KEPT_NONE]
        kept += loads.layers[r, k] * (full * mems[k, KEPT_FULL] + (1.0 - full) * plain)
    return kept * state.offload_activations / (0.8 * device.pcie)


@kernel
def transfer_s(
    ends: Ends, cut: Cut, state: State, net: Net, strides: Strides, stack: StackT
) -> float:
    """Seconds of handing one microbatch's activations to the next stage.

    Each tensor rank sends its slice: with sequence parallelism its own tokens, without it the
    scatter-gather of Megatron-LM (arXiv:2104.04473 section 4.1).
    """
    if state.pp <= 1.0:
        return 0.0
    size = cut.mbs * cut.seq_len / cut.cp * ends.hidden * cut.act_bytes / cut.tp
    return p2p_s(net, size, strides.pp, stack.collective_overhead_s)


@kernel
def sharded_extra(
    t: RankTime,
    par: RankParams,
    depth: float,
    cut: Cut,
    state: State,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> tuple[float, float]:
    """Exposed seconds a microbatch of ZeRO-2's and ZeRO-3's traffic, forward and backward.

    What may hide does so behind the rank's own work; the first layer's gather never does.
    """
    if state.zero < 2.0 or state.shard <= 1.0:
        return 0.0, 0.0
    cover = stack.zero3_overlap
    work_f = t.fwd
    work_b = t.bwd + t.wgrad + t.recompute
    reduce = gradient_s(par.trained_dense, par.trained_expert, cut, state, net, strides, stack)
    if state.zero < 3.0:
        return 0.0, reduce - min(cover * reduce, work_b)
    gather = gather_s(par.dense, par.expert, cut, state, net, strides, stack)
    both = gather + reduce
    extra_f = gather - min(cover * gather, work_f) + cover * gather / depth
    return extra_f, both - min(cover * both, work_b) + cover * reduce / depth


@kernel
def unsharded_dp_s(
    par: RankParams,
    f: float,
    b: float,
    last: float,
    cut: Cut,
    state: State,
    ends: Ends,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> float:
    """Exposed seconds a step of the gradient reduction, the gather and the tied embedding."""
    dp = 0.0
    if state.zero < 2.0:
        reduce = gradient_s(par.trained_dense, par.trained_expert, cut, state, net, strides, stack)
        dp += reduce - min(stack.dp_overlap_backward * reduce, b)
    if state.zero < 3.0:
        gather = gather_s(par.trained_dense, par.trained_expert, cut, state, net, strides, stack)
        dp += gather - min(stack.dp_overlap_forward * gather, f)
    if ends.tied > 0.0 and state.pp > 1.0 and last > 0.0:
        size = ends.head_params / cut.tp * stack.grad_bytes * state.train_ends
        over = stack.collective_overhead_s
        dp += all_reduce_s(net, size, 2.0, strides.pp * (state.pp - 1.0), over)
    return dp


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
    """Seconds of one step of a plan and its parts (means over devices, summing to the step).

    `layers` (K, len(LayerTime)) and `mems` (K, len(LayerMem)) are one layer of each kind.
    """
    p, m = state.pp, state.m
    hop = transfer_s(ends, cut, state, net, strides, stack)
    steady = stack.pp_exposed * hop * state.vpp if p > 1.0 else 0.0
    f_max = b_max = w_max = t_max = f_sum = b_sum = w_sum = 0.0
    compute = recompute = tp = cp = ep = host = zero3 = offload = 0.0
    most = RankParams(0.0, 0.0, 0.0, 0.0)
    last_b = last_f = 0.0
    for r in range(loads.ranks.shape[0]):
        n = loads.ranks[r]
        t = rank_time(r, loads, layers, end_times, state, stack.microbatch_overhead_s)
        par = rank_params(r, loads, mems, ends, cut.tp, state.train_ends)
        depth = max(1.0, loads.layers[r].sum())
        extra_f, extra_b = sharded_extra(t, par, depth, cut, state, net, strides, stack)
        link = offload_link_s(r, loads, mems, state, device)
        wait_f = max(0.0, link - t.fwd)
        wait_b = max(0.0, link - t.bwd - t.wgrad)
        f = t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd + t.host_fwd + extra_f + wait_f + steady
        b = t.bwd + t.recompute + t.tp_bwd + t.cp_bwd + t.ep_bwd + t.host_bwd
        b += extra_b + wait_b + steady
        w = t.wgrad
        compute += n * (t.fwd + t.bwd + w)
        recompute += n * t.recompute
        tp += n * (t.tp_fwd + t.tp_bwd)
        cp += n * (t.cp_fwd + t.cp_bwd)
        ep += n * (t.ep_fwd + t.ep_bwd)
        host += n * (t.host_fwd + t.host_bwd)
        zero3 += n * (extra_f + extra_b)
        offload += n * (wait_f + wait_b)
        f_sum += n * f
        b_sum += n * b
        w_sum += n * w
        if f + b + w > t_max:
            t_max = f + b + w
            f_max, b_max, w_max = f, b, w
        if par.dense + par.expert > most.dense + most.expert:
            most = par
            last_f, last_b = f, b + w
    if state.schedule < ZB_H1:
        b_max += w_max
        b_sum += w_sum
        w_max = 0.0
    path = pipeline_s(
        state.schedule, p, state.vpp, m, f_max, b_max, w_max, f_sum, b_sum, stack.pp_exposed * hop
    )
    dp = unsharded_dp_s(most, last_f, last_b, p - 1.0, cut, state, ends, net, strides, stack)
    optimizer = optimizer_s(most.trained_dense, most.trained_expert, state, device, stack)
    host_step = offload_optimizer_s(most.trained_dense, most.trained_expert, state, device, stack)
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
