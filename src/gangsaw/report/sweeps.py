"""The sweeps of a report: the chosen plan over microbatch counts, the best plans over bandwidth.

Each point is a whole estimate of a whole plan; the function that estimates comes in as an
argument, so that the sweeps themselves can be tested on a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gangsaw.errors import InputError
from gangsaw.report.series import (
    BandwidthSweep,
    Crossing,
    MicrobatchPoint,
    MicrobatchSweep,
    PlanCurve,
    ReportSweeps,
    crossings,
    log_space,
)
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.result import MemoryDoc, PlanDoc, PlanResult

MOST_POINTS = 8
BANDWIDTH_POINTS = 9
BANDWIDTH_SPAN = 8.0
"""The sweep reaches from 1/8 of the present bandwidth to 8 times it."""
RIVALS = 3


class Point(Protocol):
    """What a sweep reads of an estimate."""

    @property
    def step_time_s(self) -> float:
        """Step time."""
        ...

    @property
    def memory(self) -> MemoryDoc:
        """Memory of all stages."""
        ...


Evaluate = Callable[[Job, Plan], Point]


def plan_of(doc: PlanDoc) -> Plan:
    """The Plan that a result describes."""
    fields = doc.model_dump()
    kind, _, layers = doc.recompute.partition(":")
    fields |= {"recompute": kind, "recompute_layers": int(layers or 0)}
    return Plan.model_validate(fields)


def report_sweeps(
    job: Job, chosen: PlanResult, plans: Sequence[PlanResult], evaluate: Evaluate
) -> ReportSweeps:
    """Both sweeps of the chosen plan; its rivals are the first other cuts of `plans`."""
    return ReportSweeps(
        microbatches=microbatch_sweep(job, chosen, evaluate),
        bandwidth=bandwidth_sweep(job, [chosen, *plans], evaluate),
    )


def microbatch_sweep(job: Job, chosen: PlanResult, evaluate: Evaluate) -> MicrobatchSweep | None:
    """The same cut and batch in other microbatches; None where there is but one way."""
    plan = plan_of(chosen.plan)
    share = job.recipe.global_batch // plan.dp
    counts = [m for m in range(1, share + 1) if share % m == 0]
    at = counts.index(plan.num_microbatches)
    # Neighbours of the chosen count matter most: drop from the far ends first.
    while len(counts) > MOST_POINTS:
        drop = 0 if at > len(counts) // 2 else len(counts) - 1
        counts.pop(drop)
        at -= drop == 0
    points = []
    for count in counts:
        changed = plan.model_copy(update={"num_microbatches": count, "mbs": share // count})
        try:
            found = evaluate(job, changed)
        except InputError:
            continue  # not legal with this schedule and stack: no point there
        points.append(
            MicrobatchPoint(
                num_microbatches=count,
                mbs=share // count,
                step_time_s=found.step_time_s,
                peak_bytes=found.memory.peak_bytes,
                fits=found.memory.fits,
            )
        )
    if len(points) < 2:
        return None
    return MicrobatchSweep(tuple(points), plan.num_microbatches, chosen.memory.capacity_bytes)


def bandwidth_sweep(
    job: Job, plans: Sequence[PlanResult], evaluate: Evaluate
) -> BandwidthSweep | None:
    """Step time of the first plan and up to three rivals; None within one fast domain."""
    tiers = job.cluster.tiers
    if len(tiers) < 2:
        return None
    now = tiers[1].bytes_per_s / tiers[1].oversubscription
    xs = log_space(now / BANDWIDTH_SPAN, now * BANDWIDTH_SPAN, BANDWIDTH_POINTS)
    curves = []
    for number, result in _rivals(plans):
        plan = plan_of(result.plan)
        times = tuple(evaluate(_with_bandwidth(job, x / now), plan).step_time_s for x in xs)
        curves.append(PlanCurve(f"plan {number}: {_cut(result.plan)}", times))
    found: list[Crossing] = []
    for other in curves[1:]:
        found += crossings(xs, curves[0], other)
    return BandwidthSweep(
        tier=tiers[1].name,
        bytes_per_s=xs,
        now_bytes_per_s=now,
        curves=tuple(curves),
        crossings=tuple(found),
    )


def _cut(plan: PlanDoc) -> str:
    """The degrees that tell plans apart, as short as a legend needs."""
    parts = [f"TP {plan.tp}", f"PP {plan.pp}" + (f"x{plan.vpp}" if plan.vpp > 1 else "")]
    if plan.cp > 1:
        parts.insert(1, f"CP {plan.cp}")
    if plan.ep > 1:
        parts.append(f"EP {plan.ep}")
    return " ".join([*parts, f"DP {plan.dp}"])


def _rivals(plans: Sequence[PlanResult]) -> list[tuple[int, PlanResult]]:
    """The first plan and the next ones that cut the job differently, with their rank."""
    kept: list[tuple[int, PlanResult]] = []
    seen = set()
    for i, result in enumerate(plans):
        plan = result.plan
        key = (plan.tp, plan.cp, plan.pp, plan.vpp, plan.dp, plan.ep)
        if key not in seen and len(kept) <= RIVALS:
            seen.add(key)
            # The chosen plan comes first and again as number 1 of the list.
            kept.append((max(1, i), result))
    return kept


def _with_bandwidth(job: Job, factor: float) -> Job:
    """The job on a cluster whose links outside the innermost domain are `factor` as fast."""
    inner, *outer = job.cluster.tiers
    changed = [t.model_copy(update={"bytes_per_s": t.bytes_per_s * factor}) for t in outer]
    cluster: ClusterSpec = job.cluster.model_copy(update={"tiers": (inner, *changed)})
    return job.model_copy(update={"cluster": cluster})
