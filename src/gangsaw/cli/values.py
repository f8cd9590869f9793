"""What a user types, turned into numbers: every refusal gives value, rule and legal choices."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence

from gangsaw import units
from gangsaw.errors import InputError

_WHOLE = re.compile(r"^([+-]?)([0-9]+)$")


def whole(flag: str, text: str, low: int = 1, high: int = 10**9) -> int:
    """A whole number within [low, high]."""
    legal = f"Legal: {low:,} to {high:,}"
    match = _WHOLE.match(text.strip())
    if match is None:
        raise InputError(f"{flag} {text!r} is not a whole number. {legal}")
    sign, digits = match.groups()
    if sign == "-" and digits.strip("0"):
        raise InputError(f"{flag} {text} is negative, so out of range. {legal}")
    # Python refuses to convert thousands of digits, so their number is looked at first.
    many = len(digits.lstrip("0")) > len(str(high))
    if many or int(digits) > high:
        said = text if len(text) <= 40 else f"{text[:20]}... ({len(digits):,} digits)"
        raise InputError(f"{flag} {said} is too large, so out of range. {legal}")
    value = int(digits)
    if value < low:
        raise InputError(f"{flag} {text} is too small, so out of range. {legal}")
    return value


def real(flag: str, text: str, low: float, high: float, what: str = "number") -> float:
    """A finite number within [low, high]."""
    legal = f"Legal: {low:g} to {high:g}"
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{flag} {text!r} is not a {what}. {legal}") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise InputError(f"{flag} {text} is out of range. {legal}")
    return value


def fraction(flag: str, text: str) -> float:
    """A share: `0.1`, or `10%`."""
    text = text.strip()
    if text.strip().endswith("%"):
        return real(flag, text.strip()[:-1], 0.0, 100.0, "percentage") / 100.0
    return real(flag, text, 0.0, 1.0, "share")


def choice(flag: str, text: str, legal: Sequence[str]) -> str:
    """One of `legal`, whatever its case."""
    found = text.strip().lower()
    if found in legal:
        return found
    near = difflib.get_close_matches(found, legal, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(f"{flag} {text!r} is unknown{hint}. Legal: {', '.join(legal)}")


def quantity(flag: str, text: str, parse: Callable[[str], float], low: float, high: float) -> float:
    """A quantity with a unit, read by one of the parsers of `units`, within [low, high]."""
    try:
        value = parse(text)
    except ValueError as fault:
        raise InputError(f"{flag}: {fault}") from None
    if not low <= value <= high:
        raise InputError(f"{flag} {text} is out of range. Legal: {low:g} to {high:g} in SI units")
    return value


def duration_s(flag: str, text: str) -> float:
    """Seconds of a duration between a second and a century."""
    return quantity(flag, text, units.parse_duration_s, 1.0, 100 * units.YEAR_S)


def tokens(flag: str, text: str) -> float:
    """A number of tokens such as `15T`, at least one."""
    return quantity(flag, text, units.parse_count, 1.0, 1e18)


_MONEY = re.compile(r"^\s*\$?\s*([0-9][0-9.,eE+]*)\s*([kKmMbB]?)\s*([A-Za-z]{3})?\s*$")


def usd(flag: str, text: str) -> float:
    """US dollars from `2e6USD`, `$2M`, `2,000,000 USD`."""
    match = _MONEY.match(text)
    rule = f"{flag} {text!r} is not an amount in US dollars. Legal: such as 2e6USD or $2M"
    if match is None:
        raise InputError(rule)
    currency = (match.group(3) or "USD").upper()
    if currency != "USD":
        raise InputError(
            f"{flag} {text!r}: prices are kept in USD, {currency} is not converted. Legal: USD"
        )
    scale = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}[match.group(2).lower()]
    try:
        value = float(match.group(1).replace(",", "")) * scale
    except ValueError:
        raise InputError(rule) from None
    if not math.isfinite(value) or not 0 < value <= 1e15:
        raise InputError(f"{flag} {text} is out of range. Legal: more than 0, at most 1e15 USD")
    return value


def divisors(number: int, limit: int | None = None) -> tuple[int, ...]:
    """All divisors of `number`, ascending, not above `limit`."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    every = sorted({*small, *(number // d for d in small)})
    return tuple(d for d in every if limit is None or d <= limit)


def nearest(value: int, legal: Iterable[int], count: int = 6) -> str:
    """The legal values nearest to `value` on a log scale, ascending, as text."""
    ranked = sorted(set(legal), key=lambda x: (abs(math.log(x) - math.log(max(value, 1))), x))
    return ", ".join(str(x) for x in sorted(ranked[:count])) or "none"


def product(factors: Iterable[int]) -> str:
    """`2 x 4 = 8`, and of one factor the factor alone."""
    parts = tuple(factors)
    return (
        str(parts[0]) if len(parts) == 1 else f"{' x '.join(map(str, parts))} = {math.prod(parts)}"
    )
