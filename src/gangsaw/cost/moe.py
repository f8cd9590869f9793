"""The routed feed-forward part of a layer: router, permute, experts, all-to-all.

Tokens of a rank go to `topk` experts each; a balanced router gives every rank as many routed
rows as it sends. The fullest expert sets the pace: `imbalance` multiplies the rows. Source of the
form: MoE kernels and traffic as measured on 8xB200 and H800 (SimuMax configs, DeepGEMM), the
dispatcher's traffic counted from the routing itself.
"""

from __future__ import annotations

from gangsaw.cost.gemm import grouped_gemm_s
from gangsaw.cost.types import Cut, Device, Kind, StackT
from gangsaw.jit import kernel


@kernel
def routed_rows(kind: Kind, cut: Cut) -> float:
    """Routed rows that one rank computes: its tokens times topk, gathered over the expert TP."""
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / (cut.cp * cut.tp)
    return tokens * kind.topk * cut.etp * cut.imbalance


@kernel
def experts_s(kind: Kind, cut: Cut, device: Device, backward: int) -> float:
    """Seconds of the routed experts' products; backward 0 forward, 1 input, 2 weight gradient."""
    local = kind.experts / cut.ep
    rows = routed_rows(kind, cut) / local
    ffn = kind.moe_ffn / cut.etp
    ins = 2.0 if kind.gated > 0.0 else 1.0
    h = kind.hidden
    if backward == 2:
        # The weight gradient accumulates in fp32: eight bytes a weight are read and written.
        first = grouped_gemm_s(local, h, ins * ffn, rows, 0.0, device)
        second = grouped_gemm_s(local, ffn, h, rows, 0.0, device)
        weights = local * (ins + 1.0) * h * ffn * 8.0
        return first + second + weights / (device.hbm * device.hbm_frac)
    weight = 1.0 if cut.fp8 > 0.0 and backward == 0 else 2.0
    if backward == 1:
        first = grouped_gemm_s(local, rows, h, ins * ffn, weight, device)
        return first + grouped_gemm_s(local, rows, ffn, h, weight, device)
    first = grouped_gemm_s(local, rows, ins * ffn, h, weight, device)
    return first + grouped_gemm_s(local, rows, h, ffn, weight, device)


@kernel
def permute_s(kind: Kind, cut: Cut, device: Device, stack: StackT) -> float:
    """Seconds of sorting tokens to experts and back in one direction of the layer.

    Ideal traffic: each routed row is read and written once on the way in and out, 8 h bytes.
    """
    rows = routed_rows(kind, cut) / cut.etp
    return stack.moe_permute * rows * 8.0 * kind.hidden / (device.hbm * device.hbm_frac)


@kernel
def dispatch_bytes(kind: Kind, cut: Cut) -> float:
    """Bytes that one rank sends in one dispatch (or combine), before it is known to whom."""
    return routed_rows(kind, cut) / cut.etp * kind.hidden * cut.act_bytes
