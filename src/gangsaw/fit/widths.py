"""Widths of the intervals from sources left out whole: empirical Bayes.

Each held-out set-up (source, device, stack) has residuals r ~ N(0, C + N) with C the covariance of
`cost.doubt`. The widths maximise the summed log marginal likelihood, set-ups alike, at most 40
rows each, residuals clipped at 0.6, with a log-normal prior of a factor of two around the starting
widths. Gradients are analytic; the optimiser is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from gangsaw.cost.doubt import EFFECTS, QUANTILE_80, View, Widths, covariance, noise_sd
from gangsaw.cost.types import Array

MOST_ROWS = 40
CLIP = 0.6
PRIOR_SD = 0.7
LENGTH = 2.5
COUNT = len(EFFECTS)
COVERED = 0.88
"""Share of sources' rows that intervals of 80 % are made to cover: more than 80 %, since a source
that nobody has seen may be further off than those that formulas were written with."""


class HeldOut(NamedTuple):
    """A row predicted by a fit that has not seen its source."""

    id: str
    source: str
    group: str  # source, device and stack: one set-up
    step_s: float
    view: View

    @property
    def residual(self) -> float:
        """ln(measured / predicted)."""
        return math.log(self.step_s) - self.view.log_s


class _Group(NamedTuple):
    phi: Array
    like: Array
    moe: Array
    extra: Array
    r: Array
    weight: float


def _spread(rows: Sequence[HeldOut]) -> list[HeldOut]:
    """At most MOST_ROWS rows, evenly through the list."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    return [rows[int(i)] for i in np.linspace(0, len(rows) - 1, MOST_ROWS)]


def _group(rows: Sequence[HeldOut]) -> _Group:
    kept = _spread(rows)
    z = np.array([h.view.z for h in kept])
    square = ((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
    return _Group(
        np.array([h.view.phi for h in kept]),
        np.exp(-square / (2.0 * LENGTH**2)),
        np.array([h.view.moe for h in kept], dtype=float),
        np.array([h.view.extra_sd**2 for h in kept]),
        np.clip([h.residual for h in kept], -CLIP, CLIP),
        1.0 / len(kept) ** 0.5,
    )


def _loss(x: Array, groups: Sequence[_Group], start: Array) -> tuple[float, Array]:
    """Negative log posterior and its gradient by the logarithms of the widths."""
    var = np.exp(2.0 * x)
    loss = 0.5 * float((((x - start) / PRIOR_SD) ** 2).sum())
    grad = (x - start) / PRIOR_SD**2
    for g in groups:
        noise = var[COUNT + 1] * (1.0 - g.moe) + var[COUNT + 2] * g.moe
        k = (g.phi * var[:COUNT]) @ g.phi.T + var[COUNT] * g.like + np.diag(noise + g.extra)
        inverse = np.linalg.inv(k)
        a = inverse @ g.r
        _, logdet = np.linalg.slogdet(k)
        loss += g.weight * 0.5 * (float(g.r @ a) + float(logdet))
        m = inverse - np.outer(a, a)  # dL/dK * 2
        part = np.empty(COUNT + 3)
        part[:COUNT] = np.einsum("ij,ik,kj->j", g.phi, m, g.phi) * var[:COUNT]
        part[COUNT] = float((m * g.like).sum()) * var[COUNT]
        part[COUNT + 1] = float((np.diag(m) * (1.0 - g.moe)).sum()) * var[COUNT + 1]
        part[COUNT + 2] = float((np.diag(m) * g.moe).sum()) * var[COUNT + 2]
        grad = grad + g.weight * part
    return loss, grad


def by_group(rows: Sequence[HeldOut]) -> dict[str, list[HeldOut]]:
    """Held-out rows by set-up."""
    out: dict[str, list[HeldOut]] = {}
    for h in rows:
        out.setdefault(h.group, []).append(h)
    return out


def scaled(w: Widths, factor: float) -> Widths:
    """All deviations times a factor."""
    return Widths(
        tuple(factor * v for v in w.tau), factor * w.rho, w.length,
        factor * w.dense, factor * w.moe,
    )  # fmt: skip


def coverage(rows: Sequence[HeldOut], w: Widths) -> float:
    """Share of rows inside their interval of 80 %, mean over sources."""
    inside: dict[str, list[bool]] = {}
    for h in rows:
        var = float(covariance([h.view], [h.view], w)[0, 0]) + noise_sd(h.view, w) ** 2
        var += h.view.extra_sd**2
        inside.setdefault(h.source, []).append(abs(h.residual) <= QUANTILE_80 * math.sqrt(var))
    return float(np.mean([np.mean(found) for found in inside.values()]))


def covering(rows: Sequence[HeldOut], w: Widths) -> Widths:
    """The widths times the least factor, in steps of 2.5 %, that covers COVERED of the rows.

    A likelihood of normal errors widens the intervals of all for the few set-ups that are far off;
    a quantile over sources does not (as in conformal prediction, arXiv:2107.07511).
    """
    for factor in np.arange(0.5, 1.5, 0.025):
        if coverage(rows, scaled(w, float(factor))) >= COVERED:
            return scaled(w, float(factor))
    return scaled(w, 1.5)


def fit_widths(rows: Sequence[HeldOut], without: str = "") -> Widths:
    """Widths from held-out rows, those of source `without` not used."""
    rest = [h for h in rows if h.source != without]
    return covering(rest, likeliest(rest))


def likeliest(rows: Sequence[HeldOut]) -> Widths:
    """The most probable widths of normal errors."""
    members: Mapping[str, list[HeldOut]] = by_group(rows)
    groups = [_group(members[name]) for name in sorted(members)]
    d = Widths()
    start = np.log(np.array([*d.tau, d.rho, d.dense, d.moe]))
    found = minimize(
        _loss, start, args=(groups, start), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    )
    w = np.exp(found.x)
    return Widths(
        tuple(float(v) for v in w[:COUNT]), float(w[COUNT]), LENGTH,
        float(w[COUNT + 1]), float(w[COUNT + 2]),
    )  # fmt: skip
