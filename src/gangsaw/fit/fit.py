"""The fit of the physical factors to measured runs: maximum a posteriori, Gauss-Newton.

r_i = ln(predicted_i / measured_i) is linearised in the logarithms of the factors; priors are
normal around 0, noise is wider for routed models, and a row far off counts less (Student t, nu 4).
Sources count alike, however many rows they have. `python -m gangsaw.fit.fit` refits on the shipped
rows, with each source left out in turn, and rewrites `catalog/fitted.toml`. No random number is
drawn, so the result is the same on every run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.fit.observe import (
    ENTRY_COUNT,
    Observation,
    families_and_stacks,
    jacobian,
    observe,
    predictor,
)
from gangsaw.fit.parameters import Parameter, parameters
from gangsaw.fit.rows import Row, load_shipped, read_row, shipped_sources

DENSE_NOISE, MOE_NOISE = 0.05, 0.13
"""Deviation of the logarithm of a measured step: repeated runs, and what no row states."""
ROWS_A_SOURCE = 15.0
"""A source with more rows than this has the weight of this many."""
FEWER = {"vtrain-single": 6.0}
"""Exactly affine in layers and microbatches, so a sum of profiled parts and not raw steps."""
STUDENT_NU = 4.0
SAME_SOURCE = {"korthikanti2": "korthikanti"}
"""Tables of one paper are one source."""
SETUP_SD = 0.03
"""How far a whole set-up is from the formulas, in log time, everything alike: the machine, its
clocks, its containers. Such an offset of each set-up is integrated out, as a random effect; it
predicts nothing. Without it the many rows of one slow machine would be read as physics."""
NOT_TIMINGS = ("megatron-ci-large",)
"""Runs with deterministic kernels: their memory is real, their times are not."""


@dataclass(frozen=True)
class Fitted:
    """Values (logarithms), posterior deviations, and the parameters, in one order."""

    parameters: tuple[Parameter, ...]
    values: Array
    doubts: Array

    def table(self) -> dict[str, float]:
        """Logarithm of each factor by name."""
        return {p.name: float(v) for p, v in zip(self.parameters, self.values, strict=True)}


def is_fitted(row: Row) -> bool:
    """Whether a row's time is fitted: full plan, pre-training, time or tokens/s stated.

    Times computed from TFLOP/s or MFU depend on what the source counts, and rows of quality C
    lack part of the plan: both are shown and not fitted.
    """
    measured = row["measured"]
    if row.get("quality") == "C" or row.get("task") not in (None, "pretrain"):
        return False
    if measured.get("oom") or row.get("kind") not in (None, "step", "per_stage"):
        return False
    return measured.get("basis") != "derived" or bool(measured.get("tokens_per_s_per_device"))


def training_rows() -> dict[str, list[Observation]]:
    """Shipped rows that are fitted, by source."""
    out: dict[str, list[Observation]] = {}
    for name in shipped_sources():
        if name in NOT_TIMINGS:
            continue
        for row in load_shipped(name):
            reading = read_row(row)
            if reading.skipped is None and is_fitted(row):
                obs = observe(reading)
                if obs.step_s is not None:
                    out.setdefault(SAME_SOURCE.get(name, name), []).append(obs)
    return out


def setup_of(source: str, obs: Observation) -> str:
    """The set-up of a row: source, device and stack."""
    device = str(obs.reading.row["hardware"].get("device"))
    return f"{source}|{device}|{obs.reading.stack.removesuffix('-fp8')}"


def noise_of(obs: Observation) -> float:
    """Deviation of the logarithm that no parameter explains, before readings are known."""
    return MOE_NOISE if obs.moe else DENSE_NOISE


def actions(
    rows: Sequence[Observation], found: Sequence[Parameter]
) -> dict[tuple[str, str], Array]:
    """For each family and stack, which parameter acts on which entry: (26, P) of 0 and 1."""
    out = {}
    for family, stack in sorted(families_and_stacks(rows)):
        matrix = np.zeros((ENTRY_COUNT, len(found)))
        for j, p in enumerate(found):
            matrix[p.entry, j] = float(p.acts_on(family, stack))
        out[family, stack] = matrix
    return out


def fit(
    by_source: Mapping[str, Sequence[Observation]],
    start: Mapping[str, float] | None = None,
    rounds: int = 10,
) -> Fitted:
    """The most probable factors of all rows of `by_source`."""
    rows = [obs for source in sorted(by_source) for obs in by_source[source]]
    pairs = families_and_stacks(rows)
    found = parameters((f for f, _ in pairs), (s for _, s in pairs))
    acts, run = actions(rows, found), predictor(len(rows))
    prior = np.array([p.prior for p in found])
    x = np.array([(start or {}).get(p.name, 0.0) for p in found])
    count = Counter(s for s in by_source for _ in by_source[s])
    groups = [setup_of(s, obs) for s in sorted(by_source) for obs in by_source[s]]
    names = sorted(set(groups))
    own = np.zeros((len(rows), len(names)))
    for i, g in enumerate(groups):
        own[i, names.index(g)] = 1.0
    size = len(found)
    share = np.concatenate(
        [
            np.full(count[s], min(1.0, FEWER.get(s, ROWS_A_SOURCE) / count[s]))
            for s in sorted(by_source)
        ]
    )
    noise = np.array([noise_of(obs) for obs in rows])
    target = np.array([math.log(obs.step_s or 1.0) for obs in rows])
    prior = np.concatenate([prior, np.full(len(names), SETUP_SD)])
    x = np.concatenate([x, np.zeros(len(names))])
    normal = np.diag(1.0 / prior**2)
    for _ in range(rounds):
        values = {p.name: float(v) for p, v in zip(found, x[:size], strict=True)}
        tables = [jacobian(obs, values, acts, run) for obs in rows]
        r = np.array([t[0] for t in tables]) - target + own @ x[size:]
        J = np.hstack([np.array([t[1] for t in tables]), own])
        weight = share / noise**2 * (STUDENT_NU + 1.0) / (STUDENT_NU + (r / noise) ** 2)
        normal = J.T @ (J * weight[:, None]) + np.diag(1.0 / prior**2)
        step = -np.linalg.solve(normal, J.T @ (weight * r) + x / prior**2)
        step = np.clip(step, -0.3, 0.3)
        x = x + step
        if np.abs(step).max() < 0.005:
            break
    doubts = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fitted(found, x[:size], doubts[:size])


def fit_without(
    by_source: Mapping[str, Sequence[Observation]], source: str, start: Mapping[str, float]
) -> Fitted:
    """The fit with one source left out whole, from the full fit's values shrunk half-way."""
    rest = {name: rows for name, rows in by_source.items() if name != source}
    return fit(rest, {k: 0.5 * v for k, v in start.items()}, rounds=4)


if __name__ == "__main__":
    from gangsaw.fit.release import main

    main()
