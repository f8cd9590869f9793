"""What fails how often, what bringing a job back takes, where checkpoints go, how work jitters."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gangsaw.spec.base import Count, Document, Frac, NonNegative, Positive

FASTEST_PER_S = 1.0
"""No component that a job can use fails more than once a second; such a rate is a slip."""

Unit = Literal["device", "host", "link", "switch", "rack", "feed", "job"]
Cure = Literal["restart", "replace"]
Scope = Literal["device", "host", "job"]


class ComponentRate(Document):
    """How often one component fails, and how much goes down with it."""

    per_s: Positive = Field(description="failures of one unit a second")
    unit: Unit = Field(description="what the rate is counted by; a link belongs to each device")
    cure: Cure = Field(description="restart: the same machines go on; replace: a host is swapped")
    hits: Unit = Field("host", description="what goes down together")
    source: str
    as_of: str
    note: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.per_s > FASTEST_PER_S:
            raise ValueError(f"rate={self.per_s:g}/s: more than one a second is no failure rate")
        return self


class Recovery(Document):
    """Phases from a failure to the first step after it. Seconds."""

    detect_s: NonNegative = Field(description="from the failure until the job is stopped")
    reschedule_s: NonNegative = Field(description="new processes on machines that are there")
    init_s: NonNegative = Field(description="libraries, communicators, data, compilation")
    warm_swap_s: NonNegative = Field(description="a pre-warmed spare takes the lost host's place")
    cold_swap_s: NonNegative = Field(description="an idle spare is booted, checked and joined")
    repair_s: Positive = Field(description="until a lost host is back, or another is found")
    source: str
    as_of: str


class Site(Document):
    """What stands together, and falls together."""

    rack_hosts: Count = Field(description="hosts of a rack, under one pair of leaf switches")
    rack_switches: Count = Field(description="of which the loss of one stops the rack")
    feed_racks: Count = Field(description="racks on one power feed")
    source: str
    as_of: str


class Noise(Document):
    """How the time of work and of messages varies; all in shares of the mean."""

    op_cv: NonNegative = Field(description="of one forward or backward on one device, each time")
    device_cv: NonNegative = Field(description="between devices, for as long as the job runs")
    slow_host_frac: Frac = Field(description="of hosts that are slow")
    slow_host_loss: NonNegative = Field(description="by how much these are slower")
    sequence_cv: NonNegative = Field(description="of the work of a microbatch (uneven sequences)")
    pause_s: NonNegative = Field(description="of a garbage collection")
    pause_every_steps: Positive = Field(description="steps between two pauses of one process")
    planned_pauses: bool = Field(False, description="all processes pause in the same step")
    flows_per_uplink: Positive = Field(description="flows of a device that share its leaf's links")
    background_frac: Frac = Field(description="of the fabric, taken by unrelated jobs")
    source: str
    as_of: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.background_frac >= 1:
            raise ValueError("background_frac=1: nothing of the fabric is left for the job")
        return self


class StorageTier(Document):
    """A place for checkpoints. Bandwidth is that of one `scope`, for reading and for writing."""

    title: str
    scope: Scope
    write_bytes_per_s: Positive
    read_bytes_per_s: Positive
    other_load_frac: Frac = Field(0.0, description="of the bandwidth, taken by others")
    plan_s: NonNegative = Field(0.0, description="of a save, before bytes move: planning, pinning")
    over_network: bool = Field(description="whether bytes leave the host by its NICs")
    survives: Scope = Field(description="the largest loss that leaves the checkpoint readable")
    capacity_key: str = Field("", description="price of a GB-month; '': already paid for")
    put_key: str = Field("", description="price of writing requests")
    get_key: str = Field("", description="price of reading requests")
    egress_key: str = Field("", description="price of bytes read across a paid boundary")
    part_bytes: Positive = Field(64e6, description="of one request")
    put_per_s: NonNegative = Field(0.0, description="requests of one prefix; 0: no limit")
    get_per_s: NonNegative = 0.0
    prefixes: Count = 1
    endurance_bytes: NonNegative = Field(0.0, description="that a host's drives take in their life")
    drive_usd: NonNegative = Field(0.0, description="of a host's drives")
    source: str
    as_of: str


class Reliability(Document):
    """All of it: the shipped figures, with the user's own in their place."""

    components: dict[str, ComponentRate]
    recovery: Recovery
    site: Site
    noise: Noise
    storage: dict[str, StorageTier]
