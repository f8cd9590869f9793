"""The site around a plan: procurement targets, floor, fabric, power caps, own or rent, batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Literal

from pydantic import Field

from gangsaw.bill.answer import (
    BillAnswer,
    BillChoices,
    book_name,
    owning,
    power_of,
    renting_of,
)
from gangsaw.bill.fabric import (
    FabricParts,
    FabricPlan,
    HostCheck,
    fabric_parts,
    host_check,
    reach,
)
from gangsaw.bill.finance import (
    Ownership,
    OwnOrRent,
    Renting,
    own_or_rent,
    owned_rates,
)
from gangsaw.bill.goodput import daly_interval_s, job_mtbf_s
from gangsaw.bill.power import (
    CapPoint,
    CapTerms,
    Floor,
    RackLimits,
    SiteLimits,
    SitePower,
    cap_point,
    cheapest_cap,
    floor_plan,
)
from gangsaw.bill.spread import money_span
from gangsaw.bill.tokens import BatchSweep, critical_batch, sweep_to_target
from gangsaw.errors import InputError
from gangsaw.read.parts import optic_part, parts, switch_part
from gangsaw.search.estimate import estimate
from gangsaw.search.parameters import Case, domain_of, inner_tiers, link_parameter, parameter
from gangsaw.search.scorecard import SLACK_FRAC, needed_bandwidth
from gangsaw.spec.base import Document, Frac
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.price import PriceBook
from gangsaw.units import HOUR_S

CAP_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Caps shown, over the device's rating."""
SAVE_WASTE_FRAC = 0.01
"""Share of the run that saves may take when storage is asked for."""


class Target(Document):
    """One line of a request for proposal: the least that holds the plan, and why."""

    name: str
    least: float
    unit: str
    now: float | None = Field(description="what the cluster has; None: not known")
    holds: bool | None
    threshold: str


def procurement(case: Case, book: PriceBook, power: SitePower | None = None) -> tuple[Target, ...]:
    """Least memory, link, radix, rack power and storage bandwidth with which the plan holds.

    Without the power of a node there is no target for the rack.
    """
    job, plan, cluster = case.job, case.plan, case.job.cluster
    result = estimate(job, plan)
    device = cluster.device
    memory = result.memory.peak_bytes * device.memory_bytes / result.memory.capacity_bytes
    over = link_parameter(case)
    several = over.name.startswith("inter")
    link, link_now = needed_bandwidth(case), over.get(case)
    endpoints = math.ceil(cluster.devices / cluster.host.devices) * max(1, round(cluster.host.nics))
    rated_w = power.node_rated_w if power is not None else None
    mtbf_s = job_mtbf_s(case.money.device_mtbf_h, cluster.devices)
    # Young: saves take sqrt(d / 2M) of the work.
    block_s = 2 * mtbf_s * SAVE_WASTE_FRAC**2
    interval_s = daly_interval_s(max(case.money.checkpoint_block_s, 1e-3), mtbf_s)
    size = job.model.params() * book.value("failure.checkpoint.bytes", "count")
    stage = max(result.memory.per_stage, key=lambda s: s.peak_device_bytes)
    return (
        Target(
            name="device memory", least=memory, unit="bytes", now=device.memory_bytes,
            holds=device.memory_bytes >= memory,
            threshold=f"peak of stage {stage.stage} in its {stage.phase}",
        ),
        Target(
            name=f"link {'beyond' if several else 'in'} the {domain_of(case)}",
            least=link, unit="bytes/s", now=link_now, holds=link_now >= link,
            threshold=f"step {100 * SLACK_FRAC:.0f} % above that over unlimited links",
        ),
        *_radix(endpoints, several),
        *_rack(rated_w),
        Target(
            name="storage bandwidth, blocking saves", least=size / block_s, unit="bytes/s",
            now=None, holds=None,
            threshold=f"{size / 1e12:.2f} TB saved in {block_s:.1f} s, so that blocking saves at"
            f" their best interval take {100 * SAVE_WASTE_FRAC:.0f} % of the run",
        ),
        Target(
            name="storage bandwidth, asynchronous", least=size / interval_s, unit="bytes/s",
            now=None, holds=None,
            threshold=f"{size / 1e12:.2f} TB written before the next save, {interval_s:.0f} s"
            " later (Daly's interval at the book's blocking time)",
        ),
    )  # fmt: skip


def _radix(endpoints: int, several_nodes: bool) -> tuple[Target, ...]:
    """Ports of a switch with which two tiers connect all NICs; one node needs none."""
    if not several_nodes:
        return ()
    radix = next(r for r in range(2, 100_000, 2) if reach(r, 2) >= endpoints)
    return (
        Target(
            name="switch radix, two tiers", least=float(radix), unit="ports", now=None, holds=None,
            threshold=f"{endpoints:,} NIC ports at full bisection",
        ),
    )  # fmt: skip


def _rack(rated_w: float | None) -> tuple[Target, ...]:
    """Power of a rack of two nodes; nothing where a node's is not known."""
    if rated_w is None:
        return ()
    return (
        Target(
            name="rack power for two nodes", least=2 * rated_w, unit="W", now=None, holds=None,
            threshold="rated power, continuous; each of two feeds carries it alone",
        ),
    )  # fmt: skip


class Facility(Document):
    """What the user states about the site; without it the book's figures and no limit."""

    rack: RackLimits | None = None
    site: SiteLimits = SiteLimits()
    switch: str = ""
    oversubscription: float = Field(1.0, ge=1, le=64)
    rail_optimised: bool = True
    kind: Literal["infiniband", "roce"] = "infiniband"
    horizon_months: int = Field(36, ge=1, le=600)
    use_by_month: tuple[Frac, ...] = Field(
        (), description="share of each month that devices are used; the last holds on"
    )
    rent: Renting | None = None
    lanes: int = Field(0, ge=0, description="PCIe lanes of a host, switches included")
    drives: int = Field(8, ge=0, description="NVMe drives of a host")


NO_LIMITS = Facility()
NO_CHOICES = BillChoices()


class Caps(Document):
    """What power caps do, from half the rating on, and the one with the cheapest token."""

    cheapest: CapPoint
    uncapped: CapPoint
    points: tuple[CapPoint, ...]
    basis: str = Field(description="what a device-hour without energy is taken to cost")


class OwnEnds(Document):
    """Owning against renting with every figure of owning at its cheaper, and its dearer end."""

    cheap: OwnOrRent
    dear: OwnOrRent
    figures: tuple[str, ...] = Field(description="with a range, the one that moves most first")


class SiteAnswer(Document):
    """The site around a plan."""

    title: str
    targets: tuple[Target, ...]
    floor: Floor | None
    floor_note: str = ""
    fabric: FabricParts | None
    fabric_note: str = ""
    switch: str
    caps: Caps | None = Field(description="None: the power of a node is not known")
    own_or_rent: OwnOrRent | None
    own_ends: OwnEnds | None = None
    own_note: str = ""
    host: HostCheck | None = None
    figures: tuple[str, ...]
    stale: tuple[str, ...] = Field((), description="of `figures`, those older than a year")


def site_answer(
    case: Case,
    book: PriceBook,
    facility: Facility = NO_LIMITS,
    choices: BillChoices = NO_CHOICES,
) -> SiteAnswer:
    """Everything around a plan, from the facility and the book. Parts without figures say so.

    Of `choices` count what is owned and the offer that owning is judged against.
    """
    cluster = case.job.cluster
    power, power_note = None, ""
    try:
        power = power_of(cluster, book)
    except InputError as error:
        power_note = str(error)
    nodes = math.ceil(cluster.devices / cluster.host.devices)
    rack = facility.rack or RackLimits(
        cooling_w=book.value("rack_power.air.limit", "W"),
        continuous_frac=book.value("power.continuous.share", "frac"),
    )
    floor, floor_note = None, power_note
    try:
        floor = None if power is None else floor_plan(nodes, power, rack, facility.site)
    except InputError as error:
        floor_note = str(error)
    fabric, fabric_note, chosen = _fabric(case, book, facility)
    ownership, own_note, own, ends = None, "", None, None
    try:
        own = owning(cluster, book, **(choices.owned or {}))
        rent = facility.rent or renting_of(cluster, book, choices)
        ownership = own_or_rent(own, rent, facility.horizon_months, facility.use_by_month)
        ends = ownership_ends(cluster, book, facility, choices)
    except (InputError, ValueError) as error:
        own_note = str(error).splitlines()[0]
    keys = (power.keys if power is not None else (), own.keys if own is not None else ())
    figures = tuple(dict.fromkeys(key for some in keys for key in some))
    return SiteAnswer(
        title=case.name,
        targets=procurement(case, book, power),
        floor=floor,
        floor_note=floor_note,
        fabric=fabric,
        fabric_note=fabric_note,
        switch=chosen,
        caps=None if power is None else _caps(case, book, own, power),
        own_or_rent=ownership,
        own_ends=ends,
        own_note=own_note,
        host=_host(case, facility),
        figures=figures,
        stale=book.stale(date.today(), figures),
    )


def ownership_ends(
    cluster: ClusterSpec, book: PriceBook, facility: Facility, choices: BillChoices
) -> OwnEnds | None:
    """Own or rent at both ends of the ranges of owning; the rent stays. None without a range."""
    rent = facility.rent or renting_of(cluster, book, choices)

    def at(moved: PriceBook) -> OwnOrRent:
        own = owning(cluster, moved, **(choices.owned or {}))
        return own_or_rent(own, rent, facility.horizon_months, facility.use_by_month)

    keys = owning(cluster, book, **(choices.owned or {})).keys
    span = money_span(keys, book, lambda moved: at(moved).curve[-1].owned_usd)
    if span is None:
        return None
    return OwnEnds(
        cheap=at(span.book_at(book, dear=False)),
        dear=at(span.book_at(book, dear=True)),
        figures=tuple(f.key for f in span.figures),
    )


def _host(case: Case, facility: Facility) -> HostCheck | None:
    """Lanes and memory of a host against what the plan needs of it."""
    host = case.job.cluster.host
    needed = estimate(case.job, case.plan).memory.host_bytes
    return host_check(
        host.devices, round(host.nics), facility.drives, facility.lanes or None, needed,
        host.memory_bytes,
    )  # fmt: skip


def _fabric(case: Case, book: PriceBook, facility: Facility) -> tuple[FabricParts | None, str, str]:
    """Parts of a full-bisection, rail-optimised fabric; the first switch that is fast enough."""
    cluster = case.job.cluster
    if inner_tiers(case).stop == len(cluster.tiers):
        return None, f"one {domain_of(case)}: nothing to connect", ""
    nics = max(1, round(cluster.host.nics))
    gbps = parameter("inter-node-bandwidth").get(case) * 8 / 1e9 * cluster.host.devices / nics
    gbps = round(gbps / 25) * 25.0
    switches, _ = parts()
    chosen = switch_part(facility.switch) if facility.switch else next(
        (s for s in switches.values() if s.port_gbps >= gbps), None
    )  # fmt: skip
    if chosen is None:
        return None, f"no switch of the catalog has ports of {gbps:g} Gb/s", ""
    optic = optic_part("osfp-400g" if gbps <= 400 else "twin-800g" if gbps <= 800 else "dsp-1600g")
    plan = FabricPlan(
        nodes=math.ceil(cluster.devices / cluster.host.devices), nics_per_node=nics, nic_gbps=gbps,
        oversubscription=facility.oversubscription, rail_optimised=facility.rail_optimised,
        kind=facility.kind,
    )  # fmt: skip
    name = book_name(cluster, book, "device_price")
    capital = 0.0
    if book.has(f"device_price.{name}.server"):
        share = book.value("network.capital.share", "frac")
        server = book.value(f"device_price.{name}.server", "USD/device")
        capital = cluster.devices * server / (1 - share)
    try:
        return fabric_parts(plan, chosen, optic, book, capital), "", chosen.name
    except InputError as error:
        return None, str(error), chosen.name


def _cap_terms(
    case: Case, book: PriceBook, own: Ownership | None, power: SitePower
) -> tuple[CapTerms, str]:
    """What a power cap acts on, and what a device-hour costs without energy.

    A cap saves energy for whoever pays it: the owner. Without figures of owning, the rent less
    the energy that it includes.
    """
    cost = case.step()
    if own is not None:
        rates = owned_rates(own)
        hour_usd = math.fsum(i.usd_per_device_hour for i in rates.items if i.item != "energy")
        basis = f"an owner's ${hour_usd:.2f} a device-hour without energy"
    else:
        kw = power.it_w(1) * power.pue / case.job.cluster.host.devices / 1e3
        hour_usd = max(0.0, case.money.usd_per_device_hour - kw * power.usd_per_kwh)
        basis = f"the rent less its energy, ${hour_usd:.2f} a device-hour"
    terms = CapTerms(
        tdp_w=case.job.cluster.device.tdp_w,
        devices_per_node=case.job.cluster.host.devices,
        compute_frac=min(1.0, (cost.compute + cost.recompute) / cost.step),
        step_time_s=cost.step,
        tokens_per_step=case.job.recipe.tokens_per_step,
        devices=case.job.cluster.devices,
        usd_per_device_hour=hour_usd,
        exponent=book.value("power.cap.exponent", "exponent"),
    )
    return terms, basis


def _caps(case: Case, book: PriceBook, own: Ownership | None, power: SitePower) -> Caps:
    """Caps from half the rating on, and the cheapest of all."""
    terms, basis = _cap_terms(case, book, own, power)
    return Caps(
        cheapest=cheapest_cap(terms, power),
        uncapped=cap_point(terms.tdp_w * power.measured_frac, terms, power),
        points=tuple(cap_point(f * terms.tdp_w, terms, power) for f in CAP_SHARES),
        basis=basis,
    )


def batch_sweep(
    case: Case, book: PriceBook, run_tokens: float, counts: Sequence[int] = ()
) -> BatchSweep:
    """Microbatch counts judged by money to the target that the present batch reaches.

    `counts` default to powers of two around the present one. Counts that are not legal are left
    out; InputError where none is.
    """
    over = parameter("microbatches")
    now = case.plan.num_microbatches
    wanted = counts or sorted({max(1, round(now * 2.0**k)) for k in range(-5, 6)})
    steps = []
    for count in wanted:
        try:
            at = over.at(case, float(count))
            seconds = at.step().step
        except InputError:
            continue
        usd = at.job.cluster.devices * seconds / HOUR_S * at.money.hour_usd()
        steps.append((float(at.job.recipe.tokens_per_step), seconds, usd))
    reference = float(case.job.recipe.tokens_per_step)
    return sweep_to_target(steps, run_tokens, reference, critical_batch(book, run_tokens))


class FullBill(BillAnswer):
    """What `bill` prints: the invoices, and where asked for the site and the batch sweep."""

    site: SiteAnswer | None = None
    batches: BatchSweep | None = None
