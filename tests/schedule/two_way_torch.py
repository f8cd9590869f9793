"""DualPipe on torch's own pipeline runtime: a stage class that may begin or end in the middle."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch_oracle
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from gangsaw.schedule import generate, to_csv

WIDTH = 8


class TwoWayStage(PipelineStage):
    """A stage of one of two pipes of half the stages each; their ends are not joined."""

    @property
    def is_first(self) -> bool:
        return self.stage_index % (self.num_stages // 2) == 0

    @property
    def is_last(self) -> bool:
        return (self.stage_index + 1) % (self.num_stages // 2) == 0

    def set_local_fwd_input(self, *args: Any) -> None:
        if not self.is_first:
            super().set_local_fwd_input(*args)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        if not self.is_first:
            return super().get_local_bwd_output(mb_index)
        return self.bwd_cache.pop(mb_index, None)

    def set_local_bwd_input(self, grads: Any, mb_index: int) -> None:
        if not self.is_last:
            super().set_local_bwd_input(grads, mb_index)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """A first stage's input needs no gradient, so torch does its backward here in one."""
        if not self.is_first:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            return
        self.dw_runner.pop(bwd_chunk_id)
        inputs, _, output, grads = self.backward_state.pop(bwd_chunk_id)
        given = {"stage_output": output, "output_grads": grads, "input_values": inputs}
        self.backward_maybe_with_nosync("full", given, last_backward=last_backward)


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def model(stages: int) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(stages)
    ]


def batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(2 * microbatches, WIDTH), torch.randn(2 * microbatches, WIDTH)


def work(rank: int, ranks: int, m: int, folder: str) -> None:
    """One rank: a step of DualPipe; the gradients of its stages into a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    made = generate("dualpipe", ranks, m)
    count, half = made.stages, made.microbatches
    modules = model(ranks)
    stages = [
        TwoWayStage(copy.deepcopy(modules[s % ranks]), s, count, torch.device("cpu"))
        for s in made.stages_of(rank)
    ]
    steps = torch_oracle.accept_both_ways(to_csv(made), count, half)
    runtime = torch_schedules._PipelineScheduleRuntime(
        stages, half, loss_fn=squares, scale_grads=False
    )
    lowered = {
        who: [
            a if a.stage_index < ranks else a._replace(microbatch_index=a.microbatch_index - half)
            for a in row
        ]
        for who, row in steps.items()
    }
    runtime._prepare_schedule_with_comms(lowered, format="compute_comms")
    x, y = batch(half)
    runtime.step(x, target=y)
    torch.save(
        {s.stage_index: [p.grad for p in s.submod.parameters()] for s in stages},
        f"{folder}/grads-{rank}",
    )
    dist.destroy_process_group()
