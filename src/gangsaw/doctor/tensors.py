"""The large tensors of a training step by name, shape and size, on the rank that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gangsaw.cost.layout import default_counts
from gangsaw.read.launch.document import Value
from gangsaw.spec import LayerKind, ModelSpec, Plan, Recipe


class Tensor(NamedTuple):
    """One tensor that a rank allocates in one piece. `prior` is 0 for usual, 1 for rare ones."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    prior: int

    @property
    def bytes(self) -> float:
        """Size in bytes."""
        total = float({"fp32": 4, "bf16": 2, "uint8": 1}[self.dtype])
        for size in self.shape:
            total *= size
        return total


def tensors(model: ModelSpec, recipe: Recipe, plan: Plan) -> list[Tensor]:
    """Candidates for a failed request, from the shapes of model and plan.

    Sources of the sizes: Korthikanti et al. 2022 (activations), megatron/core/distributed
    (contiguous buffers), torch FSDP2 (unsharded layers), DeepSpeed stage 1 and 2 (flat
    partitions).
    """
    found = [
        *_logits(model, recipe, plan), *_layer(model, recipe, plan), *_state(model, plan),
        *_ends(model, plan),
    ]  # fmt: skip
    best: dict[tuple[str, float], Tensor] = {}
    for item in found:
        if item.bytes >= 2**20:
            best.setdefault((item.name, item.bytes), item)
    return list(best.values())


def tokens_of(recipe: Recipe, plan: Plan) -> int:
    """Tokens of one microbatch on one rank, before tensor parallelism."""
    return plan.mbs * recipe.seq_len // plan.cp


def padded_vocab(model: ModelSpec, plan: Plan) -> int:
    """Vocabulary padded to 128 a tensor rank, as Megatron does."""
    step = 128 * plan.tp
    return -(-model.vocab // step) * step


def _logits(model: ModelSpec, recipe: Recipe, plan: Plan) -> Iterator[Tensor]:
    tokens = tokens_of(recipe, plan)
    padded, plain = padded_vocab(model, plan) // plan.tp, model.vocab // plan.tp
    for vocab in dict.fromkeys((padded, plain)):
        yield Tensor("fp32 logits of the loss", (tokens, vocab), "fp32", 0)
        yield Tensor("16-bit logits", (tokens, vocab), "bf16", 0)
    if plan.tp > 1:
        yield Tensor("fp32 logits gathered over tensor ranks", (tokens, model.vocab), "fp32", 0)
        yield Tensor("16-bit logits gathered over tensor ranks", (tokens, model.vocab), "bf16", 0)
    if plan.num_microbatches > 1 and plan.pp == 1:
        whole = tokens * plan.num_microbatches
        yield Tensor("fp32 logits of the whole local batch", (whole, padded), "fp32", 1)


def _layer(model: ModelSpec, recipe: Recipe, plan: Plan) -> Iterator[Tensor]:
    tokens, tp = tokens_of(recipe, plan), plan.tp
    hidden, seq = model.hidden, recipe.seq_len
    yield Tensor("one hidden state (all-gather buffer, residual, checkpoint)", (tokens, hidden),
                 "bf16", 0)  # fmt: skip
    yield Tensor("one hidden state in fp32", (tokens, hidden), "fp32", 0)
    for kind in {k.name: k for k in model.kinds}.values():
        attention = kind.attention
        heads = max(1, attention.heads // tp)
        local = seq // plan.cp
        shape = (plan.mbs, heads, local, seq)
        yield Tensor("attention scores of an unfused kernel", shape, "bf16", 0)
        yield Tensor("attention scores of an unfused kernel, softmax in fp32", shape, "fp32", 0)
        width = (attention.heads + 2 * attention.kv_heads) * attention.head_dim // tp
        yield Tensor("queries, keys and values", (tokens, width), "bf16", 0)
        if kind.mlp is not None:
            ins = 2 if kind.mlp.gated else 1
            yield Tensor("input of the MLP's activation", (tokens, ins * kind.mlp.ffn // tp),
                         "bf16", 0)  # fmt: skip
            yield Tensor("output of the MLP's activation", (tokens, kind.mlp.ffn // tp), "bf16", 0)
        yield from _weights(kind, plan)
        yield from _routed(kind, tokens, plan)


def _weights(kind: LayerKind, plan: Plan) -> Iterator[Tensor]:
    """Single matrices, as they are loaded, gathered or copied one by one."""
    attention, hidden = kind.attention, kind.hidden
    rows = max(1, attention.heads // plan.tp) * attention.head_dim
    shapes: list[tuple[str, tuple[int, ...]]] = [("attention", (hidden, rows))]
    if not attention.is_mla:
        width = (attention.heads + 2 * attention.kv_heads) * attention.head_dim // plan.tp
        shapes.append(("attention, queries with keys and values", (hidden, width)))
    if kind.mlp is not None:
        shapes.append(("the MLP", (hidden, kind.mlp.ffn // plan.tp)))
        if kind.mlp.gated:
            shapes.append(("the MLP, gate with up", (hidden, 2 * kind.mlp.ffn // plan.tp)))
    for name, shape in shapes:
        yield Tensor(f"one weight matrix of {name} (or its gradient)", shape, "bf16", 1)
        yield Tensor(f"one weight matrix of {name} in fp32 (or its gradient)", shape, "fp32", 1)


def bucket_tensors(facts: dict[str, Value]) -> list[Tensor]:
    """Flat buffers whose size a DeepSpeed file states in elements (zero/config.py, 0.18)."""
    found = []
    for key, name in (("reduce_bucket", "reduction"), ("allgather_bucket", "all-gather")):
        size = facts.get(key)
        if isinstance(size, (int, float)) and not isinstance(size, bool) and 1e5 < size < 1e12:
            for dtype in ("bf16", "fp32"):
                found.append(Tensor(f"{name} bucket of ZeRO", (int(size),), dtype, 0))
    return found


def _routed(kind: LayerKind, tokens: int, plan: Plan) -> Iterator[Tensor]:
    moe = kind.moe
    if moe is None:
        return
    routed = tokens * moe.topk
    ins = 2 if moe.expert.gated else 1
    yield Tensor("tokens sent to experts (dispatch buffer)", (routed, kind.hidden), "bf16", 0)
    yield Tensor("input of the experts' activation", (routed, ins * moe.expert.ffn // plan.etp),
                 "bf16", 0)  # fmt: skip
    local = moe.experts // plan.ep
    matrix = (local, ins * kind.hidden, moe.expert.ffn // plan.etp)
    yield Tensor("first matrices of a layer's experts", matrix, "bf16", 0)
    every = moe.experts * moe.expert.params(kind.hidden) // (plan.ep * plan.etp)
    yield Tensor("all experts of a layer on this rank", (every,), "bf16", 0)
    yield Tensor("fp32 gradients of a layer's experts on this rank", (every,), "fp32", 0)


def _rank_params(model: ModelSpec, plan: Plan) -> Iterator[tuple[str, int, int, int]]:
    """Name, dense, expert and end parameters of each kind of rank of the pipeline."""
    chunks = plan.pp * plan.vpp
    counts = plan.stages or default_counts(model.layers, chunks)
    starts = [sum(counts[:index]) for index in range(chunks)]
    for rank in range(plan.pp):
        dense = experts = 0
        for chunk in range(rank, chunks, plan.pp):
            for layer in range(starts[chunk], starts[chunk] + counts[chunk]):
                kind = model.kinds[model.order[min(layer, model.layers - 1)]]
                experts += kind.expert_params()
                dense += kind.params() - kind.expert_params()
        ends = model.embedding_params() if rank == 0 else 0
        if rank == plan.pp - 1:
            head = model.head_params() or (model.embedding_params() if plan.pp > 1 else 0)
            ends += head
        name = "" if plan.pp == 1 else f" of pipeline rank {rank}"
        yield name, dense // plan.tp, experts // (plan.ep * plan.etp), ends // plan.tp


def _state(model: ModelSpec, plan: Plan) -> Iterator[Tensor]:
    seen: set[tuple[int, int, int]] = set()
    for name, dense, experts, ends in _rank_params(model, plan):
        if (dense, experts, ends) in seen:
            continue
        seen.add((dense, experts, ends))
        both = dense + ends
        yield Tensor(f"flattened 16-bit gradients{name}", (both,), "bf16", 0)
        yield Tensor(f"fp32 main gradients{name}", (both,), "fp32", 0)
        if experts:
            yield Tensor(f"expert shard{name}, one 16-bit copy", (experts,), "bf16", 0)
            yield Tensor(f"fp32 gradients of the expert shard{name}", (experts,), "fp32", 0)
            yield Tensor(f"all parameters{name}, one 16-bit copy", (both + experts,), "bf16", 0)
            yield Tensor(f"all gradients{name} in fp32", (both + experts,), "fp32", 0)
        shard = max(1, plan.dp * plan.cp)
        yield Tensor(f"one optimizer moment at the first step{name}, sharded", (both // shard,),
                     "fp32", 0)  # fmt: skip
        yield Tensor(f"one optimizer moment at the first step{name}, not sharded", (both,), "fp32",
                     1)  # fmt: skip
    for kind in {k.name: k for k in model.kinds}.values():
        whole = (kind.params() - kind.expert_params()) // plan.tp + kind.expert_params() // (
            plan.ep * plan.etp
        )
        yield Tensor(f"one unsharded {kind.name} layer", (whole,), "bf16", 0)
        yield Tensor(f"one unsharded {kind.name} layer in fp32", (whole,), "fp32", 0)


def _ends(model: ModelSpec, plan: Plan) -> Iterator[Tensor]:
    rows = padded_vocab(model, plan) // plan.tp
    for vocab in dict.fromkeys((rows, model.vocab)):
        shape = (vocab, model.hidden)
        yield Tensor("embedding or output matrix (or its gradient)", shape, "bf16", 0)
        yield Tensor("embedding or output matrix in fp32 (or its gradient)", shape, "fp32", 0)
