"""What the program answers with: the JSON that others read, as documents with a schema."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Document

CAUSES = (
    "compute", "recompute", "bubble", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm",
    "optimizer", "host", "offload", "checkpoint", "failure", "straggler", "unallocated",
)  # fmt: skip
"""What a device-second can be spent on; the bill's lines and the timeline's colours."""

IDLE_CAUSES = (
    "bubble", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload", "checkpoint",
    "failure", "straggler", "unallocated", "host",
)  # fmt: skip
"""Causes during which no arithmetic of the model runs."""

Fits = Literal["yes", "risky", "no"]
Goal = Literal["time", "cost", "expected", "predictability"]
GOALS: tuple[Goal, ...] = ("time", "cost", "expected", "predictability")
"""By what plans are ordered."""


class PlanDoc(Document):
    """The plan as the JSON shows it. `stages` counts transformer layers a stage."""

    tp: int
    cp: int
    pp: int
    vpp: int
    dp: int
    ep: int
    etp: int
    mbs: int
    num_microbatches: int
    schedule: str
    recompute: str = Field(description="none, selective, full or full:N")
    zero: int
    shard_group: int = 0
    sequence_parallel: bool
    offload_optimizer: float = 0.0
    offload_activations: float = 0.0
    stages: tuple[int, ...]
    rank_order: str = "tp-cp-ep-dp-pp"


class StageMemoryDoc(Document):
    """Memory of the rank that holds one pipeline rank's chunks, at its own peak."""

    stage: int
    layers: int
    params_bytes: float
    grads_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    peak_device_bytes: float
    in_flight: float = Field(description="microbatches whose activations are held at the peak")
    phase: str = Field(description="what sets the peak: forward, loss, backward, optimizer ...")


class MemoryDoc(Document):
    """Memory of all stages against capacity. `fits` compares the device-visible peak."""

    capacity_bytes: float
    per_stage: tuple[StageMemoryDoc, ...]
    peak_bytes: float
    peak_lo_bytes: float
    peak_hi_bytes: float
    headroom_frac: float
    fits: Fits
    host_bytes: float = Field(description="host memory a node")
    moments: dict[str, float] = Field(description="device peaks of build, load, step, save")


class BillLine(Document):
    """One line of the invoice of a step."""

    cause: str
    device_s: float
    usd: float


class BillDoc(Document):
    """The invoice of a step; the lines sum to devices x step time."""

    lines: tuple[BillLine, ...]
    device_s: float
    usd: float
    idle_device_hours: float
    idle_frac: float
    usd_per_million_tokens: float
    usd_per_run: float | None = None
    device_hours_per_run: float | None = None
    run_s: float | None = None


class LikePlan(Document):
    """A plan that no prediction can tell from the one in whose row it stands."""

    plan: PlanDoc
    step_time_s: float
    step_time_lo_s: float
    step_time_hi_s: float
    best_prob_frac: float = Field(description="that this one is the fastest of all listed")
    peak_bytes: float
    usd_per_million_tokens: float
    differs: str = Field(description="what it is, in a few words, against the row's plan")


class LayoutDoc(Document):
    """How the plan's stages were laid out, by the simulated step."""

    even_step_time_s: float = Field(description="with layers spread as evenly as they go")
    devices_saved: float = Field(
        description="that even stages would need on top for the same rate, were they to fit"
    )
    proved: bool = Field(
        description="no layout of these layers that the ranks hold is more than 0.1 % faster"
    )
    gap_frac: float = Field(
        description="where that is not proved: no layout's step is shorter by more than this share"
    )
    settled: bool = Field(description="no move of one layer that was tried makes it faster")


class PlanResult(Document):
    """One plan with its time, memory and bill side by side."""

    plan: PlanDoc
    labels: tuple[str, ...] = ()
    step_time_s: float
    step_time_lo_s: float
    step_time_hi_s: float
    expected_step_s: float | None = Field(
        None,
        description="wall time of a step with stragglers, checkpoints and failures; None: not"
        " asked for, or no progress",
    )
    expected_usd_per_million_tokens: float | None = None
    p95_over_p50: float | None = Field(
        None, description="of the step, stragglers only; by laws, nothing is drawn"
    )
    goodput_frac: float | None = Field(
        None, description="of the wall time, not lost to checkpoints and failures"
    )
    best_prob_frac: float = 0.0
    group_prob_frac: float = Field(
        0.0, description="that this plan or one of `like` is the fastest of all listed"
    )
    like: tuple[LikePlan, ...] = Field(
        (), description="plans that cannot be told from this one: neither is faster with 80 %"
    )
    layout: LayoutDoc | None = Field(
        None, description="of plans with stages that the search listed; None: nothing to lay out"
    )
    mfu_frac: float
    hfu_frac: float
    tokens_per_s_per_device: float
    memory: MemoryDoc
    bill: BillDoc
    why: str = ""


class CollectiveDoc(Document):
    """One kind of collective of the plan: how often, how large, over what, how long."""

    axis: str
    operation: str
    group: int
    tier: str
    count_per_step: float
    bytes_each: float
    seconds_each: float
    exposed_s_per_step: float
    bound_s: float = Field(0.0, description="of one: bytes at the line rate, nothing else")


class WaterfallStep(Document):
    """One step of the walk from peak to delivered FLOP/s."""

    cause: str
    seconds: float
    mfu_frac_after: float


class EstimateResult(PlanResult):
    """One plan, every term."""

    model: str
    cluster: str
    stack: str
    lower_bound_s: float
    lower_bounds: dict[str, float] = Field(default_factory=dict)
    waterfall: tuple[WaterfallStep, ...] = ()
    collectives: tuple[CollectiveDoc, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SearchedDoc(Document):
    """How much was searched. `plans` counts those whose time and memory were evaluated."""

    plans: int
    legal: int
    fit: int
    wall_s: float


class PlanListResult(Document):
    """What `plan --json` prints."""

    model: str
    cluster: str
    recipe: dict[str, object]
    stack: str
    searched: SearchedDoc
    plans: tuple[PlanResult, ...]
    pareto: tuple[PlanResult, ...] = ()
    nearest: tuple[dict[str, object], ...] = ()
    notes: tuple[str, ...] = ()
