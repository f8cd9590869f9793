"""How the step time of a plan answers to each fitted factor: d ln(step) / d ln(factor).

The fit, the intervals and the calibration to a site all live on these shares: a cause that is
absent from a plan has share 0, so nothing is learned about it there.
"""

from __future__ import annotations

import math

import numpy as np

from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.fitted import ENTRIES, fitted_device, fitted_net, fitted_stack
from gangsaw.cost.types import (
    Array,
    Cut,
    Device,
    Ends,
    Kind,
    Loads,
    Net,
    StackMem,
    StackT,
    State,
    StepCost,
    Strides,
)
from gangsaw.jit import kernel

COUNT = len(ENTRIES)
STEP_LOG = 0.03
"""Half-width of the central difference, log space: floors and maxima are smoothed over 6 %."""


@kernel
def fitted_step(
    x: Array,
    kinds: tuple[Kind, ...],
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
    """The step with the factors exp(x), x in the order of `fitted.ENTRIES`, applied."""
    return plan_step(
        kinds,
        ends,
        loads,
        cut,
        state,
        fitted_device(x, device),
        fitted_net(x, net),
        strides,
        fitted_stack(x, stack),
        memory,
    )


@kernel
def step_sensitivity(
    x: Array,
    kinds: tuple[Kind, ...],
    ends: Ends,
    loads: Loads,
    cut: Cut,
    state: State,
    device: Device,
    net: Net,
    strides: Strides,
    stack: StackT,
    memory: StackMem,
) -> Array:
    """Shape (28,): ln(step), the share of the bubble, and d ln(step)/dx of each entry."""
    out = np.zeros(COUNT + 2)
    base = fitted_step(x, kinds, ends, loads, cut, state, device, net, strides, stack, memory)
    out[0] = math.log(base.step)
    out[1] = (base.bubble + base.pp_comm) / base.step
    y = x.copy()
    for j in range(COUNT):
        y[j] = x[j] + STEP_LOG
        up = fitted_step(y, kinds, ends, loads, cut, state, device, net, strides, stack, memory)
        y[j] = x[j] - STEP_LOG
        down = fitted_step(y, kinds, ends, loads, cut, state, device, net, strides, stack, memory)
        y[j] = x[j]
        out[2 + j] = (math.log(up.step) - math.log(down.step)) / (2.0 * STEP_LOG)
    return out
