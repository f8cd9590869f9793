"""PriceBook: every figure of money, power and failure that a bill uses, with its source and date.

No price stands in code. A figure is found by a dotted key (`device_hour.h100-sxm.on-demand`) and
asked for with the unit that the formula needs, so a figure in another unit is an error and never
a factor of a thousand.
"""

from __future__ import annotations

import calendar
import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Self

from pydantic import Field, model_validator

from gangsaw.errors import InputError
from gangsaw.spec.base import Document, NonNegative, Sourced

CURRENCY = "USD"
STALE_DAYS = 365
"""A figure older than this is marked on the bill."""

UNITS: dict[str, str] = {
    "USD/device-hour": "money for one device for one hour",
    "USD/device": "money for one device, once",
    "USD/node": "money for one node, once",
    "USD/rack": "money for one rack, once",
    "USD/part": "money for one switch, optic or cable, once",
    "USD/W": "money for one watt of site capacity, once",
    "USD/kW-month": "money for one kilowatt of rented capacity for one month",
    "USD/kWh": "money for one kilowatt-hour",
    "USD/GB": "money for one gigabyte (1e9 bytes) moved",
    "USD/GB-month": "money for one gigabyte (1e9 bytes) kept for one month",
    "USD/1000-requests": "money for a thousand requests",
    "USD/month": "money a month",
    "USD/year": "money a year",
    "USD": "money",
    "frac": "a share, 0 to 1",
    "ratio": "a ratio, one or more",
    "years": "years",
    "months": "months",
    "hours": "hours",
    "s": "seconds",
    "W": "watts",
    "kg/kWh": "kilograms of CO2 equivalent for one kilowatt-hour",
    "1/instance-hour": "events for one rented instance and hour",
    "sequences": "sequences",
    "exponent": "a power",
    "count": "a count",
}
"""Legal units and what they mean."""

OPEN_FAMILIES: tuple[str, ...] = (
    "device_hour", "device_price", "node_price", "rack_price", "part_price", "facility", "colo",
    "electricity", "carbon", "storage", "egress", "opex", "depreciation", "residual", "power",
    "pue", "rack_power", "failure", "spot", "staff", "network",
)  # fmt: skip
"""Families to which a user may add figures; any other new key is taken for a slip."""

_DATE = re.compile(r"^(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?$")
_CURRENCY = re.compile(r"^[A-Z]{3}$")


def date_span(as_of: str) -> tuple[date, date]:
    """First and last day that `as_of` (YYYY, YYYY-MM or YYYY-MM-DD) can mean.

    Raises ValueError when it is no such date.
    """
    match = _DATE.match(as_of)
    if match is None:
        raise ValueError(f"as_of={as_of!r}: a date as YYYY, YYYY-MM or YYYY-MM-DD")
    year, month, day = (int(g) if g else 0 for g in match.groups())
    try:
        first = date(year, month or 1, day or 1)
    except ValueError:
        raise ValueError(f"as_of={as_of!r} is not a day of the calendar") from None
    if day:
        return first, first
    last_month = month or 12
    return first, date(year, last_month, calendar.monthrange(year, last_month)[1])


MOST = 1e12
"""No price, power or duration of a price book is larger: beyond it stands another unit."""


class Figure(Sourced):
    """One figure. `low` and `high` bound it where sources give a range or conflict."""

    value: NonNegative
    low: NonNegative | None = None
    high: NonNegative | None = None
    currency: str = Field("", description="ISO code; needed where the unit is money")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.unit not in UNITS:
            near = difflib.get_close_matches(self.unit, UNITS, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"unit={self.unit!r}{hint}: one of {', '.join(UNITS)}")
        money = self.unit.startswith(CURRENCY)
        if money and self.currency != CURRENCY:
            said = repr(self.currency) if self.currency else "missing"
            raise ValueError(
                f"currency={said}, but the unit is {self.unit}: prices are in {CURRENCY};"
                " convert, and say in `note` at what rate and day"
            )
        if not money and self.currency:
            raise ValueError(f"currency={self.currency!r}, but the unit {self.unit} is no money")
        if self.unit == "frac" and max(self.value, self.high or 0.0) > 1:
            raise ValueError(f"value={self.value!r}: a frac is between 0 and 1")
        if self.unit == "ratio" and self.value < 1:
            raise ValueError(f"value={self.value!r}: a ratio is 1 or more")
        low, high = self.span
        if max(self.value, high) > MOST:
            raise ValueError(f"value={max(self.value, high)!r}: at most {MOST:g} {self.unit}")
        if not low <= self.value <= high:
            raise ValueError(f"value={self.value!r} is outside low={low!r} and high={high!r}")
        if not self.source.strip():
            raise ValueError("source is empty: where does the figure come from?")
        date_span(self.as_of)
        return self

    @property
    def span(self) -> tuple[float, float]:
        """Lowest and highest value that sources give; the value itself where there is one."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return low, high

    def is_stale(self, today: date) -> bool:
        """Whether even the last day of `as_of` is more than a year before `today`."""
        return date_span(self.as_of)[1] + timedelta(days=STALE_DAYS) < today

    def is_future(self, today: date) -> bool:
        """Whether the first day of `as_of` is still to come."""
        return date_span(self.as_of)[0] > today


class PriceBook(Document):
    """Figures by dotted key. `mine` are the keys that the user's own file set."""

    figures: dict[str, Figure]
    mine: frozenset[str] = frozenset()

    def get(self, key: str, unit: str) -> Figure:
        """The figure of `key`; InputError when it is missing or in another unit than `unit`."""
        figure = self.figures.get(key)
        if figure is None:
            family = key.split(".", maxsplit=1)[0] + "."
            legal = [k for k in self.figures if k.startswith(family)]
            shown = ", ".join(sorted(legal)[:8]) + (", ..." if len(legal) > 8 else "")
            raise InputError(
                f"the price book has no figure {key!r} ({unit}); give it with --prices FILE."
                + (f" It has: {shown}" if legal else "")
            )
        if figure.unit != unit:
            raise InputError(f"figure {key!r} is in {figure.unit}; {unit} is needed")
        return figure

    def value(self, key: str, unit: str) -> float:
        """Value of `key` in `unit`."""
        return self.get(key, unit).value

    def has(self, key: str) -> bool:
        """Whether the book holds `key`."""
        return key in self.figures

    def keys(self, family: str) -> tuple[str, ...]:
        """Keys under `family.`, in order."""
        return tuple(sorted(k for k in self.figures if k.startswith(family + ".")))

    def stale(self, today: date, keys: Iterable[str] | None = None) -> tuple[str, ...]:
        """Keys (of `keys`, or of the whole book) whose figure is older than a year."""
        chosen = self.figures if keys is None else keys
        return tuple(sorted(k for k in chosen if self.figures[k].is_stale(today)))

    def override(self, figures: Mapping[str, Figure]) -> PriceBook:
        """A book in which `figures` stand in place of, or beside, those of this one."""
        return PriceBook(figures={**self.figures, **figures}, mine=self.mine | frozenset(figures))

    def scaled(self, key: str, factor: float) -> PriceBook:
        """A book in which one figure is `factor` times as high: for shocks and sweeps."""
        old = self.figures[key]
        bounds = {"low": old.span[0] * factor, "high": old.span[1] * factor}
        return self.override({key: old.model_copy(update={"value": old.value * factor, **bounds})})
