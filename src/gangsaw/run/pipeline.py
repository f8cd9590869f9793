"""One training step over the microbatches: torch's pipeline runtime, or a plain loop at pp = 1.

The order of actions is a gangsaw schedule, handed to torch as its own action text. torch names
the runtime and the lowering with a leading underscore: they may change, so their presence is
checked once, with a clear line when they are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.profiler import record_function

from gangsaw.errors import InputError, RunFailedError
from gangsaw.run.model import Stage
from gangsaw.run.parallel import DTYPES, Place

Rows = tuple[tuple[str, ...], ...]
LossFn = Callable[[Tensor, Tensor], Tensor]


def make_loss(place: Place, tokens_per_step: int) -> LossFn:
    """Cross-entropy of a microbatch, summed and divided by all tokens of the step.

    Data-parallel ranks average their gradients, so the share of a rank is multiplied by dp.
    Logits [batch, seq, vocab or its TP share]; targets [batch, seq]. Computed in fp32.
    """
    scale = place.plan.dp / tokens_per_step
    tp = place.tp

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        logits = logits.float()
        if tp is not None:
            logits = DTensor.from_local(logits, tp, [Shard(2)], run_check=False)
        total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        if isinstance(total, DTensor):
            total = total.to_local()
        return total * scale

    return loss


@contextlib.contextmanager
def vocabulary_parallel(place: Place) -> Iterator[None]:
    """Let cross-entropy work on logits that are cut over the TP group."""
    with loss_parallel() if place.tp is not None else contextlib.nullcontext():
        yield


@dataclass
class Step:
    """The stages of this rank and how one step runs over them."""

    stages: list[Stage]
    place: Place
    loss: LossFn
    runtime: Any = None
    actions: list[str] = field(default_factory=list)

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of all microbatches [m * mbs, seq].

        Returns this rank's part of the step's loss (times dp); 0 without the last stage.
        """
        with vocabulary_parallel(self.place):
            if self.runtime is None:
                losses = self._plain(tokens, targets)
            else:
                losses = self._pipeline(tokens, targets)
        zero = torch.zeros((), device=self.place.device)
        return torch.stack([x.detach() for x in losses]).sum() if losses else zero

    def _pipeline(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        kwargs: dict[str, Any] = {"return_outputs": False}
        if any(s.last for s in self.stages):
            kwargs |= {"target": targets, "losses": losses}
        args = (tokens,) if any(s.first for s in self.stages) else ()
        self.runtime.step(*args, **kwargs)
        return losses

    def _plain(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        plan, stage = self.place.plan, self.stages[0]
        losses = []
        self.actions = []
        for i in range(plan.num_microbatches):
            rows = slice(i * plan.mbs, (i + 1) * plan.mbs)
            last = i == plan.num_microbatches - 1
            if isinstance(stage, FSDPModule):
                # ZeRO 2 and 3 keep only a shard of the gradient, so each microbatch reduces.
                reduces = plan.zero >= 2 or last
                stage.set_requires_gradient_sync(reduces)
                stage.set_reshard_after_backward(plan.zero == 3 or last)
                # Otherwise the buffers of a reduction live until the next one.
                stage.set_is_last_backward(reduces)
            with record_function(f"PP:0F{i}"):
                part = self.loss(stage(tokens[rows]), targets[rows])
            with record_function(f"PP:0B{i}"):
                part.backward()  # type: ignore[no-untyped-call]
            losses.append(part)
            self.actions += [f"0F{i}", f"0B{i}"]
        return losses


def boundary(place: Place, seq_len: int, hidden: int, precision: str) -> Tensor:
    """An example of what passes between stages: [mbs, seq (shard), hidden] without storage."""
    plan = place.plan
    seq = seq_len // plan.tp if plan.sequence_parallel and plan.tp > 1 else seq_len
    dtype = DTYPES[precision]
    return torch.empty(plan.mbs, seq, hidden, dtype=dtype, device="meta", requires_grad=True)


def make_runtime(
    stages: list[Stage],
    numbers: list[int],
    place: Place,
    examples: tuple[Tensor, Tensor, Tensor],
    rows: Rows,
    loss: LossFn,
) -> Any:  # noqa: ANN401
    """torch's runtime over `rows` (one row of compute actions a rank).

    `examples`: meta tensors of tokens, of hidden states and of logits of one microbatch.
    """
    plan = place.plan
    runtime_cls = getattr(schedules, "_PipelineScheduleRuntime", None)
    action = getattr(schedules, "_Action", None)
    if runtime_cls is None or action is None:
        raise RunFailedError(
            f"torch {torch.__version__} has no pipeline runtime that this version knows"
            " (_PipelineScheduleRuntime); torch 2.13 has"
        )
    token, hidden, logits = examples
    total = plan.pp * plan.vpp
    wrapped = [
        PipelineStage(
            stage,
            number,
            total,
            place.device,
            input_args=(token if number == 0 else hidden,),
            output_args=(logits if number == total - 1 else hidden,),
            group=place.group("pp"),
        )
        for stage, number in zip(stages, numbers, strict=True)
    ]
    runtime = runtime_cls(wrapped, plan.num_microbatches, loss_fn=loss, scale_grads=False)
    order = {r: [action.from_str(text) for text in row] for r, row in enumerate(rows)}
    try:
        runtime._prepare_schedule_with_comms(order)
    except (AssertionError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"schedule {plan.schedule!r}: torch refuses it: {first}") from error
    for rank, lowered in runtime.pipeline_order_with_comms.items():
        runtime.pipeline_order_with_comms[rank] = _place_sharding(lowered, plan.zero, action)
    return runtime


def _place_sharding(lowered: list[Any], zero: int, action: Any) -> list[Any]:  # noqa: ANN401
    """Where parameters are gathered and dropped, and gradients reduced, by ZeRO level.

    0 to 2: gathered once in front of the step, dropped behind it. 3: where torch's lowering puts
    it, blocks being dropped again behind each forward. Gradients are reduced once a stage behind
    its last microbatch, as torch does: under a pipeline the levels 1 and 2 are the same.
    """
    kinds = schedules._ComputationType
    if zero == 3:
        return lowered
    body = [a for a in lowered if a.computation_type not in (kinds.UNSHARD, kinds.RESHARD)]
    mine = sorted({a.stage_index for a in body if a.stage_index >= 0 and a.is_compute_op})
    for a in body:
        for sub in a.sub_actions or ():
            mine = sorted({*mine, sub.stage_index})
    gather = [action(s, kinds.UNSHARD, None) for s in mine]
    drop = [action(s, kinds.RESHARD, None) for s in mine]
    return gather + body + drop
