"""Power and floor: node and site power, energy and carbon, racks, feeds, and power caps."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec.base import Count, Document, Frac, NonNegative, Positive
from gangsaw.spec.price import PriceBook
from gangsaw.units import HOUR_S


class SitePower(Document):
    """Power of the nodes and what a site adds to it."""

    node_rated_w: Positive = Field(description="what supplies and breakers must carry")
    measured_frac: Frac = Field(1.0, description="drawn under training over rated")
    idle_frac: Frac = 0.0
    network_frac: NonNegative = Field(0.0, description="network, storage, head nodes over nodes")
    pue: float = Field(1.0, ge=1, le=5, description="site power over IT power")
    usd_per_kwh: NonNegative = 0.0
    kg_co2_per_kwh: NonNegative = 0.0
    keys: tuple[str, ...] = ()

    def it_w(self, nodes: float, loaded: bool = True) -> float:
        """IT power drawn by `nodes` nodes and their network."""
        share = self.measured_frac if loaded else self.idle_frac
        return nodes * self.node_rated_w * share * (1 + self.network_frac)

    def feed_w(self, nodes: float) -> float:
        """Site power to provide for `nodes` nodes: rated, with network and PUE."""
        return nodes * self.node_rated_w * (1 + self.network_frac) * self.pue

    def energy_j(self, nodes: float, loaded_s: float, idle_s: float = 0.0) -> float:
        """Energy at the site's meter over loaded and idle seconds of all nodes."""
        it_j = self.it_w(nodes) * loaded_s + self.it_w(nodes, loaded=False) * idle_s
        return it_j * self.pue

    def energy_usd(self, energy_j: float) -> float:
        """Money for energy at the meter."""
        return energy_j / 3.6e6 * self.usd_per_kwh

    def carbon_kg(self, energy_j: float) -> float:
        """CO2 equivalent of energy at the meter."""
        return energy_j / 3.6e6 * self.kg_co2_per_kwh


def site_power(
    book: PriceBook,
    device: str,
    *,
    rated_w: float | None = None,
    pue: str = "pue.site.new",
    electricity: str = "electricity.us.industrial",
    carbon: str = "carbon.us.mean",
) -> SitePower:
    """Site power of the nodes of `device` from the book's figures.

    `rated_w`: of a node, where the cluster states it and the book does not.
    """
    key = f"power.node.{device}"
    node_w = book.value(key, "W") if rated_w is None else rated_w
    figures = (
        ("power.measured.share", "frac"), ("power.idle.share", "frac"),
        ("power.network.share", "frac"), (pue, "ratio"), (electricity, "USD/kWh"),
        (carbon, "kg/kWh"),
    )  # fmt: skip
    measured, idle, network, ratio, price, grams = (book.value(k, u) for k, u in figures)
    own = (key,) if rated_w is None else ()
    return SitePower(
        node_rated_w=node_w,
        measured_frac=measured,
        idle_frac=idle,
        network_frac=network,
        pue=ratio,
        usd_per_kwh=price,
        kg_co2_per_kwh=grams,
        keys=(*own, *(k for k, _ in figures)),
    )


def three_phase_w(
    volts: float, amperes: float, continuous_frac: float, power_factor: float = 1.0
) -> float:
    """Continuous power of a three-phase breaker: sqrt(3) V I times the continuous share.

    NEC 210.19, 210.20 and 215: 80 % for loads of three hours and more on ordinary breakers.
    """
    return math.sqrt(3.0) * volts * amperes * continuous_frac * power_factor


class RackLimits(Document):
    """What one rack may hold."""

    cooling_w: Positive = Field(description="heat that the cooling takes from a rack")
    volts: Positive = 415.0
    amperes: Positive = 60.0
    feeds: Count = Field(2, description="PDUs to a rack")
    redundant: bool = Field(True, description="half of the feeds must carry all of it (A/B)")
    continuous_frac: Frac = 0.8
    power_factor: Frac = 1.0
    nodes_that_fit: Count = Field(4, description="by height and weight")

    @property
    def electrical_w(self) -> float:
        """Continuous power of the rack's feeds, with one side down where they are redundant."""
        one = three_phase_w(self.volts, self.amperes, self.continuous_frac, self.power_factor)
        carrying = self.feeds // 2 if self.redundant else self.feeds
        return one * max(1, carrying)


class SiteLimits(Document):
    """What the site can give; None: not a limit."""

    racks: Count | None = None
    feed_w: Positive | None = None
    cooling_w: Positive | None = None
    switch_ports: Count | None = Field(None, description="ports for devices' NICs")
    nics_per_node: Positive = 8.0


Limit = Literal["space", "power", "cooling", "floor", "feed", "ports", "none"]


class Floor(Document):
    """How many racks and what feed, and what binds."""

    nodes: int
    nodes_per_rack: int
    rack_limit: Limit = Field(description="what keeps more nodes out of a rack")
    racks: int
    rack_w: float
    feed_w: float
    nodes_possible: int | None = Field(description="by the site's limits; None: no limit given")
    site_limit: Limit
    fits: bool
    by_limit: dict[str, int] = Field(description="nodes that each limit would allow")


def floor_plan(nodes: int, power: SitePower, rack: RackLimits, site: SiteLimits) -> Floor:
    """Racks, feed and the binding limit for `nodes` nodes, provisioned at rated power.

    Raises InputError where a single node passes what a rack can power or cool.
    """
    by_rack: dict[Limit, int] = {
        "space": rack.nodes_that_fit,
        "power": math.floor(rack.electrical_w / power.node_rated_w + 1e-9),
        "cooling": math.floor(rack.cooling_w / power.node_rated_w + 1e-9),
    }
    rack_limit = min(by_rack, key=lambda k: by_rack[k])
    per_rack = by_rack[rack_limit]
    if per_rack < 1:
        limit_w = rack.electrical_w if rack_limit == "power" else rack.cooling_w
        raise InputError(
            f"a node of {power.node_rated_w / 1e3:.1f} kW does not fit a rack with"
            f" {limit_w / 1e3:.1f} kW of {rack_limit}: larger or more feeds, or other cooling"
        )
    node_it_w = power.node_rated_w * (1 + power.network_frac)
    limits: dict[Limit, int] = {}
    if site.racks is not None:
        limits["floor"] = site.racks * per_rack
    if site.feed_w is not None:
        limits["feed"] = math.floor(site.feed_w / (node_it_w * power.pue))
    if site.cooling_w is not None:
        limits["cooling"] = math.floor(site.cooling_w / node_it_w)
    if site.switch_ports is not None:
        limits["ports"] = math.floor(site.switch_ports / site.nics_per_node)
    site_limit: Limit = min(limits, key=lambda k: limits[k]) if limits else "none"
    possible = limits[site_limit] if limits else None
    return Floor(
        nodes=nodes,
        nodes_per_rack=per_rack,
        rack_limit=rack_limit,
        racks=math.ceil(nodes / per_rack),
        rack_w=per_rack * power.node_rated_w,
        feed_w=power.feed_w(nodes),
        nodes_possible=possible,
        site_limit=site_limit,
        fits=possible is None or nodes <= possible,
        by_limit={str(k): v for k, v in limits.items()},
    )


class CapPoint(Document):
    """A power cap and what it does to a step."""

    cap_w: float = Field(description="of one device")
    step_time_s: float
    device_clock_frac: float = Field(description="throughput of compute over uncapped")
    node_w: float
    energy_j_per_step: float
    usd_per_million_tokens: float


class CapTerms(Document):
    """What a cap acts on: device power, the share of the step it slows, and the prices."""

    tdp_w: Positive
    devices_per_node: Count
    compute_frac: Frac = Field(description="share of the step that runs at the capped clock")
    step_time_s: Positive
    tokens_per_step: Count
    devices: Count
    usd_per_device_hour: NonNegative = Field(description="without energy")
    exponent: Positive = Field(0.4, description="throughput as power to this; 1/3 to 1/2")
    least_cap_frac: Frac = Field(0.3, description="lowest cap over TDP that the device takes")


def cap_point(cap_w: float, terms: CapTerms, power: SitePower) -> CapPoint:
    """Step time, energy and money a token at a cap of `cap_w` a device.

    Dynamic power goes as V^2 f with V about linear in f, so throughput goes as P^(1/3) to
    P^(1/2); communication, bubbles and host time do not slow down. The node's other draw stays.
    """
    uncapped_w = terms.tdp_w * power.measured_frac
    frac = min(1.0, cap_w / uncapped_w)
    clock = math.pow(frac, terms.exponent)
    step_s = terms.step_time_s * (terms.compute_frac / clock + 1 - terms.compute_frac)
    other_w = max(0.0, power.node_rated_w - terms.devices_per_node * terms.tdp_w)
    node_w = other_w * power.measured_frac + terms.devices_per_node * uncapped_w * frac
    nodes = terms.devices / terms.devices_per_node
    energy_j = node_w * nodes * (1 + power.network_frac) * power.pue * step_s
    usd = terms.devices * step_s / HOUR_S * terms.usd_per_device_hour + power.energy_usd(energy_j)
    return CapPoint(
        cap_w=cap_w,
        step_time_s=step_s,
        device_clock_frac=clock,
        node_w=node_w,
        energy_j_per_step=energy_j,
        usd_per_million_tokens=usd / terms.tokens_per_step * 1e6,
    )


def cheapest_cap(terms: CapTerms, power: SitePower) -> CapPoint:
    """The cap with the cheapest token, between the least the device takes and its full draw."""
    from scipy.optimize import minimize_scalar

    top = terms.tdp_w * power.measured_frac
    found = minimize_scalar(
        lambda cap: cap_point(cap, terms, power).usd_per_million_tokens,
        bounds=(terms.least_cap_frac * terms.tdp_w, top),
        method="bounded",
        options={"xatol": 1e-4 * top},
    )
    points = [cap_point(c, terms, power) for c in (float(found.x), top)]
    return min(points, key=lambda p: p.usd_per_million_tokens)
