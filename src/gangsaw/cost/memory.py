"""Peak memory of one pipeline rank: state, activations in flight, and the phase that sets it.

The peak of a step is the largest of its phases and never their sum: while the optimizer steps no
activation is alive, while the logits are alive no layer's backward runs. Tables by layer and by
end come from `cost.memory_layers`, held microbatches from `cost.in_flight`; here they are only
added, so that a search can call this for every plan.

State follows ZeRO (Rajbhandari et al., arXiv:1910.02054): stage 1 shards the optimizer, 2 also
the gradients, 3 also the parameters; experts are sharded over the ranks that hold the same
experts. All results are bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gangsaw.cost.in_flight import in_flight, weights_pending
from gangsaw.cost.kinds import Kinds, kind_at
from gangsaw.cost.memory_layers import end_memory, layer_memory
from gangsaw.cost.memory_on_demand import Parts, Standing, on_demand_parts, pool_bytes, sums_whole
from gangsaw.cost.types import (
    DUALPIPE,
    FULL,
    PHASES,
    SELECTIVE,
    Array,
    Cut,
    EndMem,
    LayerMem,
    Loads,
    RankLoad,
    RankMem,
    StackMem,
    State,
)
from gangsaw.jit import inlined, kernel

__all__ = [
    "PHASES",
    "candidate_ranks",
    "end_memory",
    "expert_shards",
    "in_flight",
    "layer_memory",
    "layer_table",
    "memory_table",
    "plan_memory",
    "rank_memory",
    "weights_pending",
]

(
    KEPT_NONE,
    KEPT_SELECTIVE,
    KEPT_FULL,
    INNER,
    TEMP,
    DENSE,
    EXPERT,
    ADAPTER,
    MATRIX,
    DENSE_MATRIX,
    EXPERT_MATRIX,
    LINEAR,
    FROZEN_DENSE,
    FROZEN_EXPERT,
    KEPT_WEIGHT,
) = range(15)
"""Columns of a layer table, in the order of `LayerMem`."""
LAYER_FIELDS = 15  # len(LayerMem._fields); numba wants the number


def layer_table(layers: tuple[LayerMem, ...]) -> Array:
    """`LayerMem` of each kind as one array of shape (kinds, 15), the form that kernels read."""
    return np.array(layers, dtype=np.float64).reshape(len(layers), len(LayerMem._fields))


class Place(NamedTuple):
    """Where a rank stands in the pipeline, and which ends it holds."""

    rank: float
    embedding: float
    head: float
    mtp: float


class Sums(NamedTuple):
    """A rank's layers added up: parameters, bytes a microbatch, and the largest single layer."""

    dense: float
    expert: float
    frozen_dense: float
    frozen_expert: float
    linear: float
    kept: float
    waiting: float  # for weight gradients
    inner: float  # held again by a recomputed layer
    temp: float
    matrices: float  # elements of one layer's matrices, each shape once
    widest: float  # parameters of the largest layer


@kernel
def expert_shards(state: State) -> float:
    """Ranks over which one expert's state is sharded: those of a shard group that hold it.

    `State.expert_shard` counts all ranks that hold it; hybrid sharding splits them into as many
    groups as it does the others (one where experts are spread over more than a group).
    """
    shards: float = max(1.0, math.floor(state.expert_shard * state.shard / state.dp))
    return shards


@kernel
def recomputed_frac(load: RankLoad, state: State) -> float:
    """Share of the rank's layers under full recompute; the first N of each chunk, or all."""
    if state.recompute != FULL:
        return 0.0
    count = load.layers.sum()
    if state.recompute_layers <= 0.0 or count <= 0.0:
        return 1.0
    # A DualPipe rank holds a chunk of each direction.
    chunks = 2.0 if state.schedule == DUALPIPE else state.vpp
    frac: float = min(state.recompute_layers * chunks, count) / count
    return frac


@kernel
def sum_layers(load: RankLoad, layers: Array, state: State) -> Sums:
    """Add up the layers of a rank; `layers` has one row a kind."""
    full = recomputed_frac(load, state)
    column = KEPT_SELECTIVE if state.recompute == SELECTIVE else KEPT_NONE
    dense = expert = frozen_dense = frozen_expert = linear = 0.0
    kept = waiting = inner = temp = 0.0
    attention_matrix = dense_matrix = expert_matrix = widest = 0.0
    for k in range(load.layers.shape[0]):
        n = load.layers[k]
        if n <= 0.0:
            continue
        dense += n * (layers[k, DENSE] + layers[k, ADAPTER])
        expert += n * layers[k, EXPERT]
        frozen_dense += n * layers[k, FROZEN_DENSE]
        frozen_expert += n * layers[k, FROZEN_EXPERT]
        linear += n * layers[k, LINEAR]
        plain = layers[k, column]
        kept += n * (full * layers[k, KEPT_FULL] + (1.0 - full) * plain)
        waiting += n * layers[k, KEPT_WEIGHT]
        again = layers[k, INNER] - plain
        if full > 0.0:
            again = layers[k, INNER]
        inner = max(inner, again)
        temp = max(temp, layers[k, TEMP])
        attention_matrix = max(attention_matrix, layers[k, MATRIX])
        dense_matrix = max(dense_matrix, layers[k, DENSE_MATRIX])
        expert_matrix = max(expert_matrix, layers[k, EXPERT_MATRIX])
        widest = max(widest, layers[k, DENSE] + layers[k, EXPERT])
    matrices = attention_matrix + dense_matrix + expert_matrix
    return Sums(
        dense,
        expert,
        frozen_dense,
        frozen_expert,
        linear,
        kept,
        waiting,
        inner,
        temp,
        matrices,
        widest,
    )


@inlined
def standing_buffers(
    sums: Sums, end_params: float, trained: float, state: State, mem: StackMem
) -> float:
    """Bytes that stand through forward and backward: workspaces, gathered weights, wgrad dummies.

    `end_params`: parameters of embedding and head on the rank; `trained`: those with gradients.
    """
    everything = sums.dense + sums.expert + end_params
    share = trained / everything if everything > 0.0 else 0.0
    total = mem.workspace_bytes
    if mem.wgrad_dummy > 0.0:
        total += 2.0 * sums.matrices * share
    if state.zero >= 3.0 and state.shard > 1.0:
        if state.pp > 1.0:
            # Nothing is resharded between microbatches: weights and gradients stand whole. A
            # group of one has nothing to gather (experts that no other rank holds).
            lone = sums.expert if expert_shards(state) <= 1.0 else 0.0
            whole = everything - lone
            total += (mem.gathered_param_bytes + mem.grad_bytes * share) * whole
        else:
            total += mem.gathered_param_bytes * (2.0 * sums.widest + end_params)
            total += mem.gathered_grad_bytes * sums.widest * share
    elif state.zero >= 2.0 and state.shard > 1.0:
        total += mem.gathered_grad_bytes * sums.widest * share
    return total


@kernel
def state_bytes(
    sums: Sums, end_params: float, state: State, mem: StackMem
) -> tuple[float, float, float, float]:
    """Bytes of parameters, gradients and optimizer, and the optimizer's parameters on the rank.

    ZeRO 1 shards the optimizer, 2 the gradients too, 3 the parameters too (arXiv:1910.02054).
    """
    dense, expert = 1.0 / state.shard, 1.0 / expert_shards(state)
    p_dense, p_expert = (dense, expert) if state.zero >= 3.0 else (1.0, 1.0)
    g_dense, g_expert = (dense, expert) if state.zero >= 2.0 else (1.0, 1.0)
    o_dense, o_expert = (dense, expert) if state.zero >= 1.0 else (1.0, 1.0)
    ends_trained = end_params if state.train_ends > 0.0 else 0.0
    train_dense = sums.dense - sums.frozen_dense + ends_trained
    train_expert = sums.expert - sums.frozen_expert
    frozen = sums.frozen_dense * p_dense + sums.frozen_expert * p_expert
    params = mem.param_bytes * (train_dense * p_dense + train_expert * p_expert)
    params += 2.0 * (end_params - ends_trained) * p_dense
    params += state.frozen_bytes * frozen + state.fp8 * mem.fp8_weight_bytes * sums.linear
    grads = mem.grad_bytes * (train_dense * g_dense + train_expert * g_expert)
    stepped = train_dense * o_dense + train_expert * o_expert
    return params, grads, mem.optimizer_bytes * stepped, stepped


@kernel
def rank_memory(
    load: RankLoad, layers: Array, ends: EndMem, state: State, mem: StackMem
) -> RankMem:
    """Memory of one pipeline rank at its own peak.

    `layers`: table of `layer_table`, shape (kinds, 15), in the order of `load.layers`. The parts
    params + grads + optimizer + activations + logits + buffers sum to `allocated`. Recompute of
    the first N layers of each chunk is spread evenly over the kinds of the rank.
    """
    at = Place(load.rank, load.embedding, load.head, load.mtp)
    return rank_peak(sum_layers(load, layers, state), at, ends, state, mem)


@inlined
def standing_parts(
    sums: Sums, load: Place, ends: EndMem, at: Standing, state: State, mem: StackMem
) -> Parts:
    """The peak where gradients stand in buffers of their own through the whole step.

    The phases: each stands on top of state, and all but the last on top of activations.
    """
    buffers = standing_buffers(sums, at.end_params, at.trained, state, mem)
    activations = at.activations
    phase, top, logits = 3.0, sums.inner + sums.temp, 0.0
    if load.head > 0.0:
        extra = load.mtp * ends.logits_kept
        if ends.loss_peak + extra > top:
            phase, top = 1.0, ends.loss_peak + extra
        if ends.head_backward + extra > top:
            phase, top = 2.0, ends.head_backward + extra
    if load.embedding > 0.0 and state.train_ends > 0.0:
        # The dense gradient of the embedding appears when one microbatch has been freed.
        late = ends.embedding_backward - min(at.one, activations)
        if late > top:
            phase, top = 4.0, late
    step = mem.optimizer_step_bytes * at.stepped * (1.0 - state.offload_optimizer)
    if step + mem.workspace_bytes > top + activations + buffers:
        phase, top, activations, buffers = 5.0, step, 0.0, mem.workspace_bytes
    if phase == 3.0:
        activations += sums.inner
        buffers += sums.temp
    elif phase < 3.0:
        logits = top
    else:
        buffers += top
    return Parts(phase, at.grads, activations, logits, buffers)


@inlined
def rank_peak(sums: Sums, load: Place, ends: EndMem, state: State, mem: StackMem) -> RankMem:
    """Memory of one pipeline rank at its own peak, from the sums over its layers."""
    end_params = load.embedding * ends.embedding_params + load.head * ends.head_params
    end_params -= load.embedding * load.head * ends.shared
    params, grads, optimizer, stepped = state_bytes(sums, end_params, state, mem)
    trained = sums.dense - sums.frozen_dense + sums.expert - sums.frozen_expert
    trained += end_params if state.train_ends > 0.0 else 0.0
    host = optimizer * state.offload_optimizer
    optimizer += mem.unsharded_extra_bytes * trained - host

    held = in_flight(state.schedule, state.pp, state.vpp, state.m, load.rank)
    pending = weights_pending(state.schedule, state.pp, state.vpp, state.m, load.rank)
    one = (
        sums.kept
        + ends.boundary
        + load.embedding * ends.embedding_kept
        + load.head * ends.head_kept
    )
    activations = held * one + pending * min(sums.waiting, one)
    host += activations * state.offload_activations
    activations *= 1.0 - state.offload_activations
    at = Standing(grads, stepped, trained, end_params, activations, one, held + pending)
    apart = 0.0
    if mem.grads_on_demand > 0.0:
        parts = on_demand_parts(sums, load, ends, at, state, mem)
        apart = pool_bytes(parts, at, state)
    else:
        parts = standing_parts(sums, load, ends, at, state, mem)
    phase, grads, activations, logits, buffers = parts
    if mem.grads_on_demand > 0.0 and sums_whole(state) and phase < 5.0:
        grads, buffers = 0.0, buffers + grads
    allocated = params + grads + optimizer + activations + logits + buffers
    # Fragments come from the sizes of one microbatch; the next one reuses its blocks.
    fragments = min(activations, one + sums.inner) + logits + buffers
    reserved = (allocated + apart) * mem.reserved_factor + mem.reserved_activation_frac * fragments
    if load.head + load.embedding > 0.0:
        reserved += mem.reserved_block_frac * ends.block
    return RankMem(
        params=params,
        grads=grads,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
        allocated=allocated,
        reserved=reserved,
        device=reserved + mem.context_bytes,
        in_flight=held + pending,
        phase=phase,
        host=host,
    )


@kernel
def memory_table(kinds: Kinds, cut: Cut, mem: StackMem) -> Array:
    """`layer_memory` of each kind, shape (kinds, 15): the table that `rank_memory` reads."""
    table = np.zeros((len(kinds), LAYER_FIELDS))
    for k in range(len(kinds)):
        row = layer_memory(kind_at(kinds, k), cut, mem)
        for j in range(LAYER_FIELDS):
            table[k, j] = row[j]
    return table


@kernel
def plan_memory(
    loads: Loads, layers: Array, ends: EndMem, state: State, mem: StackMem
) -> tuple[float, RankMem]:
    """Rank and memory of the worst rank of a plan by device-visible peak.

    Of ranks that hold the same, the first has the most in flight and stands for all.
    """
    worst = -1.0
    at = 0
    for g in range(loads.ranks.shape[0]):
        found = rank_memory(load_of(loads, g, state), layers, ends, state, mem)
        if found.device > worst:
            worst, at = found.device, g
    return loads.first[at], rank_memory(load_of(loads, at, state), layers, ends, state, mem)


@kernel
def rank_load(layers: Array, rank: float, embedding: float, heads: float, state: State) -> RankLoad:
    """What a pipeline rank holds, from its stage's layers (K,) and ends.

    DualPipe holds a second stage on each rank, the mirrored one of the other direction: twice the
    layers, and both ends on the first and the last rank.
    """
    if state.schedule == DUALPIPE:
        layers = 2.0 * layers
        heads = max(heads, embedding)
        embedding = min(heads, 1.0)
    return RankLoad(
        rank=rank,
        ranks=state.pp,
        layers=layers,
        largest_chunk=layers,
        embedding=embedding,
        head=min(heads, 1.0),
        mtp=max(heads - 1.0, 0.0),
    )


@kernel
def load_of(loads: Loads, group: int, state: State) -> RankLoad:
    """One group of equal ranks as the load of its first rank."""
    return rank_load(
        loads.layers[group], loads.first[group], loads.embedding[group], loads.heads[group], state
    )


def candidate_ranks(pp: int) -> tuple[int, ...]:
    """Ranks whose worst peak is the worst of all ranks.

    Holds where all ranks but the first and the last carry the same layers and neither embedding
    nor head: memory in flight never grows with the rank, so among equal middles rank 1 is worst.
    """
    return tuple(sorted({0, min(1, pp - 1), pp - 1}))
