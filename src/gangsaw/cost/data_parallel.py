"""Gradient reduction, parameter gathering, optimizer step and offload.

ZeRO (arXiv:1910.02054): stage 0 all-reduces gradients; 1 reduce-scatters them and gathers the
updated parameters; 2 does the reduction behind every microbatch; 3 also gathers the parameters
for every forward and backward. Dense parameters go over the dp x cp group, experts over their
own group of expert data parallelism. Hybrid sharding (arXiv:2304.11277) shards within groups of
data-parallel ranks, experts among those of such a group that hold the same ones.
"""

from __future__ import annotations

import math

from gangsaw.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from gangsaw.cost.memory import expert_shards
from gangsaw.cost.types import Cut, Device, Net, StackT, State, Strides
from gangsaw.jit import kernel


@kernel
def stage_net(cut: Cut, state: State, net: Net, strides: Strides) -> tuple[Net, float]:
    """The network as the ranks of one stage see it, and the stride of dp x cp among them.

    Where the pipeline lies inside data parallelism a stage's ranks are blocks of `strides.pp`
    devices, pp blocks apart. Numbered on their own, a domain holds as many of them as whole
    periods fit into it, or one block's part; so groups over several blocks keep their shape.
    """
    block, pp = strides.pp, state.pp
    if pp <= 1.0 or block >= cut.tp * state.dp:
        return net, strides.dp
    size = net.size.copy()
    for tier in range(size.size):
        periods = math.floor(size[tier] / (block * pp))
        size[tier] = periods * block if periods >= 1.0 else min(size[tier], block)
    inside = Net(
        size, net.bytes_per_s, net.latency_s, net.efficiency, net.reduction, net.ramp_s, net.mesh,
        net.oversubscription,
    )  # fmt: skip
    return inside, strides.dp if strides.dp < block else strides.dp / pp


@kernel
def gradient_s(
    dense: float, experts: float, cut: Cut, state: State, net: Net, strides: Strides, stack: StackT
) -> float:
    """Seconds of one reduction of a rank's gradients, nothing hidden.

    Hybrid sharding: what is left after the scatter is all-reduced between the shard groups, of
    dense parameters and of experts alike.
    """
    over = stack.collective_overhead_s
    d = dense * stack.grad_bytes
    e = experts * stack.grad_bytes
    inside, stride = stage_net(cut, state, net, strides)
    expert_stride = cut.ep * cut.etp
    if state.zero < 1.0:
        total = all_reduce_s(inside, d, state.dp, stride, over)
        total += all_reduce_s(inside, e, cut.edp, expert_stride, over)
        return total * stack.dp_traffic
    total = reduce_scatter_s(inside, d, state.shard, stride, over)
    copies = expert_shards(state)
    total += reduce_scatter_s(inside, e, copies, expert_stride, over)
    if state.shard < state.dp:
        outer = state.dp / state.shard
        total += all_reduce_s(inside, d / state.shard, outer, stride * state.shard, over)
        total += all_reduce_s(inside, e / copies, cut.edp / copies, expert_stride * copies, over)
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
    inside, stride = stage_net(cut, state, net, strides)
    total = all_gather_s(inside, dense * size, state.shard, stride, over)
    expert_stride = cut.ep * cut.etp
    total += all_gather_s(inside, experts * size, expert_shards(state), expert_stride, over)
    return total * stack.dp_traffic if state.zero < 2.0 else total


@kernel
def optimizer_s(dense: float, experts: float, state: State, device: Device, stack: StackT) -> float:
    """Seconds of the optimizer step on the shards of this rank, by memory traffic."""
    shard = state.shard if state.zero >= 1.0 else 1.0
    expert_shard = expert_shards(state) if state.zero >= 1.0 else 1.0
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
    expert_shard = expert_shards(state) if state.zero >= 1.0 else 1.0
    params = (dense / shard + experts / expert_shard) * state.offload_optimizer
    link = params * (stack.grad_bytes + stack.param_bytes) / (0.8 * device.pcie)
    return link + params * 28.0 / 25e9
