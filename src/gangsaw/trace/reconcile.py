"""Measured beside predicted, cause by cause and rank by rank, with what would explain the rest.

Both are seconds of the average device by cause, summing to the step. The difference of the step
time is the sum of the differences of the causes, so nothing is lost between them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from gangsaw.bill.invoice import step_bill
from gangsaw.simulate.timeline import COMPUTE, Timeline
from gangsaw.spec.base import Document
from gangsaw.spec.cluster import ClusterSpec, TierSpec
from gangsaw.spec.result import CAUSES, BillDoc, EstimateResult
from gangsaw.trace.measured import Measured
from gangsaw.units import HOUR_S, format_frac, format_s

MERGED = {"recompute": "compute"}
"""Causes that a trace cannot tell apart from another one, and where they are counted."""

_EXPLAIN = {
    "compute": "kernels run at {ratio} of the predicted time: scale gemm_frac and memory_frac"
    " by {inverse}, or look at the kernels that are no matrix products",
    "optimizer": "the optimizer moves other memory than the stack's optimizer_traffic_bytes say"
    " (unfused step, other precision of its state)",
    "bubble": "stages are not equal or transfers wait: compare the ranks' compute below, and the"
    " schedule that ran",
    "straggler": "ranks wait for each other: rank {slowest} computes longest, {excess} more than"
    " the median",
    "host": "the device waits for launches: fuse, compile or capture graphs, or take the"
    " profiler's own cost out",
    "tp_comm": "TP collectives are slower or less hidden than the {tier} tier's curve says",
    "cp_comm": "CP exchange is slower or less hidden than the {tier} tier's curve says",
    "ep_comm": "all-to-all is slower, or experts are less evenly loaded, than assumed",
    "pp_comm": "stage transfers are slower than the {tier} tier's curve, or block",
    "dp_comm": "gathers and reductions are slower or less hidden than the stack's overlap says",
    "unallocated": "idle devices whose reason the trace does not show",
    "offload": "copies to and from the host are slower or less hidden than the host link's curve",
}

_EXPLAIN_LESS = {
    "compute": _EXPLAIN["compute"],
    "optimizer": "the optimizer moves less memory than the stack's optimizer_traffic_bytes say",
    "bubble": "stages wait less than the predicted schedule does: look whether another order ran,"
    " or whether the waiting is counted under transfers or stragglers",
    "host": "launches cost less than the stack's launch times say, or a slow device hides them",
    "tp_comm": "TP collectives are faster or more hidden than the {tier} tier's curve says",
    "cp_comm": "CP exchange is faster or more hidden than the {tier} tier's curve says",
    "ep_comm": "all-to-all is faster or more hidden than the {tier} tier's curve says",
    "pp_comm": "stage transfers are faster than the {tier} tier's curve, or counted as waiting",
    "dp_comm": "gathers and reductions are faster or more hidden than the stack's overlap says",
    "offload": "copies to and from the host are faster or more hidden than the link's curve",
}
"""The same where less was measured than predicted: the advice is another."""


class CauseDifference(Document):
    """One cause: seconds of the average device of one step, and what the difference costs."""

    cause: str
    measured_s: float
    predicted_s: float
    difference_s: float
    difference_device_hours: float = Field(description="of one step on all devices")
    difference_usd: float
    hidden_s: float = Field(0.0, description="measured communication behind other work")


class RankDifference(Document):
    """One rank's seconds by cause; predicted ones only where a predicted timeline was given."""

    rank: int
    measured_s: dict[str, float]
    predicted_s: dict[str, float] | None = None


class ReconcileResult(Document):
    """What `reconcile --json` prints."""

    step: str
    ranks: int
    devices: int
    measured_step_s: float
    predicted_step_s: float
    ratio: float
    causes: tuple[CauseDifference, ...]
    per_rank: tuple[RankDifference, ...]
    largest: str
    explanation: str
    feedback: dict[str, float] = Field(description="factors for the cluster file")
    clock_residual_s: float
    bill: BillDoc
    notes: tuple[str, ...] = ()


def reconcile(
    measured: Measured,
    predicted: EstimateResult,
    cluster: ClusterSpec | None = None,
    tokens_per_step: int = 1,
    predicted_timeline: Timeline | None = None,
) -> ReconcileResult:
    """Align a measured step with a prediction; see the module for the rule."""
    line = measured.timeline
    devices = _devices(predicted)
    price = cluster.usd_per_device_hour if cluster else _price(predicted)
    mine = {c: s / line.ranks for c, s in line.by_cause_s().items()}
    theirs = _predicted_s(predicted, devices)
    causes = _differences(mine, theirs, measured, (devices, price))
    worst = max(causes, key=lambda c: abs(c.difference_s))
    ranks = _per_rank(line, predicted_timeline)
    notes = list(measured.notes)
    if predicted.waterfall and any(w.cause == "recompute" for w in predicted.waterfall):
        notes.append("recompute is counted as compute: a trace does not tell them apart")
    if line.ranks < devices:
        notes.append(f"{line.ranks} of {devices} ranks were traced; they stand for all")
    step_s = line.makespan_s
    bill = step_bill(_summing(mine, step_s), devices, step_s, price, max(1, tokens_per_step), None)
    return ReconcileResult(
        step=measured.step,
        ranks=line.ranks,
        devices=devices,
        measured_step_s=step_s,
        predicted_step_s=predicted.step_time_s,
        ratio=step_s / predicted.step_time_s,
        causes=causes,
        per_rank=ranks,
        largest=worst.cause,
        explanation=_explanation(worst, predicted, ranks),
        feedback=_feedback(causes),
        clock_residual_s=float(np.max(measured.clocks.residual_s, initial=0.0)),
        bill=bill,
        notes=tuple(notes),
    )


def _devices(predicted: EstimateResult) -> int:
    plan = predicted.plan
    return plan.tp * plan.cp * plan.pp * plan.dp


def _price(predicted: EstimateResult) -> float:
    """US dollars a device-hour out of the predicted bill."""
    hours = predicted.bill.device_s / HOUR_S
    return predicted.bill.usd / hours if hours > 0 else 0.0


def _predicted_s(predicted: EstimateResult, devices: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in predicted.bill.lines:
        cause = MERGED.get(row.cause, row.cause)
        found[cause] = found.get(cause, 0.0) + row.device_s / devices
    return found


def _summing(causes: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Measured seconds with the rounding of clocks taken out, so that they sum to the step."""
    total = sum(causes.values())
    return {c: s * step_s / total for c, s in causes.items()} if total > 0 else {"host": step_s}


def _differences(
    mine: Mapping[str, float],
    theirs: Mapping[str, float],
    measured: Measured,
    paid: tuple[int, float],
) -> tuple[CauseDifference, ...]:
    devices, price = paid
    rows = []
    for cause in CAUSES:
        a, b = mine.get(cause, 0.0), theirs.get(cause, 0.0)
        hidden = measured.hidden_s.get(cause, 0.0) / measured.timeline.ranks
        if a == 0.0 and b == 0.0 and hidden == 0.0:
            continue
        hours = (a - b) * devices / HOUR_S
        rows.append(
            CauseDifference(
                cause=cause,
                measured_s=a,
                predicted_s=b,
                difference_s=a - b,
                difference_device_hours=hours,
                difference_usd=hours * price,
                hidden_s=hidden,
            )
        )
    return tuple(sorted(rows, key=lambda r: -abs(r.difference_s)))


def _per_rank(line: Timeline, predicted: Timeline | None) -> tuple[RankDifference, ...]:
    mine = _rank_causes(line)
    theirs = _rank_causes(predicted) if predicted and predicted.ranks == line.ranks else None
    return tuple(
        RankDifference(rank=r, measured_s=mine[r], predicted_s=theirs[r] if theirs else None)
        for r in range(line.ranks)
    )


def _rank_causes(line: Timeline) -> list[dict[str, float]]:
    own = line.stream == COMPUTE
    spent = np.zeros((line.ranks, len(CAUSES)))
    np.add.at(spent, (line.rank[own], line.cause[own]), (line.end_s - line.start_s)[own])
    return [{CAUSES[c]: float(row[c]) for c in range(len(CAUSES)) if row[c] > 0.0} for row in spent]


def _explanation(
    worst: CauseDifference, predicted: EstimateResult, ranks: tuple[RankDifference, ...]
) -> str:
    """One sentence: the largest difference and what would explain it."""
    work = np.asarray([r.measured_s.get("compute", 0.0) for r in ranks])
    slowest = int(np.argmax(work))
    axis = worst.cause.removesuffix("_comm")
    tiers = [c.tier for c in predicted.collectives if c.axis == axis]
    ratio = worst.measured_s / worst.predicted_s if worst.predicted_s > 0 else float("inf")
    known = _EXPLAIN if worst.difference_s > 0 else _EXPLAIN_LESS
    nothing = "nothing predicted it" if worst.difference_s > 0 else "the run had less of it"
    said = known.get(worst.cause, nothing).format(
        ratio=f"{ratio:.2f}x",
        inverse=f"{1 / ratio:.2f}" if 0 < ratio < float("inf") else "-",
        slowest=ranks[slowest].rank,
        excess=format_s(float(work[slowest] - np.median(work))),
        tier=tiers[0] if tiers else "network",
    )
    more = "more" if worst.difference_s > 0 else "less"
    share = abs(worst.difference_s) / predicted.step_time_s
    return (
        f"{worst.cause} takes {format_s(abs(worst.difference_s))} a step {more} than predicted"
        f" ({format_frac(share)} of the predicted step): {said}"
    )


def _feedback(causes: tuple[CauseDifference, ...]) -> dict[str, float]:
    """Predicted over measured seconds, for causes that a cluster file can be scaled by."""
    found = {}
    for row in causes:
        measured = row.measured_s + row.hidden_s
        scales = row.cause == "compute" or row.cause.endswith("_comm")
        if scales and measured > 0 and row.predicted_s > 0:
            found[row.cause] = row.predicted_s / measured
    return found


def sharpened(
    cluster: ClusterSpec, result: ReconcileResult, predicted: EstimateResult
) -> ClusterSpec:
    """The cluster with its curves scaled so that the prediction meets the measurement.

    Compute scales the shares of peak and of memory bandwidth that kernels reach, attention's too,
    communication the efficiency of the tier that carries its axis; shares stay within (0, 1].
    """
    device = cluster.device
    factor = result.feedback.get("compute")
    if factor is not None:
        curves = tuple(
            c.model_copy(
                update={
                    "a_fwd": {d: min(1.0, a * factor) for d, a in c.a_fwd.items()},
                    "a_bwd": {d: min(1.0, a * factor) for d, a in c.a_bwd.items()},
                }
            )
            for c in device.attention
        )
        device = device.model_copy(
            update={
                "gemm_frac": min(1.0, device.gemm_frac * factor),
                "memory_frac": min(1.0, device.memory_frac * factor),
                "attention": curves,
            }
        )
    carried: dict[str, list[float]] = {}
    for row in predicted.collectives:
        scale = result.feedback.get(f"{row.axis}_comm")
        if scale is not None:
            carried.setdefault(row.tier, []).append(scale)
    tiers = tuple(_scaled(t, carried.get(t.name, [])) for t in cluster.tiers)
    return cluster.model_copy(update={"device": device, "tiers": tiers})


def _scaled(tier: TierSpec, factors: list[float]) -> TierSpec:
    if not factors:
        return tier
    mean = float(np.exp(np.mean(np.log(factors))))
    return tier.model_copy(update={"efficiency": float(np.clip(tier.efficiency * mean, 1e-3, 1.0))})
