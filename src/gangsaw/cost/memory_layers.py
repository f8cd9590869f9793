"""Bytes that one layer, the embedding and the loss head keep on one rank for one microbatch.

Everything is counted op by op: which tensors the backward pass needs, how many bytes an element,
and by which axis each is divided. What an implementation keeps is in `StackMem`; the shapes are in
`Kind`, `Ends` and `Cut`. With the entries of a fused stack and dropout the sum is the 34 s b h a
layer of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(arXiv:2205.05198, section 4), plus 5 a s^2 b for unfused attention.

Valid for decoder layers in 16-bit (or fp32, by `Cut.act_bytes`) training; elementwise bytes of
`StackMem` are stated for 16-bit activations and scale with `act_bytes / 2`.
"""

from __future__ import annotations

import math

from gangsaw.cost.types import (
    CORE_ATTENTION,
    OP_LEVEL,
    Cut,
    EndMem,
    Ends,
    Kind,
    LayerMem,
    StackMem,
)
from gangsaw.jit import kernel


@kernel
def tokens_on_rank(kind: Kind, cut: Cut) -> float:
    """Tokens of one microbatch that a rank works on in a layer, before sequence parallelism."""
    return cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp


@kernel
def routed_tokens(kind: Kind, cut: Cut, tokens: float) -> float:
    """Token copies that the experts of the fullest rank receive (buffers of the dispatch).

    Sequence parallelism leaves each rank tokens/tp to dispatch; expert tensor parallelism gathers
    those of its group; `imbalance` is the fullest rank's load over the mean.
    """
    spread = cut.tp if cut.sp > 0.0 else 1.0
    return tokens * kind.topk / spread * cut.etp * cut.imbalance


@kernel
def score_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Bytes of unfused attention scores and their masks; 0 with a fused kernel."""
    keys = kind.seq_len if kind.seq_len > 0.0 else cut.seq_len
    tokens = tokens_on_rank(kind, cut)
    return mem.unfused_score_bytes * kind.heads * keys * tokens / cut.tp


@kernel
def kv_heads_held(kind: Kind, cut: Cut) -> float:
    """Key-value heads that all TP ranks hold together: with fewer than ranks, each keeps one."""
    return max(kind.kv_heads, cut.tp)


@kernel
def attention_split_params(kind: Kind, cut: Cut) -> float:
    """Attention parameters on one TP rank, copies of key and value projections included.

    MLA's down projections and latent norms are whole on every rank (Megatron Core's duplicated
    linear layers, torchtitan's NoParallel): the latents belong to all heads.
    """
    params = kind.attention_params
    if kind.kv_lora > 0.0:
        latents = kind.q_lora + kind.kv_lora
        whole = kind.hidden * (latents + kind.rope_dim) + latents
        return whole + (params - whole) / cut.tp
    copies = kv_heads_held(kind, cut) - kind.kv_heads
    return (params + copies * (kind.head_dim + kind.v_head_dim) * kind.hidden) / cut.tp


@kernel
def attention_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Queries, keys, values, output and softmax statistics that attention keeps, no scores."""
    tokens = tokens_on_rank(kind, cut)
    q = kind.heads * kind.head_dim
    v_out = kind.heads * kind.v_head_dim
    if kind.kv_lora > 0.0:
        k, v = q, v_out  # keys and values are expanded to every head
    else:
        k = kv_heads_held(kind, cut) * kind.head_dim
        v = kv_heads_held(kind, cut) * kind.v_head_dim
    split = 2.0 * (q + k + v + v_out)
    split += mem.rope_bytes * (q + k) + mem.qkv_copy_bytes * (q + k + v)
    if cut.cp > 1.0:
        split += mem.cp_output_bytes * v_out
    if cut.fp8 > 0.0 and mem.fp8_input_bytes < 2.0:
        split += mem.fp8_input_bytes * v_out  # the output projection keeps its own fp8 input
    total = split / cut.tp
    if kind.kv_lora > 0.0:
        latent = 2.0 * (kind.kv_lora + kind.rope_dim) + 2.0 * kind.kv_lora
        latent += 4.0 * kind.q_lora
        total += latent / (cut.tp if cut.sp > 0.0 else 1.0)
    if mem.unfused_score_bytes == 0.0:
        total += 4.0 * kind.heads / cut.tp * (2.0 / cut.act_bytes)  # fp32 log-sum-exp a head
    return tokens * total


@kernel
def mlp_element_bytes(kind: Kind, mem: StackMem, fp8: float) -> float:
    """Bytes an element of an MLP's inner width keeps."""
    element = mem.mlp_gated_bytes if kind.gated > 0.0 else mem.mlp_plain_bytes
    if fp8 > 0.0:
        element -= 2.0 - mem.fp8_input_bytes  # the second matrix keeps its input in fp8
    return element


@kernel
def mlp_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Inner tensors of the dense MLP, shared experts and routed experts, router included."""
    tokens = tokens_on_rank(kind, cut)
    element = mlp_element_bytes(kind, mem, cut.fp8)
    total = tokens * element * (kind.ffn + kind.shared_ffn) / cut.tp
    if kind.experts > 0.0:
        routed = routed_tokens(kind, cut, tokens)
        total += routed * (mem.moe_hidden_bytes * kind.hidden + element * kind.moe_ffn / cut.etp)
        spread = cut.tp if cut.sp > 0.0 else 1.0
        total += mem.moe_router_bytes * kind.experts * tokens / spread
    return total


@kernel
def hidden_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Tensors of width hidden: norms with their outputs, residual adds, dropout masks."""
    tokens = tokens_on_rank(kind, cut)
    spread = cut.tp if cut.sp > 0.0 else 1.0
    per_token = mem.norm_bytes * kind.norms + mem.residual_bytes + 2.0 * mem.dropout
    inputs = 1.0 if kind.parallel > 0.0 and kind.norms < 2.0 else 2.0
    if cut.fp8 > 0.0:
        per_token -= (2.0 - mem.fp8_input_bytes) * inputs
    kept = per_token / spread
    if mem.tp_keeps_gathered_input > 0.0:
        kept += 2.0 * inputs * (1.0 - 1.0 / spread)
    return tokens * kind.hidden * kept


@kernel
def op_level_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Kept under operation-level selective recompute: layer input, attention, every second matmul.

    The matrix products of a layer run in the order q, k, v, out, gate, up, down, and the first of
    each pair is kept (torchtitan's `per_op_sac` policy). Products are kept on their own shard.
    """
    tokens = tokens_on_rank(kind, cut)
    spread = cut.tp if cut.sp > 0.0 else 1.0
    q = kind.heads * kind.head_dim
    v = kv_heads_held(kind, cut) * kind.v_head_dim
    out = kind.heads * kind.v_head_dim
    inner = kind.ffn + kind.shared_ffn
    split = 2.0 * (q + v + out) + 4.0 * kind.heads + 2.0 * inner
    kept = split / cut.tp + 2.0 * kind.hidden / spread
    if kind.gated > 0.0 and kind.ffn > 0.0:
        # The down projection's output is a kept one, though only the residual sum reads it.
        kept += mem.op_unused_bytes * kind.hidden / spread
    total = tokens * kept
    if kind.experts > 0.0:
        total += routed_tokens(kind, cut, tokens) * 2.0 * kind.hidden
    return total


@kernel
def module_bytes(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """What recomputing norms, activation functions, MLA expansions and attention saves."""
    tokens = tokens_on_rank(kind, cut)
    spread = cut.tp if cut.sp > 0.0 else 1.0
    saved = 2.0 * kind.norms * kind.hidden / spread
    saved += 2.0 * (kind.ffn + kind.shared_ffn) / cut.tp
    if kind.kv_lora > 0.0:
        saved += 2.0 * kind.heads * (2.0 * kind.head_dim + kind.v_head_dim) / cut.tp
    total = tokens * saved
    if kind.experts > 0.0:
        total += routed_tokens(kind, cut, tokens) * 2.0 * kind.moe_ffn / cut.etp
    return total


@kernel
def layer_temp(kind: Kind, cut: Cut, mem: StackMem) -> float:
    """Gradients alive at once in the backward pass of the widest part of a layer."""
    tokens = tokens_on_rank(kind, cut)
    width = 4.0 if kind.gated > 0.0 else 2.0
    dense = tokens * (width * (kind.ffn + kind.shared_ffn) / cut.tp + 2.0 * kind.hidden)
    if kind.experts > 0.0:
        routed = routed_tokens(kind, cut, tokens)
        dense = max(dense, routed * (width * kind.moe_ffn / cut.etp + 2.0 * kind.hidden))
    return dense


@kernel
def weight_pass_bytes(kind: Kind, cut: Cut) -> float:
    """Kept between input-gradient and weight-gradient pass: inputs and output gradients of linears.

    The tensors that the zero-bubble implementation stores for a deferred weight gradient
    (arXiv:2401.10241); everything else of the layer is freed by the input-gradient pass.
    """
    tokens = tokens_on_rank(kind, cut)
    spread = cut.tp if cut.sp > 0.0 else 1.0
    q = kind.heads * kind.head_dim
    out = kind.heads * kind.v_head_dim
    kv = kv_heads_held(kind, cut) * (kind.head_dim + kind.v_head_dim)
    if kind.kv_lora > 0.0:
        kv = kind.heads * (kind.head_dim + kind.v_head_dim)
    gates = 2.0 if kind.gated > 0.0 else 1.0
    inner = kind.ffn + kind.shared_ffn
    split = q + kv + out + (1.0 + gates) * inner
    latent = 2.0 * (kind.q_lora + kind.kv_lora) + kind.rope_dim
    total = tokens * (split / cut.tp + (4.0 * kind.hidden + latent) / spread)
    if kind.experts > 0.0:
        routed = routed_tokens(kind, cut, tokens)
        total += routed * (2.0 * kind.hidden + (1.0 + gates) * kind.moe_ffn / cut.etp)
    return cut.act_bytes * total


@kernel
def layer_memory(kind: Kind, cut: Cut, mem: StackMem) -> LayerMem:
    """Bytes that one layer keeps on one rank for one microbatch, and its parameters there.

    Sources: arXiv:2205.05198 (terms of a layer), and for each entry of `StackMem` its own.
    """
    scale = cut.act_bytes / 2.0
    spread = cut.tp if cut.sp > 0.0 else 1.0
    tokens = tokens_on_rank(kind, cut)
    scores = score_bytes(kind, cut, mem) * scale
    attention = attention_bytes(kind, cut, mem) * scale
    rest = (hidden_bytes(kind, cut, mem) + mlp_bytes(kind, cut, mem)) * scale
    everything = attention + rest + scores
    checkpoint = cut.act_bytes * tokens * kind.hidden / spread
    if mem.selective == CORE_ATTENTION:
        statistics = 0.0
        if mem.unfused_score_bytes == 0.0:
            statistics = 4.0 * tokens * kind.heads / cut.tp
        selective = everything - scores - statistics
    elif mem.selective == OP_LEVEL:
        selective = min(everything, op_level_bytes(kind, cut, mem) * scale)
    else:
        selective = everything - scores - module_bytes(kind, cut, mem) * scale
    gated = 3.0 if kind.gated > 0.0 else 2.0
    attention_params = attention_split_params(kind, cut)
    split = attention_params + kind.mlp_params / cut.tp
    dense = split + kind.replicated_params
    experts = kind.expert_params / (cut.ep * cut.etp)
    frozen = 1.0 - kind.trainable_frac
    return LayerMem(
        kept_none=everything,
        kept_selective=selective,
        kept_full=checkpoint,
        inner=everything,
        temp=layer_temp(kind, cut, mem) * scale,
        dense_params=dense,
        expert_params=experts,
        adapter_params=kind.adapter_params / cut.tp,
        largest_matrix=attention_params,
        dense_matrix=gated * kind.hidden * kind.ffn / cut.tp,
        expert_matrix=gated * kind.hidden * (kind.shared_ffn / cut.tp + kind.moe_ffn / cut.etp),
        linear_params=split + experts,
        frozen_dense=dense * frozen,
        frozen_expert=experts * frozen,
        kept_weight=min(everything, weight_pass_bytes(kind, cut)),
    )


@kernel
def padded_vocab(vocab: float, tp: float, mem: StackMem) -> float:
    """Vocabulary after padding to a multiple of `vocab_padding` x TP (Megatron's rule)."""
    if mem.vocab_padding == 0.0:
        return vocab
    unit = mem.vocab_padding * tp
    return math.ceil(vocab / unit) * unit


@kernel
def end_memory(ends: Ends, cut: Cut, pp: float, mem: StackMem) -> EndMem:
    """Bytes of embedding and loss head for one microbatch, and their parameters on a rank.

    A tied head needs parameters of its own only when it lies on another stage (`pp` > 1); where the
    stages run down the ranks and up again the two meet on one rank and share them.
    """
    scale = cut.act_bytes / 2.0
    spread = cut.tp if cut.sp > 0.0 else 1.0
    tokens = cut.mbs * cut.seq_len / cut.cp
    vocab = padded_vocab(ends.vocab, cut.tp, mem)
    padding = (vocab - ends.vocab) * ends.hidden
    embedding = (ends.embedding_params + padding) / cut.tp
    embedding += (ends.vision_embedding_params + ends.projector_params) / cut.tp
    alone = ends.tied > 0.0 and pp <= 1.0
    head = 0.0 if alone else (ends.head_params + padding) / cut.tp
    matrix = vocab * ends.hidden / cut.tp
    logits = tokens * vocab
    if mem.logits_vocab_parallel > 0.0:
        logits /= cut.tp
    per_token = mem.norm_bytes / spread
    if mem.tp_keeps_gathered_input > 0.0:
        per_token += 2.0 * (1.0 - 1.0 / spread)
    kept = per_token * tokens * ends.hidden * scale
    # The head's input gradient is whole on every rank, and under sequence parallelism so is the
    # input that was gathered again for the weight gradient.
    gathered = (2.0 if spread > 1.0 else 1.0) * cut.act_bytes * tokens * ends.hidden
    grad, extra = mem.ends_grad_bytes * matrix, 0.0
    if mem.embedding_grad_whole > 0.0:
        # Each TP rank makes a partial sum over all rows, from output gradients gathered again.
        extra = vocab * ends.hidden - matrix
        grad += mem.ends_grad_bytes * extra
        grad += cut.act_bytes * tokens * ends.hidden if spread > 1.0 else 0.0
    logit_bytes = mem.logit_bytes
    if cut.tp > 1.0 and mem.logit_bytes_tp > 0.0:
        logit_bytes = mem.logit_bytes_tp
    return EndMem(
        embedding_params=embedding,
        head_params=head + ends.final_norm_params,
        embedding_kept=mem.dropout * tokens * ends.hidden / spread,
        head_kept=kept,
        loss_peak=logit_bytes * logits,
        head_backward=cut.act_bytes * logits + mem.ends_grad_bytes * matrix + gathered,
        embedding_backward=grad,
        logits_kept=min(logit_bytes, 4.0) * logits,
        block=mem.ends_grad_bytes * matrix,
        boundary=mem.pipe_buffer_bytes * tokens * ends.hidden / spread * scale if pp > 1.0 else 0.0,
        shared=head if ends.tied > 0.0 else 0.0,
        embedding_extra=extra,
    )
