"""Time entries of a stack from the measured times of one layer on a known device.

With the seconds of products, attention and the rest apart each has its own entry. With the
seconds of the two passes alone there is one unknown: the memory-bound traffic takes it, and the
products what no physical traffic can take.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from scipy.optimize import brentq

from gangsaw.cost.attention import attention_s
from gangsaw.cost.fitted import FLOOR, combined, device_family, load_fitted
from gangsaw.cost.layer import elementwise_bytes, layer_time, linear_s
from gangsaw.cost.lower import Lowered, cut_of, lower, strides_of
from gangsaw.cost.types import Cut, Kind
from gangsaw.fit.layer_saved import Times
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.stack import StackProfile

GEMM_RANGE, ATTENTION_RANGE, TRAFFIC_RANGE = (0.2, 2.0), (0.1, 3.0), (0.3, 10.0)
"""Factors outside these are not physical: the recording is of something else."""


class LayerTimes(NamedTuple):
    """Time entries that the recording tells, the words for each, and the check on both passes."""

    values: dict[str, float]
    said: dict[str, str]
    notes: tuple[str, ...]
    forward_s: float  # as the profile predicts them afterwards
    backward_s: float


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The recorded layer: which kind of the job's model, and how it was cut."""

    job: Job
    plan: Plan
    kind: int


class _At(NamedTuple):
    """Everything of the layer's time under one set of entries, seconds of both passes."""

    products_s: float
    attention_s: float
    other_s: float
    forward_s: float
    backward_s: float


def _with(stack: StackProfile, **change: float) -> StackProfile:
    return stack.model_copy(update={"time": stack.time.model_copy(update=change)})


def _parts(low: Lowered, kind: Kind, cut: Cut, plan: Plan) -> _At:
    device, stack = low.device, low.stack
    tokens = cut.mbs * cut.seq_len * kind.tokens_frac / cut.cp
    modes = (0, 1, 2) if kind.trainable_frac > 0.0 else (0, 1)
    moved = sum(elementwise_bytes(kind, cut, stack, back) for back in (False, True))
    t = layer_time(kind, cut, device, low.net, strides_of(plan), stack)
    return _At(
        products_s=sum(linear_s(kind, cut, tokens, device, mode) for mode in modes),
        attention_s=sum(attention_s(kind, cut, device, stack, back) for back in (False, True)),
        other_s=moved * stack.traffic / (device.hbm * device.hbm_frac),
        forward_s=t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd + t.host_fwd,
        backward_s=t.bwd + t.wgrad + t.tp_bwd + t.cp_bwd + t.ep_bwd + t.host_bwd,
    )


class _Timed:
    """The layer's time as a function of the stack's entries."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.stack = recorded, recorded.job.stack
        self.cut = cut_of(recorded.plan, recorded.job.recipe)

    def at(self, **change: float) -> _At:
        """Times with entries changed."""
        stack = _with(self.stack, **change)
        low = lower(self.recorded.job.model_copy(update={"stack": stack}))
        return _parts(low, low.kinds[self.recorded.kind], self.cut, self.recorded.plan)

    def solve(
        self, entry: str, span: tuple[float, float], seconds: Callable[[_At], float], wanted: float
    ) -> tuple[float, bool]:
        """Value of `entry` within `span` (log-bisected), and whether `wanted` was reached."""

        def miss(log: float) -> float:
            return math.log(seconds(self.at(**{entry: math.exp(log)})) / wanted)

        low, high = (math.log(v) for v in span)
        ends = miss(low), miss(high)
        if ends[0] * ends[1] > 0.0:
            value = math.exp(low if abs(ends[0]) < abs(ends[1]) else high)
            reached = False
        else:
            value, reached = math.exp(brentq(miss, low, high, xtol=1e-6)), True
        self.stack = _with(self.stack, **{entry: value})
        return value, reached


def solve_times(recorded: Recorded, times: Times) -> LayerTimes:
    """Time entries with which the program predicts the recorded layer, as far as it tells them."""
    timed = _Timed(recorded)
    values: dict[str, float] = {}
    said: dict[str, str] = {}
    notes: list[str] = []
    if times.host_s > 0.0:
        # Entries stand in front of the fitted factors.
        name = device_family(recorded.job.cluster.device.name)
        factor = math.exp(combined(load_fitted(), name, timed.stack.rules)[FLOOR])
        values["launch_floor_layer_s"] = times.host_s / factor
        said["launch_floor_layer_s"] = f"host {1e6 * times.host_s:.0f} us a forward pass"
        timed.stack = _with(timed.stack, launch_floor_layer_s=times.host_s / factor)
    both = times.forward_s + times.backward_s
    apart = (
        ("gemm_factor", GEMM_RANGE, times.products_s, "matrix products", lambda a: a.products_s),
        (
            "attention_factor", ATTENTION_RANGE, times.attention_s, "attention",
            lambda a: a.attention_s,
        ),
        ("traffic_factor", TRAFFIC_RANGE, times.other_s, "all else", lambda a: a.other_s),
    )  # fmt: skip
    if times.products_s > 0.0 and times.other_s > 0.0:
        todo = [step for step in apart if step[2] > 0.0]
    elif both > 0.0:
        whole = lambda a: a.forward_s + a.backward_s  # noqa: E731
        todo = [
            ("traffic_factor", TRAFFIC_RANGE, both, "forward and backward", whole),
            ("gemm_factor", GEMM_RANGE, both, "forward and backward", whole),
        ]
    else:
        todo = []
    for entry, span, seconds, what, part in todo:
        value, reached = timed.solve(entry, span, part, seconds)
        values[entry], said[entry] = value, f"{what} {1e3 * seconds:.4g} ms"
        if reached and both == seconds:
            break
        if not reached:
            notes.append(
                f"{what} of {1e3 * seconds:.4g} ms would need {entry} beyond {span[0]:g} to"
                f" {span[1]:g}: set to {value:.3g}; is the layer's device the cluster's?"
            )
    after = timed.at()
    return LayerTimes(values, said, tuple(notes), after.forward_s, after.backward_s)
