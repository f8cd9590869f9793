"""The whole search: evaluate all legal plans, keep to the limits, list the best."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gangsaw.cost.legal import check_schedule, check_shapes
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated, evaluate, plan_result, recompute_text
from gangsaw.search.merging import alone, merged, with_chances
from gangsaw.search.outlook import CANDIDATES, by_goal, with_outlook
from gangsaw.search.probability import chances_of
from gangsaw.search.ranking import (
    Mask,
    Merit,
    finish,
    fitting,
    pareto_places,
    risky_faster,
    short_list,
    whys,
    words_of,
)
from gangsaw.search.refine import refined
from gangsaw.search.space import (
    DOMINATED,
    Breadth,
    Limits,
    Searched,
    capacity_bytes,
    device_counts,
    exhaustive,
    legal_plans,
    narrower,
    search_all,
    stack_breadth,
    with_devices,
)
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.result import Goal, LayoutDoc, PlanListResult, PlanResult, SearchedDoc
from gangsaw.units import HOUR_S

Place = tuple[Searched, int]

NEAR = 1.2
"""By how much a step of the search may be longer than the one that is listed."""


@dataclass(frozen=True)
class Ranked:
    """One device count searched, and its short list."""

    searched: Searched
    merits: list[Merit]


def breadth_of(job: Job, limits: Limits) -> Breadth:
    """How far the inner loops go, from the stack and from what the user fixed."""
    breadth = stack_breadth(job.stack.rules)
    offload = tuple(
        (float(str(limits.fixed.get(f"offload_{what}", 0.0))),)
        for what in ("optimizer", "activations")
    )
    breadth = replace(breadth, offload=(offload[0], offload[1]))
    if limits.exhaustive:
        return exhaustive(breadth)
    return narrower(breadth) if limits.fewer_devices else breadth


def run_mask(searched: Searched, limits: Limits) -> Mask:
    """Plans that may keep to deadline and budget once their stages are laid out (`keeps`)."""
    job, step = searched.job, searched.found.step_s
    mask = np.ones(len(step), dtype=bool)
    tokens = job.recipe.tokens
    if tokens is None:
        return mask
    steps = np.ceil(tokens / job.recipe.tokens_per_step)
    if limits.deadline_s is not None:
        mask &= step * steps <= NEAR * limits.deadline_s
    if limits.budget_usd is not None:
        hours = step.astype(np.float64) * steps * job.cluster.devices / 3600.0
        mask &= hours * job.cluster.usd_per_device_hour <= NEAR * limits.budget_usd
    return mask


def keeps(ev: Evaluated, limits: Limits) -> bool:
    """Whether a plan keeps to deadline and budget by its own step; the search's is closed form."""
    tokens, cluster = ev.job.recipe.tokens, ev.job.cluster
    if tokens is None:
        return True
    run_s = ev.cost.step * math.ceil(tokens / ev.job.recipe.tokens_per_step)
    usd = run_s * cluster.devices / HOUR_S * cluster.usd_per_device_hour
    late = limits.deadline_s is not None and run_s > limits.deadline_s
    return not late and (limits.budget_usd is None or usd <= limits.budget_usd)


def only(searched: Searched, mask: Mask) -> Searched:
    """The search with only the plans of a mask."""
    if mask.all():
        return searched
    found = searched.found
    kept = found._replace(
        codes=found.codes[mask], owner=found.owner[mask], step_s=found.step_s[mask],
        peak=found.peak[mask],
    )  # fmt: skip
    return replace(searched, found=kept)


def check_fixed_legal(job: Job, limits: Limits) -> None:
    """Raise InputError where what the user fixed cannot be legal on its own."""
    known = {k: v for k, v in limits.fixed.items() if k in Plan.model_fields}
    try:
        plan = Plan.model_validate(known)
    except ValueError:
        return
    check_shapes(job.model, plan, job.recipe.seq_len)
    if "pp" in known and "num_microbatches" in known:
        check_schedule(job.model, plan, job.stack.rules)


def search_counts(job: Job, limits: Limits, breadth: Breadth) -> Iterator[Searched]:
    """Search every device count that the limits allow."""
    for devices in device_counts(job, limits):
        part = with_devices(job, devices)
        if job.recipe.global_batch and devices:
            yield search_all(part, limits.fixed, breadth, limits.headroom_frac)


def rank(parts: list[Searched], limits: Limits) -> list[Ranked]:
    """Short lists of all device counts, keeping to the goals."""
    out = []
    for searched in parts:
        inside = only(searched, run_mask(searched, limits))
        capacity = capacity_bytes(searched.job, limits.headroom_frac)
        merits = short_list(inside, capacity, limits.top)
        if merits:
            out.append(Ranked(inside, merits))
    return out


Row = tuple[Evaluated, tuple[str, ...], PlanResult]


def laid_out(searched: Searched, ev: Evaluated) -> tuple[Evaluated, LayoutDoc | None]:
    """The plan with the stages of its fastest simulated step, each rank within its memory."""
    if len(searched.space.stages):
        return ev, None
    found = refined(ev, searched.rooms[1])
    if found is None:
        return ev, None
    if found.counts != ev.counts:
        ev = evaluate(ev.job, ev.plan.model_copy(update={"stages": found.counts}), ev.low)
    return ev, LayoutDoc(
        even_step_time_s=found.even_s, devices_saved=found.devices_saved, proved=found.proved,
        gap_frac=found.gap_frac, settled=found.settled,
    )  # fmt: skip


def finished(ranked: list[Ranked], limits: Limits) -> list[Row]:
    """Results of all listed plans of all device counts, fastest first."""
    rows: list[Row] = []
    for part in ranked:
        mine: list[Row] = []
        for merit in part.merits:
            ev, stages = laid_out(part.searched, finish(part.searched, merit.index))
            result = plan_result(ev).model_copy(update={"layout": stages})
            mine.append((ev, merit.labels, result))
        rows += fastest_named([row for row in mine if keeps(row[0], limits)])
    rows.sort(key=lambda r: (r[2].step_time_s, r[2].memory.peak_bytes))
    if not rows:
        return []
    cheap = min(rows, key=lambda r: r[2].bill.usd_per_million_tokens)
    if cheap[2].bill.usd <= 0.0:
        return rows
    return [(e, (*la, "cheapest") if r is cheap[2] else la, r) for e, la, r in rows]


def fastest_named(rows: list[Row]) -> list[Row]:
    """The rows with the label of the fastest where the least reported time is.

    The search ranks by the physical part of the prediction; what a site's steps say beyond it, and
    stages laid out once more, may change the order of what it found.
    """
    least = min(rows, key=lambda r: (r[2].step_time_s, r[2].memory.peak_bytes), default=None)
    if least is None or "fastest" in least[1]:
        return rows
    cleared = [(e, tuple(x for x in la if x != "fastest"), r) for e, la, r in rows]
    return [(e, ("fastest", *la) if r is least[2] else la, r) for e, la, r in cleared]


def trimmed(rows: list[Row], ranked: list[Ranked], top: int) -> list[Row]:
    """The list with each merit named once over all device counts, at most `top` and the merits."""
    if len(ranked) > 1:
        seen: set[str] = set()
        named = []
        for ev, labels, result in rows:
            fresh = tuple(x for x in labels if x not in seen)
            seen.update(fresh)
            named.append((ev, fresh, result))
        rows = named
    best = rows[:top]
    return best + [r for r in rows[top:] if r[1]]


def search(job: Job, limits: Limits, goal: Goal = "time") -> PlanListResult:
    """Plans of a job, ranked by a goal; where nothing fits `plans` is empty and `nearest` says
    what lacks."""
    began = time.perf_counter()
    check_fixed_legal(job, limits)
    breadth = breadth_of(job, limits)
    parts = list(search_counts(job, limits, breadth))
    wide = limits if goal == "time" else replace(limits, top=max(limits.top, CANDIDATES))
    ranked = rank(parts, wide)
    evaluated, fit = sum(s.evaluated for s in parts), sum(s.fit for s in parts)
    legal = sum(legal_plans(s.job, limits.fixed, breadth) for s in parts)
    if legal == 0:
        raise InputError(no_legal(job, limits))
    rows = trimmed(by_goal(finished(ranked, limits), goal), ranked, limits.top) if ranked else []
    listed = [r[0] for r in rows]
    chances = chances_of(listed)
    groups = merged(rows, chances) if goal == "time" else alone(rows)
    kept = [rows[group.row] for group in groups]
    plans = with_chances(whys(kept), rows, groups, chances)
    plans, changes = with_outlook(plans, [r[0] for r in kept], goal)
    from gangsaw.search.nearest import nearest_misses

    nearest = () if plans else nearest_misses(job, limits, parts)
    pareto = [plan_result(finish(s, i)) for s, i in pareto_front(ranked, limits)]
    return PlanListResult(
        model=job.model.name,
        cluster=f"{job.cluster.name}:{job.cluster.devices}",
        recipe=job.recipe.model_dump(mode="json"),
        stack=job.stack.name,
        searched=SearchedDoc(
            plans=evaluated, legal=legal, fit=fit, wall_s=time.perf_counter() - began
        ),
        plans=tuple(plans),
        pareto=tuple(pareto),
        nearest=tuple(nearest),
        notes=(
            *(risky_note(ranked, limits, min(p.step_time_s for p in plans)) if plans else ()),
            *changes,
            *search_notes(job, breadth, limits),
        ),
    )


def pareto_front(ranked: list[Ranked], limits: Limits, most: int = 8) -> list[Place]:
    """Plans that no other beats in time, memory and devices at once, fastest first."""
    rows = []
    for part in ranked:
        s = part.searched
        sure, maybe = fitting(s, capacity_bytes(s.job, limits.headroom_frac))
        for place in pareto_places(s, sure if sure.any() else maybe):
            key = float(s.found.step_s[place]), float(s.found.peak[place]), s.job.cluster.devices
            rows.append((key, (s, place)))
    rows.sort(key=lambda r: r[0])
    front: list[tuple[tuple[float, float, int], Place]] = []
    for key, at in rows:
        if not any(k[1] <= key[1] and k[2] <= key[2] for k, _ in front):
            front.append((key, at))
    step = max(1, -(-len(front) // most))
    return [at for _, at in front[::step]]


def no_legal(job: Job, limits: Limits) -> str:
    """Why there is no legal plan at all, in one line."""
    fixed = " ".join(f"{k}={v}" for k, v in limits.fixed.items()) or "nothing fixed"
    return (
        f"no legal plan: tp x cp x pp x dp = {job.cluster.devices} devices with dp x mbs x"
        f" num_microbatches = {job.recipe.global_batch} sequences has no solution for"
        f" {job.model.name} ({fixed}); choose a global batch that more degrees divide"
    )


def risky_note(ranked: list[Ranked], limits: Limits, fastest_s: float) -> tuple[str, ...]:
    """A line on a faster plan whose memory only may fit, where there is one."""
    if not ranked:
        return ()
    first = ranked[0].searched
    place = risky_faster(first, capacity_bytes(first.job, limits.headroom_frac), fastest_s)
    if place is None:
        return ()
    plan = first.plan_at(place)
    gain = 100 * (fastest_s / finish(first, place).cost.step - 1.0)
    if gain <= 0.0:
        return ()
    return (
        f"{gain:.1f} % faster if it fits, which is not sure: {words_of(plan)} mbs {plan.mbs}"
        f" {plan.schedule} vpp {plan.vpp} recompute {recompute_text(plan)} zero {plan.zero}, peak"
        f" {float(first.found.peak[place]) / 2**30:.1f} GiB",
    )


def search_notes(job: Job, breadth: Breadth, limits: Limits) -> tuple[str, ...]:
    """What was searched and what was not."""
    fixed = limits.fixed.get("schedule")
    names = breadth.schedules if fixed is None else (str(fixed),)
    notes = [f"schedules searched: {', '.join(names)}"]
    passed = [n for n in breadth.schedules if DOMINATED.get(n) in breadth.schedules]
    if passed and not limits.exhaustive and "schedule" not in limits.fixed:
        instead = DOMINATED[passed[0]]
        notes.append(f"{passed[0]} takes as long as {instead} and holds no less: not evaluated")
    if not limits.exhaustive:
        notes.append(
            f"plans that cannot fit or come within {breadth.slack:g} x the fastest are passed over"
            " unevaluated; --exhaustive evaluates them too"
        )
    if job.recipe.task == "qlora":
        notes.append("unpacking the 4-bit weights is not in the time; expect it to be slower")
    if job.cluster.usd_per_device_hour <= 0.0:
        notes.append(f"no price is known for {job.cluster.name}: state one with --prices FILE")
    if job.stack.name == "unknown":
        notes.append("no --stack: a mixture of all software generations, hence wide intervals")
    return tuple(notes)
