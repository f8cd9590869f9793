"""Matrix products: rate by shape.

t = ((2mnk / (peak a k/(k+k0) q))^4 + (bytes / hbm)^4)^(1/4) + launch

`a` is the asymptote as a share of the dense peak, k0 the inner dimension at half of it, q the
share of the tiles' arithmetic that is not padding. The fourth-power mean joins the compute-bound
and the memory-bound limit smoothly. Valid for m, n, k >= 16. Source of form and values: fits to
published sweeps (Azure AI-benchmarking-guide, XLA matmul tables, DeepGEMM, SimuMax configs),
4-5 % mean error on 106-514 shapes a device.
"""

from __future__ import annotations

import math

from gangsaw.cost.types import Device
from gangsaw.jit import kernel


@kernel
def tile_share(m: float, n: float, sm: float) -> float:
    """Share of the tiles' arithmetic that is useful, for the best of three tile shapes.

    Tiles that stick out over the edge of the result, and a last wave that fills only part of the
    `sm` multiprocessors, are padding. Smaller tiles waste less and run slower, since each loads
    more operands for its arithmetic. A last partial wave costs half of a full one: products run
    back to back and libraries split the inner dimension there.
    """
    best = 0.0
    for i in range(3):
        rows = 128.0 if i < 2 else 64.0
        columns = 256.0 if i == 0 else 128.0
        rate = 1.0 if i == 0 else (0.96 if i == 1 else 0.85)
        down = math.ceil(m / rows)
        across = math.ceil(n / columns)
        edge = (m * n) / (down * rows * across * columns)
        waves = down * across / sm
        whole = math.ceil(waves)
        share = rate * edge * waves / (0.5 * waves + 0.5 * whole)
        best = max(best, share)
    return best


@kernel
def gemm_s(m: float, n: float, k: float, linear: bool, device: Device) -> float:
    """Seconds of an m x k by k x n product; `linear` at the rate of the linear layers (fp8)."""
    if m <= 0.0 or n <= 0.0 or k <= 0.0:
        return 0.0
    peak = device.peak_linear if linear else device.peak
    frac = device.linear_frac if linear else device.gemm_frac
    element = 1.0 if linear and device.peak_linear > 1.5 * device.peak else 2.0
    rate = peak * frac * device.sustained * k / (k + device.gemm_k0)
    compute = 2.0 * m * n * k / (rate * tile_share(m, n, device.sm))
    memory = (element * (m * k + k * n) + 2.0 * m * n) / (device.hbm * device.hbm_frac)
    ratio = memory / compute
    return (
        compute * math.sqrt(math.sqrt(1.0 + ratio * ratio * ratio * ratio)) + device.gemm_launch_s
    )


@kernel
def grouped_gemm_s(
    groups: float, m: float, n: float, k: float, weight_bytes: float, device: Device
) -> float:
    """Seconds of `groups` products m x k by k x n of experts, run as one grouped kernel.

    Each group reads its own weights once, so few rows an expert make it memory-bound; the mean
    of powers three and the cost of a group are fits to B200, A100 and H800 tables (5-9 %).
    """
    if m <= 0.0 or groups <= 0.0:
        return 0.0
    rate = (
        device.peak_linear * device.linear_frac * device.sustained * 0.95 * k / (k + device.gemm_k0)
    )
    compute = 2.0 * m * n * k / rate
    memory = (2.0 * m * (n + k) + weight_bytes * n * k) / (device.hbm * device.hbm_frac)
    joined: float = (compute**3 + memory**3) ** (1.0 / 3.0)
    return device.gemm_launch_s + groups * (joined + 2e-6)
