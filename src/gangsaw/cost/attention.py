"""Attention: a model of its own, since its rate follows sequence, heads and mask.

Fused kernels: eff = a / ((1 + c0/s)(1 + c1/s)(1 + w 128 SM / (b heads s))), causal FLOPs counted
as half the square, backward 2.5 times forward. Form and values: fits to published tables of
FlashAttention-2 and -3, cuDNN on H100, H200, GB200, GB300 and TransformerEngine on A100 (2-7 %
mean error, sequences 512 to 75,000). Unfused kernels: two batched products and the traffic of
the scores.
"""

from __future__ import annotations

import math

from gangsaw.cost.types import Cut, Device, Kind, StackT
from gangsaw.jit import kernel


@kernel
def keys_seen(s: float, window: float, causal: float) -> float:
    """Mean number of keys that a query of a sequence of length s sees.

    Causal: (s+1)/2 is counted as s/2, as FLOP counts do. A window w < s: w - w^2/(2s) causal.
    """
    if window > 0.0 and window < s:
        if causal > 0.0:
            return window - window * window / (2.0 * s)
        return window
    return 0.5 * s if causal > 0.0 else s


@kernel
def keys_paid(s: float, window: float, causal: float) -> float:
    """Keys that a fused kernel spends time on: a short window costs as about 1,000 keys do.

    Source: GB200 cuDNN tables reach 104-167 TFLOP/s at a window of 128.
    """
    if window > 0.0 and window < s:
        return keys_seen(s, min(s, max(window, 1000.0)), causal)
    return keys_seen(s, 0.0, causal)


@kernel
def fused_share(s: float, heads: float, batch: float, causal: float, device: Device) -> float:
    """Shape-dependent share of the kernel's asymptote, 0..1."""
    short = 1.0 + device.attention_c0 / s
    if causal > 0.0:
        short *= 1.0 + device.attention_c1 / s
    few = 1.0 + device.attention_w * 128.0 * device.sm / (batch * heads * s)
    return 1.0 / (short * few)


@kernel
def attention_s(kind: Kind, cut: Cut, device: Device, stack: StackT, backward: bool) -> float:
    """Seconds of the attention core of one layer and microbatch on one rank (no projections)."""
    s = kind.seq_len if kind.seq_len > 0.0 else cut.seq_len
    sequences = cut.mbs * cut.seq_len * kind.tokens_frac / s
    heads = kind.heads / cut.tp
    width = kind.head_dim + kind.v_head_dim
    if stack.fused_attention > 0.0:
        paid = sequences * heads * s * keys_paid(s, kind.window, kind.causal) / cut.cp
        a = kind.attention_a_bwd if backward else kind.attention_a_fwd
        share = fused_share(s, heads, sequences / cut.cp, kind.causal, device)
        flops = 2.0 * paid * width * (2.5 if backward else 1.0)
        rate = device.peak * device.sustained * a * stack.attention_factor * share
        return flops / rate + device.gemm_launch_s * (3.0 if backward else 1.0)
    return unfused_s(kind, cut, device, stack, backward)


@kernel
def unfused_s(kind: Kind, cut: Cut, device: Device, stack: StackT, backward: bool) -> float:
    """Attention as batched products with the scores in memory: the full square, masked.

    A head width that is no multiple of 8 misses the tensor cores' fast path
    (NVIDIA's deep-learning performance guide: dimensions a multiple of 8 elements for 16-bit).
    """
    s = kind.seq_len if kind.seq_len > 0.0 else cut.seq_len
    sequences = cut.mbs * cut.seq_len * kind.tokens_frac / s
    heads = kind.heads / cut.tp
    square = sequences * heads * s * s / cut.cp
    width = kind.head_dim + kind.v_head_dim
    rate = device.peak * device.sustained * device.gemm_frac
    depth = kind.head_dim / (kind.head_dim + stack.unfused_k0)
    aligned = 1.0 if math.floor(kind.head_dim / 8.0) * 8.0 == kind.head_dim else stack.unaligned
    passes = 2.0 if backward else 1.0
    compute = 2.0 * square * width * passes / (rate * depth * aligned)
    traffic = square * stack.unfused_traffic * passes / (device.hbm * device.hbm_frac)
    return compute + traffic + device.gemm_launch_s * 6.0 * passes
