"""From measured seconds to the curves of a cluster file; no torch.

Each curve is the same formula that predictions use, fitted in logarithms so that small and large
sizes weigh alike. The residual is the root mean square of the logarithms: 0.05 is about 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from gangsaw.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    p2p_s,
    reduce_scatter_s,
)
from gangsaw.cost.gemm import tile_share
from gangsaw.cost.types import Net

Row = dict[str, Any]
BACKWARD_FLOPS = 2.5
"""Backward of fused attention over its forward: five products for two (arXiv:2307.08691)."""


LEAST_POINTS = 4
"""Sizes from which three parameters are fitted to one operation."""


@dataclass(frozen=True)
class Fit:
    """Fitted values by name, and the root mean square of log residuals over `points`."""

    values: dict[str, float]
    residual: float
    points: int


def _solve(
    predict: Callable[[np.ndarray], np.ndarray], measured: Sequence[float], start: Sequence[float]
) -> tuple[np.ndarray, float]:
    """Positive parameters (fitted as logarithms) that predict `measured` best; the residual."""
    target = np.log(np.asarray(measured, np.float64))

    def residual(logs: np.ndarray) -> np.ndarray:
        gap: np.ndarray = np.log(predict(np.exp(logs))) - target
        return gap

    # Bounds (1,100 times): on rows of a very noisy machine nothing runs off to 0 or infinity.
    first = np.log(np.asarray(start))
    found = least_squares(
        residual, first, bounds=(first - 7.0, first + 7.0), loss="soft_l1", f_scale=0.1
    )
    last = residual(found.x)
    return np.exp(found.x), float(np.sqrt(np.mean(last**2)))


def fit_gemm(rows: Sequence[Row], memory_bytes_per_s: float) -> Fit:
    """Asymptote (FLOP/s), k0 and launch of `cost.gemm.gemm_s` at one multiprocessor."""
    m, n, k, t = (np.asarray([r[c] for r in rows], np.float64) for c in ("m", "n", "k", "low_s"))
    share = np.asarray([tile_share(a, b, 1.0) for a, b in zip(m, n, strict=True)])
    memory = (2.0 * (m * k + k * n) + 2.0 * m * n) / memory_bytes_per_s

    def predict(p: np.ndarray) -> np.ndarray:
        compute = 2.0 * m * n * k / (p[0] * k / (k + p[1]) * share)
        joined: np.ndarray = (compute**4 + memory**4) ** 0.25 + p[2]
        return joined

    best = float(np.max(2.0 * m * n * k / t))
    found, residual = _solve(predict, t.tolist(), (best, 50.0, float(t.min()) / 10))
    names = ("asymptote_flops_per_s", "k0", "launch_s")
    return Fit(dict(zip(names, found.tolist(), strict=True)), residual, len(rows))


def fit_memory(rows: Sequence[Row]) -> Fit:
    """Bytes/s of copies, read and write counted: the best, and the median as a share of it."""
    rates = sorted(r["bytes"] / r["low_s"] for r in rows)
    best = rates[-1]
    typical = rates[len(rates) // 2]
    return Fit({"bytes_per_s": best, "frac": typical / best}, 0.0, len(rows))


def fit_attention(rows: Sequence[Row], peak_flops_per_s: float) -> Fit:
    """Shares of peak, forward and backward, and c0 of the attention curve (causal FLOPs)."""
    seq, heads, dim, t = (
        np.asarray([r[c] for r in rows], np.float64) for c in ("seq", "heads", "head_dim", "low_s")
    )
    back = np.asarray([float(r["backward"]) for r in rows])
    flops = 2.0 * seq**2 * heads * dim  # half of the square, two products

    def predict(p: np.ndarray) -> np.ndarray:
        slow = 1.0 + p[2] / seq
        forward = flops / (p[0] * peak_flops_per_s) * slow
        spent: np.ndarray = (
            forward + back * BACKWARD_FLOPS * flops / (p[1] * peak_flops_per_s) * slow
        )
        return spent

    found, residual = _solve(predict, t.tolist(), (0.3, 0.3, 100.0))
    return Fit(
        dict(zip(("a_fwd", "a_bwd", "c0"), found.tolist(), strict=True)), residual, len(rows)
    )


def one_tier(devices: int, bytes_per_s: float, latency_s: float, ramp_s: float) -> Net:
    """A network of one tier whose rate is what collectives reach."""

    def column(value: float) -> np.ndarray:
        return np.array([value], dtype=np.float64)

    return Net(
        size=column(devices), bytes_per_s=column(bytes_per_s), latency_s=column(latency_s),
        efficiency=column(1.0), reduction=column(0.0), ramp_s=column(ramp_s), mesh=column(0.0),
        oversubscription=column(1.0),
    )  # fmt: skip


def collective_s(row: Row, net: Net) -> float:
    """Predicted seconds of a measured collective or message on `net`."""
    ranks, size = float(row.get("ranks", 2)), float(row["bytes"])
    if row["kind"] == "p2p":
        return float(p2p_s(net, size, 1.0, 0.0))
    if row["operation"] == "all_to_all":
        return float(all_to_all_s(net, size, ranks, 1.0, 0.0))
    formula = {
        "all_reduce": all_reduce_s, "all_gather": all_gather_s, "reduce_scatter": reduce_scatter_s,
    }[row["operation"]]  # fmt: skip
    return float(formula(net, size, ranks, 1.0, 0.0))


def fit_network(rows: Sequence[Row], devices: int) -> Fit:
    """Bandwidth and latency of a tier from collectives and messages inside one domain of it."""

    def predict(p: np.ndarray) -> np.ndarray:
        net = one_tier(devices, float(p[0]), float(p[1]), float(p[2]))
        return np.asarray([max(1e-9, collective_s(r, net)) for r in rows])

    measured = [r["low_s"] for r in rows]
    best = max(r["bytes"] / r["low_s"] for r in rows)
    found, residual = _solve(predict, measured, (best, min(measured) / 2, 5e-5))
    names = ("bytes_per_s", "latency_s", "ramp_s")
    return Fit(dict(zip(names, found.tolist(), strict=True)), residual, len(rows))


def fit_operations(rows: Sequence[Row], devices: int) -> dict[str, Fit]:
    """A curve of its own for each operation that was seen at enough sizes.

    Software runs its operations at different rates (gloo reduce-scatters by an all-reduce); a tier
    has one curve. Where these fit and the tier's does not, that is the reason.
    """
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(str(row.get("operation", row["kind"])), []).append(row)
    return {
        name: fit_network(mine, devices)
        for name, mine in named.items()
        if len(mine) >= LEAST_POINTS
    }


def spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Low quartile, median and quartile range over median of repetitions.

    Load of other work only ever adds time: the low quartile is what the machine can do.
    """
    low, middle, high = np.percentile(np.asarray(seconds), [25, 50, 75])
    wide = (high - low) / middle if middle > 0 else math.inf
    return float(low), float(middle), float(wide)
