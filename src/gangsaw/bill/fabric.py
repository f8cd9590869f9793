"""Switches, ports, optics and cables of a folded-Clos fabric, counted, with power and money.

Rules of a fabric of radix R: without oversubscription two tiers reach R^2/2 ports and take 3N/R
switches, three tiers reach R^3/4 and take 5N/R. Oversubscription o at the leaf gives R o/(o+1)
ports down and the rest up. Rail-optimised: NIC i of every node goes to leaves of rail i, so a
leaf serves as many nodes as it has ports down.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from gangsaw.errors import InputError
from gangsaw.read.parts import OpticPart, SwitchPart
from gangsaw.spec.base import Count, Document, Frac, NonNegative, Positive
from gangsaw.spec.price import PriceBook

KINDS = ("infiniband", "roce")


class FabricPlan(Document):
    """What is to be connected, and how."""

    nodes: Count
    nics_per_node: Count
    nic_gbps: Positive
    oversubscription: float = Field(1.0, ge=1, le=64, description="at the leaf, down over up")
    rail_optimised: bool = True
    tiers: Literal[0, 1, 2, 3] = Field(0, description="0: as few as reach all nodes")
    optical_host_frac: Frac = Field(1.0, description="NIC links that are optical, not copper")
    kind: Literal["infiniband", "roce"] = "infiniband"


class FabricParts(Document):
    """The parts list; switch counts by tier, leaf first."""

    tiers: int
    leaves: int
    spines: int
    cores: int
    switches: int
    ports_used: int
    host_links: int
    trunk_links: int
    cables: int
    optics: int
    bisection_bytes_per_s: float = Field(description="across the leaves' uplinks, one direction")
    switch_w: float | None = Field(description="None: the switch's power is not published")
    optics_w: float
    usd: float | None = Field(description="None: a part has no price in the book")
    usd_by_share: float = Field(description="top-down: the network's share of capital")
    operating_usd_per_year: float | None = Field(
        None, description="effort of running this kind of fabric; None: not stated"
    )
    operating_by_kind: dict[str, float] = Field(
        default_factory=dict, description="USD a year of each kind that the book states"
    )
    not_priced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sum(self) -> FabricParts:
        if self.leaves + self.spines + self.cores != self.switches:
            raise ValueError("switches do not add up by tier")
        return self


def ports_down_up(ports: int, oversubscription: float) -> tuple[int, int]:
    """Ports of a leaf towards nodes and towards spines: R o/(o+1), rounded down, and the rest."""
    down = math.floor(ports * oversubscription / (oversubscription + 1))
    up = math.ceil(down / oversubscription)
    return down, up


def reach(ports: int, tiers: int, oversubscription: float = 1.0) -> int:
    """Most NIC ports that `tiers` tiers of switches with `ports` ports connect."""
    down, _ = ports_down_up(ports, oversubscription)
    if tiers == 1:
        return ports
    return down * ports if tiers == 2 else down * (ports // 2) * ports


def fabric_parts(
    plan: FabricPlan, switch: SwitchPart, optic: OpticPart, book: PriceBook, capital_usd: float
) -> FabricParts:
    """Count the parts of `plan`, and what they draw and cost.

    A faster switch port is split: 800 Gb/s serves two NICs of 400. `capital_usd` is that of the
    whole cluster, for the top-down check. Raises InputError where the switch is slower than the
    NIC, or the tiers do not reach.
    """
    split = math.floor(switch.port_gbps / plan.nic_gbps + 1e-9)
    if split < 1:
        raise InputError(
            f"switch {switch.name} has ports of {switch.port_gbps:g} Gb/s, the NICs"
            f" {plan.nic_gbps:g}: a port must be at least as fast"
        )
    radix = switch.ports * split
    endpoints = plan.nodes * plan.nics_per_node
    tiers = _tiers(plan, endpoints, radix)
    down, up = (radix, 0) if tiers == 1 else ports_down_up(radix, plan.oversubscription)
    rails = plan.nics_per_node if plan.rail_optimised and tiers > 1 else 1
    leaves = rails * math.ceil(endpoints / rails / down)
    # A leaf that is not full needs uplinks for the NICs that it has.
    used = math.ceil(endpoints / leaves)
    trunk = leaves * min(up, math.ceil(used / plan.oversubscription))
    if tiers == 3:
        spines, cores = math.ceil(trunk / (radix // 2)), math.ceil(trunk / radix)
        trunk_links = 2 * trunk
    else:
        spines, cores = math.ceil(trunk / radix), 0
        trunk_links = trunk
    switches = leaves + spines + cores
    # A host link may be copper; it carries one optic at the NIC and one at the leaf otherwise.
    ends = 2 * (trunk_links + plan.optical_host_frac * endpoints)
    optics = math.ceil(ends * plan.nic_gbps / optic.gbps)
    usd, missing = _priced(book, switch, optic, switches, optics, endpoints + trunk_links)
    opex_key = f"network.opex.{plan.kind}"
    stated = {k: f"network.opex.{k}" for k in KINDS if book.has(f"network.opex.{k}")}
    notes = [] if book.has(opex_key) else [f"operating effort of {plan.kind}: give {opex_key}"]
    return FabricParts(
        tiers=tiers, leaves=leaves, spines=spines, cores=cores, switches=switches,
        ports_used=endpoints + 2 * trunk_links, host_links=endpoints, trunk_links=trunk_links,
        cables=endpoints + trunk_links, optics=optics,
        bisection_bytes_per_s=(trunk if tiers > 1 else endpoints) * plan.nic_gbps / 8 * 1e9 / 2,
        switch_w=None if switch.typical_w is None else switches * switch.typical_w,
        optics_w=optics * optic.watts, usd=usd,
        usd_by_share=capital_usd * book.value("network.capital.share", "frac"),
        operating_usd_per_year=book.value(opex_key, "USD/year") if book.has(opex_key) else None,
        operating_by_kind={k: book.value(key, "USD/year") for k, key in stated.items()},
        not_priced=missing, notes=tuple(notes),
    )  # fmt: skip


def _tiers(plan: FabricPlan, endpoints: int, radix: int) -> int:
    """Asked-for tiers if they reach, or the fewest that do."""
    for tiers in (plan.tiers,) if plan.tiers else (1, 2, 3):
        if endpoints <= reach(radix, tiers, plan.oversubscription):
            return tiers
    most = reach(radix, plan.tiers or 3, plan.oversubscription)
    raise InputError(
        f"{endpoints:,} NIC ports; {plan.tiers or 3} tiers of radix {radix} reach {most:,}:"
        " more tiers, a larger radix or several planes are needed"
    )


def _priced(
    book: PriceBook, switch: SwitchPart, optic: OpticPart, switches: int, optics: int, cables: int
) -> tuple[float | None, tuple[str, ...]]:
    """Money for the parts, or None with the keys that have no price."""
    wanted = (
        (f"part_price.{switch.name}", switches),
        (f"part_price.{optic.name}", optics),
        ("part_price.cable", cables),
    )
    missing = tuple(key for key, _ in wanted if not book.has(key))
    if missing:
        return None, missing
    return math.fsum(n * book.value(key, "USD/part") for key, n in wanted), ()


class HostCheck(Document):
    """Whether a host can feed its devices and NICs, and hold what is offloaded to it."""

    lanes_needed: int
    lanes: int | None = Field(description="None: not stated")
    lanes_ok: bool | None
    memory_needed_bytes: float
    memory_bytes: float
    memory_ok: bool


def host_check(
    devices: int,
    nics: int,
    drives: int,
    lanes: int | None,
    memory_needed_bytes: float,
    memory_bytes: NonNegative,
) -> HostCheck:
    """PCIe lanes (16 a device and NIC, 4 a drive) and memory of one host.

    `lanes` are those of the processors plus what switches add downstream. Hosts of eight devices
    use PCIe switches, since two sockets have 128 to 160 lanes.
    """
    needed = 16 * (devices + nics) + 4 * drives
    return HostCheck(
        lanes_needed=needed,
        lanes=lanes,
        lanes_ok=None if lanes is None else needed <= lanes,
        memory_needed_bytes=memory_needed_bytes,
        memory_bytes=memory_bytes,
        memory_ok=memory_needed_bytes <= memory_bytes,
    )
