"""A plan along one parameter: its objective and whether it fits, value by value.

The plan is lowered to numbers once; what the parameter changes of them is put in at each value.
Many values run the compiled formulas, few the plain ones, which answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.kinds import Kinds, kind_rows
from gangsaw.cost.legal import check_plan
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory import end_memory, memory_table, plan_memory
from gangsaw.cost.memory_doc import capacity_of, fits_of, memory_state
from gangsaw.cost.types import (
    Array,
    Cut,
    Device,
    EndMem,
    Ends,
    Loads,
    Net,
    StackMem,
    StackT,
    State,
    Strides,
)
from gangsaw.errors import InputError
from gangsaw.jit import compiled, kernel
from gangsaw.search.estimate import counts_of
from gangsaw.search.parameters import Case, Objective, Parameter, inner_tiers, outer_tier

MANY = 3_000
"""Evaluations from which the compiled formulas are worth loading (half a second)."""
MONEY_ONLY = frozenset({"device-price", "energy-price", "failure-rate"})
"""Parameters that leave the step's seconds as they are."""
BATCHES = frozenset({"global-batch", "microbatches"})
"""Parameters that change how often a microbatch runs, and nothing inside it."""
SURE, RISKY = 0, 1


class At(NamedTuple):
    """A plan at one value: its objective, and SURE or RISKY; None: it does not fit."""

    objective: float
    fit: int | None


@dataclass(frozen=True)
class Ready:
    """A legal plan of a job as numbers, ready to be timed again and again."""

    case: Case
    low: Lowered
    kinds: Kinds
    loads: Loads
    cut: Cut
    strides: Strides
    state: State
    table: Array
    end: EndMem
    fast: bool
    scale: float

    def step_s(self, state: State | None = None, scale: float | None = None) -> float:
        """Seconds of a step, or of one with another number of microbatches and their `scale`."""
        run = compiled(plan_step) if self.fast else plan_step
        low = self.low
        cost = run(
            self.kinds, low.ends, self.loads, self.cut, state or self.state, low.device, low.net,
            self.strides, low.stack, low.memory,
        )  # fmt: skip
        return float(cost.step) * (self.scale if scale is None else scale)

    def peak_bytes(self, state: State | None = None) -> float:
        """Device-visible peak of the fullest rank."""
        run = compiled(plan_memory) if self.fast else plan_memory
        _, found = run(self.loads, self.table, self.end, state or self.state, self.low.memory)
        return float(found.device)


def ready(case: Case, fast: bool = False) -> Ready:
    """A case lowered. Raises InputError where the plan is not legal for its job."""
    check_plan(case.job, case.plan)
    low, plan, recipe = lower(case.job), case.plan, case.job.recipe
    cut = cut_of(plan, recipe)
    return Ready(
        case=case,
        low=low,
        kinds=kind_rows(low.kinds) if fast else low.kinds,
        loads=loads_of(case.job.model, plan, counts_of(case.job, plan)),
        cut=cut,
        strides=strides_of(plan),
        state=memory_state(plan, recipe),
        table=memory_table(low.kinds, cut, low.memory),
        end=end_memory(low.ends, cut, float(plan.pp), low.memory),
        fast=fast,
        scale=case.over_form,
    )


def fit_of(peak_bytes: float, case: Case) -> int | None:
    """SURE, RISKY (the whole 80 % interval of the peak, or only the peak, fits), or None."""
    capacity = capacity_of(case.job.cluster)
    grade = fits_of(peak_bytes, capacity, case.job.stack.memory_doubt_frac)
    if grade == "yes":
        return SURE
    return RISKY if peak_bytes <= capacity else None


def fit_now(case: Case) -> int | None:
    """SURE, RISKY or None of a case as it is. Raises InputError where it is not legal."""
    return fit_of(ready(case).peak_bytes(), case)


def step_row(case: Case, x: Parameter, values: Sequence[float], fast: bool = False) -> list[float]:
    """Step seconds along a rate of the hardware: lowered once, one number changed a value."""
    at = ready(case, fast)
    if x.cluster and case.elsewhere:
        return [at.step_s()] * len(values)
    factors = np.array(values) / x.get(case)
    chips, rates = hardware_of(x.name, at.low, factors, case)
    run = compiled(steps_over) if fast else steps_over
    low = at.low
    steps = run(
        at.kinds, low.ends, at.loads, at.cut, at.state, low.device, low.net, at.strides,
        low.stack, low.memory, chips, rates,
    )  # fmt: skip
    return [float(s) * at.scale for s in steps]


def line_of(
    case: Case, x: Parameter, values: Sequence[float], objective: Objective, fast: bool = False
) -> list[At | None]:
    """The plan at each value of `x`; None where it is not legal."""
    if x.name in BATCHES:
        return _batches(case, x, values, objective, fast)
    if x.name not in RATES and x.name not in MONEY_ONLY:
        return [_alone(case, x, v, objective, fast) for v in values]
    try:
        at = ready(case, fast)
        fit = fit_of(at.peak_bytes(), case)
        if x.name in MONEY_ONLY:
            step_s = at.step_s()
            return [At(x.at(case, v).objective(objective, step_s), fit) for v in values]
        return [At(case.objective(objective, s), fit) for s in step_row(case, x, values, fast)]
    except InputError:
        return [None] * len(values)


def _batches(
    case: Case, x: Parameter, values: Sequence[float], objective: Objective, fast: bool
) -> list[At | None]:
    """Along a batch: only the number of microbatches changes."""
    out: list[At | None] = []
    base: Ready | None = None
    for value in values:
        try:
            moved = x.at(case, value)
            check_plan(moved.job, moved.plan)
        except InputError:
            out.append(None)
            continue
        base = base or ready(moved, fast)
        state = memory_state(moved.plan, moved.job.recipe)
        fit = fit_of(base.peak_bytes(state), moved)
        step_s = base.step_s(state, moved.over_form)
        out.append(At(moved.objective(objective, step_s), fit))
    return out


def _alone(case: Case, x: Parameter, value: float, objective: Objective, fast: bool) -> At | None:
    """One value by itself."""
    try:
        moved = x.at(case, value)
        at = ready(moved, fast)
    except InputError:
        return None
    return At(moved.objective(objective, at.step_s()), fit_of(at.peak_bytes(), moved))


def grid(low: float, high: float, points: int, whole: bool = False) -> tuple[float, ...]:
    """Values from `low` to `high` in equal ratios; whole ones without repetition."""
    if not (0 < low < high and math.isfinite(high)):
        raise InputError(f"range {low!r} to {high!r}: two positive numbers, the smaller first")
    values = [low * (high / low) ** (i / (points - 1)) for i in range(points)]
    values[-1] = high
    if whole:
        return tuple(sorted({float(round(v)) for v in values if round(v) >= 1}))
    return tuple(values)


def range_of(
    case: Case, over: Parameter, low: float | None, high: float | None
) -> tuple[float, float]:
    """The range asked for, or the parameter's default around the present value."""
    if low is None or high is None:
        now = over.middle(case)
        if now <= 0:
            raise InputError(f"{over.name} is {now!r} now: state the range, as --range 0.05:0.5")
        low = now * over.span[0] if low is None else low
        high = now * over.span[1] if high is None else high
    return low, high


def step_of(cases: Sequence[Case], over: Parameter) -> int:
    """Distance of the values of a whole parameter that all plans can have."""
    if over.name == "global-batch":
        return math.lcm(*(c.plan.dp * c.plan.mbs for c in cases))
    if over.name == "sequence-length":
        return math.lcm(*(2 * c.plan.cp * c.plan.tp for c in cases))
    return 1


def legal_grid(
    cases: Sequence[Case], over: Parameter, low: float, high: float, points: int
) -> tuple[float, ...]:
    """Grid values; of a whole parameter only those that all plans can have."""
    values = grid(low, high, points, over.whole)
    if not over.whole:
        return values
    step = step_of(cases, over)
    return tuple(sorted({float(max(1, round(v / step)) * step) for v in values}))


RATES = ("inter-node-bandwidth", "intra-node-bandwidth", "device-flops", "device-bandwidth")
"""Parameters that are rates of the hardware."""


def hardware_of(name: str, low: Lowered, factors: Array, case: Case) -> tuple[Array, Array]:
    """Peaks and memory bandwidth (V, 3), and bandwidth of each tier (V, T), at each factor."""
    device, net = low.device, low.net
    chips = np.tile(np.array([device.peak, device.peak_linear, device.hbm]), (len(factors), 1))
    rates = np.tile(net.bytes_per_s, (len(factors), 1))
    if name == "device-flops":
        chips[:, :2] *= factors[:, None]
    elif name == "device-bandwidth":
        chips[:, 2] *= factors
    elif name == "inter-node-bandwidth":
        rates[:, outer_tier(case) :] *= factors[:, None]
    else:
        rates[:, inner_tiers(case)] *= factors[:, None]
    return chips, rates


@kernel
def steps_over(
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
    chips: Array,
    rates: Array,
) -> Array:
    """Seconds of a step at each row of `chips` (V, 3) and `rates` (V, T), see `hardware_of`."""
    out = np.empty(len(chips))
    for i in range(len(chips)):
        there = Device(
            chips[i, 0], chips[i, 1], device.gemm_frac, device.gemm_k0, device.linear_frac,
            device.gemm_launch_s, device.memory_bytes, device.usable_bytes, chips[i, 2],
            device.hbm_frac, device.sustained, device.attention_c0, device.attention_c1,
            device.attention_w, device.sm, device.pcie, device.tdp_w,
        )  # fmt: skip
        links = Net(
            net.size, rates[i], net.latency_s, net.efficiency, net.reduction, net.ramp_s,
            net.mesh, net.oversubscription,
        )  # fmt: skip
        cost = plan_step(kinds, ends, loads, cut, state, there, links, strides, stack, memory)
        out[i] = cost.step
    return out
