"""Doubt about predicted step times, shared between plans: linear random effects in log time.

ln(measured / predicted) = sum_j phi_j u_j + g(z) + e. phi_j is the share of the step that cause j
moves, u_j ~ N(0, tau_j^2) how far a new set-up is from the fit in that cause, g a smooth kernel
over plan space (deviation rho, length l), e noise that is wider for routed models. Measured steps
of the user's own give the posterior in closed form; up to two of them may be bad and are found by
their marginal likelihood. Method: linear mixed model with a Gaussian process (Rasmussen and
Williams, Gaussian Processes for Machine Learning, section 2.7); widths are re-estimated with
every fit from sources left out whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from gangsaw.cost.fitted import ENTRIES
from gangsaw.cost.sensitivity import step_sensitivity
from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.spec.site import SiteDoc, SiteGemm

QUANTILE_80 = 1.2816
EFFECTS: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "gemm": ("gemm",),
    "k0": ("k0",),
    "attention": ("attention", "unfused"),
    "traffic": ("traffic",),
    "floor": ("floor",),
    "collective": ("collective",),
    "tp": ("tp",),
    "nic": ("nic",),
    "dp": ("dp", "zero3"),
    "bubble": (),
    "step": ("step", "microbatch", "optimizer"),
    "loss": ("loss",),
    "moe": ("ep", "moe_permute", "moe_floor"),
    "moe_rows": (),
    "fp8": ("fp8", "fp8_cast"),
    "unaligned": ("unaligned",),
}
"""Causes that move together, and the fitted entries whose shares they sum."""
MEANING = {
    "scalar": "everything alike",
    "gemm": "time of matrix products",
    "k0": "loss of short inner dimensions",
    "attention": "time of attention",
    "traffic": "memory-bound operations",
    "floor": "launch floor of a layer",
    "collective": "start of collectives",
    "tp": "exposed tensor-parallel exchange",
    "nic": "bandwidth between nodes",
    "dp": "exposed data-parallel traffic",
    "bubble": "pipeline bubble and stage transfers",
    "step": "host and optimizer time of a step",
    "loss": "loss head",
    "moe": "dispatch, sorting and host time of experts",
    "moe_rows": "routed models alike",
    "fp8": "fp8 products and casts",
    "unaligned": "head widths that are no multiple of 8",
}
# Entries that make a step faster when they grow: their effect is on time, so the sign turns.
_RATES = ("gemm", "attention", "nic", "fp8", "unaligned")
PLACES = 12
BAD_SD = 0.4
BAD_PRIOR = 0.1
FAR = 1.5
"""Residual (log) beyond which it does not matter how far a row is off: a factor of 4.5."""
NU = 4.0
SCATTER = ((0.5, 0.26), (1.0, 0.42), (2.0, 0.26), (4.0, 0.06))
"""Deviation of a set-up's rows over the usual one, with prior weights: log-normal, a factor of two.

Rows of one table may hide settings that differ between them; then each says less of the others.
"""
LEAST_WEIGHT = 1e-5
"""Weight against the likeliest account below which an account of the rows is dropped."""
MOST_ACCOUNTS = 300
"""Likeliest accounts kept: a hundred rows have 20,204."""


def _loadings() -> Array:
    """(26, E): which entries an effect sums."""
    out = np.zeros((len(ENTRIES), len(EFFECTS)))
    for j, entries in enumerate(EFFECTS.values()):
        for entry in entries:
            out[ENTRIES.index(entry), j] = -1.0 if entry in _RATES else 1.0
    return out


LOADINGS = _loadings()
NAMES = tuple(EFFECTS)


@dataclass(frozen=True)
class Widths:
    """Deviations in log time: of each effect, of the kernel, of the noise."""

    tau: tuple[float, ...] = (
        0.085, 0.085, 0.29, 0.2, 0.24, 0.39, 0.5, 0.34, 0.28, 0.4, 0.25, 0.5, 0.3, 0.36, 0.21,
        0.13, 0.5,
    )  # fmt: skip
    rho: float = 0.071
    length: float = 2.5
    dense: float = 0.044
    moe: float = 0.17


@lru_cache(maxsize=1)
def load_widths() -> Widths:
    """Widths of the shipped fit; a default before the first fit."""
    import tomllib

    file = resources.files("gangsaw.catalog").joinpath("fitted.toml")
    table = tomllib.loads(file.read_text("utf-8")).get("interval") if file.is_file() else None
    if not table:
        return Widths()
    return Widths(
        tuple(table["tau"][n] for n in NAMES),
        table["rho"], table["length"], table["dense"], table["moe"],
    )  # fmt: skip


TRAINED_SD = 0.03
"""Deviation of a machine's products in training from its own sweep: prior of the `gemm` factor."""
SWEPT_K0_SD = 0.1


def swept(w: Widths, gemm: SiteGemm | None) -> Widths:
    """Widths of a machine whose own matrix products were timed: little is left to doubt in them."""
    if gemm is None:
        return w
    left = {"gemm": math.hypot(TRAINED_SD, gemm.error_frac), "k0": SWEPT_K0_SD}
    tau = tuple(min(t, left.get(n, t)) for n, t in zip(NAMES, w.tau, strict=True))
    return replace(w, tau=tau)


class View(NamedTuple):
    """One plan as the doubt sees it."""

    log_s: float
    phi: Array  # (E,) shares by effect
    z: Array  # (12,) place in plan space
    moe: bool
    extra_sd: float = 0.0  # unstated fields


def place(args: Sequence[Any]) -> Array:
    """Place in plan space, shape (12,), from the arguments of `step_sensitivity`."""
    kinds, _, loads, cut, state = args[:5]
    layers = float((loads.layers.sum(axis=1) * loads.ranks).sum())
    moe = any(k.experts > 0.0 for k in kinds)
    devices = cut.tp * state.pp * state.dp
    logs = (
        cut.tp, state.pp, cut.cp, devices**0.5, cut.mbs, state.m**0.5, kinds[0].hidden,
        max(1.0, layers), cut.seq_len,
    )  # fmt: skip
    flags = (2.0 * cut.fp8, 3.0 * float(moe), state.recompute)
    return np.array([*(math.log2(v) for v in logs), *flags])


def shares(bubble_frac: float, slopes: Array, moe: bool) -> Array:
    """Shares of the step by effect, shape (E,), from what `step_sensitivity` returns."""
    phi = slopes @ LOADINGS
    phi[NAMES.index("scalar")] = 1.0
    phi[NAMES.index("bubble")] = bubble_frac
    phi[NAMES.index("moe_rows")] = float(moe)
    return phi


def view_of(args: Sequence[Any], run: Any = step_sensitivity) -> View:  # noqa: ANN401
    """A plan, by the arguments of `step_sensitivity` without x, under factors already applied."""
    found = run(np.zeros(len(ENTRIES)), *args)
    moe = any(k.experts > 0.0 for k in args[0])
    return View(float(found[0]), shares(float(found[1]), found[2:], moe), place(args), moe)


def covariance(a: Sequence[View], b: Sequence[View], w: Widths, kernel: bool = True) -> Array:
    """Prior covariance of the deviations of two lists of plans, noise not in it."""
    tau2 = np.array(w.tau) ** 2
    phi_a, phi_b = np.array([v.phi for v in a]), np.array([v.phi for v in b])
    out: Array = (phi_a * tau2) @ phi_b.T
    if kernel:
        za, zb = np.array([v.z for v in a]), np.array([v.z for v in b])
        square = ((za[:, None, :] - zb[None, :, :]) ** 2).sum(axis=2)
        out = out + w.rho**2 * np.exp(-square / (2.0 * w.length**2))
    return out


def noise_sd(view: View, w: Widths) -> float:
    """Deviation of one measurement of a plan."""
    return w.moe if view.moe else w.dense


class Account(NamedTuple):
    """One account of measured rows: which of them are bad, and how far the rest scatter."""

    bad: tuple[int, ...]
    form: float  # r' K^-1 r
    good: Array  # (K, K) inverse covariance with no row bad
    weight: float = 1.0
    scatter: float = 1.0

    def inverse(self) -> Array:
        """(K, K) inverse covariance of the other rows: what a bad row says is not learned from.

        BAD_SD tells how far off bad rows are, which decides whether a row is one.
        """
        if not self.bad:
            return self.good
        at = list(self.bad)
        inner = self.good[np.ix_(at, at)]
        out: Array = self.good - self.good[:, at] @ np.linalg.solve(inner, self.good[at, :])
        return out


def _accounts_of(base: Array, r: Array, most: int, prior: float) -> list[tuple[float, Account]]:
    """Accounts with up to `most` of two bad rows and the logarithms of their weights.

    A bad row has BAD_SD**2 more variance: determinant and form follow from those without.
    """
    k = len(r)
    good: Array = np.asarray(np.linalg.inv(base), dtype=np.float64)
    a, inner = good @ r, good + np.eye(k) / BAD_SD**2
    form, logdet = float(r @ a), float(np.linalg.slogdet(base)[1])
    each = math.log(prior) - math.log(1.0 - prior) - math.log(BAD_SD)
    start = k * math.log(1.0 - prior) - 0.5 * (form + logdet)
    out = [(start, Account((), form, good))]
    for size in range(1, most + 1):
        for bad in itertools.combinations(range(k), size):
            i, j = bad[0], bad[-1]
            if size == 1:
                det, saved = inner[i, i], a[i] ** 2 / inner[i, i]
            else:
                det = inner[i, i] * inner[j, j] - inner[i, j] ** 2
                saved = (
                    a[i] ** 2 * inner[j, j] - 2.0 * a[i] * a[j] * inner[i, j]
                    + a[j] ** 2 * inner[i, i]
                ) / det  # fmt: skip
            log = start + size * each + 0.5 * (float(saved) - math.log(det))
            out.append((log, Account(bad, form - float(saved), good)))
    return out


@dataclass(frozen=True)
class Site:
    """Measured steps of one set-up: views, residuals ln(measured / predicted), the posterior."""

    views: tuple[View, ...] = ()
    residuals: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    widths: Widths = field(default_factory=load_widths)

    scaled: bool = True  # widen or narrow by how these rows fit; not for plans unmeasured yet

    @classmethod
    def of(cls, doc: SiteDoc) -> Site:
        """The site that a document keeps."""
        views = tuple(
            View(
                math.log(r.predicted_s), np.array(r.shares), np.array(r.place), r.routed, r.extra_sd
            )
            for r in doc.rows
        )
        if any(len(v.phi) != len(NAMES) or len(v.z) != PLACES for v in views):
            raise InputError(
                f"the site file was made by another version: a row has {len(NAMES)} shares and"
                f" {PLACES} places here. Legal: make it again with gangsaw calibrate"
            )
        residuals = tuple(math.log(r.measured_s / r.predicted_s) for r in doc.rows)
        widths = swept(load_widths(), doc.gemm)
        return cls(views, residuals, tuple(r.id for r in doc.rows), widths)

    def _seen(self) -> Array:
        """Residuals (K,), those beyond FAR at FAR: past it a row is as wrong as it can be."""
        seen: Array = np.clip(np.array(self.residuals), -FAR, FAR)
        return seen

    def _noise(self) -> Array:
        """Variance of each measurement at the usual scatter, (K,)."""
        return np.array([noise_sd(v, self.widths) ** 2 + v.extra_sd**2 for v in self.views])

    @cached_property
    def _accounts(self) -> tuple[Account, ...]:
        """What may have happened: which rows are bad, and how far this set-up's rows scatter.

        A lone row tells neither a slow set-up from a bad row nor from scatter.
        """
        k, r = len(self.views), self._seen()
        if not k:
            return ()
        prior_cov = covariance(self.views, self.views, self.widths)
        found = []
        for scatter, share in SCATTER if self.scaled else ((1.0, 1.0),):
            base = prior_cov + scatter**2 * np.diag(self._noise())
            prior = BAD_PRIOR
            if k == 1 and abs(r[0]) > QUANTILE_80 * math.sqrt(base[0, 0]):
                prior = 0.5
            for log, account in _accounts_of(base, r, min(2, max(1, k - 1)), prior):
                found.append((log + math.log(share), account._replace(scatter=scatter)))
        found.sort(key=lambda item: -item[0])
        weights = [math.exp(log - found[0][0]) for log, _ in found[:MOST_ACCOUNTS]]
        kept = [(w, a) for w, (_, a) in zip(weights, found, strict=False) if w >= LEAST_WEIGHT]
        total = sum(w for w, _ in kept)
        return tuple(account._replace(weight=w / total) for w, account in kept)

    def bad_probability(self) -> list[float]:
        """Probability that each measured row is bad: a swapped column, a checkpoint in the step."""
        out = [0.0] * len(self.views)
        for account in self._accounts:
            for i in account.bad:
                out[i] += account.weight
        return out

    def scatter2(self) -> float:
        """How much further than usual this set-up's rows scatter, squared; 1 without rows."""
        return sum(a.weight * a.scatter**2 for a in self._accounts) if self.views else 1.0

    def scale(self, form: float) -> float:
        """How much wider or narrower than usual this set-up's intervals are (multivariate t)."""
        if not self.scaled:
            return 1.0
        z = np.array([v.z for v in self.views])
        square = ((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
        like = np.exp(-square / (2.0 * self.widths.length**2))
        effective = len(z) ** 2 / float((like**2).sum())
        return math.sqrt((NU + form * effective / len(z)) / (NU + effective))

    def predict(self, plans: Sequence[View], kernel: bool = True) -> tuple[Array, Array]:
        """Mean shift (N,) and covariance (N, N) of ln(measured / predicted) of plans, no noise."""
        prior = covariance(plans, plans, self.widths, kernel)
        if not self.views:
            return np.zeros(len(plans)), prior
        cross = covariance(plans, self.views, self.widths, kernel)
        r = self._seen()
        means, total, scale = [], np.zeros_like(prior), 0.0
        for account in self._accounts:
            gain = cross @ account.inverse()
            means.append((account.weight, gain @ r))
            total += account.weight * (prior - gain @ cross.T)
            scale += account.weight * self.scale(account.form) ** 2
        centre = sum((p * m for p, m in means), np.zeros(len(plans)))
        for p, m in means:
            total += p * np.outer(m - centre, m - centre)
        return centre, total * scale

    def learned(self) -> list[tuple[str, float, float]]:
        """Effects as the runs see them: name, mean of u, and that over its prior deviation."""
        if not self.views:
            return []
        tau2 = np.array(self.widths.tau) ** 2
        load = (np.array([v.phi for v in self.views]) * tau2).T
        r = self._seen()
        u = sum(
            (a.weight * (load @ (a.inverse() @ r)) for a in self._accounts), np.zeros(len(tau2))
        )
        rows = [
            (n, float(m), float(m / math.sqrt(t))) for n, m, t in zip(NAMES, u, tau2, strict=True)
        ]
        return sorted(rows, key=lambda row: -abs(row[2]))


class Interval(NamedTuple):
    """Seconds: the prediction and its central 80 % interval, and the deviation in log time."""

    step_s: float
    lo_s: float
    hi_s: float
    log_sd: float


def predict_interval(plans: Sequence[View], site: Site | None = None) -> list[Interval]:
    """Step time and 80 % interval of plans, after the measured steps of a site if there are any."""
    site = site or Site()
    mean, cov = site.predict(plans)
    out, scatter2 = [], site.scatter2()
    for i, view in enumerate(plans):
        noise = noise_sd(view, site.widths)
        sd = math.sqrt(max(0.0, cov[i, i]) + scatter2 * (noise**2 + view.extra_sd**2))
        mid = math.exp(view.log_s + mean[i])
        spread = math.exp(QUANTILE_80 * sd)
        out.append(Interval(mid, mid / spread, mid * spread, sd))
    return out


def joint_log_covariance(plans: Sequence[View], site: Site | None = None) -> Array:
    """(N, N) covariance of the log step times of plans: shared doubt, and each one's own noise."""
    site = site or Site()
    _, cov = site.predict(plans)
    own: Sequence[float] = [noise_sd(v, site.widths) ** 2 + v.extra_sd**2 for v in plans]
    return cov + site.scatter2() * np.diag(own)


def best_probability(
    logs: Sequence[float], cov: Array, draws: int = 4096, seed: int = 0
) -> list[float]:
    """Probability that each plan is the fastest, by sampling the joint distribution."""
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    sample = np.array(logs)[None, :] + rng.standard_normal((draws, len(logs))) @ root.T
    count = np.bincount(sample.argmin(axis=1), minlength=len(logs))
    return [float(c) / draws for c in count]


def tied_with(
    logs: Sequence[float], cov: Array, index: int, certain_prob: float = 0.9
) -> list[int]:
    """Plans that cannot be told from plan `index`: neither is faster with that probability."""
    out = []
    for j in range(len(logs)):
        sd = math.sqrt(max(1e-12, cov[j, j] + cov[index, index] - 2.0 * cov[j, index]))
        faster = 0.5 * math.erfc((logs[j] - logs[index]) / (sd * math.sqrt(2.0)))
        if j != index and 1.0 - certain_prob < faster < certain_prob:
            out.append(j)
    return out


def widths_table(w: Widths) -> Mapping[str, Any]:
    """Widths as the catalog stores them."""
    tau = {n: round(t, 4) for n, t in zip(NAMES, w.tau, strict=True)}
    return {
        "tau": tau, "rho": w.rho, "length": w.length, "dense": w.dense, "moe": w.moe,
    }  # fmt: skip
