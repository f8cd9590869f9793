"""Peak of a rank whose framework makes gradients in backward and keeps none between steps.

PyTorch sets gradients to none behind the optimizer's step, and its FSDP2 (`fully_shard`), DTensor
and pipelining make buffers where they are needed. What that means, phase by phase, was read off the
live tensors of traces (torch 2.13, `run.oracle`, fake tensors; see docs/memory-oracle.md):

- Before the first backward of a step there are no gradients. A rank that runs more microbatches
  than it holds has all of them when it holds most; one that does not has them only when it has let
  go of a microbatch.
- Under a pipeline FSDP2 keeps a stage gathered and sums whole gradients in the reduction's type;
  shards of them appear behind the last microbatch, when the whole ones go.
- The gradient of a vocabulary-parallel embedding is a partial sum over the whole vocabulary until
  it is reduced: TP does not cut it. Under a pipeline the sum stands so through the step.
- Embedding and head are groups of their own; the head stays gathered between forward and backward.
- A pipeline stage holds receive buffers for all microbatches of a step, in both directions.
- Shards of gradients come out of the reduction's own stream, whose memory no other stream reuses:
  they are reserved even where they are not allocated at the peak. (TorchTitan, arXiv:2410.06511,
  tables 1 and 3: 8 against 128 devices differ by 15 GiB, 16 bytes a parameter and not 12.)

All results are bytes. Valid for ZeRO 0 to 3 of torch's own parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangsaw.cost.types import EndMem, StackMem, State
from gangsaw.jit import kernel

if TYPE_CHECKING:
    from gangsaw.cost.memory import Place, Sums


class Standing(NamedTuple):
    """What is the same in all phases of a rank, and what it holds at most. Bytes and counts."""

    grads: float  # of the optimizer's own shards, or whole below ZeRO 2
    stepped: float  # parameters that this rank's optimizer steps
    trained: float  # parameters with gradients on the rank, whole
    end_params: float
    activations: float  # of all microbatches in flight
    one: float  # of one microbatch
    held: float  # microbatches in flight, those that wait for weight gradients included


class Parts(NamedTuple):
    """A rank's peak, state apart: which phase, and what it is made of in bytes."""

    phase: float
    grads: float
    activations: float
    logits: float
    buffers: float


class Gathered(NamedTuple):
    """Weights gathered for compute and gradients on their way to the reduction, by phase. Bytes."""

    always: float
    loss: float
    head: float
    backward: float
    embedding: float


@kernel
def gathered_bytes(sums: Sums, ends: EndMem, at: Standing, state: State, mem: StackMem) -> Gathered:
    """What FSDP2 gathers in each phase, and the gradients that it is about to reduce."""
    passing = mem.gathered_grad_bytes * sums.widest
    if state.shard <= 1.0 or state.zero < 2.0:
        return Gathered(0.0, 0.0, 0.0, 0.0, 0.0)
    if state.zero < 3.0:
        return Gathered(0.0, 0.0, 0.0, passing, passing)
    weight = mem.gathered_param_bytes
    if state.pp > 1.0:
        # All stays gathered; a layer's gradients wait in 16 bits until the layer is through.
        whole = weight * (sums.dense + sums.expert + at.end_params)
        return Gathered(whole, 0.0, 0.0, 2.0 * sums.widest, 0.0)
    head, embedding = ends.head_params, ends.embedding_params
    if ends.shared > 0.0:
        head = 0.0  # one group with the embedding, gathered for the head
    # The reduction of the head runs while the last layer is being gathered.
    reduced = mem.gathered_grad_bytes * head + weight * sums.widest
    late = weight * embedding + (mem.gathered_grad_bytes - 2.0) * sums.widest
    return Gathered(0.0, weight * head, reduced, 2.0 * weight * sums.widest + passing, late)


@kernel
def receive_bytes(load: Place, ends: EndMem, at: Standing, state: State, mem: StackMem) -> float:
    """Receive buffers of all microbatches; those of inputs in flight are counted as kept."""
    if mem.receive_buffers <= 0.0 or state.pp <= 1.0:
        return 0.0
    inputs = state.vpp - load.embedding
    outputs = state.vpp - load.head
    return ends.boundary * (max(0.0, state.m - at.held) * inputs + state.m * outputs)


@kernel
def sums_whole(state: State) -> bool:
    """Whether gradients are summed whole through the step and sharded behind its last microbatch.

    So FSDP2 does under a pipeline, where torch reduces once a stage.
    """
    return state.zero >= 3.0 and state.shard > 1.0 and state.pp > 1.0


@kernel
def pool_bytes(parts: Parts, at: Standing, state: State) -> float:
    """Shards of gradients that are not there at the peak and are reserved all the same."""
    if state.zero < 2.0 or state.shard <= 1.0 or parts.phase == 5.0:
        return 0.0
    if sums_whole(state):
        return at.grads
    return at.grads - parts.grads


@kernel
def on_demand_parts(
    sums: Sums, load: Place, ends: EndMem, at: Standing, state: State, mem: StackMem
) -> Parts:
    """The phase with the largest sum of gradients, activations, logits and buffers.

    Phases are those of `PHASES`. Gradients that are summed whole count as buffers: what the
    optimizer will see of them are the shards.
    """
    gathered = gathered_bytes(sums, ends, at, state, mem)
    always = mem.workspace_bytes + gathered.always + receive_bytes(load, ends, at, state, mem)
    grads = at.grads
    trains = state.train_ends > 0.0
    if sums_whole(state):
        grads = mem.grad_bytes * at.trained
        if trains:
            grads += mem.grad_bytes * load.embedding * ends.embedding_extra
    early = grads if state.m > at.held else 0.0
    left = at.activations - min(at.one, at.activations)
    turn = sums.inner + sums.temp + gathered.backward
    best = Parts(3.0, early, at.activations + sums.inner, 0.0, always + turn - sums.inner)
    peak = at.activations + early + turn
    if left + grads + turn > peak:
        peak = left + grads + turn
        best = Parts(3.0, grads, left + sums.inner, 0.0, always + turn - sums.inner)
    if load.head > 0.0:
        extra = load.mtp * ends.logits_kept
        loss = ends.loss_peak + extra
        base = at.activations + early
        if base + loss + gathered.loss > peak:
            peak = base + loss + gathered.loss
            best = Parts(1.0, early, at.activations, loss, always + gathered.loss)
        after = max(gathered.loss + ends.head_backward, gathered.head) + extra
        if base + after > peak:
            peak = base + after
            best = Parts(2.0, early, at.activations, after, always)
    if load.embedding > 0.0 and trains:
        late = ends.embedding_backward + gathered.embedding
        if left + grads + late > peak:
            peak = left + grads + late
            best = Parts(4.0, grads, left, 0.0, always + late)
    step = mem.optimizer_step_bytes * at.stepped * (1.0 - state.offload_optimizer)
    if at.grads + step + mem.workspace_bytes > peak + always:
        best = Parts(5.0, at.grads, 0.0, 0.0, mem.workspace_bytes + step)
    return best
