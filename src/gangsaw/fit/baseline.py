"""What anyone can do: constant MFU and the bubble formula, the yardstick of the accuracy report.

t = FLOPs / (devices x peak x MFU) x (1 + (p - 1) / (v m)), recompute counted among the FLOPs, MFU
the geometric mean of the same device family over all other sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gangsaw.cost.flops import model_flops_per_token
from gangsaw.cost.lower_cluster import peak_flops_per_s
from gangsaw.fit.observe import Observation


class Ideal(NamedTuple):
    """A row's time at the peak with its bubble, and what was measured (logarithms)."""

    source: str
    family: str
    log_ideal: float
    log_measured: float


def ideal(source: str, obs: Observation) -> Ideal:
    """The step at the device's peak, with recompute and the bubble."""
    heaviest = max(range(len(obs.cases)), key=lambda i: obs.cases[i].weight)
    candidate = obs.reading.candidates[min(heaviest, len(obs.reading.candidates) - 1)]
    job, plan = candidate.job, candidate.plan
    flops = model_flops_per_token(job.model, job.recipe.seq_len, True, 1.0)
    flops *= job.recipe.global_batch * job.recipe.seq_len
    flops *= 4.0 / 3.0 if plan.recompute == "full" else 1.0
    peak = peak_flops_per_s(job.cluster.device, job.recipe.precision)
    bubble = (plan.pp - 1.0) / (plan.vpp * plan.num_microbatches)
    seconds = flops / (plan.devices * peak) * (1.0 + bubble)
    return Ideal(source, obs.cases[heaviest].family, math.log(seconds), math.log(obs.step_s or 1.0))


def baseline_errors(by_source: Mapping[str, Sequence[Observation]]) -> dict[str, float]:
    """Mean absolute error of each source with the MFU of the others."""
    table = [ideal(s, obs) for s in sorted(by_source) for obs in by_source[s]]
    out = {}
    for source in sorted(by_source):
        errors = []
        for row in (r for r in table if r.source == source):
            others: dict[str, list[float]] = {}
            for r in table:
                if r.source != source and r.family == row.family:
                    others.setdefault(r.source, []).append(r.log_ideal - r.log_measured)
            if not others:
                for r in table:
                    if r.source != source:
                        others.setdefault(r.source, []).append(r.log_ideal - r.log_measured)
            log_mfu = float(np.mean([np.mean(v) for v in others.values()]))
            errors.append(abs(math.expm1(row.log_ideal - log_mfu - row.log_measured)))
        out[source] = float(np.mean(errors))
    return out
