"""With which probability each listed plan is the fastest, and which cannot be told apart.

From one joint distribution of all listed plans: doubt in the device, the network and the stack
moves plans together as far as they answer to it alike, and decides as little; what decides is what
they do not share. Where no stack is named, each draw is one software generation for all plans. The
marginal of the same distribution is each plan's interval (`search.estimate.interval_of`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gangsaw.cost.doubt import joint_log_covariance
from gangsaw.cost.mixture import draw, faster_prob
from gangsaw.cost.types import Array
from gangsaw.search.estimate import Evaluated, site_of, view_of_plan
from gangsaw.search.unnamed import members_of

CERTAIN_PROB = 0.8
"""Two plans are told apart where one is faster with at least this probability."""
DRAWS = 4096


@dataclass(frozen=True)
class Chances:
    """What is known about the order of the listed plans."""

    best_prob_frac: tuple[float, ...]
    tied: tuple[tuple[int, ...], ...]
    """For each plan, the places of those that it cannot be told from."""


@dataclass(frozen=True)
class Joint:
    """The joint law of N plans' log step times: `centres` (N, K) by member, `weights` (K,),
    `cov` (N, N)."""

    centres: Array
    weights: Array
    cov: Array

    def sample(self, draws: int = DRAWS, seed: int = 0) -> Array:
        """(draws, N) log step times."""
        return draw(self.centres, self.weights, self.cov, draws, seed)

    def faster_prob(self, i: int, j: int) -> float:
        """Probability that plan i is faster than plan j."""
        variance = self.cov[i, i] + self.cov[j, j] - 2.0 * self.cov[i, j]
        sd = math.sqrt(max(1e-12, float(variance)))
        return faster_prob(self.centres[i], self.centres[j], self.weights, sd)


def joint_of(plans: Sequence[Evaluated]) -> Joint:
    """The joint law of plans of one cluster, model and stack."""
    views = [view_of_plan(p.job, p.plan, p.counts, p.low) for p in plans]
    may_be = [members_of(p) for p in plans]
    logs = np.array([math.log(p.cost.step) for p in plans])
    return Joint(
        centres=logs[:, None] + np.array([m.offsets for m in may_be]),
        weights=may_be[0].weights,
        cov=joint_log_covariance(views, site_of(plans[0].job)),
    )


def chances_of(plans: Sequence[Evaluated], seed: int = 0) -> Chances:
    """Share of joint draws in which each plan is the fastest, and the ties between them."""
    if not plans:
        return Chances((), ())
    joint, count = joint_of(plans), len(plans)
    first = np.bincount(joint.sample(DRAWS, seed).argmin(axis=1), minlength=count)
    tied = tuple(
        tuple(
            j
            for j in range(count)
            if j != i and 1.0 - CERTAIN_PROB < joint.faster_prob(j, i) < CERTAIN_PROB
        )
        for i in range(count)
    )
    return Chances(tuple(float(c) / DRAWS for c in first), tied)
