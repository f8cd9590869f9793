"""Where nothing fits or meets the goals: the plans that come nearest, and what each lacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gangsaw.search.estimate import plan_doc
from gangsaw.search.ranking import finish, short_list
from gangsaw.search.search import laid_out
from gangsaw.search.space import (
    Limits,
    Searched,
    capacity_bytes,
    narrower,
    search_all,
    stack_breadth,
    sure_bytes,
    with_devices,
)
from gangsaw.spec.job import Job

Miss = dict[str, object]


def _miss(searched: Searched, place: int, limits: Limits, lacks: str, remedy: str) -> Miss:
    ev = finish(searched, place)
    peak = float(searched.found.peak[place])
    capacity = capacity_bytes(searched.job, limits.headroom_frac)
    return {
        "plan": plan_doc(ev.plan, ev.counts).model_dump(mode="json"),
        "devices": searched.job.cluster.devices,
        "step_time_s": ev.cost.step,
        "peak_bytes": peak,
        "capacity_bytes": capacity,
        "lacks": lacks,
        "remedy": remedy,
    }


def smallest(searched: Searched, limits: Limits) -> Miss | None:
    """The plan that holds least, and the memory that it lacks."""
    if not len(searched.found.peak):
        return None
    place = int(np.argmin(searched.found.peak))
    short = float(searched.found.peak[place])
    short -= capacity_bytes(searched.job, limits.headroom_frac)
    lacks = f"{max(short, 0.0) / 2**30:.1f} GiB of device memory"
    return _miss(searched, place, limits, lacks, "a device with more memory")


def with_offload(job: Job, limits: Limits) -> Miss | None:
    """The fastest plan that fits with the optimizer (and activations) on the host."""
    breadth = replace(
        narrower(stack_breadth(job.stack.rules)), offload=((0.0, 1.0), (0.0, 1.0)), slack=np.inf
    )
    fixed = {k: v for k, v in limits.fixed.items() if not k.startswith("offload")}
    found = search_all(job, fixed, breadth, limits.headroom_frac)
    return _fastest_fit(found, limits, "host memory in use", "offload to host")


KEPT_FRAC = 0.1
"""Least share of a peak that stays on the device when all that can be offloaded is: weights and
gradients are more than a tenth of a training state."""
SPREAD = 1.5
"""Room for a plan on more devices that divides its memory better than the best on fewer does."""


def fullness(searched: Searched, limits: Limits) -> float:
    """The smallest peak over the capacity; 0 where nothing was evaluated."""
    peak = searched.found.peak
    if not len(peak):
        return 0.0
    return float(peak.min()) / capacity_bytes(searched.job, limits.headroom_frac)


def with_more_devices(job: Job, limits: Limits, full: float = 0.0) -> Miss | None:
    """The smallest doubling of the devices on which something fits.

    `full`: the smallest peak on the devices there are, over the capacity. Doublings that could
    not bring it down far enough are not searched, since a search without a fit prunes nothing.
    """
    fixed = {k: v for k, v in limits.fixed.items() if k not in ("dp", "num_microbatches")}
    for times in (2, 4, 8, 16, 32):
        if full > SPREAD * times:
            continue
        more = with_devices(job, times * job.cluster.devices)
        breadth = narrower(stack_breadth(job.stack.rules))
        found = search_all(more, fixed, breadth, limits.headroom_frac)
        need = (times - 1) * job.cluster.devices
        miss = _fastest_fit(found, limits, f"{need} devices", f"{more.cluster.devices} devices")
        if miss is not None:
            return miss
    return None


def _fastest_fit(searched: Searched, limits: Limits, lacks: str, remedy: str) -> Miss | None:
    capacity = capacity_bytes(searched.job, limits.headroom_frac)
    for limit in (sure_bytes(capacity, searched.job.stack.memory_doubt_frac), capacity):
        places = np.flatnonzero(searched.found.peak <= limit)
        if len(places):
            place = int(places[np.argmin(searched.found.step_s[places])])
            return _miss(searched, place, limits, lacks, remedy)
    return None


def missed_goal(searched: Searched, limits: Limits) -> Miss | None:
    """The fastest plan that fits, where only deadline or budget are missed."""
    listed = short_list(searched, capacity_bytes(searched.job, limits.headroom_frac), limits.top)
    tokens = searched.job.recipe.tokens
    if not listed or tokens is None:
        return None
    all_laid = [(laid_out(searched, finish(searched, m.index))[0], m.index) for m in listed]
    ev, place = min(all_laid, key=lambda found: found[0].cost.step)
    miss = _miss(searched, place, limits, "", "")
    miss["plan"] = plan_doc(ev.plan, ev.counts).model_dump(mode="json")
    miss["step_time_s"] = ev.cost.step
    steps = np.ceil(tokens / searched.job.recipe.tokens_per_step)
    run_s = float(str(miss["step_time_s"])) * float(steps)
    usd = run_s / 3600 * searched.job.cluster.devices * searched.job.cluster.usd_per_device_hour
    said = []
    if limits.deadline_s is not None and run_s > limits.deadline_s:
        said.append(f"{(run_s - limits.deadline_s) / 86400:.1f} days")
    if limits.budget_usd is not None and usd > limits.budget_usd:
        said.append(f"{usd - limits.budget_usd:,.0f} USD")
    if not said:
        return None
    miss["run_s"], miss["usd"] = run_s, usd
    miss["lacks"] = " and ".join(said)
    miss["remedy"] = "a later deadline or a larger budget"
    return miss


def nearest_misses(job: Job, limits: Limits, parts: list[Searched]) -> list[Miss]:
    """What comes nearest, cheapest remedy first."""
    goal = [m for m in (missed_goal(s, limits) for s in parts) if m is not None]
    if goal:
        return sorted(goal, key=lambda m: float(str(m["step_time_s"])))[:3]
    full = min((fullness(s, limits) for s in parts), default=0.0)
    found = [with_offload(job, limits)] if full * KEPT_FRAC <= 1.0 else []
    found.append(with_more_devices(job, limits, full))
    found += [smallest(s, limits) for s in parts[:1]]
    return [m for m in found if m is not None]
