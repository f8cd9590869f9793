"""The step of one plan from its numbers: layer tables, then `step_cost`.

`plan_step` is what the estimate, the fit and the search call: interpreted for one plan, compiled
for many.
"""

from __future__ import annotations

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.kinds import Kinds, kind_at
from gangsaw.cost.layer import layer_time
from gangsaw.cost.memory import memory_table
from gangsaw.cost.step import step_cost
from gangsaw.cost.types import (
    Array,
    Cut,
    Device,
    Ends,
    Loads,
    Net,
    StackMem,
    StackT,
    State,
    StepCost,
    Strides,
)
from gangsaw.jit import kernel

LAYER_FIELDS = 15  # len(LayerTime._fields); numba wants the number


@kernel
def time_table(
    kinds: Kinds,
    cut: Cut,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
) -> Array:
    """`layer_time` of each kind, shape (K, 15): the table that `step_cost` reads."""
    layers = np.zeros((len(kinds), LAYER_FIELDS))
    for k in range(len(kinds)):
        t = layer_time(kind_at(kinds, k), cut, device, net, strides, stack)
        for j in range(LAYER_FIELDS):
            layers[k, j] = t[j]
    return layers


@kernel
def plan_step(
    kinds: Kinds,
    ends: Ends,
    loads: Loads,
    cut: Cut,
    state: State,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
    memory: StackMem,
) -> StepCost:
    """Seconds of one step and their causes, from shapes to total."""
    layers = time_table(kinds, cut, device, net, strides, stack)
    mems = memory_table(kinds, cut, memory)
    end_times = end_time(ends, cut, device, net, strides, stack)
    return step_cost(loads, layers, mems, end_times, ends, cut, state, device, net, strides, stack)
