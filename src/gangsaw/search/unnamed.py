"""The step time of a plan under each software generation that an unnamed stack may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.mixture import members
from gangsaw.cost.types import Array
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.stack import StackProfile

if TYPE_CHECKING:
    from gangsaw.search.estimate import Evaluated

UNNAMED = "unknown"


class Members(NamedTuple):
    """Profiles that a stack may be: names, weights (K,), log of the step over the plan's own (K,).

    One member of offset 0 where the stack is named.
    """

    names: tuple[str, ...]
    weights: Array
    offsets: Array


NAMED = Members(("",), np.ones(1), np.zeros(1))
_lowered: dict[int, tuple[Lowered, tuple[tuple[str, float, Lowered], ...]]] = {}
"""Members of jobs asked for lately, by the identity of the job's own numbers (kept beside)."""
MOST = 8


@lru_cache(maxsize=64)
def _profile(name: str) -> StackProfile:
    return load_stack(name)


def _members(job: Job, low: Lowered) -> tuple[tuple[str, float, Lowered], ...]:
    key = id(low)
    if key not in _lowered:
        named = members(job.cluster.device.name, job.recipe.precision == "fp8", list_stacks())
        made = tuple(
            (name, weight, lower(job.model_copy(update={"stack": _profile(name)})))
            for name, weight in named
        )
        if len(_lowered) >= MOST:
            _lowered.clear()
        _lowered[key] = (low, made)
    return _lowered[key][1]


def steps_under(
    job: Job, plan: Plan, counts: tuple[int, ...], lows: Sequence[Lowered]
) -> list[float]:
    """Seconds of a step of a plan under the numbers of each profile."""
    loads, cut = loads_of(job.model, plan, counts), cut_of(plan, job.recipe)
    state, strides = memory_state(plan, job.recipe), strides_of(plan)
    return [
        plan_step(
            low.kinds, low.ends, loads, cut, state, low.device, low.net, strides, low.stack,
            low.memory,
        ).step
        for low in lows
    ]  # fmt: skip


_found: dict[tuple[int, Plan, tuple[int, ...]], tuple[Lowered, Members]] = {}
"""Members of plans asked for lately: an interval and a comparison want the same ones."""
MOST_PLANS = 256


def members_of(ev: Evaluated) -> Members:
    """The plan's step under every profile that its stack may be, against its own prediction."""
    if ev.job.stack.name != UNNAMED:
        return NAMED
    key = (id(ev.low), ev.plan, ev.counts)
    if key in _found:
        return _found[key][1]
    known = _members(ev.job, ev.low)
    own, *others = steps_under(ev.job, ev.plan, ev.counts, [ev.low, *(low for *_, low in known)])
    made = Members(
        tuple(name for name, _, _ in known),
        np.array([weight for _, weight, _ in known]),
        np.array([math.log(step / own) for step in others]),
    )
    if len(_found) >= MOST_PLANS:
        _found.clear()
    _found[key] = (ev.low, made)
    return made


def members_note(step_s: float, found: Members) -> str:
    """In one line how far the software decides: the fastest and the slowest profile."""
    low, high = int(found.offsets.argmin()), int(found.offsets.argmax())
    return (
        f"no stack named: a mixture of {len(found.names)} software generations, from"
        f" {step_s * math.exp(found.offsets[low]):.3g} s as {found.names[low]} to"
        f" {step_s * math.exp(found.offsets[high]):.3g} s as {found.names[high]}"
    )
