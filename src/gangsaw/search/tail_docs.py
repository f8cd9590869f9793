"""What `tail` answers with: steps, failures, checkpoints, network, ranking."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Document
from gangsaw.spec.result import PlanDoc

Objective = Literal["mean", "p50", "p95", "p99", "predictability", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("mean", "p50", "p95", "p99", "predictability", "cost")


class PercentileDoc(Document):
    """A percentile of the step with its standard error."""

    at_frac: float
    step_s: float
    error_s: float


class StepTail(Document):
    """The distribution of one plan's step."""

    estimate_s: float = Field(description="closed form, nothing slow")
    mean_s: float
    mean_error_s: float
    percentiles: tuple[PercentileDoc, ...]
    p95_over_p50: float
    slowdown: float = Field(description="mean over closed form")
    draws: int
    clusters: int = Field(description="draws of which devices are slow; steps of each are alike")
    seed: int
    lock_step_devices: int = Field(description="devices that wait for each other in every layer")
    replicas: int
    added_s_by_axis: dict[str, float] = Field(description="mean seconds over the closed form")
    variance_by_axis: dict[str, float] = Field(description="shares, sum 1")
    variance_by_source: dict[str, float] = Field(
        description="share of the variance that goes when this source is switched off"
    )
    slow_device_frac: float
    slow_device_mean_s: float = Field(description="added by one device slower by that, any stage")
    slow_device_worst_s: float
    slow_device_usd_per_h: float


class FailureRow(Document):
    """One kind of failure of this job."""

    name: str
    mtbf_s: float
    hosts: int
    replaced: bool
    restart_s: float
    source: str


class BlastRow(Document):
    """What the loss of neighbouring devices takes of the plan, the mean over where they are."""

    lost: str
    devices: int
    tensor_groups: float
    stages: float
    replicas: float
    idle_devices: float
    in_flight_microbatches: float


class SpareRow(Document):
    """Spares of one kind for a wanted availability: all hosts there, and no restart going on."""

    kind: str
    spares: int | None = Field(description="None: restarts alone take more; see `restart_s`")
    restart_s: float
    available_frac: float = Field(description="with these spares, or with any number of them")


class StrategyRow(Document):
    """A way to go on after failures: closed form beside events."""

    name: str
    spares: int
    restart_s: float = Field(description="one that stands for all kinds")
    goodput_closed_frac: float | None = Field(description="None where spares can run out")
    goodput_frac: float
    goodput_error_frac: float
    waiting_frac: float = Field(description="of the wall time, for repaired hosts")
    draws: int
    seed: int


class SpotRow(Document):
    """This job's hosts under recorded spot spells of a zone."""

    zone: str
    hosts: int
    together: bool
    available_frac: float
    losses_per_h: float
    useful_frac: float


class CheckpointRow(Document):
    """Saving to one tier: times, best interval, what is lost, money, recovery."""

    tier: str
    title: str
    mode: Literal["asynchronous", "synchronous"]
    bytes: float
    block_s: float
    save_s: float
    load_s: float
    interval_s: float
    lost_s: float = Field(description="work redone after one failure")
    readable_frac: float = Field(description="of failures after which this tier can be read")
    goodput_frac: float
    at_risk_device_h: float = Field(description="device-hours redone a month")
    lost_usd_month: float = Field(description="of saves, restarts and work redone")
    storage_usd_month: float
    usd_month: float
    restart_s: float
    restart_device_h_month: float
    bubble_device_h_month: float
    recovery_reached: bool | None = None
    recovery_needs: str = ""
    binding: str = Field("", description="what bounds it: bandwidth, requests, endurance")


class Failures(Document):
    """Failures, restarts, spares and checkpoints of one plan."""

    mtbf_s: float
    kinds: tuple[FailureRow, ...]
    blast: tuple[BlastRow, ...]
    strategies: tuple[StrategyRow, ...]
    spares_wanted: int = Field(description="with which all hosts are there for so long")
    availability_frac: float
    spares: tuple[SpareRow, ...] = Field((), description="cold, pre-warmed, one stage remapped")
    phases_s: dict[str, float] = Field(
        default_factory=dict, description="of a whole-job restart with a cold spare"
    )
    full_bytes: float = Field(0.0, description="of the first checkpoint, frozen weights included")
    increment_bytes: float = Field(0.0, description="of those after it: what training changes")
    copies_bytes: float = Field(0.0, description="where each replica writes its own")
    spot: tuple[SpotRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    best_tier: str
    goodput_frac: float


class CollectiveHealth(Document):
    """One collective of the plan next to the usual timeout."""

    axis: str
    operation: str
    tier: str
    expected_s: float
    p99_s: float = Field(description="with collisions on the fabric")
    p99_error_s: float = Field(0.0, description="standard error, of the draws of the fabric")
    timeout_s: float
    timeout_frac: float = Field(description="of the timeout: the collective and the longest wait")


class TierNeed(Document):
    """What the plan asks of a tier, and what is left."""

    tier: str
    bytes_per_device: float = Field(description="sent in a step")
    needed_bytes_per_s: float = Field(description="spread over the step")
    offered_bytes_per_s: float
    headroom_frac: float


class CongestionRow(Document):
    """Factor on fabric-wide collectives by oversubscription and routing."""

    oversubscription: float
    routing: str
    mean: float
    p95: float
    p99: float
    p95_error: float = Field(description="standard error, by drawing again")
    p99_error: float
    draws: int
    seed: int


class NetworkHealth(Document):
    """Collectives, bandwidth and collisions."""

    collectives: tuple[CollectiveHealth, ...]
    tiers: tuple[TierNeed, ...]
    zero3_needs_bytes_per_s: float
    zero3_offered_bytes_per_s: float
    zero3_carried: bool
    congestion: tuple[CongestionRow, ...]
    model: str


class KeepRow(Document):
    """What is best done with one stage's activations and its optimizer's state."""

    stage: int
    layers: int
    keep: int
    recompute: int
    host: int
    nvme: int
    optimizer_host_frac: float = Field(0.0, description="of the optimizer's state, in host memory")
    optimizer_nvme_frac: float = 0.0
    optimizer_added_s: float = Field(0.0, description="a step, over all of it on the device")
    added_s: float = Field(description="a step, activations and optimizer together")
    added_usd: float = Field(0.0, description="a step of all devices, and the wear of their drives")
    cost_s: dict[str, float] = Field(description="seconds a layer and microbatch, all alike")
    optimizer_s: dict[str, float] = Field(
        default_factory=dict, description="seconds of a step with all of the state there"
    )
    useful_nvme_bytes_per_s: float = Field(
        description="for activations: below it NVMe costs more than recompute"
    )
    nvme_pays_from_bytes_per_s: float | None = Field(
        None,
        description="for this rank as it is: below it NVMe is counter-productive; None: at no rate",
    )
    nvme_bytes_per_s: float
    nvme_life_months: float | None = Field(
        None, description="until this mix has worn out the drives; None: it does not write to them"
    )
    note: str = ""


class PlanTail(Document):
    """One plan on a bad day."""

    name: str
    plan: PlanDoc
    step: StepTail
    failures: Failures
    network: NetworkHealth
    keep: tuple[KeepRow, ...]
    expected_step_s: float = Field(description="wall time of a step with tails and failures")
    usd_per_million_tokens: float
    usd_per_million_tokens_mean: float = Field(description="of the closed form alone")


class TailAnswer(Document):
    """What `tail` prints: each plan, and which is best by what."""

    model: str
    cluster: str
    objective: Objective
    plans: tuple[PlanTail, ...]
    best: dict[str, str] = Field(description="the best plan by estimate and each objective")
    order: tuple[str, ...] = Field(description="by the objective, best first")
    order_changes: bool = Field(description="against the order by the closed form")
    notes: tuple[str, ...] = ()
