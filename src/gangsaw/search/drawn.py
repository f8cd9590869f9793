"""What `timeline` draws: a plan's pipeline, and the same plan cut another way under it."""

from __future__ import annotations

from dataclasses import dataclass

from gangsaw.cost.layout import default_counts
from gangsaw.cost.memory_doc import capacity_of
from gangsaw.errors import InputError
from gangsaw.schedule import INFOS, Schedule, canonical
from gangsaw.search.estimate import Evaluated, evaluate
from gangsaw.search.refine import devices_saved, refined
from gangsaw.search.space import sure_bytes
from gangsaw.search.timeline import plan_schedule, timeline_of
from gangsaw.simulate import Timeline
from gangsaw.simulate.document import Compared
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

EVEN, BALANCED = "even", "balanced"
"""Instead of a second schedule: the same one with equal layer counts, or with the layers laid out
by the simulated step."""


@dataclass(frozen=True)
class Drawn:
    """One pipeline to draw, and the step that it is part of. `stages`: how they are laid out."""

    ev: Evaluated
    schedule: Schedule
    timeline: Timeline
    stages: str = ""


def drawings(job: Job, plan: Plan, against: str | None = None) -> list[Drawn]:
    """The pipeline of a plan, and of the same plan with another schedule or other stages.

    A second schedule keeps the plan's chunks where its rules allow, else it has its own number of
    them and even stages. Raises InputError where something is not legal for the plan.
    """
    if against is None:
        return [_drawn(evaluate(job, plan))]
    if against not in (EVEN, BALANCED):
        return [_drawn(evaluate(job, each)) for each in (plan, _with_schedule(plan, against))]
    first = evaluate(job, plan)
    even = default_counts(job.model.layers, plan.pp * plan.vpp)
    if against == EVEN and first.counts == even:
        raise InputError(
            "--against even: the plan's stages are even already. Legal: --against balanced, a"
            " schedule, or a plan with --stages"
        )
    counts = even if against == EVEN else _laid_out(first)
    second = first
    if counts != first.counts:
        second = evaluate(job, plan.model_copy(update={"stages": counts}), first.low)
    said = "even stages" if first.counts == even else "stages as stated"
    return [_drawn(first, said), _drawn(second, f"{against} stages")]


def compared(found: list[Drawn], names: list[str]) -> tuple[Compared, ...]:
    """The steps of drawings: seconds, idle share, devices for the rate of the fastest."""
    least = min(each.ev.cost.step for each in found)
    return tuple(
        Compared(
            name=name, stages=each.ev.counts, step_time_s=each.ev.cost.step,
            pipeline_s=each.timeline.makespan_s, idle_frac=each.timeline.bubble_frac,
            more_devices=devices_saved(each.ev.cost.step, least, each.ev.plan.devices),
        )
        for each, name in zip(found, names, strict=True)
    )  # fmt: skip


def _drawn(ev: Evaluated, stages: str = "") -> Drawn:
    schedule = plan_schedule(ev)
    return Drawn(ev, schedule, timeline_of(ev, schedule), stages)


def _laid_out(ev: Evaluated) -> tuple[int, ...]:
    """The stages that `plan` would list this plan with."""
    job = ev.job
    room = sure_bytes(capacity_of(job.cluster), job.stack.memory_doubt_frac)
    found = refined(ev, room)
    if found is None:
        raise InputError(
            f"--against balanced: pp={ev.plan.pp} with schedule {ev.plan.schedule} has no stages"
            " to lay out. Legal: a schedule, or pp above 1 with a schedule of a fixed order"
        )
    return found.counts


def _with_schedule(plan: Plan, name: str) -> Plan:
    try:
        known = canonical(name)
    except InputError as fault:
        raise InputError(f"{fault}; with --against also {EVEN}, {BALANCED}") from None
    info = INFOS.get(known)
    chunks = plan.vpp
    if info is not None and info.fixed_chunks:
        chunks = info.fixed_chunks
    changed: dict[str, object] = {"schedule": known, "vpp": chunks}
    if chunks != plan.vpp:
        changed["stages"] = None
    return plan.model_copy(update=changed)
