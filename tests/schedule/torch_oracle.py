"""torch's own reading of schedules: parse, validate, lower, dry-run. Private names of torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

NAMES = (
    "_Action", "_add_reduce_grad", "_add_send_recv", "_add_unshard_reshard",
    "_simulate_comms_compute", "_validate_schedule",
)  # fmt: skip


def check_version() -> None:
    """These names are private: say which are gone instead of failing strangely."""
    missing = [name for name in NAMES if not hasattr(torch_schedules, name)]
    assert not missing, f"torch {torch.__version__} has no {missing}; written for torch 2.13"


def parse(text: str) -> dict[int, list[Any]]:
    """Rank -> torch actions, of the CSV."""
    action = torch_schedules._Action
    return {
        rank: [action.from_str(cell) for cell in line.split(",")]
        for rank, line in enumerate(text.splitlines())
    }


def accept(text: str, stages: int, microbatches: int) -> dict[int, list[Any]]:
    """Validate, lower and dry-run the CSV as torch's runtime does; the dry run's steps by rank."""
    actions = parse(text)
    mapping = torch_schedules._validate_schedule(actions, len(actions), stages, microbatches)
    lowered = {
        rank: torch_schedules._add_reduce_grad(
            torch_schedules._add_unshard_reshard(row), microbatches
        )
        for rank, row in actions.items()
    }
    with_transfers = torch_schedules._add_send_recv(lowered, lambda s: mapping[s], stages)
    plain = {
        rank: [a for a in row if a.is_compute_op or ("_" in str(a) and "REDUCE" not in str(a))]
        for rank, row in with_transfers.items()
    }
    return torch_schedules._simulate_comms_compute(flatten(plain), lambda s: mapping[s], stages)


def accept_both_ways(text: str, stages: int, microbatches: int) -> dict[int, list[Any]]:
    """The same for two pipes in opposite directions, as one program; the dry run's steps by rank.

    The second pipe is stages p to 2p - 1, from the last rank back to the first. Validation takes
    this as it is. Lowering and dry run let microbatches enter at stage 0 alone and begin their
    backward at the last stage alone, so each pipe's microbatches get numbers of their own and are
    carried through the other pipe by actions in front of the program, which are taken out again.
    """
    actions = parse(text)
    mapping = torch_schedules._validate_schedule(actions, len(actions), stages, microbatches)
    half = stages // 2
    lowered = {
        rank: torch_schedules._add_reduce_grad(
            torch_schedules._add_unshard_reshard(row), microbatches
        )
        for rank, row in actions.items()
    }
    own = {
        rank: [_numbered_on(a, half, microbatches) for a in row if a.is_compute_op]
        for rank, row in lowered.items()
    }
    kind = torch_schedules._ComputationType
    front: dict[int, list[Any]] = {rank: [] for rank in own}
    for stage in range(half):
        front[mapping[stage]] += [
            torch_schedules._Action(stage, kind.FORWARD, microbatches + k)
            for k in range(microbatches)
        ]
    for stage in range(half, stages):
        front[mapping[stage]] += [
            torch_schedules._Action(stage, kind.FULL_BACKWARD, k) for k in range(microbatches)
        ]
    whole = torch_schedules._add_send_recv(
        {rank: front[rank] + own[rank] for rank in own}, lambda s: mapping[s], stages
    )
    steps = torch_schedules._simulate_comms_compute(flatten(whole), lambda s: mapping[s], stages)
    return {
        rank: [a for a in row if a is not None and (a.stage_index < half)
               == (a.microbatch_index < microbatches)]
        for rank, row in steps.items()
    }  # fmt: skip


def _numbered_on(action: Any, half: int, microbatches: int) -> Any:
    """The action with the microbatches of the second pipe numbered on behind those of the first."""
    if action.sub_actions:
        parts = tuple(_numbered_on(a, half, microbatches) for a in action.sub_actions)
        return action._replace(sub_actions=parts)
    if action.stage_index < half:
        return action
    return action._replace(microbatch_index=action.microbatch_index + microbatches)


def flatten(rows: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """Overlapped pairs as two actions: torch's dry run knows only single ones."""
    return {
        rank: [one for each in row for one in (each.sub_actions or (each,))]
        for rank, row in rows.items()
    }


class _Stage:
    """What torch's schedule classes ask of a stage when they compute their order."""

    def __init__(self, index: int, rank: int, ranks: int, stages: int) -> None:
        self.stage_index, self.group_rank, self.group_size = index, rank, ranks
        self.num_stages, self.is_first, self.is_last = stages, index == 0, index == stages - 1
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.stage_index_to_group_rank: dict[int, int] = {}


def torch_order(name: str, p: int, m: int, v: int) -> dict[int, list[Any]]:
    """The order of torch's own class of that name, by rank, without empty steps."""
    style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    mapping = generate_stage_to_rank_mapping(p, p * v, style=style)
    kind = torch_schedules.get_schedule_class(name)
    mine = [_Stage(s, 0, p, p * v) for s, rank in mapping.items() if rank == 0]
    loss = torch.nn.MSELoss()
    if issubclass(kind, torch_schedules.PipelineScheduleSingle):
        made = kind(mine[0], m, loss_fn=loss)
        order = made._get_pipeline_order()
    else:
        made = kind(mine, m, loss_fn=loss)
        order = made.pipeline_order
    order = {
        rank: [a for a in row if a is not None and a.is_compute_op] for rank, row in order.items()
    }
    if name == "1F1B":
        order[p - 1] = _from_zero(order[p - 1], m)
    return order


def _from_zero(row: list[Any], m: int) -> list[Any]:
    """torch 2.13 lists the last rank's 1F1B forwards as 1..m where its step runs 0..m-1."""
    forwards = [a.microbatch_index for a in row if a.computation_type.value == "F"]
    if forwards == list(range(m)):
        return row
    assert forwards == list(range(1, m + 1))
    return [
        a._replace(microbatch_index=a.microbatch_index - 1)
        if a.computation_type.value == "F"
        else a
        for a in row
    ]


def to_text(order: dict[int, list[Any]]) -> str:
    """Torch's order as CSV."""
    return "".join(",".join(str(a) for a in order[rank]) + "\n" for rank in sorted(order))
