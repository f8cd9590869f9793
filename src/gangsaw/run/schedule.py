"""The schedule of a plan as rows of torch's action text, one row a pipeline rank."""

from __future__ import annotations

import csv
import io
import re

import numpy as np

from gangsaw.cost.layout import default_counts
from gangsaw.errors import InputError
from gangsaw.schedule import Schedule, generate, to_csv
from gangsaw.simulate import StageMemory, StageTimes
from gangsaw.simulate.auto import loop_map, synthesise, v_map
from gangsaw.spec.plan import Plan

Rows = tuple[tuple[str, ...], ...]
END_LAYERS = 0.5
"""What embedding and head weigh in layers, where an order is synthesised."""
_STAGE = re.compile(r"\(?(\d+)[FIBW]")


def schedule_rows(plan: Plan, layers: int, text: str = "") -> Rows:
    """Rows of compute actions for `plan`; `text` is action text that stands in for the name.

    `layers` of the model matter for `auto` only, whose order follows the layers of each chunk.
    """
    if not text:
        if plan.pp == 1:
            return (tuple(f"0{k}{i}" for i in range(plan.num_microbatches) for k in "FB"),)
        if plan.schedule == "auto":
            text = to_csv(auto_schedule(plan, layers))
        else:
            text = to_csv(generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp))
    rows = tuple(
        tuple(cell.strip() for cell in row if cell.strip()) for row in csv.reader(io.StringIO(text))
    )
    if len(rows) != plan.pp:
        raise InputError(f"the schedule has {len(rows)} rows, the plan pp={plan.pp} ranks")
    _check_loss_order(rows, plan.pp * plan.vpp - 1)
    return rows


def auto_schedule(plan: Plan, layers: int) -> Schedule:
    """A synthesised order: forward, input and weight gradient in proportion to a chunk's layers.

    Two chunks a rank are folded into a V, more go round. At most as many microbatches are held
    as 1F1B holds on its first rank.
    """
    counts = np.asarray(plan.stages or default_counts(layers, plan.pp * plan.vpp), np.float64)
    cost = counts + END_LAYERS * np.isin(np.arange(len(counts)), [0, len(counts) - 1])
    cost = np.maximum(cost, END_LAYERS)
    rank_of = v_map(plan.pp) if plan.vpp == 2 else loop_map(plan.pp, plan.vpp)
    held = np.asarray([cost[rank_of == r].sum() for r in range(plan.pp)])
    stages = len(counts)
    times = StageTimes.of(stages, cost, cost, cost)
    memory = StageMemory.of(stages, plan.pp, cost)
    limit = np.full(plan.pp, plan.pp * held.max())
    return synthesise(rank_of, plan.num_microbatches, times, memory, limit).schedule


def _check_loss_order(rows: Rows, last: int) -> None:
    """torch files losses by their order: the last stage must run forwards in microbatch order."""
    forward = re.compile(rf"(?:^|[(;]){last}F(\d+)")
    for row in rows:
        seen = [int(n) for cell in row for n in forward.findall(cell)]
        if seen != sorted(seen):
            raise InputError(
                f"the last stage {last} runs forwards in the order {seen[:8]}...; torch's runtime"
                " needs them in microbatch order"
            )


def splits_backward(rows: Rows) -> bool:
    """Whether some backward is split into input and weight gradients."""
    return any(re.search(r"\dI\d", cell) for row in rows for cell in row)


def stage_owners(rows: Rows, stages: int) -> tuple[int, ...]:
    """Pipeline rank of each stage; InputError when a stage has none or several."""
    owners: dict[int, set[int]] = {}
    for rank, row in enumerate(rows):
        for cell in row:
            for number in _STAGE.findall(cell):
                owners.setdefault(int(number), set()).add(rank)
    for stage in range(stages):
        found = owners.get(stage, set())
        if len(found) != 1:
            where = ", ".join(map(str, sorted(found))) or "no rank"
            raise InputError(f"the schedule runs stage {stage} on {where}; one rank is needed")
    extra = sorted(s for s in owners if s >= stages)
    if extra:
        raise InputError(f"the schedule names stage {extra[0]}; the plan has {stages} stages")
    return tuple(next(iter(owners[s])) for s in range(stages))
