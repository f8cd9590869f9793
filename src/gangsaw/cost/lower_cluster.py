"""Lowering of a cluster to the numbers that formulas work on."""

from __future__ import annotations

import math

import numpy as np

from gangsaw.cost.collectives import group_path
from gangsaw.cost.types import Device, Net
from gangsaw.errors import InputError
from gangsaw.spec.cluster import AttentionCurve, ClusterSpec, DeviceSpec

_LINEAR = {"fp8": "bf16"}
"""Precision of activations and attention where the linear layers run in the key's."""


def net_of(cluster: ClusterSpec) -> Net:
    """Tiers of a cluster, innermost first; bandwidth after oversubscription.

    A tier is never larger than the cluster, so that a job of six devices on nodes of eight does
    not look as if its groups crossed a boundary.
    """
    tiers = cluster.tiers

    def column(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)

    return Net(
        size=column([float(min(t.devices, cluster.devices)) for t in tiers]),
        bytes_per_s=column([t.bytes_per_s / t.oversubscription for t in tiers]),
        latency_s=column([t.latency_s for t in tiers]),
        efficiency=column([t.efficiency for t in tiers]),
        reduction=column([float(t.in_network_reduction) for t in tiers]),
        ramp_s=column([t.ramp_s for t in tiers]),
        oversubscription=column([t.oversubscription for t in tiers]),
        mesh=column([float(t.devices - 1) if t.mesh else 0.0 for t in tiers]),
    )


def peak_flops_per_s(device: DeviceSpec, precision: str) -> float:
    """Dense peak of a precision; InputError when the device has none."""
    peak = device.peak_flops_per_s.get(precision)
    if peak is None:
        legal = ", ".join(device.peak_flops_per_s)
        raise InputError(f"precision={precision!r}: {device.name} has no such rate; has: {legal}")
    return peak


def attention_curve(device: DeviceSpec, kernel: str) -> AttentionCurve:
    """Curve of a kernel; of the device's first one where it has none of that name."""
    for curve in device.attention:
        if curve.kernel == kernel:
            return curve
    if not device.attention:
        raise InputError(f"device {device.name!r} has no attention curve; add one to its table")
    return device.attention[0]


def attention_asymptotes(device: DeviceSpec, kernel: str, head_dim: float) -> tuple[float, float]:
    """Shares of peak (forward, backward) at a head width; linear between the known widths."""
    curve = attention_curve(device, kernel)
    return _between(curve.a_fwd, head_dim), _between(curve.a_bwd, head_dim)


def _between(table: dict[int, float], head_dim: float) -> float:
    """Linear between known widths; in proportion below the smallest, flat above the largest."""
    widths = sorted(table)
    if head_dim < widths[0]:
        return table[widths[0]] * math.sqrt(head_dim / widths[0])
    return float(np.interp(head_dim, widths, [table[w] for w in widths]))


def device_of(cluster: ClusterSpec, precision: str, kernel: str = "flash") -> Device:
    """Curves of the cluster's device at a recipe's precision, with one attention kernel.

    With fp8 the linear layers run at the fp8 rate; activations and attention stay in bf16.
    """
    device = cluster.device
    peak = peak_flops_per_s(device, _LINEAR.get(precision, precision))
    curve = attention_curve(device, kernel)
    fp8 = precision == "fp8"
    return Device(
        peak=peak,
        peak_linear=peak_flops_per_s(device, precision),
        gemm_frac=device.gemm_frac,
        gemm_k0=device.gemm_k0,
        linear_frac=device.fp8_gemm_frac if fp8 else device.gemm_frac,
        gemm_launch_s=device.gemm_launch_s,
        memory_bytes=device.memory_bytes,
        usable_bytes=device.memory_bytes * device.usable_memory_frac,
        hbm=device.memory_bytes_per_s,
        hbm_frac=device.memory_frac,
        sustained=device.sustained_frac,
        attention_c0=curve.c0,
        attention_c1=curve.c1,
        attention_w=curve.w,
        sm=float(device.sm_count),
        pcie=device.pcie_bytes_per_s,
        tdp_w=device.tdp_w,
    )


def tier_name_for(cluster: ClusterSpec, ranks: float, stride: float) -> str:
    """Name of the outermost tier that a group of `ranks` at `stride` crosses."""
    net = net_of(cluster)
    names = [tier.name for tier in cluster.tiers]
    for index, name in enumerate(names):
        if group_path(net, float(ranks), float(stride), index) >= ranks:
            return name
    return names[-1]
