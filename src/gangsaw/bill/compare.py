"""Two bills side by side: each line's difference, split into device time and price."""

from __future__ import annotations

import math

from gangsaw.errors import InputError
from gangsaw.spec.base import Document
from gangsaw.spec.invoice import Invoice
from gangsaw.units import HOUR_S


class Difference(Document):
    """One line of the comparison; `time_usd + price_usd` is `usd_b - usd_a`."""

    phase: str
    cause: str
    device_h_a: float
    device_h_b: float
    usd_a: float
    usd_b: float
    time_usd: float
    price_usd: float

    @property
    def usd(self) -> float:
        """What the second bill pays more."""
        return self.usd_b - self.usd_a


class Comparison(Document):
    """All lines of two bills, largest difference first."""

    title_a: str
    title_b: str
    lines: tuple[Difference, ...]
    usd_a: float
    usd_b: float
    device_h_a: float
    device_h_b: float
    wall_s_a: float
    wall_s_b: float
    tokens_a: float
    tokens_b: float

    @property
    def usd(self) -> float:
        """What the second bill pays more in all."""
        return self.usd_b - self.usd_a


def _by_line(invoice: Invoice) -> dict[tuple[str, str], tuple[float, float]]:
    """Device-hours and money by phase and cause (services by item)."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line in invoice.lines:
        cause = line.item if line.phase == "services" else line.cause
        found.setdefault((line.phase, cause), []).append((line.device_s, line.usd))
    return {
        key: (math.fsum(s for s, _ in rows) / HOUR_S, math.fsum(u for _, u in rows))
        for key, rows in found.items()
    }


def compare(a: Invoice, b: Invoice) -> Comparison:
    """`b` against `a`, line by line.

    The difference of a line is the change in device-hours at a's price, and the change in price
    at b's device-hours. A line that only b has is priced at a's mean device-hour; money without
    device time is all price. Raises InputError for bills of different bases or token counts.
    """
    if a.basis != b.basis:
        raise InputError(f"a bill of a {a.basis} and one of a {b.basis} have no common line")
    if a.basis == "run" and not math.isclose(a.tokens, b.tokens, rel_tol=1e-9):
        raise InputError(f"runs of {a.tokens:,.0f} and {b.tokens:,.0f} tokens: compare equal runs")
    lines_a, lines_b = _by_line(a), _by_line(b)
    paid_a = math.fsum(x.usd for x in a.lines if x.phase != "services")
    mean_hour_a = paid_a / (a.device_s / HOUR_S)
    rows = []
    for key in dict.fromkeys([*lines_a, *lines_b]):
        hours_a, usd_a = lines_a.get(key, (0.0, 0.0))
        hours_b, usd_b = lines_b.get(key, (0.0, 0.0))
        hour = usd_a / hours_a if hours_a else mean_hour_a
        time_usd = (hours_b - hours_a) * hour
        rows.append(
            Difference(
                phase=key[0], cause=key[1], device_h_a=hours_a, device_h_b=hours_b, usd_a=usd_a,
                usd_b=usd_b, time_usd=time_usd, price_usd=(usd_b - usd_a) - time_usd,
            )
        )  # fmt: skip
    return Comparison(
        title_a=a.title, title_b=b.title, lines=tuple(sorted(rows, key=lambda r: -abs(r.usd))),
        usd_a=a.usd, usd_b=b.usd, device_h_a=a.device_s / HOUR_S, device_h_b=b.device_s / HOUR_S,
        wall_s_a=a.wall_s, wall_s_b=b.wall_s, tokens_a=a.tokens, tokens_b=b.tokens,
    )  # fmt: skip
