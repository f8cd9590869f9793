"""The step time of a plan under each software generation that an unnamed stack may be."""

from __future__ import annotations

import math
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


def step_under(job: Job, plan: Plan, counts: tuple[int, ...], low: Lowered) -> float:
    """Seconds of a step of a plan under some profile's numbers."""
    return plan_step(
        low.kinds, low.ends, loads_of(job.model, plan, counts), cut_of(plan, job.recipe),
        memory_state(plan, job.recipe), low.device, low.net, strides_of(plan), low.stack,
        low.memory,
    ).step  # fmt: skip


def members_of(ev: Evaluated) -> Members:
    """The plan's step under every profile that its stack may be, against its own prediction."""
    if ev.job.stack.name != UNNAMED:
        return NAMED
    own = math.log(step_under(ev.job, ev.plan, ev.counts, ev.low))
    found = _members(ev.job, ev.low)
    offsets = [math.log(step_under(ev.job, ev.plan, ev.counts, low)) - own for _, _, low in found]
    return Members(
        tuple(name for name, _, _ in found), np.array([w for _, w, _ in found]), np.array(offsets)
    )


def members_note(step_s: float, found: Members) -> str:
    """In one line how far the software decides: the fastest and the slowest profile."""
    low, high = int(found.offsets.argmin()), int(found.offsets.argmax())
    return (
        f"no stack named: a mixture of {len(found.names)} software generations, from"
        f" {step_s * math.exp(found.offsets[low]):.3g} s as {found.names[low]} to"
        f" {step_s * math.exp(found.offsets[high]):.3g} s as {found.names[high]}"
    )
