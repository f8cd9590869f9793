"""A ClusterSpec out of measured rows: fitted curves, residuals, where they come from; no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from scipy.optimize import brentq

from gangsaw.errors import RunFailedError
from gangsaw.run.fitting import (
    LEAST_POINTS,
    Fit,
    Row,
    fit_attention,
    fit_gemm,
    fit_memory,
    fit_network,
    fit_operations,
)
from gangsaw.search.estimate import estimate
from gangsaw.spec.cluster import AttentionCurve, ClusterSpec, DeviceSpec, HostSpec, TierSpec
from gangsaw.spec.job import Job
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe
from gangsaw.spec.stack import StackProfile

UNKNOWN_W = 100.0
"""Stands where power was not measured; the notes say so."""


def _of(rows: Sequence[Row], kind: str, **fields: object) -> list[Row]:
    found = [r for r in rows if r["kind"] == kind]
    return [r for r in found if all(r.get(k) == v for k, v in fields.items())]


def cluster_from(rows: Sequence[Row], machine: Row) -> tuple[ClusterSpec, dict[str, Any]]:
    """The cluster and its facts: fits by name with residuals, layer table, burst and sustained."""
    source = (
        f"gangsaw measure on {machine['host']}, torch {machine['torch']}, {machine['backend']},"
        f" {machine['ranks']} ranks"
    )
    fits: dict[str, Fit] = {}
    device = _device(rows, machine, source, fits)
    ranks, local = int(machine["ranks"]), int(machine["local"])
    tiers = _tiers(rows, ranks, local, source, fits)
    write = _of(rows, "checkpoint", write=True)
    host = HostSpec(
        devices=local,
        memory_bytes=float(machine["memory_bytes"]) * local,
        nvme_bytes_per_s=local * write[0]["bytes"] / write[0]["median_s"] if write else 0.0,
        source=source,
        as_of=machine["date"],
    )
    cluster = ClusterSpec(
        name=f"measured-{machine['host']}", device=device, devices=ranks, tiers=tiers, host=host
    )
    facts = {
        "fits": {
            k: {**f.values, "residual": f.residual, "points": f.points} for k, f in fits.items()
        },
        "layers": [_layer(r) for r in _of(rows, "layer")],
        "checkpoint": {
            ("write" if r["write"] else "read") + "_bytes_per_s": r["bytes"] / r["median_s"]
            for r in _of(rows, "checkpoint")
        },
        "burst_flops_per_s": machine["burst_flops_per_s"],
        "sustained_flops_per_s": machine["sustained_flops_per_s"],
        "machine": {k: machine[k] for k in ("host", "name", "torch", "python", "date", "cores")},
    }
    return cluster, facts


class Settled(NamedTuple):
    """A cluster whose kernels fit a whole layer, and how far they were and are from it."""

    cluster: ClusterSpec
    factor: float | None
    """Predicted over measured seconds of the layer before; None when no layer was measured."""
    left: float | None
    """The same after: 1, but where shares had to stop, or what no share scales is too long."""


MOST_SCALE = 64.0
"""Furthest that kernels in a layer are from kernels alone; beyond it a probe was wrong."""


def settle_on_layer(
    cluster: ClusterSpec, model: ModelSpec, stack: StackProfile, rows: Sequence[Row]
) -> Settled:
    """The cluster with kernel shares scaled so that one whole layer takes what it was seen to take.

    Kernels timed alone are faster than in a layer, where their inputs come from elsewhere and each
    operation is started by Python. One number scales the shares of products, memory and attention;
    it is solved for, since launches do not scale with it and shares stop at 1 (`left` says then
    what remains). The layer is the one measured forward and backward at TP 1.
    """
    seen = _of(rows, "layer", tp=1, backward=True)
    if not seen:
        return Settled(cluster, None, None)
    row = seen[0]

    def gap(log_scale: float) -> float:
        """Logarithm of predicted over measured seconds; falls as the scale grows."""
        scaled = _scaled(cluster, math.exp(log_scale))
        return math.log(_layer_s(scaled, model, stack, row) / row["low_s"])

    now, most = gap(0.0), math.log(MOST_SCALE)
    end = most if now > 0 else -most
    if now == 0 or gap(end) * now > 0:
        log_scale = 0.0 if now == 0 else end
    else:
        log_scale = float(brentq(gap, min(0.0, end), max(0.0, end), xtol=1e-9))
    settled = _scaled(cluster, math.exp(log_scale))
    return Settled(settled, math.exp(now), math.exp(gap(log_scale)))


class Called(NamedTuple):
    """A cluster whose collectives cost what they cost inside a layer."""

    cluster: ClusterSpec
    call_s: float
    """Seconds added to the latency of the innermost tier."""


LAYER_CAUSES = ("compute", "tp_comm")
"""What a layer alone takes: its kernels and the collectives between them."""
MOST_CALL_S = 0.1
"""Longest that a call is taken to last; beyond it a probe was wrong."""


def settle_on_split_layer(
    cluster: ClusterSpec, model: ModelSpec, stack: StackProfile, rows: Sequence[Row]
) -> Called:
    """The settled cluster with a latency that makes layers under TP take what they took.

    A collective timed alone in a loop is called by one line; inside a layer its caller rearranges
    tensors, starts it, waits for peers that are late by their own noise. That time belongs to the
    call, not to the bytes, and is met by all collectives of a step, so the latency of the tier (the
    floor under a collective's seconds) is raised by it: the median over the TP sizes whose layer
    was measured forward and backward. Never below what was measured alone.
    """
    seen = [r for r in _of(rows, "layer", backward=True) if 1 < r["tp"] <= cluster.tiers[0].devices]
    found = []
    for row in seen:

        def gap(call_s: float, row: Row = row) -> float:
            predicted_s = _layer_s(_with_call(cluster, call_s), model, stack, row)
            return predicted_s - float(row["low_s"])

        if gap(0.0) >= 0:
            found.append(0.0)
        elif gap(MOST_CALL_S) > 0:
            found.append(float(brentq(gap, 0.0, MOST_CALL_S, xtol=1e-9)))
    call_s = statistics.median(found) if found else 0.0
    return Called(_with_call(cluster, call_s), call_s)


def _with_call(cluster: ClusterSpec, call_s: float) -> ClusterSpec:
    first, *rest = cluster.tiers
    first = first.model_copy(update={"latency_s": first.latency_s + call_s})
    return cluster.model_copy(update={"tiers": (first, *rest)})


def _layer_s(cluster: ClusterSpec, model: ModelSpec, stack: StackProfile, row: Row) -> float:
    """Predicted seconds of one layer at its TP size: four layers less two, halved."""
    seconds: list[float] = []
    tp = int(row["tp"])
    for layers in (2, 4):
        job = Job(
            model=model.model_copy(update={"order": (row["layer"],) * layers}),
            recipe=Recipe(seq_len=row["seq"], global_batch=row["mbs"], precision=row["dtype"]),
            cluster=cluster.model_copy(update={"devices": tp}),
            stack=stack,
        )
        lines = estimate(job, Plan(tp=tp, mbs=row["mbs"])).bill.lines
        seconds.append(sum(line.device_s for line in lines if line.cause in LAYER_CAUSES) / tp)
    return (seconds[1] - seconds[0]) / 2


def _scaled(cluster: ClusterSpec, scale: float) -> ClusterSpec:
    """Shares of products, memory and attention times `scale`, none above 1 that was not."""
    device = cluster.device

    def share(value: float) -> float:
        return min(max(1.0, value), value * scale)

    curves = tuple(
        c.model_copy(
            update={
                "a_fwd": {d: share(a) for d, a in c.a_fwd.items()},
                "a_bwd": {d: share(a) for d, a in c.a_bwd.items()},
            }
        )
        for c in device.attention
    )
    update = {
        "gemm_frac": share(device.gemm_frac),
        "memory_frac": share(device.memory_frac),
        "attention": curves,
    }
    return cluster.model_copy(update={"device": device.model_copy(update=update)})


def _layer(row: Row) -> dict[str, Any]:
    names = ("tp", "dtype", "backward", "seq", "mbs", "low_s", "median_s", "spread_frac")
    more = {"scatter_frac": row.get("scatter_frac", 0.0), "kept_bytes": row.get("kept_bytes")}
    return {k: row[k] for k in names} | more


def _device(rows: Sequence[Row], machine: Row, source: str, fits: dict[str, Fit]) -> DeviceSpec:
    memory = fits["memory"] = fit_memory(_of(rows, "memory"))
    hbm = memory.values["bytes_per_s"]
    peaks: dict[str, float] = {}
    for dtype in dict.fromkeys(r["dtype"] for r in _of(rows, "gemm")):
        mine = _of(rows, "gemm", dtype=dtype)
        fits[f"gemm {dtype}"] = fit_gemm(mine, hbm)
        peaks[dtype] = max(2.0 * r["m"] * r["n"] * r["k"] / r["low_s"] for r in mine)
    if not peaks:
        raise RunFailedError("no matrix product was measured")
    first = next(iter(peaks))
    gemm = fits[f"gemm {first}"].values
    # The peak is the best that was seen; a fitted asymptote above it is what larger shapes reach.
    peaks = {d: max(p, fits[f"gemm {d}"].values["asymptote_flops_per_s"]) for d, p in peaks.items()}
    curve = _attention(rows, first, peaks[first], source, fits)
    burst = float(machine["burst_flops_per_s"])
    return DeviceSpec(
        name=str(machine["name"]),
        peak_flops_per_s=peaks,
        memory_bytes=float(machine["memory_bytes"]),
        memory_bytes_per_s=hbm,
        tdp_w=UNKNOWN_W,
        sm_count=int(machine["sm_count"]),
        gemm_frac=min(1.0, gemm["asymptote_flops_per_s"] / peaks[first]),
        gemm_k0=gemm["k0"],
        gemm_launch_s=gemm["launch_s"],
        memory_frac=min(1.0, memory.values["frac"]),
        sustained_frac=min(1.0, float(machine["sustained_flops_per_s"]) / burst),
        attention=(curve,),
        pcie_bytes_per_s=hbm / 2,
        source=source,
        as_of=machine["date"],
        notes="power and host link were not measured",
    )


def _attention(
    rows: Sequence[Row], dtype: str, peak: float, source: str, fits: dict[str, Fit]
) -> AttentionCurve:
    mine = _of(rows, "attention", dtype=dtype)
    fit = fits["attention"] = fit_attention(mine, peak)
    dim = int(mine[0]["head_dim"])
    return AttentionCurve(
        kernel="flash",
        a_fwd={dim: fit.values["a_fwd"]},
        a_bwd={dim: fit.values["a_bwd"]},
        c0=fit.values["c0"],
        c1=0.0,
        w=0.0,
        source=source,
    )


def _tiers(
    rows: Sequence[Row], ranks: int, local: int, source: str, fits: dict[str, Fit]
) -> tuple[TierSpec, ...]:
    talk = _of(rows, "collective") + _of(rows, "p2p")
    inside = [r for r in talk if r["stride"] == 1 and r.get("ranks", 2) <= local]
    across = [r for r in talk if r not in inside]
    found = [_tier("node", local, inside, source, fits)]
    if ranks > local:
        found.append(_tier("network", ranks, across, source, fits))
    return tuple(found)


RING = ("all_reduce", "all_gather", "reduce_scatter")
"""What tensor and data parallelism run, of which a tier's curve is the middle. Messages and
all-to-all follow from it by the shares of `cost.collectives`; their own curves stand beside it."""


def _tier(
    name: str, devices: int, rows: Sequence[Row], source: str, fits: dict[str, Fit]
) -> TierSpec:
    if not rows:
        return TierSpec(
            name=name, devices=devices, bytes_per_s=1e9, latency_s=0.0, efficiency=1.0,
            source="one rank: nothing was measured",
        )  # fmt: skip
    ring = [r for r in rows if r.get("operation") in RING]
    fit = fits[f"network {name}"] = fit_network(
        ring if len(ring) >= LEAST_POINTS else rows, devices
    )
    for operation, own in fit_operations(rows, devices).items():
        fits[f"network {name} {operation}"] = own
    return TierSpec(
        name=name,
        devices=devices,
        bytes_per_s=fit.values["bytes_per_s"],
        latency_s=fit.values["latency_s"],
        ramp_s=fit.values["ramp_s"],
        efficiency=1.0,
        source=source,
    )
