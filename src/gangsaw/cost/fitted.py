"""Fitted parameters: factors on physical entries, with prior, value and doubt.

The catalog's devices and stacks state what data sheets, kernel tables and documentation say; these
factors say how training differs from that, as far as published runs tell. A factor without
evidence stays at its prior, 1. Names are `entry`, `entry.FAMILY` of devices, or `entry:STACK`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gangsaw.cost.types import Device, Net, StackT

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


def factor(values: Mapping[str, float], entry: str, family: str, stack: str) -> float:
    """Product of the general factor, that of the device family and that of the stack."""
    log = values.get(entry, 0.0) + values.get(f"{entry}.{family}", 0.0)
    return math.exp(log + values.get(f"{entry}:{stack}", 0.0))


def _share(frac: float, scale: float) -> float:
    """A share of 0..1 with the part that is not covered multiplied by `scale`."""
    return min(1.0, max(0.0, 1.0 - (1.0 - frac) * scale))


def apply(
    values: Mapping[str, float], family: str, stack: str, device: Device, net: Net, time: StackT
) -> tuple[Device, Net, StackT]:
    """Device, network and stack with the fitted factors (logarithms in `values`) applied."""

    def f(entry: str) -> float:
        return factor(values, entry, family, stack)

    gemm = f("gemm")
    device = device._replace(
        gemm_frac=min(0.98, device.gemm_frac * gemm),
        linear_frac=min(
            0.98, device.linear_frac * gemm * (f("fp8") if device.peak_linear > device.peak else 1)
        ),
        gemm_k0=device.gemm_k0 * f("k0"),
        hbm_frac=min(1.0, device.hbm_frac * f("hbm")),
    )
    efficiency = net.efficiency.copy()
    efficiency[0] = min(1.3, efficiency[0] * f("link"))
    efficiency[1:] *= f("nic")
    net = net._replace(efficiency=efficiency)
    time = time._replace(
        attention_factor=time.attention_factor * f("attention"),
        unfused_traffic=time.unfused_traffic * f("unfused"),
        unaligned=min(1.0, time.unaligned * f("unaligned")),
        traffic=time.traffic * f("traffic"),
        launch_floor_layer_s=time.launch_floor_layer_s * f("floor"),
        collective_overhead_s=time.collective_overhead_s * f("collective"),
        tp_exposed_fwd=min(1.2, time.tp_exposed_fwd * f("tp")),
        tp_exposed_bwd=min(1.2, time.tp_exposed_bwd * f("tp") * f("tp_bwd")),
        cp_exposed=min(1.0, time.cp_exposed * f("cp")),
        ep_exposed=min(1.5, time.ep_exposed * f("ep")),
        dp_overlap_backward=_share(time.dp_overlap_backward, f("dp")),
        dp_overlap_forward=_share(time.dp_overlap_forward, f("dp")),
        zero3_overlap=_share(time.zero3_overlap, f("zero3")),
        pp_exposed=min(1.5, time.pp_exposed * f("pp")),
        step_overhead_s=time.step_overhead_s * f("step"),
        microbatch_overhead_s=time.microbatch_overhead_s * f("microbatch"),
        optimizer_traffic=time.optimizer_traffic * f("optimizer"),
        loss_traffic=time.loss_traffic * f("loss"),
        fp8_cast=time.fp8_cast * f("fp8_cast"),
        moe_permute=time.moe_permute * f("moe_permute"),
        moe_layer_floor_s=time.moe_layer_floor_s * f("moe_floor"),
    )
    return device, net, time
