"""Seconds of one optimizer step: rank times, pipeline, data parallelism, optimizer, host.

`step_cost` is the one place where the parts come together; the estimate of one plan and the
search over millions call it alike.
"""

from __future__ import annotations

from typing import NamedTuple

from gangsaw.cost.bubble import pipeline_s
from gangsaw.cost.collectives import all_reduce_s, p2p_s
from gangsaw.cost.data_parallel import gather_s, gradient_s, offload_optimizer_s, optimizer_s
from gangsaw.cost.types import (
    BFS,
    FULL,
    IZB,
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

LT = LayerTime._fields
FWD, BWD, WGRAD, R_SEL, R_FULL, TP_F, TP_B, TP_R, CP_F, CP_B, EP_F, EP_B, HOST_F, HOST_B, HOST_R = (
    range(len(LT))
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
        w += h * ends.head_wgrad
        tf += h * ends.head_tp
        tb += h * ends.head_tp
    hf += overhead_s * state.vpp
    hb += overhead_s * state.vpp
    return RankTime(f, b, w, rec, tf, tb, cf, cb, ef, eb, hf, hb)


@kernel
def rank_params(r: int, loads: Loads, params: Array, ends: Ends, tp: float) -> tuple[float, float]:
    """Dense and expert parameters of a rank. `params` is (K, 2): of one layer on one rank."""
    dense = expert = 0.0
    for k in range(params.shape[0]):
        dense += loads.layers[r, k] * params[k, 0]
        expert += loads.layers[r, k] * params[k, 1]
    if loads.embedding[r] > 0.0:
        dense += (ends.embedding_params + ends.vision_embedding_params) / tp
    if loads.heads[r] > 0.0:
        dense += ends.head_params / tp + ends.final_norm_params
    return dense, expert


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
def step_cost(
    loads: Loads,
    layers: Array,
    params: Array,
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

    `layers` (K, len(LayerTime)) and `params` (K, 2) are one layer of each kind on one rank.
    """
    p, m, v = state.pp, state.m, state.vpp
    hop = transfer_s(ends, cut, state, net, strides, stack)
    steady = stack.pp_exposed * hop * v if p > 1.0 else 0.0
    f_max = b_max = w_max = t_max = f_sum = b_sum = 0.0
    compute = recompute = tp = cp = ep = host = zero3 = 0.0
    dense_max = expert_max = last_b = last_f = 0.0
    for r in range(loads.count.shape[0]):
        n = loads.count[r]
        t = rank_time(r, loads, layers, end_times, state, stack.microbatch_overhead_s)
        dense, expert = rank_params(r, loads, params, ends, cut.tp)
        f = t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd + t.host_fwd
        b = t.bwd + t.recompute + t.tp_bwd + t.cp_bwd + t.ep_bwd + t.host_bwd
        w = t.wgrad
        if state.zero >= 2.0 and state.shard > 1.0:
            reduce = gradient_s(dense, expert, cut, state, net, strides, stack)
            cover = stack.zero3_overlap
            if state.zero >= 3.0:
                gather = gather_s(dense, expert, cut, state, net, strides, stack)
                depth = max(1.0, loads.layers[r].sum())
                extra_f = max(0.0, gather - cover * f) + gather / depth
                extra_b = max(0.0, gather + reduce - cover * (b + w)) + reduce / depth
            else:
                extra_f = 0.0
                extra_b = max(0.0, reduce - cover * (b + w))
            f += extra_f
            b += extra_b
            zero3 += n * (extra_f + extra_b)
        f += steady
        b += steady
        compute += n * (t.fwd + t.bwd + w)
        recompute += n * t.recompute
        tp += n * (t.tp_fwd + t.tp_bwd)
        cp += n * (t.cp_fwd + t.cp_bwd)
        ep += n * (t.ep_fwd + t.ep_bwd)
        host += n * (t.host_fwd + t.host_bwd)
        f_sum += n * f
        b_sum += n * b
        if f + b + w > t_max:
            t_max = f + b + w
            f_max, b_max, w_max = f, b, w
        if dense + expert > dense_max + expert_max:
            dense_max, expert_max = dense, expert
            last_f, last_b = f, b + w
    split = state.schedule >= ZB_H1
    if split:
        path = pipeline_s(
            state.schedule, p, v, m, f_max, b_max, w_max, f_sum, b_sum, stack.pp_exposed * hop
        )
    else:
        w_sum = 0.0
        for r in range(loads.count.shape[0]):
            t = rank_time(r, loads, layers, end_times, state, 0.0)
            w_sum += loads.count[r] * t.wgrad
        path = pipeline_s(
            state.schedule, p, v, m, f_max, b_max + w_max, 0.0, f_sum, b_sum + w_sum,
            stack.pp_exposed * hop,
        )  # fmt: skip
    dp = 0.0
    if state.zero < 2.0:
        reduce = gradient_s(dense_max, expert_max, cut, state, net, strides, stack)
        dp += reduce - min(stack.dp_overlap_backward * reduce, last_b)
    if state.zero < 3.0:
        gather = gather_s(dense_max, expert_max, cut, state, net, strides, stack)
        dp += gather - min(stack.dp_overlap_forward * gather, last_f)
    if ends.tied > 0.0 and p > 1.0:
        size = ends.head_params / cut.tp * stack.grad_bytes
        dp += all_reduce_s(net, size, 2.0, strides.pp * (p - 1.0), stack.collective_overhead_s)
    optimizer = optimizer_s(dense_max, expert_max, state, device, stack)
    offload = offload_optimizer_s(dense_max, expert_max, state, device, stack)
    total = path + dp + optimizer + offload + stack.step_overhead_s
    busy = m * (compute + recompute + tp + cp + ep + host + zero3) / p + 2.0 * m * steady
    return StepCost(
        total,
        m * compute / p,
        m * recompute / p,
        max(0.0, path - busy),
        m * tp / p,
        m * cp / p,
        m * ep / p,
        2.0 * m * steady,
        dp + m * zero3 / p,
        optimizer,
        m * host / p + stack.step_overhead_s,
        offload,
    )


SPLIT_FROM = ZB_H1
LOOPED = (BFS, IZB)
