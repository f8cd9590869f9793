"""Fitted factors on physical entries, with their application as a kernel.

The catalog's devices and stacks state what data sheets, kernel tables and documentation say; these
factors say how training differs from that, as far as published runs tell. A factor without
evidence stays at its prior, 1. Parameters are named `entry`, `entry.FAMILY` of devices, or
`entry:STACK`; the factor of an entry is the product of the three that apply. Logarithms inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

import numpy as np

from gangsaw.cost.types import Array, Device, Net, StackT
from gangsaw.jit import kernel

ENTRIES = (
    "gemm", "k0", "fp8", "hbm", "link", "nic", "attention", "unfused", "unaligned", "traffic",
    "floor", "collective", "tp", "tp_bwd", "cp", "ep", "dp", "zero3", "pp", "step", "microbatch",
    "optimizer", "loss", "fp8_cast", "moe_permute", "moe_floor",
)  # fmt: skip
(
    GEMM, K0, FP8, HBM, LINK, NIC, ATTENTION, UNFUSED, UNALIGNED, TRAFFIC,
    FLOOR, COLLECTIVE, TP, TP_BWD, CP, EP, DP, ZERO3, PP, STEP, MICROBATCH,
    OPTIMIZER, LOSS, FP8_CAST, MOE_PERMUTE, MOE_FLOOR,
) = range(26)  # fmt: skip

FAMILIES = (
    ("a100", "a100"), ("a800", "a100"), ("v100", "v100"), ("h100", "hopper"), ("h200", "hopper"),
    ("h800", "hopper"), ("h20", "hopper"), ("gh200", "hopper"), ("b200", "blackwell"),
    ("b300", "blackwell"), ("gb200", "blackwell"), ("gb300", "blackwell"), ("mi", "cdna"),
    ("tpu", "tpu"), ("gaudi", "gaudi"),
)  # fmt: skip


def device_family(name: str) -> str:
    """The generation that a device's kernels share; `other` where none is known."""
    low = name.lower().replace("nvidia ", "").replace(" ", "-")
    for prefix, family in FAMILIES:
        if low.startswith(prefix):
            return family
    return "other"


def names_of(entry: str, family: str, stack: str) -> tuple[str, str, str]:
    """The parameters that act on an entry for a device family and a stack."""
    return entry, f"{entry}.{family}", f"{entry}:{stack}"


def combined(values: Mapping[str, float], family: str, stack: str) -> Array:
    """Logarithm of each entry's factor, in the order of ENTRIES; shape (26,)."""
    logs = [sum(values.get(n, 0.0) for n in names_of(e, family, stack)) for e in ENTRIES]
    return np.array(logs, dtype=np.float64)


@lru_cache(maxsize=1)
def load_fitted() -> Mapping[str, float]:
    """The shipped parameters by name: logarithms of the factors. Empty before the first fit."""
    import tomllib

    file = resources.files("gangsaw.catalog").joinpath("fitted.toml")
    if not file.is_file():
        return {}
    table = tomllib.loads(file.read_text("utf-8")).get("parameter", {})
    return {name: math.log(entry["value"]) for name, entry in table.items()}


@kernel
def covered(frac: float, scale: float) -> float:
    """A hidden share of 0..1 whose exposed part is multiplied by `scale`."""
    return min(1.0, max(0.0, 1.0 - (1.0 - frac) * scale))


@kernel
def fitted_device(x: Array, device: Device) -> Device:
    """The device's curves with the factors exp(x) applied."""
    gemm = math.exp(x[GEMM])
    fp8 = math.exp(x[FP8]) if device.peak_linear > 1.5 * device.peak else 1.0
    return Device(
        peak=device.peak,
        peak_linear=device.peak_linear,
        gemm_frac=min(0.98, device.gemm_frac * gemm),
        gemm_k0=device.gemm_k0 * math.exp(x[K0]),
        linear_frac=min(0.98, device.linear_frac * gemm * fp8),
        gemm_launch_s=device.gemm_launch_s,
        memory_bytes=device.memory_bytes,
        usable_bytes=device.usable_bytes,
        hbm=device.hbm,
        hbm_frac=min(1.0, device.hbm_frac * math.exp(x[HBM])),
        sustained=device.sustained,
        attention_c0=device.attention_c0,
        attention_c1=device.attention_c1,
        attention_w=device.attention_w,
        sm=device.sm,
        pcie=device.pcie,
        tdp_w=device.tdp_w,
    )


@kernel
def fitted_net(x: Array, net: Net) -> Net:
    """The network with the factors on the innermost tier and on the others applied."""
    efficiency = net.efficiency * math.exp(x[NIC])
    efficiency[0] = min(1.3, net.efficiency[0] * math.exp(x[LINK]))
    return Net(
        size=net.size,
        bytes_per_s=net.bytes_per_s,
        latency_s=net.latency_s,
        efficiency=efficiency,
        reduction=net.reduction,
        ramp_s=net.ramp_s,
        mesh=net.mesh,
        oversubscription=net.oversubscription,
    )


@kernel
def fitted_stack(x: Array, time: StackT) -> StackT:
    """The stack's time entries with the factors applied."""
    return StackT(
        gemm_factor=time.gemm_factor,
        fused_attention=time.fused_attention,
        attention_factor=time.attention_factor * math.exp(x[ATTENTION]),
        unfused_traffic=time.unfused_traffic * math.exp(x[UNFUSED]),
        unfused_k0=time.unfused_k0,
        unaligned=min(1.0, time.unaligned * math.exp(x[UNALIGNED])),
        traffic=time.traffic * math.exp(x[TRAFFIC]),
        launch_floor_layer_s=time.launch_floor_layer_s * math.exp(x[FLOOR]),
        launch_blocking=time.launch_blocking * math.exp(-x[FLOOR]),
        collective_overhead_s=time.collective_overhead_s * math.exp(x[COLLECTIVE]),
        tp_exposed_fwd=min(1.2, time.tp_exposed_fwd * math.exp(x[TP])),
        tp_exposed_bwd=min(1.2, time.tp_exposed_bwd * math.exp(x[TP] + x[TP_BWD])),
        tp_copy=time.tp_copy,
        fp8_gather=time.fp8_gather,
        cp_exposed=min(1.0, time.cp_exposed * math.exp(x[CP])),
        ep_exposed=min(1.5, time.ep_exposed * math.exp(x[EP])),
        ep_paired=time.ep_paired,
        ep_once=time.ep_once,
        dp_overlap_backward=time.dp_overlap_backward,
        dp_overlap_forward=time.dp_overlap_forward,
        zero3_overlap=covered(time.zero3_overlap, math.exp(x[ZERO3])),
        pp_exposed=min(3.0, time.pp_exposed * math.exp(x[PP])),
        sp_regather_exposed=time.sp_regather_exposed,
        step_overhead_s=time.step_overhead_s * math.exp(x[STEP]),
        microbatch_overhead_s=time.microbatch_overhead_s * math.exp(x[MICROBATCH]),
        optimizer_traffic=time.optimizer_traffic * math.exp(x[OPTIMIZER]),
        loss_traffic=time.loss_traffic * math.exp(x[LOSS]),
        fp8_cast=time.fp8_cast * math.exp(x[FP8_CAST]),
        moe_permute=time.moe_permute * math.exp(x[MOE_PERMUTE]),
        moe_layer_floor_s=time.moe_layer_floor_s * math.exp(x[MOE_FLOOR]),
        dropout=time.dropout,
        selective=time.selective,
        grad_bytes=time.grad_bytes,
        param_bytes=time.param_bytes,
        dp_traffic=time.dp_traffic * math.exp(x[DP]),
    )
