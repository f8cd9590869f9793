"""What the pictures show, as plain numbers: every chart draws one of these and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gangsaw.report.words import CAUSE_TITLES, MEMORY_PARTS
from gangsaw.spec.result import (
    IDLE_CAUSES,
    BillDoc,
    EstimateResult,
    MemoryDoc,
    PlanResult,
    StageMemoryDoc,
)
from gangsaw.units import HOUR_S


@dataclass(frozen=True)
class Part:
    """A segment of a bar."""

    key: str
    title: str
    amount: float


@dataclass(frozen=True)
class StageBar:
    """Memory of one stage as segments that add up to its device-visible peak, bytes."""

    stage: int
    layers: int
    parts: tuple[Part, ...]
    peak_bytes: float
    tightest: bool
    phase: str


@dataclass(frozen=True)
class InvoiceRow:
    """One cause on the invoice."""

    cause: str
    title: str
    device_hours: float
    usd: float
    share_frac: float
    idle: bool


@dataclass(frozen=True)
class WaterfallBar:
    """A step down from peak: MFU before and after this cause, and the seconds behind it."""

    cause: str
    title: str
    before_frac: float
    after_frac: float
    seconds: float


def stage_parts(stage: StageMemoryDoc) -> tuple[Part, ...]:
    """Segments of a stage: six allocated parts, reserved slack, and what lies outside."""
    named = {
        "params": stage.params_bytes,
        "grads": stage.grads_bytes,
        "optimizer": stage.optimizer_bytes,
        "activations": stage.activations_bytes,
        "logits": stage.logits_bytes,
        "buffers": stage.buffers_bytes,
    }
    inside = sum(named.values())
    reserved = max(0.0, stage.peak_reserved_bytes - inside)
    outside = max(0.0, stage.peak_device_bytes - max(stage.peak_reserved_bytes, inside))
    named |= {"reserved": reserved, "outside": outside}
    return tuple(Part(key, title, named[key]) for key, title in MEMORY_PARTS)


def tightest_stage(memory: MemoryDoc) -> int:
    """Index of the stage with the highest device-visible peak."""
    peaks = [stage.peak_device_bytes for stage in memory.per_stage]
    return peaks.index(max(peaks))


def memory_bars(memory: MemoryDoc) -> tuple[StageBar, ...]:
    """One bar a stage, in stage order."""
    tightest = tightest_stage(memory)
    return tuple(
        StageBar(
            stage=stage.stage,
            layers=stage.layers,
            parts=stage_parts(stage),
            peak_bytes=stage.peak_device_bytes,
            tightest=i == tightest,
            phase=stage.phase,
        )
        for i, stage in enumerate(memory.per_stage)
    )


def invoice_rows(bill: BillDoc) -> tuple[InvoiceRow, ...]:
    """Causes with their cost, dearest first: useful work before idle time."""
    total = bill.device_s or 1.0
    rows = [
        InvoiceRow(
            cause=line.cause,
            title=CAUSE_TITLES.get(line.cause, line.cause),
            device_hours=line.device_s / HOUR_S,
            usd=line.usd,
            share_frac=line.device_s / total,
            idle=line.cause in IDLE_CAUSES,
        )
        for line in bill.lines
        if line.device_s > 0
    ]
    return tuple(sorted(rows, key=lambda row: (row.idle, -row.device_hours)))


def idle_usd(bill: BillDoc) -> float:
    """Money a step for the idle causes."""
    return math.fsum(line.usd for line in bill.lines if line.cause in IDLE_CAUSES)


def waterfall(estimate: EstimateResult) -> tuple[WaterfallBar, ...]:
    """From peak (1.0) down to delivered MFU, one bar a cause."""
    bars: list[WaterfallBar] = []
    before = 1.0
    for step in estimate.waterfall:
        if step.cause == "peak":
            continue
        after = step.mfu_frac_after
        title = CAUSE_TITLES.get(step.cause, step.cause.replace("_", " "))
        bars.append(WaterfallBar(step.cause, title, before, after, step.seconds))
        before = after
    return tuple(bars)


def cells(amounts: tuple[float, ...], whole: float, width: int) -> tuple[int, ...]:
    """Whole cells of a bar of `width` for each amount of `whole`, by largest remainder.

    Together they fill as many cells as the amounts fill of `whole`; none below zero.
    """
    if whole <= 0 or width <= 0:
        return tuple(0 for _ in amounts)
    exact = [max(0.0, a) / whole * width for a in amounts]
    filled = min(width, round(math.fsum(exact)))
    floors = [math.floor(x) for x in exact]
    while sum(floors) > filled:
        floors[floors.index(max(floors))] -= 1
    order = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[: filled - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def peak_parts(result: PlanResult) -> tuple[Part, ...]:
    """Segments of the tightest stage."""
    return stage_parts(result.memory.per_stage[tightest_stage(result.memory)])
