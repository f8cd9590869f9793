"""Owning against renting: cost of an owned device-hour, break-even, and what each must believe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from gangsaw.bill.goodput import daly_interval_s, expected_wall_s
from gangsaw.errors import InputError
from gangsaw.read.toml import validate
from gangsaw.spec.base import Document, Frac, NonNegative, Positive, at_most
from gangsaw.spec.invoice import RateItem, Rates
from gangsaw.spec.price import PriceBook
from gangsaw.units import HOUR_S

RETROFIT_KEY = "facility.retrofit.site"
"""The user's own figure for power and cooling put into an existing building."""
MAINTENANCE_KEY = "opex.maintenance.share"
HOURS_PER_YEAR = 8766.0
HOURS_PER_MONTH = HOURS_PER_YEAR / 12


OWN_LIMITS = {
    "devices_usd": 1e9, "fabric_usd": 1e9, "building_usd": 1e9, "life_years": 100.0,
    "building_life_years": 1000.0, "residual_years": 100.0, "discount_frac": 10.0, "wall_w": 1e6,
    "idle_wall_w": 1e6, "usd_per_kwh": 1e3, "maintenance_frac": 10.0, "staff_usd_per_year": 1e9,
    "other_usd_per_hour": 1e6,
}  # fmt: skip
RENT_LIMITS = {
    "usd_per_hour": 1e6, "term_months": 1200.0, "preemptions_per_hour": 1e6, "restart_s": 1e9,
    "checkpoint_block_s": 1e9,
}  # fmt: skip
"""Of one device: beyond them stands the whole cluster's figure, or another unit."""


class Ownership(Document):
    """What one owned device costs, once and running. Money is a device's share."""

    devices_usd: NonNegative = Field(description="server, a device")
    fabric_usd: NonNegative = Field(0.0, description="network and storage hardware, a device")
    building_usd: NonNegative = Field(0.0, description="building and electrical plant, a device")
    life_years: Positive = 5.0
    building_life_years: Positive = 20.0
    residual_frac: Frac = Field(0.0, description="resale after `residual_years` over price")
    residual_years: Positive = 3.0
    discount_frac: NonNegative = Field(0.0, description="a year; 0 is straight line")
    wall_w: NonNegative = Field(0.0, description="loaded, with network share and PUE, a device")
    idle_wall_w: NonNegative = 0.0
    usd_per_kwh: NonNegative = 0.0
    maintenance_frac: NonNegative = Field(0.0, description="of hardware a year")
    staff_usd_per_year: NonNegative = Field(0.0, description="a device")
    other_usd_per_hour: NonNegative = Field(0.0, description="any other running cost")
    utilisation_frac: Frac = Field(1.0, description="hours used over hours owned")
    keys: tuple[str, ...] = ()
    not_billed: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        at_most(self, OWN_LIMITS)
        return self

    def value_after(self, years: float) -> float:
        """Resale value of server and fabric: falls at one rate through the stated residual.

        V(t) = P r^(t / residual_years); with no stated residual the hardware is worth nothing.
        """
        price = self.devices_usd + self.fabric_usd
        if self.residual_frac == 0.0:
            return price if years == 0 else 0.0
        return price * math.pow(self.residual_frac, years / self.residual_years)

    @property
    def capital_usd(self) -> float:
        """Money spent at the start, a device."""
        return self.devices_usd + self.fabric_usd + self.building_usd

    def running_usd_per_hour(self, loaded_frac: float = 1.0) -> float:
        """Running cost of an owned hour of which `loaded_frac` is under load."""
        watts = loaded_frac * self.wall_w + (1 - loaded_frac) * self.idle_wall_w
        fixed = self.maintenance_frac * (self.devices_usd + self.fabric_usd)
        yearly = fixed + self.staff_usd_per_year
        return watts / 1e3 * self.usd_per_kwh + yearly / HOURS_PER_YEAR + self.other_usd_per_hour


def yearly_charge(price: float, residual: float, years: float, discount_frac: float) -> float:
    """Yearly cost of a thing bought for `price` and worth `residual` after `years`.

    Straight line (P - R) / n at no discount; else the annuity (P - R / q^n) i q^n / (q^n - 1),
    q = 1 + i.
    """
    if discount_frac == 0.0:
        return (price - residual) / years
    growth = math.pow(1 + discount_frac, years)
    return (price - residual / growth) * discount_frac * growth / (growth - 1)


def owned_rates(own: Ownership) -> Rates:
    """Rates of an owned device: what one used hour bears of capital and running cost.

    Unused hours are borne by the used ones: everything that runs on with the calendar is divided
    by the utilisation.
    """
    hours = HOURS_PER_YEAR * own.utilisation_frac
    if hours == 0:
        raise InputError("utilisation_frac=0: a device that is never used has no cost an hour")
    residual = own.value_after(own.life_years) / _hardware(own) if _hardware(own) else 0.0
    calendar = (
        ("devices", own.devices_usd, residual * own.devices_usd, own.life_years),
        ("fabric", own.fabric_usd, residual * own.fabric_usd, own.life_years),
        ("building", own.building_usd, 0.0, own.building_life_years),
    )
    items = [
        RateItem(
            item=name,
            spending="capital",
            usd_per_device_hour=yearly_charge(price, rest, years, own.discount_frac) / hours,
            keys=own.keys,
        )
        for name, price, rest, years in calendar
        if price or name == "devices"
    ]
    kw = own.wall_w / 1e3 * own.usd_per_kwh
    unused = own.idle_wall_w / 1e3 * own.usd_per_kwh
    standing = unused * (1 - own.utilisation_frac) / own.utilisation_frac
    hardware = own.devices_usd + own.fabric_usd
    for name, loaded, unloaded in (
        ("energy", kw + standing, unused + standing),
        ("maintenance", own.maintenance_frac * hardware / hours, None),
        ("staff", own.staff_usd_per_year / hours, None),
        ("other", own.other_usd_per_hour / own.utilisation_frac, None),
    ):
        if loaded:
            items.append(
                RateItem(
                    item=name,
                    spending="operating",
                    usd_per_device_hour=loaded,
                    unused_usd_per_device_hour=unloaded,
                )
            )
    return Rates(name="owned", items=tuple(items), not_billed=own.not_billed)


def ownership_of_book(
    book: PriceBook,
    device: str,
    devices_per_node: int,
    node_w: float | None = None,
    **stated: float,
) -> Ownership:
    """Ownership from the book's figures; `stated` replaces fields with the user's own.

    Server price, network share of capital, building by watt, measured node power, PUE of a new
    site and industrial electricity. Staff and maintenance stand in only where the book has them;
    else the bill says that it leaves them out. What is stated is not asked of the book, and
    `keys` names only figures that were. `node_w`: rated power of a node, where the cluster
    states it and the book does not. Raises InputError for a device without figures.
    """
    server_key, power_key = f"device_price.{device}.server", f"power.node.{device}"
    # A retrofit has no public figure: it is the user's own, and stands in for a new building.
    building_key = RETROFIT_KEY if book.has(RETROFIT_KEY) else "facility.new-build.ai"
    used: dict[str, None] = {}

    def figure(key: str, unit: str) -> float:
        used[key] = None
        return book.value(key, unit)

    def rated_w() -> float:
        whole = figure(power_key, "W") if node_w is None else node_w
        return whole / devices_per_node * (1 + figure("power.network.share", "frac"))

    def drawn_w(share_key: str) -> float:
        return rated_w() * figure(share_key, "frac") * figure("pue.site.new", "ratio")

    def fabric_usd() -> float:
        server = stated.get("devices_usd")
        server = figure(server_key, "USD/device") if server is None else server
        share = figure("network.capital.share", "frac")
        return server * share / (1 - share)

    not_billed = []
    if not book.keys("staff") and "staff_usd_per_year" not in stated:
        not_billed.append("staff (no figure under staff.*)")
    upkeep = book.has(MAINTENANCE_KEY)
    if not upkeep and "maintenance_frac" not in stated:
        not_billed.append(f"maintenance (no figure {MAINTENANCE_KEY})")
    made: dict[str, Callable[[], float]] = {
        "devices_usd": lambda: figure(server_key, "USD/device"),
        "fabric_usd": fabric_usd,
        "building_usd": lambda: rated_w() * figure(building_key, "USD/W"),
        "life_years": lambda: figure("depreciation.server.life", "years"),
        "building_life_years": lambda: figure("depreciation.building.life", "years"),
        "residual_frac": lambda: figure("residual.server.3y", "frac"),
        "wall_w": lambda: drawn_w("power.measured.share"),
        "idle_wall_w": lambda: drawn_w("power.idle.share"),
        "usd_per_kwh": lambda: figure("electricity.us.industrial", "USD/kWh"),
        "maintenance_frac": lambda: figure(MAINTENANCE_KEY, "frac") if upkeep else 0.0,
    }
    fields: dict[str, object] = {n: make() for n, make in made.items() if n not in stated}
    fields |= {"keys": tuple(used), "not_billed": tuple(not_billed)}
    return validate(Ownership, {**fields, **stated}, "figures of owned devices")


class Renting(Document):
    """What a rented device-hour costs. Reserved hours are paid whether used or not."""

    usd_per_hour: Positive
    kind: Literal["on-demand", "reserved", "spot"] = "on-demand"
    term_months: Positive = Field(12.0, description="of a reservation")
    preemptions_per_hour: NonNegative = Field(0.0, description="of the whole job (spot)")
    restart_s: NonNegative = 0.0
    checkpoint_block_s: NonNegative = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        at_most(self, RENT_LIMITS)
        return self

    def usd_per_work_hour(self) -> float:
        """Money for an hour of work that counts: spot pays for saves, restarts and lost work."""
        if self.kind != "spot" or self.preemptions_per_hour == 0:
            return self.usd_per_hour
        mtbf_s = HOUR_S / self.preemptions_per_hour
        block_s = max(self.checkpoint_block_s, 1e-3)
        interval_s = daly_interval_s(block_s, mtbf_s)
        wall_s = expected_wall_s(HOUR_S, block_s, interval_s, mtbf_s, self.restart_s)
        return self.usd_per_hour * wall_s / HOUR_S


class Month(Document):
    """Money spent by the end of a month, a device."""

    month: int
    owned_usd: float = Field(description="capital and running, less what a sale would bring")
    rented_usd: float


class OwnOrRent(Document):
    """The curve, where it crosses, and what each side must believe over the horizon."""

    curve: tuple[Month, ...]
    break_even_month: float | None = Field(description="None: not within the horizon")
    break_even_cash_month: float | None = Field(description="the same without any resale")
    month_12: Month
    rent_at_parity_usd: float = Field(description="rent above which owning wins at the horizon")
    utilisation_at_parity_frac: float | None = Field(
        description="use above which owning wins at the horizon; None: at no use"
    )
    price_at_parity_usd: float = Field(description="device price below which owning wins")


def own_or_rent(
    own: Ownership, rent: Renting, horizon_months: int, profile: Sequence[float] = ()
) -> OwnOrRent:
    """Own or rent one device for `horizon_months`, used by `profile` (share of each month).

    The profile's last value holds on; empty is the ownership's utilisation throughout. Raises
    InputError for a profile value outside 0..1 or a horizon outside 1..600 months.
    """
    if not 1 <= horizon_months <= 600:
        raise InputError(f"horizon of {horizon_months} months: between 1 and 600")
    wrong = [u for u in profile if not 0 <= u <= 1]
    if wrong:
        raise InputError(f"utilisation {wrong[0]!r}: between 0 and 1")
    uses = list(profile) or [own.utilisation_frac]
    curve = [_month_zero(own)]
    running = rented = 0.0
    cash: list[float] = [own.capital_usd]
    for month in range(1, max(horizon_months, 12) + 1):
        use = uses[min(month - 1, len(uses) - 1)]
        running += own.running_usd_per_hour(use) * HOURS_PER_MONTH
        rented += _rent_of_month(rent, use)
        spent = own.capital_usd + running
        cash.append(spent)
        curve.append(
            Month(month=month, owned_usd=spent - _sale(own, month / 12), rented_usd=rented)
        )
    kept = tuple(curve[: horizon_months + 1])
    last = kept[-1]
    mean_use = sum(uses[min(i, len(uses) - 1)] for i in range(horizon_months)) / horizon_months
    hours = horizon_months * HOURS_PER_MONTH * (1.0 if rent.kind == "reserved" else mean_use)
    return OwnOrRent(
        curve=kept,
        break_even_month=_crossing([m.owned_usd - m.rented_usd for m in kept]),
        break_even_cash_month=_crossing(
            [c - m.rented_usd for c, m in zip(cash, kept, strict=False)]
        ),
        month_12=curve[12],
        rent_at_parity_usd=last.owned_usd / hours if hours else math.inf,
        utilisation_at_parity_frac=_parity_use(own, rent, horizon_months),
        price_at_parity_usd=_parity_price(own, last),
    )


def _hardware(own: Ownership) -> float:
    """Price of server and fabric."""
    return own.devices_usd + own.fabric_usd


def _parity_price(own: Ownership, last: Month) -> float:
    """Server price at which both cost the same at `last`; loss of value and upkeep follow it."""
    years = last.month / 12
    kept = own.value_after(years) / _hardware(own) if _hardware(own) else 0.0
    per_usd = 1 - kept + own.maintenance_frac * years
    rest = last.owned_usd - own.devices_usd * per_usd
    return max(0.0, (last.rented_usd - rest) / per_usd)


def break_even_years(
    capital_usd: float,
    rent_usd_per_hour: float,
    running_usd_per_hour: float,
    residual_frac: float = 0.0,
    utilisation_frac: float = 1.0,
) -> float:
    """Years after which buying has cost less than renting, with a fixed residual, undiscounted.

    P (1 - r) / (8,766 (u rent - running)): rent is paid for used hours, running cost always.
    Infinite where renting costs no more than running.
    """
    saving = utilisation_frac * rent_usd_per_hour - running_usd_per_hour
    if saving <= 0:
        return math.inf
    return capital_usd * (1 - residual_frac) / (saving * HOURS_PER_YEAR)


def _building_value(own: Ownership, years: float) -> float:
    """Straight-line value of the building."""
    return own.building_usd * max(0.0, 1 - years / own.building_life_years)


def _sale(own: Ownership, years: float) -> float:
    """What a sale would bring after `years`: hardware, and the building's remaining life."""
    return own.value_after(years) + _building_value(own, years)


def _month_zero(own: Ownership) -> Month:
    """The day of purchase: nothing is lost yet."""
    return Month(month=0, owned_usd=own.capital_usd - _sale(own, 0.0), rented_usd=0.0)


def _rent_of_month(rent: Renting, use: float) -> float:
    """Rent of one month of which `use` is used."""
    hours = HOURS_PER_MONTH * (1.0 if rent.kind == "reserved" else use)
    return hours * rent.usd_per_work_hour()


def _crossing(gap: Sequence[float]) -> float | None:
    """First month after which owning stays cheaper, between months by a straight line."""
    for month in range(len(gap) - 1, 0, -1):
        if gap[month] > 0:
            return (
                None
                if month == len(gap) - 1
                else month + gap[month] / (gap[month] - gap[month + 1])
            )
    return 0.0 if gap[-1] <= 0 and gap[0] <= 0 else _between(gap[0], gap[1])


def _between(before: float, after: float) -> float:
    """Where a straight line from `before` to `after` is zero."""
    return before / (before - after) if before != after else 0.0


def _parity_use(own: Ownership, rent: Renting, months: int) -> float | None:
    """Utilisation at which both cost the same at the horizon; running cost is linear in it."""
    if rent.kind == "reserved":
        return None
    hours = months * HOURS_PER_MONTH
    still = own.capital_usd - _sale(own, months / 12) + own.running_usd_per_hour(0.0) * hours
    slope = (
        rent.usd_per_work_hour() * hours
        - (own.running_usd_per_hour(1.0) - own.running_usd_per_hour(0.0)) * hours
    )
    if slope <= 0 or still / slope > 1:
        return None
    return still / slope
