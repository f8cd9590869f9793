"""`gangsaw measure`: which probes run, their file of results, and the cluster that comes out.

Every finished probe is one line of `measure.jsonl`; a run that was interrupted goes on behind the
last line. Ranks measure together, as they train together: on shared cores or under a power limit
one rank alone would be too fast.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field

from gangsaw.errors import InputError, RunFailedError
from gangsaw.read.stacks import load_stack
from gangsaw.run.assemble import cluster_from, settle_on_layer, settle_on_split_layer
from gangsaw.run.fitting import spread
from gangsaw.run.launch import join, own_rank, started_by_torchrun
from gangsaw.run.model import Block, BuildOptions, initialise, rotary_table
from gangsaw.run.parallel import DTYPES
from gangsaw.run.probes import (
    Bench,
    Probe,
    core_share,
    layer_bytes,
    seconds_of,
    sustained_rate,
)
from gangsaw.run.ranks import start_ranks
from gangsaw.run.record import record_layer
from gangsaw.run.results import CONFIG, RESULTS, read_lines, read_results
from gangsaw.spec.base import Count, Document, Positive
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.model import ModelSpec

LAYER = "layer.json"
NOISY_SCATTER = 0.25
"""A probe counts as noisy where its rounds lie further apart than this, over their mean."""
NOISY_SHARE = 1 / 3
"""Share of noisy probes above which the machine counts as too noisy."""
BUSY_FRAC = 0.1
"""Share of a core taken by other work above which the machine counts as too noisy."""
SPIN_S = 0.2
"""Seconds of computing by which other work on the cores is seen."""


class MeasureConfig(Document):
    """What is measured, and how long."""

    out: str
    ranks: Count = 1
    model: ModelSpec
    seq_len: Count = 256
    precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    device: Literal["cpu", "cuda"] = "cpu"
    budget_s: Positive = Field(0.3, description="spent on each probe, over all rounds")
    rounds: Count = Field(2, description="times that all probes are run: what differs is noise")
    sustained_s: Positive = 3.0
    largest_bytes: Count = 2**25
    checkpoint_bytes: Count = 2**26
    memory_bytes: tuple[Count, ...] = (2**26, 2**27, 2**28)
    """Buffers that are copied; smaller ones would measure caches."""


def probes_of(cfg: MeasureConfig) -> list[Probe]:
    """All probes in order: quick ones first, so that an early end still gives a cluster."""
    found: list[Probe] = [{"kind": "spin", "at": "begin"}, *_compute_probes(cfg)]
    found += [*_layer_probes(cfg), *_network_probes(cfg), {"kind": "spin", "at": "end"}]
    for write in (True, False):
        found.append({"kind": "checkpoint", "write": write, "bytes": cfg.checkpoint_bytes})
    return list({key_of(p): p for p in found}.values())


def _compute_probes(cfg: MeasureConfig) -> list[Probe]:
    kind = cfg.model.kinds[cfg.model.order[0]]
    ffn = kind.mlp.ffn if kind.mlp else (kind.moe.expert.ffn if kind.moe else 4 * kind.hidden)
    width, tokens = kind.hidden, cfg.seq_len
    found: list[Probe] = []
    for dtype in cfg.precisions:
        for tp in _divisors(cfg):
            found += [
                {"kind": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}
                for m, n, k in (
                    (tokens, kind.attention.q_width // tp, width),
                    (tokens, ffn // tp, width),
                    (tokens, width, ffn // tp),
                    (4 * tokens, ffn // tp, width),
                    (4 * tokens, width, ffn // tp),
                )
            ]
        for seq in (tokens, 2 * tokens, 4 * tokens):
            for backward in (False, True):
                found.append(
                    {
                        "kind": "attention", "seq": seq, "heads": kind.attention.heads,
                        "head_dim": kind.attention.head_dim, "dtype": dtype, "backward": backward,
                    }
                )  # fmt: skip
    return found + [{"kind": "memory", "bytes": s} for s in cfg.memory_bytes]


def _divisors(cfg: MeasureConfig) -> list[int]:
    """Candidate TP sizes: powers of two within the ranks that divide the model's heads."""
    kind = cfg.model.kinds[cfg.model.order[0]]
    heads = (kind.attention.heads, kind.attention.kv_heads)
    return [
        t for t in (1, 2, 4, 8, 16, 32)
        if cfg.ranks % t == 0 and all(h % t == 0 for h in heads) and cfg.seq_len % t == 0
    ]  # fmt: skip


def _layer_probes(cfg: MeasureConfig) -> list[Probe]:
    layer = cfg.model.order[0]
    return [
        {
            "kind": "layer", "layer": layer, "seq": cfg.seq_len, "mbs": 1, "tp": tp, "dtype": dtype,
            "backward": backward,
        }
        for dtype in cfg.precisions for tp in _divisors(cfg) for backward in (False, True)
        if cfg.model.kinds[layer].moe is None or tp == 1
    ]  # fmt: skip


def _network_probes(cfg: MeasureConfig) -> list[Probe]:
    if cfg.ranks < 2:
        return []
    sizes = [2**n for n in (12, 15, 18, 20, 22, 24, 25, 28) if 2**n <= cfg.largest_bytes]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(cfg.ranks)))
    groups = [(r, 1) for r in (2, 4, 8, 16, 32, 64) if cfg.ranks % r == 0 and r <= local]
    if (local, 1) not in groups and local > 1:
        groups.append((local, 1))
    if cfg.ranks > local:
        groups += [(cfg.ranks // local, local), (cfg.ranks, 1)]
    found: list[Probe] = []
    for ranks, stride in dict.fromkeys(groups):
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            found += [
                {
                    "kind": "collective",
                    "operation": operation,
                    "ranks": ranks,
                    "stride": stride,
                    "bytes": s,
                }
                for s in sizes
            ]
    for stride in sorted({1, local} if cfg.ranks > local else {1}):
        found += [{"kind": "p2p", "stride": stride, "bytes": s} for s in sizes]
    return found


def key_of(probe: Probe) -> str:
    """What a probe is recognised by in the file."""
    return json.dumps(probe, sort_keys=True)


def _close_torn_line(path: Path) -> None:
    """End a line that an interruption cut, so that the next result gets one of its own."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")


def measure_rank(text: str) -> None:
    """One rank of a measurement, from its configuration as JSON."""
    cfg = MeasureConfig.model_validate_json(text)
    join(cfg.device)
    try:
        run_probes(cfg)
    finally:
        dist.destroy_process_group()


def run_probes(cfg: MeasureConfig, say: Callable[[str], None] | None = None) -> None:
    """All probes that have no result yet; rank 0 writes each as it is finished."""
    out = Path(cfg.out)
    bench = Bench(torch.device(cfg.device), cfg.model, out)
    lead = bench.rank == 0
    done: list[Any] = [[(r["key"], r.get("round", 0)) for r in read_lines(out)] if lead else None]
    dist.broadcast_object_list(done, src=0)
    known = set(done[0])
    if lead:
        _close_torn_line(out / RESULTS)
    probes = probes_of(cfg)
    for turn in range(cfg.rounds):
        for number, probe in enumerate(probes, 1):
            key = key_of(probe)
            if (key, turn) in known:
                continue
            row = _run(bench, probe, cfg)
            if lead:
                with (out / RESULTS).open("a") as file:
                    file.write(json.dumps({"key": key, "round": turn, **probe, **row}) + "\n")
                where = f"{turn * len(probes) + number}/{cfg.rounds * len(probes)}"
                (say or _progress)(f"{where} {_words(probe)}: {row['median_s']:.3g} s")
    if lead and ("machine", 0) not in known:
        row = _machine(bench, cfg)
        with (out / RESULTS).open("a") as file:
            file.write(json.dumps({"key": "machine", "kind": "machine", **row}) + "\n")
    if lead and not (out / LAYER).exists():
        _record(cfg, out / LAYER)
    dist.barrier()
    (out / f"probe-{bench.rank}.bin").unlink(missing_ok=True)


def _record(cfg: MeasureConfig, path: Path) -> None:
    """The model's first layer, whole on this rank: what it keeps and the times of its parts."""
    kind, opt = cfg.model.kinds[cfg.model.order[0]], BuildOptions(cfg.seq_len, device=cfg.device)
    block = Block(kind, rotary_table(kind.attention.head_dim, opt), opt)
    initialise(block, "", opt)
    dtype = DTYPES[cfg.precisions[0]]
    x = torch.randn(1, cfg.seq_len, kind.hidden, device=cfg.device, dtype=dtype)
    record_layer(path, block.to(dtype), x, repeats=3, facts={"layer_index": 0})


def _run(bench: Bench, probe: Probe, cfg: MeasureConfig) -> dict[str, Any]:
    if probe["kind"] == "spin":
        share = core_share(bench, SPIN_S)
        return {"low_s": SPIN_S, "median_s": SPIN_S, "repetitions": 1, "core_share": share}
    mine = seconds_of(bench, probe, cfg.budget_s / cfg.rounds)
    if probe["kind"] == "p2p":
        mine = [s / 2 for s in mine]
    every: list[Any] = [None] * bench.world
    dist.all_gather_object(every, mine)
    # A repetition takes as long as its slowest rank.
    slowest = [max(column) for column in zip(*(e for e in every if e), strict=False)]
    low, middle, wide = spread(slowest)
    row: dict[str, Any] = {
        "low_s": low, "median_s": middle, "spread_frac": wide, "repetitions": len(slowest),
    }  # fmt: skip
    if probe["kind"] == "layer" and probe["backward"]:
        row["kept_bytes"] = layer_bytes(bench, probe)
    return row


def _machine(bench: Bench, cfg: MeasureConfig) -> dict[str, Any]:
    """Host, versions, memory, and burst against sustained rate (this rank alone)."""
    width = cfg.model.kinds[cfg.model.order[0]].hidden
    side = max(256, min(8192 if cfg.device == "cuda" else 512, width))
    probe: Probe = {"m": side, "n": side, "k": side, "dtype": cfg.precisions[0]}
    burst, sustained = sustained_rate(bench, probe, cfg.sustained_s)
    if cfg.device == "cuda":
        name, memory = torch.cuda.get_device_name(), float(torch.cuda.mem_get_info()[1])
        sms = torch.cuda.get_device_properties(0).multi_processor_count
    else:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        name, memory, sms = _cpu_name(), pages / bench.world, 1
    return {
        "name": name, "memory_bytes": memory, "sm_count": sms, "burst_flops_per_s": burst,
        "sustained_flops_per_s": sustained, "host": platform.node(), "torch": torch.__version__,
        "python": sys.version.split()[0], "cores": os.cpu_count(), "backend": dist.get_backend(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "ranks": bench.world,
        "local": int(os.environ.get("LOCAL_WORLD_SIZE", str(bench.world))), "median_s": 0.0,
    }  # fmt: skip


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _words(probe: Probe) -> str:
    return " ".join(f"{k}={v}" for k, v in probe.items() if k != "kind").join(
        (probe["kind"] + " ", "")
    )


def _progress(text: str) -> None:
    sys.stderr.write(f"measure {text}\n")


def measure(cfg: MeasureConfig) -> Path:
    """Run what is missing, on local ranks or as a rank of torchrun; the folder of results."""
    out = Path(cfg.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {cfg.out}: {error.strerror}") from error
    if not started_by_torchrun() or own_rank() == 0:
        (out / CONFIG).write_text(cfg.model_dump_json())
    if started_by_torchrun():
        measure_rank(cfg.model_dump_json())
    else:
        start_ranks(cfg.ranks, measure_rank, cfg.model_dump_json(), cfg.device, out)
    return out


def measured_cluster(out: Path) -> tuple[ClusterSpec, dict[str, Any]]:
    """The cluster of a finished measurement, and what to know about it (residuals, noise)."""
    rows = list(read_results(out).values())
    machine = next((r for r in rows if r["kind"] == "machine"), None)
    if machine is None:
        raise RunFailedError(f"{out}: the measurement is not finished; run it again to go on")
    cluster, facts = cluster_from(rows, machine)
    try:
        cfg = MeasureConfig.model_validate_json((out / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise RunFailedError(f"{out / CONFIG} cannot be read: {error}") from error
    stack = load_stack("unknown")
    cluster, facts["layer_factor"], facts["layer_left"] = settle_on_layer(
        cluster, cfg.model, stack, rows
    )
    cluster, facts["call_s"] = settle_on_split_layer(cluster, cfg.model, stack, rows)
    facts["noise"] = noise(rows)
    return cluster, facts


def noise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far rounds of the same probe lie apart, and what else ran on this machine.

    It is about measuring again, not about curves: how well these fit stands in their residuals.
    """
    timed = [r for r in rows if "scatter_frac" in r and r["kind"] != "spin"]
    noisy = [r for r in timed if r["scatter_frac"] > NOISY_SCATTER]
    share = len(noisy) / len(timed) if timed else 0.0
    busy = max((1.0 - float(r["core_share"]) for r in rows if "core_share" in r), default=0.0)
    return {
        "noisy_frac": share,
        "scatter_frac": statistics.median([r["scatter_frac"] for r in timed]) if timed else 0.0,
        "busy_frac": busy,
        "too_noisy": share > NOISY_SHARE or busy > BUSY_FRAC,
        "noisiest": [r["key"] for r in sorted(noisy, key=lambda r: -r["scatter_frac"])[:5]],
    }
