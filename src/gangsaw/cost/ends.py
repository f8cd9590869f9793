"""The embedding on the first stage and the loss head on the last, per microbatch.

The head is a product of T x h by h x V/t with its input and weight gradients, then the loss
moves each logit several times (cast to fp32, maximum, exponent, gradient). The embedding moves
its rows, and adds a dense gradient of the whole table in backward.
"""

from __future__ import annotations

from gangsaw.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from gangsaw.cost.gemm import gemm_s
from gangsaw.cost.types import Cut, Device, Ends, EndTime, Net, StackT, Strides
from gangsaw.jit import kernel


@kernel
def end_tp_s(ends: Ends, cut: Cut, net: Net, strides: Strides, stack: StackT) -> float:
    """Seconds of the tensor-parallel exchange of an end's activations, mean of both directions.

    Each end exchanges once in all: the embedding's partial rows are summed forward, the head's
    partial input gradients backward (Megatron-LM's conjugate operators, arXiv:1909.08053). With
    sequence parallelism the other direction gathers what this one scattered.
    """
    if cut.tp <= 1.0:
        return 0.0
    size = cut.mbs * cut.seq_len / cut.cp * ends.hidden * cut.act_bytes
    over = stack.collective_overhead_s
    if cut.sp > 0.0:
        gather = all_gather_s(net, size, cut.tp, strides.tp, over)
        return 0.5 * (gather + reduce_scatter_s(net, size, cut.tp, strides.tp, over))
    return 0.5 * all_reduce_s(net, size, cut.tp, strides.tp, over)


@kernel
def end_time(
    ends: Ends, cut: Cut, device: Device, net: Net, strides: Strides, stack: StackT
) -> EndTime:
    """Seconds of embedding and head for one microbatch on the ranks that hold them."""
    tokens = cut.mbs * cut.seq_len / cut.cp
    vocab = ends.vocab / cut.tp
    bandwidth = device.hbm * device.hbm_frac
    rows = tokens * ends.hidden * 2.0 * cut.act_bytes / bandwidth
    table = ends.embedding_params / cut.tp * (2.0 + stack.grad_bytes) / bandwidth
    logits = tokens * vocab * stack.loss_traffic / bandwidth
    fwd = gemm_s(tokens, vocab, ends.hidden, False, device)
    bwd = gemm_s(tokens, ends.hidden, vocab, False, device)
    wgrad = gemm_s(vocab, ends.hidden, tokens, False, device)
    # A layer of multi-token prediction joins the hidden state and the next token's embedding by a
    # 2 h x h product (arXiv:2412.19437, section 2.2). All heads are on one rank: each bears a part.
    if ends.mtp_layers > 0.0:
        part = ends.mtp_layers / (1.0 + ends.mtp_layers)
        width = ends.hidden / cut.tp
        fwd += part * gemm_s(tokens, width, 2.0 * ends.hidden, True, device)
        bwd += part * gemm_s(tokens, 2.0 * ends.hidden, width, True, device)
        wgrad += part * gemm_s(width, 2.0 * ends.hidden, tokens, True, device)
    exchange = end_tp_s(ends, cut, net, strides, stack)
    return EndTime(
        rows, rows + table, exchange, fwd + 0.4 * logits, bwd + 0.6 * logits, wgrad, exchange
    )
