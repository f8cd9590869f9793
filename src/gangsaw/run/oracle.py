"""Memory of one rank traced on fake tensors: an oracle that shares no formula with `cost.memory`.

torch's own modules, DTensor and fully_shard run under FakeTensorMode with a fake process group,
so no storage exists and no peer is needed; torch's MemTracker follows every storage. The
pipeline is played action by action with the receive buffers that torch's stages allocate once
for all microbatches. What fake tensors on the CPU differ in from a GPU: kernels' workspaces and
the allocator are not there (compare allocated bytes, not reserved).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import _sharding_prop
from torch.testing._internal.distributed.fake_pg import FakeStore

from gangsaw.run.model import BuildOptions, Stage
from gangsaw.run.parallel import DTYPES, Place, cut_stage, make_place
from gangsaw.run.pipeline import make_loss, vocabulary_parallel
from gangsaw.run.schedule import schedule_rows, stage_owners
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan


@dataclass(frozen=True)
class TracedPeak:
    """Peak bytes of forward and backward on one rank, and torch's parts of it at that moment."""

    rank: int
    peak_bytes: float
    parts_bytes: dict[str, float]


def trace_rank(
    model: ModelSpec, plan: Plan, seq_len: int, pp_rank: int, precision: str = "bf16"
) -> TracedPeak:
    """Peak of one step of pipeline rank `pp_rank` (all other coordinates 0), optimizer apart.

    Optimizer state is there (AdamW, fp32), its step is not run: unfused temporaries of the step
    would hide the peak of forward and backward. No process group may be running.
    """
    ranks = torch.arange(plan.devices)
    rank = int(ranks[pp_rank * (plan.devices // plan.pp)])
    dist.init_process_group("fake", rank=rank, world_size=plan.devices, store=FakeStore())
    try:
        with _outside_the_trace():
            return _trace(model, plan, seq_len, rank, precision)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _outside_the_trace() -> Iterator[None]:
    """Three corners of torch that must not run as they are in the fake mode of the trace.

    fully_shard joins its mesh with that of TP, which needs real tensors. RMSNorm is composed on
    the CPU otherwise than on a GPU: in its place runs the arithmetic that torchtitan's own norm
    had, whose bytes the stack profile states (8 a hidden element, its output in it).
    """
    original = DeviceMesh._concatenate

    def real(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return original(meshes)

    # DTensor finds out shapes by running each new operation on whole (unsharded) fake tensors. In
    # the mode that is active here they would be counted as allocated; in one of its own they are
    # not, as MemTracker looks at one mode only.
    detect = getattr(_sharding_prop, "detect_fake_mode")  # noqa: B009
    setattr(DeviceMesh, "_concatenate", staticmethod(real))  # noqa: B010
    setattr(_sharding_prop, "detect_fake_mode", lambda *a, **k: None)  # noqa: B010
    norm = nn.RMSNorm.forward
    setattr(nn.RMSNorm, "forward", _eager_norm)  # noqa: B010
    try:
        yield
    finally:
        setattr(nn.RMSNorm, "forward", norm)  # noqa: B010
        setattr(DeviceMesh, "_concatenate", staticmethod(original))  # noqa: B010
        setattr(_sharding_prop, "detect_fake_mode", detect)  # noqa: B010


def _eager_norm(self: nn.RMSNorm, x: Tensor) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (self.eps or 0.0))
    return (wide * scale).type_as(x) * self.weight


def _trace(model: ModelSpec, plan: Plan, seq_len: int, rank: int, precision: str) -> TracedPeak:
    place = make_place(plan, torch.device("cpu"))
    rows = schedule_rows(plan, model.layers)
    owners = stage_owners(rows, plan.pp * plan.vpp)
    numbers = [s for s, r in enumerate(owners) if r == place.pp_rank]
    opt = BuildOptions(
        seq_len=seq_len, recompute=plan.recompute, recompute_layers=plan.recompute_layers,
        fill=False,
    )  # fmt: skip
    tracker = MemTracker()
    with FakeTensorMode(allow_non_fake_inputs=True):
        stages = {
            n: cut_stage(model, n, place, opt, precision, keep_gathered=plan.pp > 1)
            for n in numbers
        }
        params = [p for s in stages.values() for p in s.parameters()]
        optimizer = torch.optim.AdamW(params, foreach=False)
        for p in params:
            optimizer.state[p] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
        tracker.track_external(*stages.values(), optimizer)
        with tracker, vocabulary_parallel(place):
            player = _Player(model, plan, seq_len, place, stages, precision)
            forget: Any = tracker.memory_tracking.pop
            for cell in rows[place.pp_rank]:
                # The tracker refuses a second call of a root module; it may forget the first.
                if "F" in cell:
                    forget(stages[int(cell.partition("F")[0])], None)
                player.play(cell)
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    parts = {str(getattr(k, "value", k)): float(v) for k, v in peak.items()}
    total = parts.pop("Total")
    return TracedPeak(rank, total, parts)


class _Player:
    """Runs a rank's actions on fake tensors, without peers."""

    def __init__(
        self, model: ModelSpec, plan: Plan, seq_len: int, place: Place,
        stages: dict[int, Stage], precision: str,
    ) -> None:  # fmt: skip
        self.stages, self.plan, self.vocab = stages, plan, model.vocab
        self.loss = make_loss(place, plan.dp * plan.mbs * plan.num_microbatches * seq_len)
        seq = seq_len // plan.tp if plan.sequence_parallel else seq_len
        shape, dtype = (plan.mbs, seq, model.hidden), DTYPES[precision]
        count = plan.num_microbatches
        self.inputs = {
            (n, i): torch.empty(shape, dtype=dtype, requires_grad=True)
            for n, s in stages.items() if not s.first for i in range(count)
        }  # fmt: skip
        self.grads = {
            (n, i): torch.empty(shape, dtype=dtype)
            for n, s in stages.items() if not s.last for i in range(count)
        }  # fmt: skip
        self.tokens = torch.zeros(plan.mbs, seq_len, dtype=torch.int64)
        self.held: dict[tuple[int, int], Tensor] = {}

    def play(self, cell: str) -> None:
        """One action: `3F12` or `3B12` (whole backward; split ones are not traced)."""
        for kind in "FB":
            stage, found, microbatch = cell.partition(kind)
            if found:
                break
        key = (int(stage), int(microbatch))
        last = key[1] == self.plan.num_microbatches - 1
        if kind == "F":
            self._forward(key)
        else:
            self._backward(key, last)

    def _forward(self, key: tuple[int, int]) -> None:
        stage = self.stages[key[0]]
        out = stage(self.tokens if stage.first else self.inputs[key])
        # The last stage keeps its logits until the backward, as torch's stage does.
        self.held[key] = self.loss(out, self.tokens) if stage.last else out

    def _backward(self, key: tuple[int, int], last: bool) -> None:
        stage: Any = self.stages[key[0]]
        if isinstance(stage, FSDPModule):
            piped = self.plan.pp > 1
            reduces = last or (self.plan.zero >= 2 and not piped)
            stage.set_requires_gradient_sync(reduces)
            stage.set_reshard_after_backward(last or not piped)
            stage.set_is_last_backward(reduces)
        out = self.held.pop(key)
        if stage.last:
            out.backward()  # type: ignore[no-untyped-call]
        else:
            torch.autograd.backward(out, self.grads[key])
        if not stage.first:
            self.inputs[key].grad = None
