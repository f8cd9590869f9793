"""The shipped price book, and the user's own figures on top of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.toml import parse_toml, read_toml, shown, validate
from gangsaw.spec.price import CURRENCY, OPEN_FAMILIES, Figure, PriceBook

SHIPPED = "prices.toml"
_FIELDS = frozenset(Figure.model_fields)


def parse_prices(tables: Mapping[str, Any], where: str) -> dict[str, Figure]:
    """Figures of nested TOML tables: a table with a figure's fields is one, all others nest.

    Raises InputError with `where`, the key and the rule: wrong currency, negative or missing
    value, missing source or date, unknown unit.
    """
    found: dict[str, Figure] = {}
    _walk(tables, "", where, found)
    if not found:
        raise InputError(
            f"{where} holds no figure; one looks like [electricity.mine] with value, unit,"
            " currency, source, as_of"
        )
    return found


def _walk(table: Mapping[str, Any], prefix: str, where: str, found: dict[str, Figure]) -> None:
    """Add the figures under `table` to `found`."""
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping)}
    nested = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    if plain and prefix:
        unknown = sorted(set(plain) - _FIELDS)
        if unknown:
            raise UnknownKeysError(f"{where}: {shown(prefix)}", unknown, sorted(_FIELDS))
        found[prefix] = validate(Figure, plain, f"{where}: {shown(prefix)}")
    elif plain:
        raise InputError(
            f"{where}: {shown(next(iter(plain)))} stands outside a table; a figure is a table"
            " with value, unit, currency, source, as_of"
        )
    for key, value in nested.items():
        _walk(value, f"{prefix}.{key}" if prefix else key, where, found)


@lru_cache(maxsize=1)
def shipped_prices() -> PriceBook:
    """The price book that comes with the program."""
    text = resources.files("gangsaw.catalog").joinpath(SHIPPED).read_text("utf-8")
    return PriceBook(figures=parse_prices(parse_toml(text, SHIPPED), SHIPPED))


def load_prices(path: Path | str | None = None, today: date | None = None) -> PriceBook:
    """The shipped book with the figures of the TOML file `path` in their place.

    A figure of the user's that is dated after `today` is refused, and a key that the book does
    not know is refused unless it belongs to an open family. Raises InputError.
    """
    book = shipped_prices()
    if path is None:
        return book
    where = shown(path)
    mine = parse_prices(read_toml(path), where)
    today = today or date.today()
    for key, figure in mine.items():
        if key not in book.figures and key.split(".", maxsplit=1)[0] not in OPEN_FAMILIES:
            near = difflib.get_close_matches(key, [*book.figures, *OPEN_FAMILIES], 3, 0.5)
            hint = f" Near: {', '.join(near)}." if near else ""
            raise InputError(
                f"{where}: {shown(key)} is no figure of the price book.{hint}"
                f" New figures may be added under {', '.join(OPEN_FAMILIES)}"
            )
        if figure.is_future(today):
            raise InputError(
                f"{where}: {shown(key)}: as_of={figure.as_of!r} lies after today, {today}"
            )
        old = book.figures.get(key)
        if old is not None and old.unit != figure.unit:
            raise InputError(
                f"{where}: {shown(key)}: unit={figure.unit!r}, but this figure is in {old.unit}"
            )
    return book.override(mine)


def device_hour_key(book: PriceBook, device: str, offer: str = "on-demand") -> str:
    """Key of the price of one hour of `device` under `offer` (on-demand, reserved-1y, spot...).

    Raises InputError with the devices or the offers that the book has.
    """
    key = f"device_hour.{device}.{offer}"
    if book.has(key):
        return key
    offers = [k.rsplit(".", 1)[1] for k in book.keys(f"device_hour.{device}")]
    if offers:
        raise InputError(
            f"no {offer!r} price for {device!r} in the price book. Legal: {', '.join(offers)}"
        )
    devices = sorted({k.split(".")[1] for k in book.keys("device_hour")})
    raise InputError(
        f"no price for device {device!r} in the price book; give"
        f" [{key}] in {CURRENCY}/device-hour with --prices FILE. It has: {', '.join(devices)}"
    )
