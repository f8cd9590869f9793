"""What idle time costs in devices, and what recovering a share of it is worth."""

from __future__ import annotations

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec.base import Document
from gangsaw.units import HOUR_S, YEAR_S


class Recovered(Document):
    """Idle share won back: the same work done in less time, or more work in the same time."""

    devices: float = Field(description="devices that the recovered share stands for")
    device_hours: float
    usd: float
    extra_work_frac: float = Field(description="more work from the same devices and time")


def idle_devices(devices: float, idle_frac: float) -> float:
    """Devices that stand still, on average."""
    return devices * idle_frac


def devices_for_equal_work(devices: float, idle_frac: float) -> float:
    """Further devices that make up for an idle share: n / (1 - idle) - n."""
    if not 0 <= idle_frac < 1:
        raise InputError(f"idle share {idle_frac!r}: between 0 and 1")
    return devices / (1 - idle_frac) - devices


def recovered(
    devices: float, idle_frac: float, points_frac: float, usd_per_device_hour: float, wall_s: float
) -> Recovered:
    """Worth of lowering `idle_frac` by `points_frac` over `wall_s` of `devices` devices.

    The work of the remaining useful share takes (1 - idle) / (1 - idle + points) of the time, so
    a job is done with that much less; the points themselves are what stands still less. Raises
    InputError when more is recovered than is idle.
    """
    if not 0 <= points_frac <= idle_frac <= 1:
        raise InputError(
            f"recovering {points_frac!r} of an idle share of {idle_frac!r}: at most what is idle"
        )
    useful = 1 - idle_frac
    hours = devices * wall_s / HOUR_S
    saved = points_frac / (useful + points_frac) if points_frac else 0.0
    return Recovered(
        devices=devices * points_frac,
        device_hours=hours * saved,
        usd=hours * saved * usd_per_device_hour,
        extra_work_frac=points_frac / useful if useful else float("inf"),
    )


def yearly_value_usd(
    devices: float, points_frac: float, usd_per_device_hour: float, used_frac: float = 1.0
) -> float:
    """Money a year of `points_frac` less idle over a cluster or fleet that is used `used_frac`."""
    return devices * points_frac * used_frac * usd_per_device_hour * YEAR_S / HOUR_S


class Worth(Document):
    """What recovering some points of idle share is worth: for the job, its cluster, a fleet."""

    points_frac: float = Field(description="asked for, at most what is idle")
    job: Recovered
    cluster_usd_per_year: float = Field(description="all devices of the cluster, used throughout")
    fleet_devices: int | None = None
    fleet_usd_per_year: float | None = None


def worth_of(
    devices: int, idle_frac: float, asked_frac: float, usd_per_device_hour: float, wall_s: float,
    fleet_devices: int | None = None,
) -> Worth:  # fmt: skip
    """Worth of `asked_frac` less idle time at a price of a device-hour."""
    points = min(asked_frac, idle_frac)
    fleet = fleet_devices
    return Worth(
        points_frac=points,
        job=recovered(devices, idle_frac, points, usd_per_device_hour, wall_s),
        cluster_usd_per_year=yearly_value_usd(devices, points, usd_per_device_hour),
        fleet_devices=fleet,
        fleet_usd_per_year=None
        if fleet is None
        else yearly_value_usd(fleet, points, usd_per_device_hour),
    )
