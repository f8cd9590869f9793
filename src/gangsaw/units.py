"""SI and binary constants, and the one place where quantities are parsed and printed.

Inside the program everything is in seconds, bytes, FLOPs, joules and tokens; other units exist
only at the edge, in the functions of this module.
"""

from __future__ import annotations

import math
import re

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
US, MS = 1e-6, 1e-3
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
YEAR_S = 365.25 * DAY_S
GBPS = 1e9 / 8  # 1 Gbit/s in bytes a second
TFLOPS = 1e12

_DURATION = {
    "us": US, "ms": MS, "s": 1.0, "sec": 1.0, "m": MINUTE_S, "min": MINUTE_S,
    "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S, "y": YEAR_S,
}  # fmt: skip
_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {
    "": 1.0, "b": 1.0, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB,
    "gib": GIB, "tib": TIB,
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*$")


def _parse(text: str, table: dict[str, float], what: str) -> float:
    """A non-negative number with a unit of `table`; ValueError with the legal units otherwise."""
    match = _NUMBER.match(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in table:
        legal = ", ".join(u for u in table if u)
        raise ValueError(f"{text!r} is not a {what}: a number and one of {legal}")
    value = float(match.group(1)) * table[unit]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite {what}")
    return value


def parse_duration_s(text: str) -> float:
    """Seconds from `30d`, `12h`, `90 min`; a bare number is refused, a time needs its unit."""
    return _parse(text, _DURATION, "duration")


def parse_count(text: str) -> float:
    """A count from `15T`, `300B`, `2e6` or `4096`."""
    return _parse(text, _COUNT, "count")


def parse_bytes(text: str) -> float:
    """Bytes from `80GB` (1e9) or `80GiB` (2**30)."""
    return _parse(text, _BYTES, "size")


def significant(value: float, digits: int = 3) -> str:
    """`value` with at most `digits` significant figures and thousands separators, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(0, places)}f}"


def format_s(value_s: float) -> str:
    """A duration with three significant figures in the unit that reads best."""
    if value_s == 0:
        return "0 s"
    for unit, scale in (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S)):
        if abs(value_s) >= 2 * scale:
            return f"{significant(value_s / scale)} {unit}"
    for unit, scale in (("s", 1.0), ("ms", MS)):
        if abs(value_s) >= scale:
            return f"{significant(value_s / scale)} {unit}"
    return f"{significant(value_s / US)} us"


def format_gib(value_bytes: float) -> str:
    """Memory in GiB."""
    return f"{significant(value_bytes / GIB)} GiB"


def format_bandwidth(value_bytes_per_s: float) -> str:
    """A link in GB/s."""
    return f"{significant(value_bytes_per_s / GB)} GB/s"


def format_count(value: float) -> str:
    """`405B`, `1.02T`, `16,384`: large counts with a letter, small ones in full."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if abs(value) >= scale:
            return f"{significant(value / scale)}{unit}"
    return f"{value:,.0f}"


def format_frac(value: float) -> str:
    """A fraction as per cent with one decimal."""
    return f"{100 * value:.1f} %"


def format_usd(value: float) -> str:
    """Money in US dollars."""
    if abs(value) >= 1e9:
        return f"${significant(value / 1e9)}B"
    if abs(value) >= 1e6:
        return f"${significant(value / 1e6)}M"
    return f"${significant(value)}"
