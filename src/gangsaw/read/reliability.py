"""The shipped figures of failures, recovery, noise and storage, and the user's own on top."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.toml import parse_toml, read_toml, validate
from gangsaw.spec.reliability import (
    FASTEST_PER_S,
    ComponentRate,
    Noise,
    Recovery,
    Reliability,
    Site,
    StorageTier,
)
from gangsaw.units import DAY_S, HOUR_S, MINUTE_S, YEAR_S

_TIME = {
    "s": 1.0, "min": MINUTE_S, "h": HOUR_S, "hour": HOUR_S, "d": DAY_S, "day": DAY_S,
    "week": 7 * DAY_S, "month": YEAR_S / 12, "y": YEAR_S, "year": YEAR_S,
}  # fmt: skip
_RATE = re.compile(r"^\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(%?)\s*/\s*([0-9.eE+]*)\s*([a-z]+)\s*$")
_LEGAL = "Legal: a number over a time, as 3.8/1000day, 0.05%/month, 2e-5/h"
_KEYS = ("components", "recovery", "site", "noise", "storage")


def parse_rate_per_s(text: object, where: str) -> float:
    """Events a second from `0.05%/month` or `419/54day`; InputError says what a rate looks like.

    A rate without a unit, of zero, or of more than one a second is refused.
    """
    match = _RATE.match(text) if isinstance(text, str) else None
    if match is None or match.group(4) not in _TIME:
        raise InputError(f"{where}: {text!r} is no rate with its unit of time. {_LEGAL}")
    count, per_cent, span, unit = match.groups()
    try:
        events = float(count) / (100.0 if per_cent else 1.0)
        rate = events / (float(span or 1.0) * _TIME[unit])
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{where}: {text!r} is no rate with its unit of time. {_LEGAL}") from None
    if not math.isfinite(rate) or not 0.0 < rate <= FASTEST_PER_S:
        raise InputError(
            f"{where}: {text!r} is {rate:.3g} a second. Legal: more than 0, at most 1/s; leave out"
            " what does not fail"
        )
    return rate


def _component(name: str, table: object, where: str) -> ComponentRate:
    label = f"{where}: components.{name}"
    if not isinstance(table, Mapping):
        raise InputError(f"{label}: a table with rate, unit, cure, source, as_of is needed")
    fields = dict(table)
    if "rate" not in fields:
        raise InputError(f"{label}: rate is missing. {_LEGAL}")
    fields["per_s"] = parse_rate_per_s(fields.pop("rate"), f"{label}.rate")
    return validate(ComponentRate, fields, label)


def parse_reliability(
    tables: Mapping[str, Any], where: str, base: Reliability | None = None
) -> Reliability:
    """Tables as a document; what they leave out comes from `base`. Raises InputError."""
    unknown = sorted(set(tables) - set(_KEYS))
    if unknown:
        raise UnknownKeysError(where, unknown, _KEYS)
    for key, table in tables.items():
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: {key}={table!r} is no table. Legal: [{key}] and its keys")
    old = base.model_dump() if base else {k: {} for k in _KEYS}
    parts = dict(tables.get("components", {}))
    components = dict(base.components) if base else {}
    components |= {k: _component(k, v, where) for k, v in parts.items()}
    storage = {} if base is None else dict(base.storage)
    for name, table in dict(tables.get("storage", {})).items():
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: storage.{name}={table!r} is no table of a tier's keys")
        merged = {**old["storage"].get(name, {}), **dict(table)}
        storage[name] = validate(StorageTier, merged, f"{where}: storage.{name}")
    return Reliability(
        components=components,
        recovery=validate(
            Recovery, {**old["recovery"], **dict(tables.get("recovery", {}))}, f"{where}: recovery"
        ),
        site=validate(Site, {**old["site"], **dict(tables.get("site", {}))}, f"{where}: site"),
        noise=validate(Noise, {**old["noise"], **dict(tables.get("noise", {}))}, f"{where}: noise"),
        storage=storage,
    )


@lru_cache(maxsize=1)
def shipped_reliability() -> Reliability:
    """The figures that come with the program."""
    folder = resources.files("gangsaw.catalog")
    tables = parse_toml(folder.joinpath("failures.toml").read_text("utf-8"), "failures.toml")
    tiers = parse_toml(folder.joinpath("storage.toml").read_text("utf-8"), "storage.toml")
    return parse_reliability({**tables, "storage": tiers}, "failures.toml")


def load_reliability(path: Path | str | None = None) -> Reliability:
    """The shipped figures with those of the TOML file `path` in their place. Raises InputError."""
    base = shipped_reliability()
    if path is None:
        return base
    return parse_reliability(read_toml(path), str(path), base)
