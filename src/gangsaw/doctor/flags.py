"""The flags that Megatron-LM's own parser knows, by release, and what it lets them be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from gangsaw.doctor.rulebook import numbers
from gangsaw.read.launch.document import Stated


class BadChoice(NamedTuple):
    """A value that the parser refuses, and what it takes."""

    flag: str
    value: str
    legal: list[str]


@cache
def _data() -> dict[str, Any]:
    text = (files("gangsaw.doctor") / "rules" / "megatron_flags.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def releases() -> tuple[str, ...]:
    """Releases whose flags are listed, oldest first."""
    return tuple(_data()["releases"])


def listed(version: str) -> str | None:
    """The listed release that holds for a version: the last not after it; the newest for none.

    None for a version before the first that is listed.
    """
    held = numbers(version)
    if not held:
        return releases()[-1]
    before = [r for r in releases() if numbers(r)[:2] <= held[:2]]
    return before[-1] if before else None


@cache
def flags_of(release: str) -> frozenset[str]:
    """Flags of a listed release, with dashes."""
    data = _data()
    some = {flag for flag, at in data["in_some"].items() if release in at}
    return frozenset(data["in_all"]) | some


def removed_flag(stated: Iterable[Stated], version: str) -> str | None:
    """The first flag that an older listed release has and this one has not."""
    release = listed(version)
    if release is None:
        return None
    now = flags_of(release)
    before = frozenset().union(*(flags_of(r) for r in releases() if r < release))
    for item in stated:
        flag = item.key.replace("_", "-")
        if flag in before and flag not in now:
            return flag
    return None


def bad_choice(stated: Iterable[Stated], version: str) -> BadChoice | None:
    """The first value that is none of its flag's choices in the release."""
    release = listed(version)
    if release is None:
        return None
    table = _data()["choices"]
    for item in stated:
        flag = item.key.replace("_", "-")
        legal = table.get(flag, {}).get("all") or table.get(flag, {}).get(release)
        values = item.value if isinstance(item.value, list) else [item.value]
        if not legal:
            continue
        for value in values:
            plain = isinstance(value, (str, int)) and not isinstance(value, bool)
            if plain and str(value) not in legal:
                return BadChoice(flag, str(value), list(legal))
    return None
