"""The schedule of a plan as rows of torch's action text, one row a pipeline rank."""

from __future__ import annotations

import csv
import io
import re

from gangsaw.errors import InputError
from gangsaw.schedule import generate, to_csv
from gangsaw.spec.plan import Plan

Rows = tuple[tuple[str, ...], ...]
_STAGE = re.compile(r"\(?(\d+)[FIBW]")


def schedule_rows(plan: Plan, text: str = "") -> Rows:
    """Rows of compute actions for `plan`; `text` is action text that stands in for the name."""
    if not text:
        if plan.pp == 1:
            return (tuple(f"0{k}{i}" for i in range(plan.num_microbatches) for k in "FB"),)
        text = to_csv(generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp))
    rows = tuple(
        tuple(cell.strip() for cell in row if cell.strip()) for row in csv.reader(io.StringIO(text))
    )
    if len(rows) != plan.pp:
        raise InputError(f"the schedule has {len(rows)} rows, the plan pp={plan.pp} ranks")
    _check_loss_order(rows, plan.pp * plan.vpp - 1)
    return rows


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
