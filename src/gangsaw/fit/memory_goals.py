"""Goals for peak memory beside what was reached, over distinct topologies of the shipped rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gangsaw.fit.memory_rows import measured_bytes, row_memory
from gangsaw.fit.rows import Row, load_shipped, read_row


class MemoryGoal(NamedTuple):
    """One goal: rows of a table, the figure of theirs, the most its error may be (fractions)."""

    name: str
    source: str
    mean: float
    worst: float | None = None
    reserved: bool = False
    marks: str = ""


MEMORY_GOALS = (
    MemoryGoal("8 x B200, allocated", "simumax-b200", 0.0045, 0.015),
    MemoryGoal("8 x B200, reserved", "simumax-b200", 0.025, reserved=True),
    MemoryGoal("zero-bubble schedules, allocated", "zerobubble2", 0.03),
    MemoryGoal("nvidia-smi readings of a sweep (BLOOM)", "bloom-sweep", 0.06),
    MemoryGoal("torchtitan, reserved", "torchtitan", 0.08),
    MemoryGoal(
        "dense Megatron, arguments stated in full", "megatron-ci-large", 0.04, marks="gpt3_7b"
    ),
)


class Reached(NamedTuple):
    """Topologies, mean and largest size of their errors."""

    topologies: int
    mean: float
    worst: float


def as_reserved(row: Row) -> Row | None:
    """The row with its reserved peak as the measured one; None where it has none."""
    measured = row.get("measured") or {}
    peak = measured.get("peak_reserved_gib")
    if peak is None:
        return None
    own = {**measured, "peak_mem_gb": peak, "peak_kind": "reserved", "mem_unit": "GiB"}
    return {**row, "measured": own}


def _rows(goal: MemoryGoal) -> Iterator[Row]:
    for row in load_shipped(goal.source):
        found: Row | None = as_reserved(row) if goal.reserved else row
        if found is not None and goal.marks in str(found["id"]) and measured_bytes(found):
            yield found


def topology(row: Row) -> str:
    """Model, plan and devices of a row as one string: rows that share it are one topology.

    The text on the framework's revision does not tell topologies apart.
    """
    plan = {k: v for k, v in row["plan"].items() if k != "framework"}
    return json.dumps([row["model"], plan, row["hardware"].get("devices")], sort_keys=True)


def reached(goal: MemoryGoal) -> Reached:
    """Errors of the predicted peak of the measured kind; rows of one topology are averaged."""
    groups: dict[str, list[float]] = {}
    for row in _rows(goal):
        reading = read_row(row)
        measured = measured_bytes(row)
        if reading.skipped is None and measured:
            error = row_memory(reading).peak_bytes / measured - 1.0
            groups.setdefault(topology(row), []).append(abs(error))
    sizes = [float(np.mean(v)) for v in groups.values()]
    return Reached(len(sizes), float(np.mean(sizes)), max(sizes))


def _met(goal: MemoryGoal, found: Reached) -> bool:
    return found.mean <= goal.mean and (goal.worst is None or found.worst <= goal.worst)


def memory_goal_lines(found: Mapping[str, Reached] | None = None) -> list[str]:
    """A row for each goal; `found`: errors by the goal's name, read from the shipped rows if none.

    Errors are in-sample: the entries of the stack profiles were set with these tables known.
    """
    lines = ["| | topologies | mean error | worst | goal |", "|---|--:|--:|--:|---|"]
    for goal in MEMORY_GOALS:
        r = found[goal.name] if found is not None else reached(goal)
        asked = f"{100 * goal.mean:g} %"
        if goal.worst is not None:
            asked += f", worst {100 * goal.worst:g} %"
        lines.append(
            f"| {goal.name} | {r.topologies} | {100 * r.mean:.2f} % | {100 * r.worst:.1f} % |"
            f" {asked}: {'yes' if _met(goal, r) else 'no'} |"
        )
    return lines
