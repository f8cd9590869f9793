"""Where the device-seconds of a step go: from an estimate or from a timeline."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gangsaw.bill.invoice import close_exactly
from gangsaw.errors import InputError
from gangsaw.simulate.timeline import COMPUTE, Timeline
from gangsaw.spec.invoice import ALL_STAGES, NO_TIER, StepUse, Use
from gangsaw.spec.result import CAUSES, EstimateResult, PlanResult

COMM_AXIS = {
    "tp_comm": "tp",
    "cp_comm": "cp",
    "ep_comm": "ep",
    "pp_comm": "pp",
    "dp_comm": "dp",
}
"""Axis whose collectives a cause of the bill belongs to."""


def tier_shares(result: PlanResult, cause: str) -> dict[str, float]:
    """Share of a communication cause by the tier that its collectives cross.

    Shares follow the exposed seconds of the estimate's collectives of that axis; where none is
    exposed, all of it stands on the device line.
    """
    axis = COMM_AXIS.get(cause)
    if axis is None or not isinstance(result, EstimateResult):
        return {NO_TIER: 1.0}
    seconds: dict[str, float] = {}
    for collective in result.collectives:
        if collective.axis == axis and collective.exposed_s_per_step > 0:
            seconds[collective.tier] = (
                seconds.get(collective.tier, 0.0) + collective.exposed_s_per_step
            )
    total = math.fsum(seconds.values())
    return {tier: s / total for tier, s in seconds.items()} if total > 0 else {NO_TIER: 1.0}


def use_of_plan(result: PlanResult, tokens_per_step: int, title: str = "") -> StepUse:
    """The use of one step of a plan: its bill's lines, communication split by tier.

    An estimate knows the average device, so the stage is 'all'; a timeline knows each rank.
    """
    devices = round(result.bill.device_s / result.step_time_s)
    lines = []
    for line in result.bill.lines:
        shares = tier_shares(result, line.cause)
        parts = close_exactly([line.device_s * s for s in shares.values()], line.device_s)
        lines += [
            Use(cause=line.cause, device_s=part, stage=ALL_STAGES, tier=tier)
            for tier, part in zip(shares, parts, strict=True)
        ]
    return StepUse(
        title=title or plan_words(result),
        devices=devices,
        step_time_s=result.step_time_s,
        tokens_per_step=tokens_per_step,
        lines=tuple(lines),
    )


def use_of_ranks(
    title: str,
    rank_cause_s: Iterable[tuple[str, str, float]],
    devices_per_rank: int,
    step_time_s: float,
    tokens_per_step: int,
    source: str = "simulation",
) -> StepUse:
    """The use of one step from a timeline: (pipeline rank, cause, seconds) of each row.

    Every row stands for `devices_per_rank` devices (its tensor, context and data group). Time of
    a row that no cause claims is bubble: the row waits. Raises InputError when a row is busier
    than the step is long.
    """
    rows: dict[str, dict[str, float]] = {}
    for rank, cause, seconds in rank_cause_s:
        row = rows.setdefault(rank, {})
        row[cause] = row.get(cause, 0.0) + seconds
    lines = []
    for rank, causes in rows.items():
        wait_s = step_time_s - math.fsum(causes.values())
        if wait_s < -1e-6 * step_time_s:
            raise InputError(
                f"rank {rank} is busy for {step_time_s - wait_s!r} s of a step of {step_time_s!r} s"
            )
        causes["bubble"] = causes.get("bubble", 0.0) + max(0.0, wait_s)
        lines += [
            Use(cause=c, device_s=s * devices_per_rank, stage=rank)
            for c, s in causes.items()
            if s > 0
        ]
    return StepUse.model_validate(
        {
            "title": title,
            "devices": devices_per_rank * len(rows),
            "step_time_s": step_time_s,
            "tokens_per_step": tokens_per_step,
            "lines": lines,
            "source": source,
        }
    )


BUSY_CAUSES = ("compute", "recompute", "tp_comm", "cp_comm", "ep_comm")
"""Causes of the time that a pipeline action takes, which a simulated row holds together."""
AFTER_CAUSES = ("dp_comm", "optimizer", "offload", "host")
"""Causes of a step outside its pipeline."""


def use_of_plan_timeline(
    result: PlanResult, timeline: Timeline, tokens_per_step: int, title: str = ""
) -> StepUse:
    """The use of one step by stage: the simulated pipeline, and the estimate's rest of the step.

    What ranks work on is split by the estimate's shares of compute, recompute and exposed
    communication inside a layer; what follows the pipeline (gradient reduction, optimizer, host)
    is added on all stages. The step is the timeline's pipeline plus that rest.
    """
    devices = round(result.bill.device_s / result.step_time_s)
    spent = {x.cause: x.device_s / devices for x in result.bill.lines}
    busy_s = math.fsum(spent.get(c, 0.0) for c in BUSY_CAUSES)
    after = {c: spent[c] for c in AFTER_CAUSES if spent.get(c)}
    each = devices // timeline.ranks
    own = use_of_timeline(timeline, each, tokens_per_step, title)
    lines: list[Use] = []
    for line in own.lines:
        if line.cause != "compute" or busy_s == 0.0:
            lines.append(line)
            continue
        for cause in BUSY_CAUSES:
            part_s = line.device_s * spent.get(cause, 0.0) / busy_s
            for tier, share in tier_shares(result, cause).items():
                if part_s:
                    lines.append(
                        Use(cause=cause, device_s=part_s * share, stage=line.stage, tier=tier)
                    )
    for cause, seconds in after.items():
        for tier, share in tier_shares(result, cause).items():
            lines.append(Use(cause=cause, device_s=devices * seconds * share, tier=tier))
    return StepUse(
        title=title or plan_words(result),
        devices=devices,
        step_time_s=own.step_time_s + math.fsum(after.values()),
        tokens_per_step=tokens_per_step,
        lines=tuple(lines),
        source="simulation",
    )


def plan_words(result: PlanResult) -> str:
    """`tp8 pp16 dp128 1f1b`: the degrees above one and the schedule."""
    plan = result.plan
    degrees = (
        (name, getattr(plan, name)) for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs")
    )
    words = [f"{name}{size}" for name, size in degrees if size > 1]
    return " ".join([*words, plan.schedule] if plan.pp > 1 else words) or "one device"


def use_of_timeline(
    timeline: Timeline, devices_per_rank: int, tokens_per_step: int, title: str = ""
) -> StepUse:
    """The use of one step from a timeline, simulated or measured: each pipeline rank a stage.

    The compute stream of a rank tiles its time, idle rows with their cause; transfers and
    collectives on other streams are hidden behind it and cost no time of their own.
    """
    own = timeline.stream == COMPUTE
    names = ("bubble" if c < 0 else CAUSES[c] for c in timeline.cause[own])
    seconds = (timeline.end_s - timeline.start_s)[own]
    rows = zip((str(r) for r in timeline.rank[own]), names, map(float, seconds), strict=True)
    return use_of_ranks(
        title or timeline.name or "timeline",
        rows,
        devices_per_rank,
        timeline.makespan_s,
        tokens_per_step,
        "measurement" if timeline.measured else "simulation",
    )
