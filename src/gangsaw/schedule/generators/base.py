"""What every schedule states about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gangsaw.schedule.actions import Schedule


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule's name, condition and published figures.

    `make(p, m, v)` builds it for p ranks, m microbatches a step and v chunks a rank;
    `refuse(p, m, v)` is "" or the broken rule with its legal values. `bubble` and `in_flight`
    are for equal stages: idle seconds a rank with F, B, W the forward, input-gradient and
    weight-gradient time of a rank, and the most microbatches of a whole rank held at once.
    `transfers` counts the stage-to-stage transfers of a microbatch, both directions.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    make: Callable[[int, int, int], Schedule]
    refuse: Callable[[int, int, int], str]
    condition: str
    bubble: str
    in_flight: str
    transfers: str
    weights: float
    splits_backward: bool
    fixed_chunks: int
    source: str


def one_chunk(p: int, m: int, v: int) -> str:
    """Refusal of v other than 1."""
    return "" if v == 1 else f"vpp={v}: this schedule has one chunk a rank. Legal: 1"


def two_chunks(p: int, m: int, v: int) -> str:
    """Refusal of v other than 2."""
    return "" if v == 2 else f"vpp={v}: this schedule has two chunks a rank. Legal: 2"


def any_chunks(p: int, m: int, v: int) -> str:
    """Nothing to refuse."""
    return ""
