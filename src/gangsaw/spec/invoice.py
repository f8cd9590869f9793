"""The full invoice: tagged lines of device time and money that each total counts once."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from gangsaw.spec.base import CountOrZero, Document, Frac, NonNegative, Positive, at_most
from gangsaw.spec.result import CAUSES, IDLE_CAUSES

Spending = Literal["capital", "operating"]
Basis = Literal["step", "million tokens", "run", "month", "measured"]
Dimension = Literal["cause", "stage", "tier", "item", "spending", "phase"]

PHASES = ("start", "training", "batch ramp", "evaluation", "checkpoints", "failures", "services")
"""What part of a run a line belongs to, in the order of the bill."""

ALL_STAGES = "all"
NO_TIER = "device"


class Use(Document):
    """Device-seconds of one step by cause, pipeline rank and tier of the network."""

    cause: str
    device_s: NonNegative
    stage: str = Field(ALL_STAGES, description="pipeline rank, or 'all' where it is not known")
    tier: str = Field(NO_TIER, description="tier whose links the time is spent on, or 'device'")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.cause not in CAUSES:
            raise ValueError(f"cause={self.cause!r}: one of {', '.join(CAUSES)}")
        return self


class StepUse(Document):
    """Where the device-seconds of one step go: what every invoice is made from.

    The lines sum to devices x step time. It comes from an estimate, a simulated timeline or a
    measured one; the bill does not ask which.
    """

    title: str
    devices: int = Field(ge=1)
    step_time_s: Positive
    tokens_per_step: int = Field(ge=1)
    lines: tuple[Use, ...]
    source: Literal["estimate", "simulation", "measurement"] = "estimate"

    @property
    def device_s(self) -> float:
        """Device-seconds of a step."""
        return self.devices * self.step_time_s

    def mean_cause_s(self) -> dict[str, float]:
        """Seconds of the average device by cause."""
        causes = dict.fromkeys((line.cause for line in self.lines), 0.0)
        for line in self.lines:
            causes[line.cause] += line.device_s / self.devices
        return causes


class RateItem(Document):
    """One thing that an hour of a device costs, and whether that is capital or operating."""

    item: str = Field(description="devices, fabric, building, energy, maintenance ...")
    spending: Spending
    usd_per_device_hour: NonNegative
    unused_usd_per_device_hour: NonNegative | None = Field(
        None, description="in hours without load (energy); None: the same"
    )
    keys: tuple[str, ...] = Field((), description="figures of the price book behind it")
    note: str = ""


class Rates(Document):
    """What an hour of a device costs, item by item. The first item carries the device time."""

    name: str = Field(description="on-demand, reserved-1y, spot, owned ...")
    items: tuple[RateItem, ...] = Field(min_length=1)
    not_billed: tuple[str, ...] = Field((), description="what has no figure, said on the bill")

    @property
    def usd_per_device_hour(self) -> float:
        """All items of a loaded hour together."""
        return math.fsum(i.usd_per_device_hour for i in self.items)


class InvoiceLine(Document):
    """One line. `device_s` stands on the line of the first item only, so it sums once."""

    phase: str
    cause: str
    stage: str
    tier: str
    item: str
    spending: Spending
    device_s: float
    usd: float


RUN_LIMITS = {
    "tokens": 1e18, "start_s": 1e9, "eval_tokens": 1e15, "device_mtbf_h": 1e12, "restart_s": 1e9,
    "checkpoint_block_s": 1e9, "checkpoint_interval_s": 1e9, "checkpoint_bytes": 1e18,
    "checkpoints_kept": 1e9, "straggler_frac": 0.99,
}  # fmt: skip
"""No run is longer, larger or slower."""


class RunTerms(Document):
    """What a whole run adds to its steps. Zero or None leaves a part out."""

    tokens: Positive = Field(description="tokens of the run")
    start_s: NonNegative = Field(0.0, description="allocation, initialisation, first steps")
    ramp_tokens: NonNegative = Field(0.0, description="tokens over which the batch grows")
    ramp_start_frac: Frac = Field(1.0, description="first batch over the full one")
    eval_every_steps: CountOrZero = 0
    eval_tokens: NonNegative = Field(0.0, description="tokens of one evaluation, forward only")
    device_mtbf_h: Positive | None = Field(None, description="of one device; None: no failures")
    restart_s: NonNegative = Field(0.0, description="from a failure to running again")
    checkpoint_block_s: NonNegative = Field(0.0, description="training stands still for a save")
    checkpoint_interval_s: Positive | None = Field(None, description="None: Daly's optimum")
    straggler_frac: Frac = Field(0.0, description="of device-hours, lost to slow devices")
    checkpoint_bytes: NonNegative = 0.0
    checkpoints_kept: CountOrZero = 0
    restore_egress: bool = Field(False, description="each restore is read across a paid boundary")
    storage_key: str = "storage.object.standard"
    egress_key: str = "egress.internet.aws"
    figures: tuple[str, ...] = Field((), description="price-book keys that set these terms")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ramp_tokens > self.tokens:
            raise ValueError(
                f"ramp_tokens={self.ramp_tokens!r} is more than the run's tokens={self.tokens!r}"
            )
        if self.ramp_tokens and not 0 < self.ramp_start_frac < 1:
            raise ValueError(
                f"ramp_start_frac={self.ramp_start_frac!r}: between 0 and 1 where the batch ramps"
            )
        if self.straggler_frac >= 1:
            raise ValueError(f"straggler_frac={self.straggler_frac!r}: below 1")
        at_most(self, RUN_LIMITS)
        if self.checkpoint_interval_s is not None and self.checkpoint_interval_s < 1e-3:
            raise ValueError(
                f"checkpoint_interval_s={self.checkpoint_interval_s!r}: at least 0.001"
            )
        return self


class Invoice(Document):
    """Lines that sum exactly to devices x wall time and to the money, however they are cut."""

    title: str
    basis: Basis
    offer: str
    devices: int
    wall_s: float
    tokens: float
    lines: tuple[InvoiceLine, ...]
    device_s: float
    usd: float
    figures: tuple[str, ...] = Field((), description="price-book keys used")
    stale: tuple[str, ...] = Field((), description="of these, figures older than a year")
    not_billed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def totals(self, by: Dimension) -> dict[str, tuple[float, float]]:
        """Device-seconds and money by one dimension, dearest first; the parts sum exactly."""
        groups: dict[str, list[InvoiceLine]] = {}
        for line in self.lines:
            groups.setdefault(getattr(line, by), []).append(line)
        sums = {
            name: (math.fsum(x.device_s for x in part), math.fsum(x.usd for x in part))
            for name, part in groups.items()
        }
        return dict(sorted(sums.items(), key=lambda kv: (-kv[1][1], -kv[1][0])))

    @property
    def idle_device_s(self) -> float:
        """Device-seconds during which no arithmetic of the model ran."""
        return math.fsum(x.device_s for x in self.lines if x.cause in IDLE_CAUSES)

    @property
    def idle_frac(self) -> float:
        """Share of the device time that is idle."""
        return self.idle_device_s / self.device_s if self.device_s else 0.0

    @property
    def usd_per_million_tokens(self) -> float:
        """Money a million tokens."""
        return self.usd / self.tokens * 1e6 if self.tokens else 0.0
