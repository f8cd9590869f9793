"""Whether the memory of this machine holds a run, before a rank is started; no torch.

The planner's own prediction of the peak, on the stack that `train` is (eager modules, DTensor,
fully_shard). Ranks on a CPU share the host's memory, those on GPUs have their own. Processes
themselves and what an allocator keeps come on top (four ranks of the demo held 1.0 to 1.9 times
what is predicted here), so a run that is refused could not have fitted.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from gangsaw.cost.memory_doc import rank_memories
from gangsaw.errors import InputError
from gangsaw.read.stacks import load_stack
from gangsaw.run.config import TrainConfig
from gangsaw.search.estimate import counts_of
from gangsaw.spec.cluster import AttentionCurve, ClusterSpec, DeviceSpec, HostSpec, TierSpec
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe
from gangsaw.units import format_gib

LARGEST_MBS = 2**20
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_bytes() -> float:
    """Bytes of memory of this host, or of the container that this process runs in."""
    try:
        found = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return float("inf")
    for name in _CGROUP:
        try:
            found = min(found, float(Path(name).read_text()))
        except (OSError, ValueError):  # no such limit; `max` says that there is none
            continue
    return found


@lru_cache(maxsize=4)
def _host(devices: int) -> ClusterSpec:
    """A cluster that gives memory formulas what they ask for; its rates are not used."""
    curve = AttentionCurve(
        kernel="flash", a_fwd={64: 0.5}, a_bwd={64: 0.5}, c0=0.0, c1=0.0, w=0.0, source="-"
    )
    device = DeviceSpec(
        name="host", peak_flops_per_s={"fp32": 1e12, "bf16": 1e12}, memory_bytes=1e15,
        memory_bytes_per_s=1e11, tdp_w=1.0, attention=(curve,), pcie_bytes_per_s=1e10,
        source="-", as_of="-",
    )  # fmt: skip
    tier = TierSpec(name="host", devices=devices, bytes_per_s=1e10, latency_s=0.0)
    host = HostSpec(devices=devices, memory_bytes=1e15)
    return ClusterSpec(name="host", device=device, devices=devices, tiers=(tier,), host=host)


def rank_bytes(cfg: TrainConfig, plan: Plan) -> tuple[float, ...]:
    """Predicted peak of allocated bytes of each pipeline rank; see `cost.memory`."""
    batch = plan.dp * plan.mbs * plan.num_microbatches
    recipe = Recipe(seq_len=cfg.seq_len, global_batch=batch, precision=cfg.precision)
    stack = load_stack("torchtitan")
    job = Job(model=cfg.model, recipe=recipe, cluster=_host(plan.devices), stack=stack)
    known = plan.model_copy(update={"schedule": "1f1b"} if _own_order(plan) else {})
    return tuple(m.allocated for _, m in rank_memories(job, known, counts_of(job, known)))


def _own_order(plan: Plan) -> bool:
    """An order that no formula knows: 1F1B, which holds no more than it must, stands for it."""
    return plan.schedule == "auto" or plan.schedule.startswith("file:")


def needed_bytes(cfg: TrainConfig, plan: Plan) -> float:
    """What the run needs of one memory: all ranks of a host, or the fullest of the GPUs."""
    each = rank_bytes(cfg, plan)
    if cfg.device == "cuda":
        return max(each)
    return sum(each) * (plan.devices // plan.pp)


def check_room(cfg: TrainConfig, memory_bytes: float) -> None:
    """Raise InputError, with what would fit, where the run cannot fit into `memory_bytes`."""
    needed = needed_bytes(cfg, cfg.plan)
    if needed <= memory_bytes:
        return
    what = "of this GPU" if cfg.device == "cuda" else f"for {cfg.plan.devices} ranks on this host"
    legal = []
    if needed_bytes(cfg, cfg.plan.model_copy(update={"mbs": 1})) <= memory_bytes:
        legal.append(f"--mbs up to {_largest(cfg, memory_bytes)}")
    if needed_bytes(cfg, cfg.plan.model_copy(update={"recompute": "full"})) <= memory_bytes:
        legal.append("--recompute full")
    said = ", or ".join(legal) or "a smaller model, or more memory"
    raise InputError(
        f"mbs={cfg.plan.mbs}: {format_gib(needed)} are predicted, {format_gib(memory_bytes)}"
        f" {what} are there. Legal here: {said}"
    )


def _largest(cfg: TrainConfig, memory_bytes: float) -> int:
    """The largest microbatch that is predicted to fit."""
    low, high = 1, min(cfg.plan.mbs, LARGEST_MBS)
    while high - low > 1:
        middle = (low + high) // 2
        plan = cfg.plan.model_copy(update={"mbs": middle})
        fits = needed_bytes(cfg, plan) <= memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low
