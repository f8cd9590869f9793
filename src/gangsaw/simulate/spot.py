"""Spot instances: real spells of being there and being taken away, played under a job.

Two extremes bound a gang of hosts in one zone: all come and go together (over 92 % of losses of
one type and zone fall within 3 minutes of each other, abstract of 'Spot-and-Scoot'), or each goes
its own way. The gang works only while every host is there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.units import HOUR_S

Spells = tuple[tuple[int, float], ...]


class Restarts(NamedTuple):
    """What a gang does in an up spell: seconds to restart, work between saves, a save."""

    restart_s: float
    interval_s: float
    block_s: float


class SpotResult(NamedTuple):
    """One zone: share of time that the gang is complete, losses an hour, useful share of the time.

    `useful_frac` is of all time, `of_up_frac` of the time that is paid for (the gang complete).
    """

    zone: str
    hosts: int
    together: bool
    available_frac: float
    losses_per_h: float
    useful_frac: float
    of_up_frac: float


@lru_cache(maxsize=1)
def recorded_spells() -> dict[str, Spells]:
    """Recorded spells (1 up, 0 down; seconds) by zone."""
    text = resources.files("gangsaw.catalog").joinpath("spot_spells.json").read_text("utf-8")
    zones = json.loads(text)["zones"]
    return {name: tuple((int(u), float(s)) for u, s in rows) for name, rows in zones.items()}


def up_edges(spells: Spells) -> Array:
    """Begin and end of every up spell, [spells, 2]; neighbouring up spells are one."""
    edges: list[list[float]] = []
    at = 0.0
    for up, seconds in spells:
        if seconds <= 0.0 or up not in (0, 1):
            raise InputError(f"spell {up, seconds}: 1 or 0, and seconds above 0")
        if up:
            if edges and edges[-1][1] == at:
                edges[-1][1] = at + seconds
            else:
                edges.append([at, at + seconds])
        at += seconds
    return np.array(edges).reshape(-1, 2)


def gang_edges(edges: Array, total_s: float, shifts: Sequence[float]) -> Array:
    """Spells in which copies of one record, each begun at its shift, are all up."""
    common = np.array([[0.0, total_s]])
    for shift in shifts:
        moved = (edges + shift) % total_s
        whole = moved[moved[:, 0] < moved[:, 1]]
        wrapped = moved[moved[:, 0] >= moved[:, 1]]
        parts = [whole]
        for begin, end in wrapped:
            parts.append(np.array([[begin, total_s], [0.0, end]]))
        mine = np.concatenate(parts)
        mine = mine[np.argsort(mine[:, 0])]
        common = _overlap(common, mine[mine[:, 1] > mine[:, 0]])
        if not len(common):
            break
    return common


def _overlap(one: Array, two: Array) -> Array:
    out: list[tuple[float, float]] = []
    i = j = 0
    while i < len(one) and j < len(two):
        begin, end = max(one[i, 0], two[j, 0]), min(one[i, 1], two[j, 1])
        if begin < end and out and out[-1][1] == begin:
            out[-1] = (out[-1][0], end)  # the record's own end and begin meet here
        elif begin < end:
            out.append((begin, end))
        if one[i, 1] < two[j, 1]:
            i += 1
        else:
            j += 1
    return np.array(out).reshape(-1, 2)


def useful_s(up_s: Array, how: Restarts) -> float:
    """Work that survives up spells of `up_s`: whole intervals saved after each restart."""
    left = np.maximum(0.0, up_s - how.restart_s)
    return float((np.floor(left / (how.interval_s + how.block_s)) * how.interval_s).sum())


def spot_result(
    zone: str,
    hosts: int,
    together: bool,
    how: Restarts,
    seed: int = 0,
) -> SpotResult:
    """A gang of `hosts` under the record of a zone. Raises InputError for an unknown zone."""
    known = recorded_spells()
    if zone not in known:
        raise InputError(f"zone {zone!r} has no record. Legal: {', '.join(sorted(known))}")
    if hosts < 1 or how.interval_s <= 0.0:
        raise InputError(f"hosts={hosts}, interval={how.interval_s:g} s: at least one, above 0")
    spells = known[zone]
    total = sum(s for _, s in spells)
    shifts: list[float] = [0.0]
    if not together:
        rng = np.random.default_rng(seed)
        shifts = [0.0, *rng.uniform(0.0, total, hosts - 1).tolist()]
    edges = gang_edges(up_edges(spells), total, shifts)
    up = edges[:, 1] - edges[:, 0]
    work = useful_s(up, how)
    there = float(up.sum())
    return SpotResult(
        zone, hosts, together, there / total, len(up) / (there / HOUR_S) if there else 0.0,
        work / total, work / there if there else 0.0,
    )  # fmt: skip
