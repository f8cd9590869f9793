"""The numbers that the formulas work on: plain NamedTuples of floats, made by `cost.lower`.

They exist because the same formula body runs interpreted on one plan and compiled on a million:
documents (pydantic) are lowered once to these, and every kernel takes and returns them. All
sizes are bytes, all times seconds, all rates per second; flags are 0.0 or 1.0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Schedules by number, in the order of spec.plan.SCHEDULES.
(
    GPIPE,
    ONE_F_ONE_B,
    INTERLEAVED,
    BFS,
    ZB_H1,
    ZB_H2,
    IZB,
    ZB_V,
    V_HALF,
    V_MIN,
    DUALPIPE,
    DUALPIPE_V,
    AUTO,
) = range(13)
# Recompute by number.
NONE, SELECTIVE, FULL = range(3)
# What `selective` means in a stack.
CORE_ATTENTION, OP_LEVEL, MODULES = range(3)


class Kind(NamedTuple):
    """One layer kind in whole (unsharded) shapes. Widths in elements, parameters in counts."""

    hidden: float
    heads: float
    kv_heads: float
    head_dim: float  # of queries and keys
    v_head_dim: float
    q_lora: float
    kv_lora: float  # > 0: MLA
    rope_dim: float
    window: float  # keys a query sees; 0 all
    causal: float
    ffn: float  # of the dense MLP; 0 in a routed layer
    gated: float  # of the dense MLP, experts and shared experts alike
    experts: float
    topk: float
    moe_ffn: float  # of one routed expert
    shared_ffn: float  # of all shared experts together
    norms: float  # norms of width hidden
    parallel: float
    softcap: float
    attention_params: float  # split by TP
    mlp_params: float  # dense MLP and shared experts, split by TP
    replicated_params: float  # norms, router, vectors: on every TP rank
    expert_params: float  # all routed experts, split by EP x ETP
    tokens_frac: float  # tokens this layer works on over tokens of the sequence (vision tower)
    seq_len: float  # keys per sequence of its own; 0: the recipe's sequence length
    trainable_frac: float  # share of the parameters with gradients (LoRA: 0, adapters apart)
    adapter_params: float  # LoRA parameters of the layer
    attention_a_fwd: float  # attention kernel asymptote, share of peak, forward
    attention_a_bwd: float


class Ends(NamedTuple):
    """Embedding and loss head in whole shapes."""

    hidden: float
    vocab: float
    embedding_params: float
    head_params: float  # as held by the last stage (a tied copy when pp > 1 counts here)
    tied: float
    final_norm_params: float
    vision_embedding_params: float
    projector_params: float
    mtp_layers: float


class Cut(NamedTuple):
    """How one layer is split, and the microbatch that it works on."""

    tp: float
    cp: float
    ep: float
    etp: float
    edp: float  # expert data parallel ranks
    sp: float  # sequence parallel
    mbs: float
    seq_len: float
    act_bytes: float  # of an activation element (2; 4 in fp32)
    fp8: float
    imbalance: float  # fullest expert over mean


class Device(NamedTuple):
    """One accelerator's curves."""

    peak: float  # dense FLOP/s at activation precision
    peak_linear: float  # dense FLOP/s of the linear layers (fp8 when the recipe says so)
    gemm_frac: float
    gemm_k0: float
    linear_frac: float  # asymptote of the linear layers (fp8 has its own)
    gemm_launch_s: float
    memory_bytes: float
    usable_bytes: float
    hbm: float  # bytes/s
    hbm_frac: float
    sustained: float
    attention_c0: float
    attention_c1: float
    attention_w: float
    sm: float
    pcie: float
    tdp_w: float


class Net(NamedTuple):
    """Tiers innermost first: devices in a domain, bytes/s a device and direction, latency."""

    size: Array
    bytes_per_s: Array  # after oversubscription, line rate
    latency_s: Array
    efficiency: Array
    reduction: Array  # 1.0 where switches reduce
    ramp_s: Array  # x seconds at full rate take sqrt(ramp_s x) to get there
    mesh: Array  # peers with a link each where there is no switch, else 0
    oversubscription: Array  # line rate over bytes_per_s


class StackMem(NamedTuple):
    """spec.stack.StackMemory as numbers, in its field order."""

    param_bytes: float
    grad_bytes: float
    optimizer_bytes: float
    unsharded_extra_bytes: float
    optimizer_step_bytes: float
    norm_bytes: float
    mlp_gated_bytes: float
    mlp_plain_bytes: float
    rope_bytes: float
    qkv_copy_bytes: float
    residual_bytes: float
    dropout: float
    unfused_score_bytes: float
    logit_bytes: float
    logits_vocab_parallel: float
    wgrad_dummy: float
    tp_keeps_gathered_input: float
    selective: float
    reserved_factor: float
    context_bytes: float
    gathered_param_bytes: float
    gathered_grad_bytes: float
    fp8_input_bytes: float
    fp8_weight_bytes: float
    moe_hidden_bytes: float
    moe_router_bytes: float
    cp_output_bytes: float
    ends_grad_bytes: float
    vocab_padding: float
    reserved_activation_frac: float
    reserved_block_frac: float
    workspace_bytes: float
    pipe_buffer_bytes: float
    logit_bytes_tp: float
    op_unused_bytes: float
    grads_on_demand: float
    embedding_grad_whole: float
    receive_buffers: float


class LayerMem(NamedTuple):
    """Bytes that one layer of one kind keeps on one rank for one microbatch."""

    kept_none: float  # activations without recompute
    kept_selective: float
    kept_full: float  # the checkpoint: the layer's input
    inner: float  # what a recomputed layer holds again while its backward runs
    temp: float  # backward temporaries beyond that
    dense_params: float  # parameters on this rank, sharded over dp x cp by ZeRO
    expert_params: float  # parameters on this rank, sharded over expert dp
    adapter_params: float
    largest_matrix: float  # elements of the attention matrices, each shape once (dummy gradients)
    dense_matrix: float  # the same of the dense MLP
    expert_matrix: float  # the same of one expert and the shared ones
    linear_params: float  # parameters in linear layers on this rank (fp8 copies)
    frozen_dense: float  # of dense_params, those without gradient (LoRA)
    frozen_expert: float
    kept_weight: float  # kept between input-gradient and weight-gradient pass (zero bubble)


class EndMem(NamedTuple):
    """Bytes of the embedding and head stages for one microbatch on one rank."""

    embedding_params: float
    head_params: float
    embedding_kept: float  # embedding output and dropout mask
    head_kept: float  # final norm, head input
    loss_peak: float  # logits and their copies at the peak of the loss
    head_backward: float  # output weight-gradient phase
    embedding_backward: float  # dense gradient of the embedding
    logits_kept: float  # what an extra prediction head keeps of its logits until backward
    block: float  # bytes of the dense gradient of one end, for fragmentation
    boundary: float  # stage output kept beside the layers, a microbatch in flight
    shared: float  # of head_params, those that an embedding on the same rank already holds
    embedding_extra: float = 0.0  # elements of the embedding's gradient that TP does not cut


class RankLoad(NamedTuple):
    """What one pipeline rank holds: layers of each kind over all its chunks, and the ends."""

    rank: float
    ranks: float  # p
    layers: Array  # by kind, summed over chunks
    largest_chunk: Array  # by kind, the largest chunk
    embedding: float  # 1.0: holds the embedding (and vision tower embedding)
    head: float
    mtp: float


class State(NamedTuple):
    """How state is sharded on a rank, and what the plan does to memory."""

    pp: float
    vpp: float
    m: float  # microbatches a step
    schedule: float
    recompute: float
    recompute_layers: float  # full recompute of the first N of each chunk; 0 all
    zero: float
    shard: float  # ranks over which dense state is sharded
    expert_shard: float  # ranks that hold the same experts, all shard groups together
    dp: float  # dp x cp
    offload_optimizer: float
    offload_activations: float
    train_ends: float = 1.0  # embedding and head have gradients (LoRA: 0)
    frozen_bytes: float = 2.0  # of a frozen parameter of a layer (QLoRA: 0.52)
    fp8: float = 0.0  # linear layers run in fp8, weights are cached in it


class RankMem(NamedTuple):
    """Memory of one pipeline rank at its own peak, bytes. Phases by number: PHASES."""

    params: float
    grads: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    allocated: float
    reserved: float
    device: float
    in_flight: float  # microbatches of the whole rank held at the peak
    phase: float
    host: float  # bytes offloaded to the host by this rank


PHASES = ("forward", "loss", "head backward", "backward", "embedding backward", "optimizer step")


class StackT(NamedTuple):
    """spec.stack.StackTime as numbers."""

    gemm_factor: float
    fused_attention: float
    attention_factor: float
    unfused_traffic: float  # bytes a score element, forward
    unfused_k0: float
    unaligned: float  # rate of unfused products with a head width that is no multiple of 8
    traffic: float  # elementwise traffic over that of fused kernels
    launch_floor_layer_s: float
    launch_blocking: float  # 1: the floor adds to the device's time, else it hides under it
    collective_overhead_s: float
    tp_exposed_fwd: float
    tp_exposed_bwd: float
    tp_copy: float  # bytes an element gathered or scattered over the sequence
    fp8_gather: float  # bytes of an element gathered for an fp8 linear layer
    cp_exposed: float
    ep_exposed: float
    ep_paired: float  # 1: runs under another microbatch's compute
    ep_once: float  # 1: a node receives each routed token once, 0: once an expert
    dp_overlap_backward: float
    dp_overlap_forward: float
    zero3_overlap: float
    pp_exposed: float
    sp_regather_exposed: float
    step_overhead_s: float
    microbatch_overhead_s: float
    optimizer_traffic: float
    loss_traffic: float
    fp8_cast: float
    moe_permute: float
    moe_layer_floor_s: float
    dropout: float
    selective: float  # what selective recompute means: CORE_ATTENTION, OP_LEVEL, MODULES
    grad_bytes: float
    param_bytes: float
    dp_traffic: float  # data-parallel traffic a step over the least there must be


class Strides(NamedTuple):
    """Distance, in device numbers, between neighbours of each group under the rank order."""

    tp: float
    cp: float
    dp: float  # of the dp x cp group over which dense gradients are reduced
    pp: float
    ep: float
    etp: float
    edp: float


class LayerTime(NamedTuple):
    """Seconds of one layer of one kind for one microbatch on one rank; all add over layers."""

    fwd: float
    bwd: float  # input gradient
    wgrad: float  # weight gradient
    recompute_selective: float
    recompute_full: float
    tp_fwd: float  # exposed
    tp_bwd: float
    tp_recompute: float
    cp_fwd: float
    cp_bwd: float
    ep_fwd: float
    ep_bwd: float
    host_fwd: float  # what the launch floor adds to the device's time
    host_bwd: float
    host_recompute: float


class EndTime(NamedTuple):
    """Seconds of the embedding and of one loss head for one microbatch on one rank."""

    embedding_fwd: float
    embedding_bwd: float
    embedding_tp: float  # exposed, one direction
    head_fwd: float
    head_bwd: float
    head_wgrad: float
    head_tp: float  # exposed, one direction


class Loads(NamedTuple):
    """The pipeline ranks, equal ones together; R rows, K layer kinds."""

    layers: Array  # (R, K) layers of each kind on the rank, over all its chunks
    chunk: Array  # (R,) layers of its largest chunk
    embedding: Array  # (R,) 1.0 where the embedding is
    heads: Array  # (R,) loss heads computed there (1 + those of multi-token prediction)
    ranks: Array  # (R,) how many ranks are like this
    first: Array  # (R,) the lowest rank of this kind (it holds most microbatches in flight)
    last: Array  # (R,) the highest rank of this kind


class StepCost(NamedTuple):
    """Seconds of one optimizer step, and what the average device spends them on."""

    step: float
    compute: float
    recompute: float
    bubble: float
    tp_comm: float
    cp_comm: float
    ep_comm: float
    pp_comm: float
    dp_comm: float
    optimizer: float
    host: float
    offload: float
