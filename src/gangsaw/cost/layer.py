"""One transformer layer on one rank: compute op by op, collectives, host floor.

Everything here is per microbatch. Linear layers: forward 2 T n k FLOPs, input and weight gradient
the same each. Tensor parallelism: two all-reduces of T h activations forward and two backward;
with sequence parallelism an all-gather and a reduce-scatter instead of each (Megatron-LM,
arXiv:1909.08053 and 2205.05198), and one more gather in backward.
"""

from __future__ import annotations

from gangsaw.cost.attention import attention_s
from gangsaw.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    group_path,
    reduce_scatter_s,
)
from gangsaw.cost.gemm import gemm_s
from gangsaw.cost.moe import dispatch_bytes, experts_s, permute_s
from gangsaw.cost.types import (
    CORE_ATTENTION,
    OP_LEVEL,
    Cut,
    Device,
    Kind,
    LayerTime,
    Net,
    StackT,
    Strides,
)
from gangsaw.jit import kernel


@kernel
def product_s(m: float, n: float, k: float, device: Device, mode: int) -> float:
    """A linear layer's product: mode 0 forward, 1 input gradient, 2 weight gradient."""
    if mode == 0:
        return gemm_s(m, n, k, True, device)
    if mode == 1:
        return gemm_s(m, k, n, True, device)
    return gemm_s(n, k, m, True, device)


@kernel
def attention_linear_s(kind: Kind, cut: Cut, tokens: float, device: Device, mode: int) -> float:
    """Seconds of the projections around attention."""
    h, t = kind.hidden, cut.tp
    q = kind.heads * kind.head_dim
    out = product_s(tokens, h, kind.heads * kind.v_head_dim / t, device, mode)
    if kind.kv_lora > 0.0:
        nope = kind.head_dim - kind.rope_dim
        # Megatron Core holds the down projections whole and runs them on a rank's own tokens.
        own = tokens / (t if cut.sp > 0.0 else 1.0)
        total = product_s(own, kind.kv_lora + kind.rope_dim, h, device, mode)
        up = kind.heads * (nope + kind.v_head_dim) / t
        total += product_s(tokens, up, kind.kv_lora, device, mode)
        if kind.q_lora > 0.0:
            total += product_s(own, kind.q_lora, h, device, mode)
            total += product_s(tokens, q / t, kind.q_lora, device, mode)
        else:
            total += product_s(tokens, q / t, h, device, mode)
        return total + out
    # Fewer key-value heads than TP ranks: each rank keeps one, replicated.
    kv = max(kind.kv_heads / t, 1.0) * (kind.head_dim + kind.v_head_dim)
    return product_s(tokens, q / t + kv, h, device, mode) + out


@kernel
def mlp_linear_s(
    kind: Kind, ffn: float, cut: Cut, tokens: float, device: Device, mode: int
) -> float:
    """Seconds of the matrices of a dense MLP (or of the shared experts) of width `ffn`."""
    if ffn <= 0.0:
        return 0.0
    ins = 2.0 if kind.gated > 0.0 else 1.0
    total = product_s(tokens, ins * ffn / cut.tp, kind.hidden, device, mode)
    return total + product_s(tokens, kind.hidden, ffn / cut.tp, device, mode)


@kernel
def elementwise_bytes(kind: Kind, cut: Cut, stack: StackT, backward: bool) -> float:
    """Traffic of norms, residuals, dropout, rotary, activation, in bytes, as fused kernels move it.

    A norm reads and writes 2 bytes an element forward (4), reads two tensors and writes one
    backward (6); a residual add moves 6; dropout with its mask 5; an activation reads its one or
    two inputs and writes one output.
    """
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    u = cut.tp if cut.sp > 0.0 else 1.0
    hidden = 4.0 * kind.norms + 12.0
    qk = 4.0
    act = 6.0 if kind.gated > 0.0 else 4.0
    if backward:
        hidden = 6.0 * kind.norms + 12.0
        act = 10.0 if kind.gated > 0.0 else 6.0
    if stack.dropout > 0.0:
        hidden += 10.0
    if cut.fp8 > 0.0:
        # The inputs of the projections and of the MLP; routed rows are cast where they arrive.
        hidden += 2.0 * stack.fp8_cast + kind.topk * cut.imbalance * stack.fp8_cast
        act += stack.fp8_cast
        qk += 0.5 * stack.fp8_cast
    widths = kind.heads * kind.head_dim + kind.kv_heads * kind.head_dim
    ffn = (kind.ffn + kind.shared_ffn) / cut.tp
    ffn += kind.topk * kind.moe_ffn * cut.imbalance / cut.tp
    return tokens * (hidden * kind.hidden / u + qk * widths / cut.tp + act * ffn)


@kernel
def tp_collective_s(
    kind: Kind, cut: Cut, net: Net, strides: Strides, stack: StackT, backward: bool
) -> float:
    """Exposed seconds of one tensor-parallel exchange around attention or the MLP."""
    if cut.tp <= 1.0:
        return 0.0
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    size = tokens * kind.hidden * cut.act_bytes
    over = stack.collective_overhead_s
    exposed = stack.tp_exposed_bwd if backward else stack.tp_exposed_fwd
    if cut.sp > 0.0:
        # Inputs may be gathered in eight bits; gradients are gathered as they are.
        inputs = size * (min(1.0, stack.fp8_gather / cut.act_bytes) if cut.fp8 > 0.0 else 1.0)
        gather = all_gather_s(net, inputs, cut.tp, strides.tp, over)
        whole = reduce_scatter_s(net, size, cut.tp, strides.tp, over)
        if backward:
            again = stack.sp_regather_exposed * gather
            return exposed * (all_gather_s(net, size, cut.tp, strides.tp, over) + whole) + again
        return exposed * (gather + whole)
    return exposed * all_reduce_s(net, size, cut.tp, strides.tp, over)


@kernel
def cp_exchange_s(
    kind: Kind, cut: Cut, net: Net, strides: Strides, stack: StackT, backward: bool
) -> float:
    """Exposed seconds of context parallelism: every rank sees all keys and values once.

    Forward gathers keys and values, backward gathers them again and reduces their gradients.
    """
    if cut.cp <= 1.0:
        return 0.0
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac
    heads = max(kind.kv_heads / cut.tp, 1.0)
    width = heads * (kind.head_dim + kind.v_head_dim)
    if kind.kv_lora > 0.0:
        width = kind.heads / cut.tp * (kind.head_dim + kind.v_head_dim)
    size = tokens * width * cut.act_bytes
    over = stack.collective_overhead_s
    total = all_gather_s(net, size, cut.cp, strides.cp, over)
    if backward:
        total += reduce_scatter_s(net, size, cut.cp, strides.cp, over)
    return stack.cp_exposed * total


@kernel
def once_a_node(topk: float, ranks: float, inside: float) -> float:
    """Share of routed rows that cross nodes where each node receives a token once.

    With k experts drawn evenly over n nodes a token meets n (1 - (1 - 1/n)^k) of them (DeepSeek-V3,
    arXiv:2412.19437, section 3.2). `inside` ranks of the group stand in one node.
    """
    nodes = ranks / inside
    if nodes <= 1.0:
        return 1.0
    met: float = nodes * (1.0 - (1.0 - 1.0 / nodes) ** topk)
    return min(1.0, met / topk)


@kernel
def ep_exchange_s(kind: Kind, cut: Cut, net: Net, strides: Strides, stack: StackT) -> float:
    """Seconds of dispatch and combine in one direction of a routed layer."""
    if kind.experts <= 0.0:
        return 0.0
    over = stack.collective_overhead_s
    size = dispatch_bytes(kind, cut)
    total = 0.0
    if cut.ep > 1.0:
        sent = size
        if stack.ep_once > 0.0:
            sent *= once_a_node(kind.topk, cut.ep, group_path(net, cut.ep, strides.ep, 0))
        total += 2.0 * all_to_all_s(net, sent, cut.ep, strides.ep, over)
    if cut.etp > 1.0:
        total += all_gather_s(net, size * cut.etp, cut.etp, strides.etp, over)
        total += reduce_scatter_s(net, size * cut.etp, cut.etp, strides.etp, over)
    return total


@kernel
def ep_exposed_s(exchange: float, compute: float, stack: StackT) -> float:
    """Exposed seconds of an exchange of `exchange` seconds, in either direction of a layer.

    Where one microbatch's exchanges run under another's compute (`ep_paired`), the two of a layer
    have its `compute`, forward and backward, to hide under.
    """
    exposed = stack.ep_exposed * exchange
    if stack.ep_paired > 0.0:
        return max(exposed, exchange - 0.5 * compute)
    return exposed


@kernel
def linear_s(kind: Kind, cut: Cut, tokens: float, device: Device, mode: int) -> float:
    """Seconds of all linear layers of the layer in one mode."""
    total = attention_linear_s(kind, cut, tokens, device, mode)
    total += mlp_linear_s(kind, kind.ffn + kind.shared_ffn, cut, tokens, device, mode)
    if kind.experts > 0.0:
        u = cut.tp if cut.sp > 0.0 else 1.0
        total += product_s(tokens / u, kind.experts, kind.hidden, device, mode)
        total += experts_s(kind, cut, device, mode)
    return total


@kernel
def selective_s(
    kind: Kind, cut: Cut, device: Device, stack: StackT, core: float, elementwise: float
) -> float:
    """Seconds of what selective recompute computes again, in the stack's meaning of it."""
    if stack.selective == CORE_ATTENTION:
        return core
    if stack.selective == OP_LEVEL:
        tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
        return elementwise + 0.5 * linear_s(kind, cut, tokens, device, 0)
    return elementwise


@kernel
def layer_time(
    kind: Kind, cut: Cut, device: Device, net: Net, strides: Strides, stack: StackT
) -> LayerTime:
    """Seconds of one layer and microbatch on one rank, by phase and cause."""
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    bandwidth = device.hbm * device.hbm_frac / stack.traffic
    element_f = elementwise_bytes(kind, cut, stack, False) / bandwidth
    element_b = elementwise_bytes(kind, cut, stack, True) / bandwidth
    core_f = attention_s(kind, cut, device, stack, False)
    core_b = attention_s(kind, cut, device, stack, True)
    fwd = linear_s(kind, cut, tokens, device, 0) + core_f + element_f
    bwd = linear_s(kind, cut, tokens, device, 1) + core_b + element_b
    wgrad = 0.0
    if kind.trainable_frac > 0.0:
        wgrad = linear_s(kind, cut, tokens, device, 2)
    if kind.experts > 0.0:
        fwd += permute_s(kind, cut, device, stack)
        bwd += permute_s(kind, cut, device, stack)
    pairs = 1.0 if kind.parallel > 0.0 else 2.0
    if cut.tp > 1.0 and cut.sp > 0.0:
        # A gather and a scatter each way, and one more gather in backward.
        copy = pairs * tokens * kind.hidden * stack.tp_copy / (device.hbm * device.hbm_frac)
        fwd += 2.0 * copy
        bwd += 3.0 * copy
    tp_f = pairs * tp_collective_s(kind, cut, net, strides, stack, False)
    tp_b = pairs * tp_collective_s(kind, cut, net, strides, stack, True)
    if kind.experts > 0.0 and kind.shared_ffn <= 0.0:
        # A routed part works on its own tokens: the exchange is the dispatcher's.
        tp_f *= 0.5
        tp_b *= 0.5
    cp_f = cp_exchange_s(kind, cut, net, strides, stack, False)
    cp_b = cp_exchange_s(kind, cut, net, strides, stack, True)
    exchange = ep_exchange_s(kind, cut, net, strides, stack)
    ep = ep_exposed_s(exchange, fwd + bwd + wgrad, stack)
    floor = stack.launch_floor_layer_s
    if kind.experts > 0.0:
        floor = max(floor, stack.moe_layer_floor_s)
    least = stack.launch_blocking * floor
    return LayerTime(
        fwd,
        bwd,
        wgrad,
        selective_s(kind, cut, device, stack, core_f, element_f),
        fwd,
        tp_f,
        tp_b,
        tp_f,
        cp_f,
        cp_b,
        ep,
        ep,
        max(least, floor - fwd - tp_f - cp_f - ep),
        max(2.0 * least, 2.0 * floor - bwd - wgrad - tp_b - cp_b - ep),
        max(least, floor - fwd - tp_f),
    )
