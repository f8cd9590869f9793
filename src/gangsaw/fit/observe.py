"""Measured rows as the fit sees them: numbers for the formulas, readings weighed by what fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gangsaw.cost.fitted import ENTRIES, combined, device_family
from gangsaw.cost.lower import cut_of, loads_of, lower_plain, strides_of
from gangsaw.cost.memory_doc import memory_doc, memory_state
from gangsaw.cost.sensitivity import step_sensitivity
from gangsaw.cost.types import Array, Loads
from gangsaw.errors import InputError
from gangsaw.fit.rows import Candidate, Reading
from gangsaw.jit import compiled
from gangsaw.search.estimate import closed_form, in_the_loop
from gangsaw.search.timeline import simulated_cost

MANY = 60
"""Rows from which on the formulas are worth compiling."""


@dataclass(frozen=True)
class Case:
    """One reading of a row as the arguments of `step_sensitivity`, and whose factors apply."""

    weight: float
    family: str
    stack: str
    args: tuple[Any, ...]
    loop_log: float = 0.0
    """Logarithm of the step with its pipeline from the event loop over that of the closed form.

    A matter of the plan's order, which fitted factors hardly move: found once, without them.
    """


@dataclass(frozen=True)
class Observation:
    """A row with its cases (weights sum to 1). `step_s` is None where no time was measured."""

    reading: Reading
    cases: tuple[Case, ...]
    step_s: float | None
    moe: bool

    @property
    def id(self) -> str:
        """The row's id."""
        return self.reading.id


def with_spread_head(loads: Loads) -> Loads:
    """Every pipeline rank with an equal share of the loss head (arXiv:2411.05288)."""
    share = np.full(loads.heads.shape, float(loads.heads @ loads.ranks / loads.ranks.sum()))
    return loads._replace(heads=share)


def case_of(candidate: Candidate, weight: float) -> Case:
    """A candidate as numbers, before fitted factors."""
    job, plan = candidate.job, candidate.plan
    low = lower_plain(job)
    counts = plan.stages
    if counts is None:
        raise InputError(f"plan of {job.model.name} without stages")
    loads = loads_of(job.model, plan, counts)
    if candidate.spread_head and plan.pp > 1:
        loads = with_spread_head(loads)
    args = (
        low.kinds, low.ends, loads, cut_of(plan, job.recipe),
        memory_state(plan, job.recipe), low.device, low.net, strides_of(plan), low.stack,
        low.memory,
    )  # fmt: skip
    family = device_family(job.cluster.device.name)
    if candidate.spread_head or not in_the_loop(plan):
        return Case(weight, family, job.stack.name, args)
    form = closed_form(job, plan, low)
    loop_log = math.log(simulated_cost(form).step / form.cost.step)
    return Case(weight, family, job.stack.name, args, loop_log)


VENDOR_DOUBT = 0.2
"""Deviation of the log peak of such runs: gradient precision and the like are not stated either."""


def fit_probability(candidate: Candidate) -> float:
    """Probability that the device-visible peak of a candidate is below capacity."""
    doc = memory_doc(candidate.job, candidate.plan, candidate.plan.stages or ())
    doubt = max(VENDOR_DOUBT, candidate.job.stack.memory_doubt_frac)
    z = math.log(doc.capacity_bytes / doc.peak_bytes) / doubt
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def weights_of(reading: Reading) -> tuple[float, ...]:
    """Weights of a row's candidates, given that it ran: unlikely where it would not have fitted."""
    found = reading.candidates
    weights = [c.weight for c in found]
    if len({c.plan for c in found}) > 1:
        weights = [c.weight * (1e-3 + fit_probability(c)) for c in found]
    total = sum(weights)
    return tuple(w / total for w in weights)


def measured_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a row measured; empty where it says nothing."""
    measured = row.get("measured")
    return measured if isinstance(measured, dict) else {}


def measured_s(row: Mapping[str, Any]) -> float | None:
    """The measured step time of a row, where it has a usable one."""
    value = measured_of(row).get("step_time_s")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value > 0.0 else None


UNLIKELY = 0.02
"""Share of the likeliest reading's weight below which a reading is not looked at."""


def observe(reading: Reading) -> Observation:
    """A readable row as an observation; unlikely readings are dropped."""
    weights = weights_of(reading)
    least = UNLIKELY * max(weights)
    kept = [(c, w) for c, w in zip(reading.candidates, weights, strict=True) if w >= least]
    total = sum(w for _, w in kept)
    cases = tuple(case_of(c, w / total) for c, w in kept)
    moe = any(kind.experts > 0.0 for kind in cases[0].args[0])
    return Observation(reading, cases, measured_s(reading.row), moe)


def predictor(count: int) -> Any:  # noqa: ANN401
    """`step_sensitivity`, compiled where it is called often."""
    return compiled(step_sensitivity) if count >= MANY else step_sensitivity


@dataclass(frozen=True)
class Prediction:
    """Logarithm of the step time, what it answers to, and how its readings differ."""

    log_s: float
    bubble_frac: float
    slopes: Array  # (26,) d ln(step) / dx of the entries, mean over readings
    case_logs: Array  # (C,)
    case_weights: Array  # (C,)

    @property
    def reading_sd(self) -> float:
        """Deviation of the logarithm between readings of the row."""
        return float(math.sqrt(self.case_weights @ (self.case_logs - self.log_s) ** 2))


def predict_case(case: Case, values: Mapping[str, float], run: Any) -> Array:  # noqa: ANN401
    """`step_sensitivity` of a case under fitted values, its time as `estimate` has it."""
    found: Array = run(combined(values, case.family, case.stack), *case.args)
    found[0] += case.loop_log
    return found


def predict(obs: Observation, values: Mapping[str, float], run: Any) -> Prediction:  # noqa: ANN401
    """The row's prediction: the weighted mean of the logarithms over its readings."""
    table = np.array([predict_case(c, values, run) for c in obs.cases])
    weights = np.array([c.weight for c in obs.cases])
    mean = weights @ table
    return Prediction(float(mean[0]), float(mean[1]), mean[2:], table[:, 0], weights)


def jacobian(
    obs: Observation,
    values: Mapping[str, float],
    acts: Mapping[tuple[str, str], Array],
    run: Any,  # noqa: ANN401
) -> tuple[float, Array]:
    """ln(step) of a row and its derivative by each parameter.

    `acts` maps (family, stack) to a (26, P) matrix of which parameters act on which entry.
    """
    log_s, slope = 0.0, np.zeros(1)
    for case in obs.cases:
        found = predict_case(case, values, run)
        log_s += case.weight * float(found[0])
        slope = slope + case.weight * (found[2:] @ acts[case.family, case.stack])
    return log_s, np.asarray(slope)


def families_and_stacks(rows: Sequence[Observation]) -> set[tuple[str, str]]:
    """All pairs of device family and stack that occur."""
    return {(c.family, c.stack) for obs in rows for c in obs.cases}


ENTRY_COUNT = len(ENTRIES)
