"""The memory of one plan as a document: every pipeline rank, capacity, interval, other moments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gangsaw.cost.lower import Lowered, cut_of, lower, rank_of_chunk, state_of
from gangsaw.cost.memory import PHASES, end_memory, memory_table, rank_memory
from gangsaw.cost.types import GPIPE, Array, EndMem, RankLoad, RankMem, StackMem, State
from gangsaw.spec import ClusterSpec, ModelSpec, Plan, Recipe
from gangsaw.spec.job import Job
from gangsaw.spec.result import Fits, MemoryDoc, StageMemoryDoc

QUANTILE_80 = 1.2816
"""Standard normal quantile of 0.9: an 80 % interval reaches this many deviations to each side."""
HOST_RANK_BYTES = 6e9
"""Host memory of one process without offload: interpreter and libraries, CUDA's host side, data
workers, pinned staging. Ordinary training processes hold 4 to 8 GB; an estimate."""
MASTER_BYTES = 4.0
"""The fp32 master copy, the one optimizer state that exists before the first step."""
NF4_BYTES = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
"""A 4-bit weight with its 8-bit scale a block of 64 and the fp32 scale of 256 blocks (QLoRA,
arXiv:2305.14314). Embedding and head stay at 16 bits."""


def memory_state(plan: Plan, recipe: Recipe) -> State:
    """`state_of(plan)` with what the recipe says about frozen weights and fp8."""
    lora = recipe.task in ("lora", "qlora")
    return state_of(plan)._replace(
        train_ends=0.0 if lora else 1.0,
        frozen_bytes=NF4_BYTES if recipe.task == "qlora" else 2.0,
        fp8=1.0 if recipe.precision == "fp8" else 0.0,
    )


def rank_loads(model: ModelSpec, plan: Plan, counts: Sequence[int]) -> tuple[RankLoad, ...]:
    """What each pipeline rank holds, from the transformer layers of each chunk in stage order.

    Kinds in the order of the model, then multi-token prediction (on the last chunk's rank), then
    the vision tower (on the first). `counts` has pp x vpp entries that sum to the model's layers;
    a DualPipe rank holds two stages of one chunk each.
    """
    kinds = len(model.kinds) + (model.mtp is not None) + (model.vision is not None)
    rows = np.zeros((plan.pp, kinds))
    largest = np.zeros((plan.pp, kinds))
    start = 0
    for chunk, n in enumerate(counts):
        rank = rank_of_chunk(chunk, plan.pp, plan.schedule)
        here = np.bincount(np.array(model.order[start : start + n], dtype=int), minlength=kinds)
        rows[rank] += here
        largest[rank] = np.maximum(largest[rank], here)
        start += n
    last = rank_of_chunk(len(counts) - 1, plan.pp, plan.schedule)
    if model.mtp is not None:
        rows[last, len(model.kinds)] += model.mtp.layers
    if model.vision is not None:
        rows[0, kinds - 1] += model.vision.layers
    embedding, head = np.zeros(plan.pp), np.zeros(plan.pp)
    embedding[0] = head[last] = 1.0
    if plan.schedule == "dualpipe":
        # The mirrored stage of the other direction lies on the same rank.
        rows = rows + rows[::-1]
        largest = np.maximum(largest, largest[::-1])
        embedding, head = embedding + embedding[::-1], head + head[::-1]
        embedding, head = np.minimum(embedding, 1.0), np.minimum(head, 1.0)
    mtp = float(model.mtp.layers) if model.mtp else 0.0
    return tuple(
        RankLoad(
            rank=float(rank),
            ranks=float(plan.pp),
            layers=rows[rank],
            largest_chunk=largest[rank],
            embedding=float(embedding[rank]),
            head=float(head[rank]),
            mtp=mtp * float(head[rank]),
        )
        for rank in range(plan.pp)
    )


def fits_of(peak_bytes: float, capacity_bytes: float, doubt_frac: float) -> Fits:
    """`risky` where capacity lies inside the 80 % interval of the peak, else `yes` or `no`."""
    lo, hi = interval(peak_bytes, doubt_frac)
    if lo <= capacity_bytes <= hi:
        return "risky"
    return "yes" if hi < capacity_bytes else "no"


def interval(peak_bytes: float, doubt_frac: float) -> tuple[float, float]:
    """80 % interval of a peak whose logarithm has the standard deviation `doubt_frac`."""
    spread = math.exp(QUANTILE_80 * doubt_frac)
    return peak_bytes / spread, peak_bytes * spread


def capacity_of(cluster: ClusterSpec) -> float:
    """Bytes of a device that a process can use."""
    return cluster.device.memory_bytes * cluster.device.usable_memory_frac


def moments_of(found: RankMem, ends: EndMem, state: State, mem: StackMem) -> dict[str, float]:
    """Device-visible peaks of a rank outside forward and backward.

    build: weights, gradient buffers and the fp32 master. load: all state, and one staging copy of
    the largest tensor in fp32. step: all state (the moments exist from the first step on) and the
    step's temporaries, or forward and backward where these are larger. save: all state and one
    staging copy; shards are written one tensor at a time.
    """
    standing = found.params + found.grads + found.optimizer
    tensor = max(ends.embedding_params, ends.head_params)
    if state.zero >= 3.0:
        tensor /= state.shard
    master = found.optimizer * min(1.0, MASTER_BYTES / mem.optimizer_bytes)
    fixed = mem.workspace_bytes + mem.context_bytes
    staging = MASTER_BYTES * tensor
    factor = mem.reserved_factor
    return {
        "build": (found.params + found.grads + master) * factor + fixed,
        "load": (standing + staging) * factor + fixed,
        "step": found.device,
        "save": (standing + staging) * factor + fixed,
    }


def stage_doc(found: RankMem, load: RankLoad, decoder_kinds: int) -> StageMemoryDoc:
    """One pipeline rank's row. `layers` counts transformer layers of the decoder."""
    return StageMemoryDoc(
        stage=int(load.rank),
        layers=int(load.layers[:decoder_kinds].sum()),
        params_bytes=found.params,
        grads_bytes=found.grads,
        optimizer_bytes=found.optimizer,
        activations_bytes=found.activations,
        logits_bytes=found.logits,
        buffers_bytes=found.buffers,
        peak_allocated_bytes=found.allocated,
        peak_reserved_bytes=found.reserved,
        peak_device_bytes=found.device,
        in_flight=found.in_flight,
        phase=PHASES[int(found.phase)],
    )


def rank_memories(
    job: Job,
    plan: Plan,
    counts: Sequence[int],
    lowered: Lowered | None = None,
    held: Sequence[float] | None = None,
) -> tuple[tuple[RankLoad, RankMem], ...]:
    """Load and memory of every pipeline rank of a plan, in rank order.

    `held`: microbatches that each rank holds at its peak, where no formula knows them.
    """
    low = lowered or lower(job)
    table, ends = _tables(low, plan, job.recipe)
    state = memory_state(plan, job.recipe)
    loads = rank_loads(job.model, plan, counts)
    states = [state] * plan.pp
    if held is not None:  # GPipe holds all microbatches of a step: that many
        states = [state._replace(schedule=float(GPIPE), m=float(n)) for n in held]
    return tuple(
        (load, rank_memory(load, table, ends, one, low.memory))
        for load, one in zip(loads, states, strict=True)
    )


def _tables(low: Lowered, plan: Plan, recipe: Recipe) -> tuple[Array, EndMem]:
    cut = cut_of(plan, recipe)
    table = memory_table(low.kinds, cut, low.memory)
    return table, end_memory(low.ends, cut, float(plan.pp), low.memory)


def memory_doc(
    job: Job,
    plan: Plan,
    counts: Sequence[int],
    lowered: Lowered | None = None,
    held: Sequence[float] | None = None,
) -> MemoryDoc:
    """Memory of a plan whose chunks hold `counts` transformer layers, in stage order.

    `fits` compares the device-visible peak of the worst rank with the device's usable bytes.
    `host_bytes` is that of the fullest node, if neighbouring ranks hold alike. `held` as in
    `rank_memories`.
    """
    low = lowered or lower(job)
    _, ends = _tables(low, plan, job.recipe)
    state = memory_state(plan, job.recipe)
    ranks = rank_memories(job, plan, counts, low, held)
    peak = max(found.device for _, found in ranks)
    capacity = capacity_of(job.cluster)
    lo, hi = interval(peak, job.stack.memory_doubt_frac)
    moments: dict[str, float] = {}
    for _, found in ranks:
        for name, value in moments_of(found, ends, state, low.memory).items():
            moments[name] = max(moments.get(name, 0.0), value)
    in_node = min(job.cluster.host.devices, plan.devices)
    host = in_node * (HOST_RANK_BYTES + max(found.host for _, found in ranks))
    return MemoryDoc(
        capacity_bytes=capacity,
        per_stage=tuple(stage_doc(found, load, len(job.model.kinds)) for load, found in ranks),
        peak_bytes=peak,
        peak_lo_bytes=lo,
        peak_hi_bytes=hi,
        headroom_frac=1.0 - peak / capacity,
        fits=fits_of(peak, capacity, job.stack.memory_doubt_frac),
        host_bytes=host,
        moments=moments,
    )
