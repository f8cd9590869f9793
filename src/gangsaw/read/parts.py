"""Switches and optics of the catalog."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.read.toml import parse_toml, validate
from gangsaw.spec.base import Count, Document, Positive


class SwitchPart(Document):
    """A switch: radix, port speed, power where it is published."""

    name: str
    title: str
    ports: Count
    port_gbps: Positive
    typical_w: Positive | None = None
    max_w: Positive | None = None
    latency_s: Positive | None = Field(None, description="port to port")
    source: str
    as_of: str


class OpticPart(Document):
    """A transceiver."""

    name: str
    title: str
    gbps: Positive
    watts: Positive
    source: str
    as_of: str


@lru_cache(maxsize=1)
def parts() -> tuple[dict[str, SwitchPart], dict[str, OpticPart]]:
    """Switches and optics by name."""
    text = resources.files("gangsaw.catalog").joinpath("parts.toml").read_text("utf-8")
    table = parse_toml(text, "parts.toml")
    switches = {
        name: validate(SwitchPart, {"name": name, **row}, f"parts.toml: {name}")
        for name, row in table["switch"].items()
    }
    optics = {
        name: validate(OpticPart, {"name": name, **row}, f"parts.toml: {name}")
        for name, row in table["optic"].items()
    }
    return switches, optics


def switch_part(name: str) -> SwitchPart:
    """A switch by name; InputError with the names there are."""
    switches, _ = parts()
    if name not in switches:
        raise InputError(f"no switch {name!r} in the catalog. Legal: {', '.join(switches)}")
    return switches[name]


def optic_part(name: str) -> OpticPart:
    """A transceiver by name; InputError with the names there are."""
    _, optics = parts()
    if name not in optics:
        raise InputError(f"no optic {name!r} in the catalog. Legal: {', '.join(optics)}")
    return optics[name]
