"""With which probability each listed plan is the fastest, and which cannot be told apart.

From one joint distribution of all listed plans: doubt in the device, the network and the stack
moves plans together as far as they answer to it alike, and decides as little; what decides is what
they do not share. The same distribution gives each plan's interval (`cost.doubt`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gangsaw.cost.doubt import best_probability, joint_log_covariance, tied_with
from gangsaw.search.estimate import Evaluated, site_of, view_of_plan

CERTAIN_PROB = 0.8
"""Two plans are told apart where one is faster with at least this probability."""


@dataclass(frozen=True)
class Chances:
    """What is known about the order of the listed plans."""

    best_prob_frac: tuple[float, ...]
    tied: tuple[tuple[int, ...], ...]
    """For each plan, the places of those that it cannot be told from."""


def chances_of(plans: Sequence[Evaluated], seed: int = 0) -> Chances:
    """Share of joint draws in which each plan is the fastest, and the ties between them."""
    if not plans:
        return Chances((), ())
    # The unnamed stack's own doubt is the same for all plans, so it cannot decide between them.
    views = [view_of_plan(p.job, p.plan, p.counts, p.low)._replace(extra_sd=0.0) for p in plans]
    cov = joint_log_covariance(views, site_of(plans[0].job))
    logs = [math.log(p.cost.step) for p in plans]
    best = best_probability(logs, cov, seed=seed)
    tied = [tuple(tied_with(logs, cov, i, CERTAIN_PROB)) for i in range(len(plans))]
    return Chances(tuple(best), tuple(tied))
