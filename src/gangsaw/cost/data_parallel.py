"""Gradient reduction, parameter gathering, optimizer step and offload.

ZeRO (arXiv:1910.02054): stage 0 all-reduces gradients; 1 reduce-scatters them and gathers the
updated parameters; 2 does the reduction behind every microbatch; 3 also gathers the parameters
for every forward and backward. Dense parameters go over the dp x cp group, experts over their
own group of expert data parallelism.
"""

from __future__ import annotations

from gangsaw.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from gangsaw.cost.types import Cut, Device, Net, StackT, State, Strides
from gangsaw.jit import kernel


@kernel
def gradient_s(
    dense: float, experts: float, cut: Cut, state: State, net: Net, strides: Strides, stack: StackT
) -> float:
    """Seconds of one reduction of a rank's gradients, nothing hidden."""
    over = stack.collective_overhead_s
    d = dense * stack.grad_bytes
    e = experts * stack.grad_bytes
    if state.zero < 1.0:
        total = all_reduce_s(net, d, state.dp, strides.dp, over)
        total += all_reduce_s(net, e, cut.edp, strides.edp, over)
        return total * stack.dp_traffic
    total = reduce_scatter_s(net, d, state.shard, strides.dp, over)
    if state.shard < state.dp:
        # Hybrid sharding: what is left after the scatter is all-reduced between the groups.
        outer = state.dp / state.shard
        total += all_reduce_s(net, d / state.shard, outer, strides.dp * state.shard, over)
    total += reduce_scatter_s(net, e, cut.edp, strides.edp, over)
    return total * stack.dp_traffic if state.zero < 2.0 else total


@kernel
def gather_s(
    dense: float, experts: float, cut: Cut, state: State, net: Net, strides: Strides, stack: StackT
) -> float:
    """Seconds of one gathering of a rank's parameters, nothing hidden; 0 without sharding."""
    if state.zero < 1.0:
        return 0.0
    over = stack.collective_overhead_s
    size = stack.param_bytes
    total = all_gather_s(net, dense * size, state.shard, strides.dp, over)
    total += all_gather_s(net, experts * size, cut.edp, strides.edp, over)
    return total * stack.dp_traffic if state.zero < 2.0 else total


@kernel
def optimizer_s(dense: float, experts: float, state: State, device: Device, stack: StackT) -> float:
    """Seconds of the optimizer step on the shards of this rank, by memory traffic."""
    shard = state.shard if state.zero >= 1.0 else 1.0
    expert_shard = state.expert_shard if state.zero >= 1.0 else 1.0
    params = dense / shard + experts / expert_shard
    on_device = params * (1.0 - state.offload_optimizer)
    return on_device * stack.optimizer_traffic / (device.hbm * device.hbm_frac)


@kernel
def offload_optimizer_s(
    dense: float, experts: float, state: State, device: Device, stack: StackT
) -> float:
    """Seconds of an optimizer on the host: gradients down, Adam in host memory, parameters up.

    Host memory moves about 28 bytes a parameter at 25 GB/s a device (eight devices share two
    sockets of 100 GB/s measured; DeepSpeed's CPU Adam, arXiv:2101.06840).
    """
    if state.offload_optimizer <= 0.0:
        return 0.0
    shard = state.shard if state.zero >= 1.0 else 1.0
    expert_shard = state.expert_shard if state.zero >= 1.0 else 1.0
    params = (dense / shard + experts / expert_shard) * state.offload_optimizer
    link = params * (stack.grad_bytes + stack.param_bytes) / (0.8 * device.pcie)
    return link + params * 28.0 / 25e9
