"""Physical lower bounds: no kernel beats the dense peak, no link its line rate.

They use nothing but shapes (the FLOPs that MFU counts, `cost.flops`) and data-sheet rates, so an
estimate below them is a fault.
"""

from __future__ import annotations

from gangsaw.cost.flops import core_flops, dense_flops, projection_flops, routed_flops
from gangsaw.cost.types import Cut, Device, Ends, Kind, Loads, StackT, State
from gangsaw.jit import kernel


@kernel
def linear_flops(kind: Kind, cut: Cut) -> float:
    """Forward FLOPs of the matrices of one layer and microbatch on one rank."""
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    return tokens / cut.tp * (projection_flops(kind) + dense_flops(kind) + routed_flops(kind))


@kernel
def attention_flops(kind: Kind, cut: Cut) -> float:
    """Forward FLOPs of the attention core, causal as half the square."""
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    return tokens / cut.tp * core_flops(kind, cut.seq_len, True)


@kernel
def layer_bound_s(kind: Kind, cut: Cut, device: Device) -> float:
    """Least seconds of forward and backward of one layer and microbatch on one rank."""
    backward = 2.0 if kind.trainable_frac > 0.0 else 1.0
    linear = linear_flops(kind, cut) * (1.0 + backward) / device.peak_linear
    return linear + 3.0 * attention_flops(kind, cut) / device.peak


@kernel
def step_bound_s(
    kinds: tuple[Kind, ...], ends: Ends, loads: Loads, cut: Cut, state: State, device: Device
) -> float:
    """Least seconds of a step: m microbatches through the slowest rank, and one through the rest.

    Schedules that split the backward or interleave shorten the fill, never the slowest rank's own
    work, so the fill is left off.
    """
    slowest = 0.0
    for r in range(loads.ranks.shape[0]):
        total = 0.0
        for k in range(len(kinds)):
            total += loads.layers[r, k] * layer_bound_s(kinds[k], cut, device)
        tokens = cut.mbs * cut.seq_len / cut.cp
        passes = 3.0 if state.train_ends > 0.0 else 2.0  # a frozen head has no weight gradient
        head = 2.0 * passes * tokens * ends.vocab * ends.hidden / cut.tp / device.peak
        slowest = max(slowest, total + loads.heads[r] * head)
    return state.m * slowest


@kernel
def optimizer_bound_s(params: float, device: Device, stack: StackT) -> float:
    """Least seconds of the optimizer: its traffic at the data-sheet bandwidth."""
    return params * stack.optimizer_traffic / device.hbm
