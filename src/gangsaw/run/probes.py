"""What is timed on a machine: each probe runs on all ranks and gives seconds of one repetition.

A probe is a dictionary of plain values (so that it can be a line of a file) with a `kind`; the
functions here make the thing that is repeated, and `seconds_of` repeats it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from gangsaw.run.model import Block, BuildOptions, rotary_table
from gangsaw.run.parallel import DTYPES, block_styles
from gangsaw.run.record import saved_tensors
from gangsaw.spec.model import ModelSpec

Probe = dict[str, Any]
Action = Callable[[], object]


class Bench:
    """The running process group and the groups and meshes that probes need, made once each."""

    def __init__(self, device: torch.device, model: ModelSpec, folder: Path) -> None:
        self.device, self.model, self.folder = device, model, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._groups: dict[tuple[int, int], tuple[dist.ProcessGroup | None, bool]] = {}
        self._meshes: dict[int, DeviceMesh] = {}

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def group(self, size: int, stride: int) -> dist.ProcessGroup | None:
        """The group of `size` ranks at a distance of `stride` that this rank is in, if any."""
        key = (size, stride)
        if key not in self._groups:
            mine = None
            span = size * stride
            for first in range(0, self.world - span + 1, span):
                for offset in range(stride):
                    ranks = [first + offset + i * stride for i in range(size)]
                    made = dist.new_group(ranks)
                    mine = made if self.rank in ranks else mine
            self._groups[key] = (mine, True)
        return self._groups[key][0]

    def mesh(self, tp: int) -> DeviceMesh:
        """Mesh whose inner dimension are TP groups of `tp` ranks."""
        if tp not in self._meshes:
            grid = torch.arange(self.world).reshape(self.world // tp, tp)
            self._meshes[tp] = DeviceMesh(self.device.type, grid, mesh_dim_names=("outer", "tp"))
        return self._meshes[tp]


def _gemm(bench: Bench, probe: Probe) -> Action:
    dtype = DTYPES[probe["dtype"]]
    a = torch.randn(probe["m"], probe["k"], device=bench.device).to(dtype)
    b = torch.randn(probe["k"], probe["n"], device=bench.device).to(dtype)
    out = torch.empty(probe["m"], probe["n"], device=bench.device, dtype=dtype)
    return lambda: torch.matmul(a, b, out=out)


def _memory(bench: Bench, probe: Probe) -> Action:
    source = torch.ones(probe["bytes"] // 8, device=bench.device, dtype=torch.float32)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _attention(bench: Bench, probe: Probe) -> Action:
    shape = (1, probe["heads"], probe["seq"], probe["head_dim"])
    dtype = DTYPES[probe["dtype"]]
    q, k, v = (
        torch.randn(shape, device=bench.device).to(dtype).requires_grad_(probe["backward"])
        for _ in range(3)
    )
    grad = torch.ones(shape, device=bench.device, dtype=dtype)

    def run() -> None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if probe["backward"]:
            torch.autograd.backward(out, grad)

    return run


def _layer_parts(bench: Bench, probe: Probe) -> tuple[Block, Tensor, Tensor]:
    """One transformer layer at a TP size, this rank's part of its input, and of its gradient."""
    kind = bench.model.kinds[probe["layer"]]
    opt = BuildOptions(seq_len=probe["seq"], device=bench.device.type, fill=False)
    block = Block(kind, rotary_table(kind.attention.head_dim, opt), opt)
    dtype, tp = DTYPES[probe["dtype"]], probe["tp"]
    for param in block.parameters():
        torch.nn.init.normal_(param, std=0.02)
    block.to(dtype)
    if tp > 1:
        mesh = bench.mesh(tp)["tp"]
        parallelize_module(block, mesh, block_styles(kind, True), src_data_rank=None)
    shape = (probe["mbs"], probe["seq"] // tp, kind.hidden)
    x = torch.randn(shape, device=bench.device).to(dtype).requires_grad_()
    return block, x, torch.ones(shape, device=bench.device, dtype=dtype)


def _layer(bench: Bench, probe: Probe) -> Action:
    """The layer forward, or forward and backward, gradients dropped."""
    block, x, grad = _layer_parts(bench, probe)

    def run() -> None:
        out = block(x)
        if probe["backward"]:
            out.backward(grad)
            block.zero_grad(set_to_none=True)
            x.grad = None

    return run


def _collective(bench: Bench, probe: Probe) -> Action | None:
    group = bench.group(probe["ranks"], probe["stride"])
    if group is None:
        return None
    size, ranks = probe["bytes"] // 4, probe["ranks"]
    whole = torch.ones(max(ranks, size // ranks * ranks), device=bench.device)
    part = torch.ones(whole.numel() // ranks, device=bench.device)
    # Names of torch 2.13, and of those before it.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    runs: dict[str, Action] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(whole, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
    }
    return runs[probe["operation"]]


def _p2p(bench: Bench, probe: Probe) -> Action | None:
    group = bench.group(2, probe["stride"])
    if group is None:
        return None
    data = torch.ones(probe["bytes"] // 4, device=bench.device)
    place = dist.get_rank(group)
    peer = dist.get_global_rank(group, 1 - place)

    def run() -> None:
        # There and back, so that both ends know the time; the caller halves it.
        if place == 0:
            dist.send(data, peer, group)
            dist.recv(data, peer, group)
        else:
            dist.recv(data, peer, group)
            dist.send(data, peer, group)

    return run


def _checkpoint(bench: Bench, probe: Probe) -> Action:
    """Write and flush, or read back past the page cache where the system lets go of it."""
    path = bench.folder / f"probe-{bench.rank}.bin"
    data = os.urandom(2**20) * (probe["bytes"] // 2**20)
    if not probe["write"] and not path.exists():
        path.write_bytes(data)

    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def read() -> None:
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(2**22):
                pass

    return write if probe["write"] else read


_MAKERS: dict[str, Callable[[Bench, Probe], Action | None]] = {
    "gemm": _gemm, "memory": _memory, "attention": _attention, "layer": _layer,
    "collective": _collective, "p2p": _p2p, "checkpoint": _checkpoint,
}  # fmt: skip


LEAST, MOST = 4, 200
"""Repetitions of a probe in one round."""


def seconds_of(bench: Bench, probe: Probe, budget_s: float) -> list[float]:
    """Seconds of LEAST to MOST repetitions on this rank, as many as `budget_s` holds.

    All ranks begin together and repeat equally often: rank 0's first repetition decides how
    often. Ranks that a probe leaves out return an empty list.
    """
    action = _MAKERS[probe["kind"]](bench, probe)
    dist.barrier()
    first = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        if action is not None:
            action()
            bench.sync()
        first = time.perf_counter() - begun
    count = torch.tensor(
        float(min(MOST, max(LEAST, budget_s / max(first, 1e-7)))), device=bench.device
    )
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    found: list[float] = []
    for _ in range(int(count)):
        if probe["kind"] in ("gemm", "layer", "collective"):
            dist.barrier()
        begun = time.perf_counter()
        if action is not None:
            action()
            bench.sync()
        found.append(time.perf_counter() - begun)
    return found if action is not None else []


def core_share(bench: Bench, seconds: float) -> float:
    """Share of a core that each rank got while all of them computed: the least of the ranks.

    Over what the ranks can have of this host's cores, so that 1 is a host without other work.
    """
    dist.barrier()
    begun, spent = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begun < seconds:
        pass
    share = (time.thread_time() - spent) / (time.perf_counter() - begun)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(bench.world)))
    fair = min(1.0, len(_cores()) / local)
    least = torch.tensor(share / fair, device=bench.device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return min(1.0, float(least))


def _cores() -> set[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def layer_bytes(bench: Bench, probe: Probe) -> int:
    """Bytes that the layer keeps for its backward on this rank, its input with them.

    Parameters and buffers are not counted; of a DTensor, this rank's part is.
    """
    block, x, _ = _layer_parts(bench, probe)
    return sum(int(row["bytes"]) for row in saved_tensors(block, lambda: block(x), []))


def sustained_rate(bench: Bench, probe: Probe, seconds: float) -> tuple[float, float]:
    """FLOP/s of one product at the start and after `seconds` of it without a pause.

    Burst: the median of the first tenth; sustained: of the last half.
    """
    action = _gemm(bench, probe)
    action()
    bench.sync()
    flops = 2.0 * probe["m"] * probe["n"] * probe["k"]
    found: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        action()
        bench.sync()
        found.append((now - begin, flops / (time.perf_counter() - now)))
    early = [r for t, r in found if t < seconds / 10] or [found[0][1]]
    late = [r for t, r in found if t > seconds / 2] or [found[-1][1]]
    return _median(early), _median(late)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
