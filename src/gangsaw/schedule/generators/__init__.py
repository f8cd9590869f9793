"""One generator a schedule; `generate` makes any of them by name or alias."""

from __future__ import annotations

from pathlib import Path

from gangsaw.errors import InputError
from gangsaw.schedule.actions import Schedule
from gangsaw.schedule.generators import (
    bfs,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved,
    izb,
    one_f_one_b,
    v_half,
    v_min,
    zb_h1,
    zb_h2,
    zb_v,
)
from gangsaw.schedule.generators.base import ScheduleInfo
from gangsaw.schedule.text import read_schedule

INFOS: dict[str, ScheduleInfo] = {
    module.INFO.name: module.INFO
    for module in (
        gpipe, one_f_one_b, interleaved, bfs, zb_h1, zb_h2, izb, zb_v, v_half, v_min, dualpipe,
        dualpipe_v,
    )
}  # fmt: skip
"""Every named schedule, by its name in plans."""

_ALIASES = {alias: info.name for info in INFOS.values() for alias in (info.name, *info.aliases)}
_NOT_THE_SAME = {
    "zb-1p": "zb-h1 has the same memory but a fixed order; zb-1p in publications is synthesised"
    " under that memory limit: auto",
    "zb-2p": "zb-h2 has the same memory but a fixed order; zb-2p in publications is synthesised"
    " under that memory limit: auto",
}  # fmt: skip


def canonical(name: str) -> str:
    """The plan's name of a schedule from any alias; `auto` and `file:PATH` pass unchanged.

    Raises InputError with all legal names.
    """
    if name.startswith("file:"):
        return name
    lowered = name.strip().lower().replace("_", "-")
    if lowered == "auto":
        return lowered
    if lowered in _NOT_THE_SAME:
        raise InputError(f"schedule={name!r}: {_NOT_THE_SAME[lowered]}")
    if lowered not in _ALIASES:
        legal = ", ".join([*INFOS, "auto", "file:PATH"])
        raise InputError(f"schedule={name!r} is not known. Legal: {legal}")
    return _ALIASES[lowered]


def refusal(name: str, p: int, m: int, v: int) -> str:
    """Why the named schedule cannot be built for p, m, v; "" when it can."""
    return INFOS[name].refuse(p, m, v)


def generate(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """The named schedule for p ranks, m microbatches a step and v chunks a rank.

    `file:PATH` is read and must agree with p and m. Raises InputError where the name or the
    numbers are not legal. `auto` needs stage times: see `schedule.auto.synthesise`.
    """
    for label, value in (("pp", p), ("num_microbatches", m), ("vpp", v)):
        if value < 1:
            raise InputError(f"{label}={value}: at least 1")
    known = canonical(name)
    if known.startswith("file:"):
        schedule = read_schedule(Path(known[len("file:") :]))
        if (schedule.ranks, schedule.microbatches) != (p, m):
            raise InputError(
                f"{known}: {schedule.ranks} ranks and {schedule.microbatches} microbatches, but"
                f" the plan has pp={p} and num_microbatches={m}"
            )
        return schedule
    if known == "auto":
        raise InputError("schedule=auto is made from stage times and memory limits, not by name")
    reason = refusal(known, p, m, v)
    if reason:
        raise InputError(f"schedule={known}: {reason}")
    return INFOS[known].make(p, m, v)
