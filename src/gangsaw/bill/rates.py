"""What an hour of a device costs when it is rented, and the items of a run beside the devices."""

from __future__ import annotations

from gangsaw.read.prices import device_hour_key
from gangsaw.spec.invoice import RateItem, Rates
from gangsaw.spec.price import PriceBook

CAPITAL_OFFERS = ("reserved-1y", "reserved-3y", "contract")
"""Offers that commit for a term: capital on the bill, like what is owned."""


def rented(book: PriceBook, device: str, offer: str = "on-demand") -> Rates:
    """Rates of a rented device: one item, that includes power and building.

    On-demand and spot hours are operating, reserved ones capital. Raises InputError when the
    book has no such price.
    """
    key = device_hour_key(book, device, offer)
    return Rates(
        name=offer,
        items=(
            RateItem(
                item="devices",
                spending="capital" if offer.startswith(CAPITAL_OFFERS) else "operating",
                usd_per_device_hour=book.value(key, "USD/device-hour"),
                keys=(key,),
            ),
        ),
    )


def flat(usd_per_device_hour: float, source: str = "") -> Rates:
    """Rates from one stated price of a device-hour, as a cluster file gives it."""
    return Rates(
        name="stated price",
        items=(
            RateItem(
                item="devices",
                spending="operating",
                usd_per_device_hour=usd_per_device_hour,
                note=source,
            ),
        ),
    )
