"""ClusterSpec: devices, and the tiers of bandwidth between them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from gangsaw.spec.base import Count, Document, NonNegative, Positive, Share

Memory = Annotated[float, Field(ge=1e6, le=1e15, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1e5, le=1e16, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
"""Bytes, bytes a second, seconds and dollars an hour that a machine can have: further out is a
figure in another unit (GB/s or ms written as B/s or s)."""


class AttentionCurve(Document):
    """Attention kernel of a device: eff = a / ((1 + c0/s)(1 + c1/s)(1 + w*128*SM/(b*heads*s))).

    `a` by head width (64, 128, 192, 256); causal FLOPs count half the square.
    """

    kernel: str
    a_fwd: dict[int, float]
    a_bwd: dict[int, float]
    c0: NonNegative
    c1: NonNegative
    w: NonNegative
    source: str
    as_of: str = ""


class DeviceSpec(Document):
    """One accelerator. Peaks are dense; rates are what its data sheet or a measurement states."""

    name: str
    vendor: str = ""
    peak_flops_per_s: dict[str, Positive] = Field(description="by precision: bf16, fp8, fp4, fp32")
    memory_bytes: Memory
    usable_memory_frac: Share = Field(0.99, description="share that a process can allocate")
    memory_bytes_per_s: Rate
    tdp_w: Positive
    sm_count: Count = 132
    gemm_frac: Share = Field(0.8, description="asymptote of matrix products, share of peak")
    gemm_k0: NonNegative = Field(150.0, description="inner dimension at half the asymptote")
    gemm_launch_s: NonNegative = 6e-6
    fp8_gemm_frac: Share = 0.69
    memory_frac: Share = Field(0.8, description="share of memory bandwidth that kernels reach")
    sustained_frac: Share = Field(1.0, description="power limit: sustained over burst clock")
    attention: tuple[AttentionCurve, ...] = ()
    pcie_bytes_per_s: Rate = Field(description="host link of a device, one direction")
    source: str
    as_of: str
    notes: str = ""


class TierSpec(Document):
    """A level of the network: domains of `devices` devices that talk at this bandwidth.

    Bandwidth is that of one device in one direction, before oversubscription.
    """

    name: str
    devices: Count = Field(description="devices in one domain of this tier")
    bytes_per_s: Rate
    latency_s: Wait
    oversubscription: Positive = 1.0
    efficiency: Share = Field(0.8, description="share of the line rate that collectives reach")
    ramp_s: Wait = Field(
        5e-5, description="collectives of x seconds at full rate need sqrt(ramp_s * x) to get there"
    )
    in_network_reduction: bool = False
    mesh: bool = Field(
        False,
        description="links go to each peer: n members use (n-1)/(devices-1) of the bandwidth",
    )
    source: str = ""
    as_of: str = ""


class HostSpec(Document):
    """What stands around the devices of a node."""

    devices: Count = Field(description="devices in one host")
    memory_bytes: Memory
    nvme_bytes: NonNegative = 0.0
    nvme_bytes_per_s: NonNegative = 0.0
    node_power_w: NonNegative = 0.0
    nics: NonNegative = 0.0
    source: str = ""
    as_of: str = ""


class ClusterSpec(Document):
    """A number of equal devices and the tiers between them, innermost first."""

    name: str
    device: DeviceSpec
    devices: Count
    tiers: tuple[TierSpec, ...]
    host: HostSpec
    usd_per_device_hour: Usd = 0.0
    price_source: str = ""
    price_as_of: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.tiers:
            raise ValueError("a cluster needs at least one tier")
        for inner, outer in zip(self.tiers, self.tiers[1:], strict=False):
            if outer.devices <= inner.devices:
                raise ValueError(
                    f"tier {outer.name!r} of {outer.devices} devices lies outside"
                    f" {inner.name!r} of {inner.devices} and must be larger"
                )
        if self.tiers[-1].devices < self.devices:
            raise ValueError(
                f"the outermost tier {self.tiers[-1].name!r} holds {self.tiers[-1].devices}"
                f" devices, the cluster {self.devices}"
            )
        return self
