"""The step of one plan from its numbers: layer tables, then `step_cost`.

`plan_step` is what the estimate, the fit and the search call: interpreted for one plan, compiled
for many.
"""

from __future__ import annotations

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.layer import layer_time
from gangsaw.cost.step import step_cost
from gangsaw.cost.types import (
    Array,
    Cut,
    Device,
    Ends,
    Kind,
    Loads,
    Net,
    StackT,
    State,
    StepCost,
    Strides,
)
from gangsaw.jit import kernel

LAYER_FIELDS = 15  # len(LayerTime._fields); numba wants the number


@kernel
def layer_params(kind: Kind, cut: Cut) -> tuple[float, float]:
    """Trainable dense and expert parameters of one layer on one rank.

    TP splits matrices, not norms and routers; with fewer key-value heads than ranks the copies
    of keys and values are not counted (1-2 % of a layer).
    """
    if kind.trainable_frac <= 0.0:
        return kind.adapter_params, 0.0
    dense = (kind.attention_params + kind.mlp_params) / cut.tp + kind.replicated_params
    return dense, kind.expert_params / (cut.ep * cut.etp)


@kernel
def layer_tables(
    kinds: tuple[Kind, ...],
    cut: Cut,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> tuple[Array, Array]:
    """Time (K, 15) and parameters (K, 2) of one layer of each kind."""
    layers = np.zeros((len(kinds), LAYER_FIELDS))
    params = np.zeros((len(kinds), 2))
    for k in range(len(kinds)):
        t = layer_time(kinds[k], cut, device, net, strides, stack)
        for j in range(LAYER_FIELDS):
            layers[k, j] = t[j]
        params[k, 0], params[k, 1] = layer_params(kinds[k], cut)
    return layers, params


@kernel
def plan_step(
    kinds: tuple[Kind, ...],
    ends: Ends,
    loads: Loads,
    cut: Cut,
    state: State,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> StepCost:
    """Seconds of one step and their causes, from shapes to total."""
    layers, params = layer_tables(kinds, cut, device, net, strides, stack)
    end_times = end_time(ends, cut, device, net, strides, stack)
    return step_cost(
        loads, layers, params, end_times, ends, cut, state, device, net, strides, stack
    )
