"""A schedule file of the user's own as part of a plan: `file:PATH`.

The file says how many ranks, chunks and microbatches there are, and where the stages lie. Chunks
that loop over the ranks and two chunks in the shape of a V are what the cost formulas know; the
name of a plan's schedule says which (`file:` or `file-v:`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from gangsaw.errors import InputError
from gangsaw.read.toml import shown
from gangsaw.schedule import Schedule, read_schedule
from gangsaw.simulate.auto import loop_map, v_map
from gangsaw.spec.plan import Plan


@dataclass(frozen=True)
class OwnSchedule:
    """What a schedule file states about a plan."""

    name: str
    pp: int
    vpp: int
    num_microbatches: int


def stated_by(path: str) -> OwnSchedule:
    """What the file states. Raises InputError where it is no schedule, or lies otherwise."""
    schedule = _read(path, _stamp(path))
    chunks, rest = divmod(schedule.stages, schedule.ranks)
    if rest == 0 and np.array_equal(schedule.rank_of, loop_map(schedule.ranks, chunks)):
        kind = "file:"
    elif chunks == 2 and np.array_equal(schedule.rank_of, v_map(schedule.ranks)):
        kind = "file-v:"
    else:
        raise InputError(
            f"file:{shown(path)}: {schedule.stages} stages lie on ranks"
            f" {', '.join(str(r) for r in schedule.rank_of[:12])}"
            f"{'...' if schedule.stages > 12 else ''}. Legal: looping over the ranks (0, 1, .., 0,"
            " 1, ..), or two chunks down and up again"
        )
    return OwnSchedule(kind + path, schedule.ranks, chunks, schedule.microbatches)


def own_schedule(plan: Plan) -> Schedule:
    """The schedule of a plan's file. Raises InputError where it does not agree with the plan."""
    path = plan.schedule.partition(":")[2]
    stated = stated_by(path)
    for name in ("pp", "vpp", "num_microbatches"):
        if getattr(stated, name) != getattr(plan, name):
            raise InputError(
                f"file:{shown(path)} is for {name}={getattr(stated, name)}, the plan has"
                f" {name}={getattr(plan, name)}. Legal here: {getattr(stated, name)}"
            )
    return _read(path, _stamp(path))


def _stamp(path: str) -> tuple[int, int]:
    """When the file was written last, and how long it is: what is read twice is kept."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{shown(path)}: cannot be read ({why}). Legal: a file") from None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _read(path: str, stamp: tuple[int, int]) -> Schedule:
    return read_schedule(Path(path))
