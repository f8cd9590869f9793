"""The machine's own matrix products: a sweep of shapes and times -> asymptote and half point.

t = 2 m n k / (peak a k / (k + k0)) joined with memory traffic by the fourth-power mean, plus a
launch (`cost.gemm`); a and k0 are fitted to relative errors, long kernels counting more since a
training step is made of them.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from gangsaw.cost.gemm import gemm_s
from gangsaw.cost.types import Device
from gangsaw.errors import InputError
from gangsaw.read.toml import read_text, shown
from gangsaw.spec.site import SiteGemm

NOISE = 0.02
"""Deviation of the logarithm of a timed product."""
PRIOR = np.array([1.0, 3.0])
"""Prior deviations of the logarithms of the asymptote and of the half point."""


class Point(NamedTuple):
    """One timed product, m x k by k x n."""

    m: float
    n: float
    k: float
    seconds: float


_TIME = {"s": 1.0, "seconds": 1.0, "time_s": 1.0, "median_s": 1.0, "ms": 1e-3, "time_ms": 1e-3,
         "us": 1e-6, "time_us": 1e-6}  # fmt: skip


def _point(row: Mapping[str, Any], where: str) -> Point:
    low = {str(k).strip().lower(): v for k, v in row.items()}
    try:
        m, n, k = (float(low[name]) for name in ("m", "n", "k"))
        if "tflops" in low:
            seconds = 2.0 * m * n * k / (float(low["tflops"]) * 1e12)
        else:
            unit = next(name for name in _TIME if name in low)
            seconds = float(low[unit]) * _TIME[unit]
    except (KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{where}: a point needs m, n, k and one of tflops, {', '.join(_TIME)}"
        ) from None
    if not all(math.isfinite(v) and v > 0.0 for v in (m, n, k, seconds)):
        raise InputError(f"{where}: m, n, k and the time must be positive numbers")
    return Point(m, n, k, seconds)


def _row(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise InputError(f"{where}: not JSON") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: not an object. Legal: m, n, k and a time")
    return row


def read_sweep(path: Path) -> list[Point]:
    """Points of a sweep: JSON lines, a comma-separated table with a heading, or `measure.jsonl`.

    Of what `gangsaw measure` wrote only matrix products are taken, in bf16 where they are there.
    """
    text = read_text(path)
    where = shown(path)
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith("{"):
        rows = [(f"{where}:{i}", _row(line, f"{where}:{i}")) for i, line in enumerate(lines, 1)]
        rows = [(at, row) for at, row in rows if row.get("kind", "gemm") == "gemm"]
        lead = [(at, row) for at, row in rows if row.get("dtype") == "bf16"]
        points = [_point(row, at) for at, row in lead or rows]
    else:
        points = [_point(r, f"{where}:{i}") for i, r in enumerate(csv.DictReader(lines), 2)]
    if len(points) < 5:
        raise InputError(f"{where} has {len(points)} points. Legal: 5 or more")
    return points


def fit_sweep(points: list[Point], device: Device) -> SiteGemm:
    """Asymptote and half point of the device's products from a sweep."""
    plain = device._replace(sustained=1.0)
    weight = np.array([min(1.0, math.sqrt(p.seconds / 5e-4)) for p in points])

    def curve(x: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
        d = plain._replace(gemm_frac=math.exp(x[0]), gemm_k0=math.exp(x[1]))
        return np.array([math.log(gemm_s(p.m, p.n, p.k, False, d) / p.seconds) for p in points])

    start = np.log([device.gemm_frac, max(10.0, device.gemm_k0)])
    found = least_squares(
        lambda x: np.concatenate([weight * curve(x) / NOISE, (x - start) / PRIOR]),
        start,
        loss="soft_l1",
        f_scale=2.0,
    )
    error = float(np.abs(np.expm1(curve(found.x))).mean())
    return SiteGemm(
        gemm_frac=min(0.98, math.exp(found.x[0])),
        gemm_k0=math.exp(found.x[1]),
        points=len(points),
        error_frac=error,
    )
