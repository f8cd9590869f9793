"""A step on an ordinary day by laws of small noise: nothing is drawn, so every listed plan has it.

Work of a lock-step group takes the largest of its members' factors. What a pipeline adds over the
mean factor is a few standard deviations of one operation; how many follows from how stages wait:

- tight (1F1B and its kin): every stage waits for both neighbours in each slot, so the excess
  grows with the slots, c(p) = 1.13 (1 - p^(-2/3)) deviations a slot once the pipeline has run for
  1.45 p^0.44 slots.
- through (GPipe, BFS): stages in a row, last-passage percolation, for m far above p
  sqrt(m) (2 sqrt(p) - 1.77 p^(-1/6)) deviations (Baryshnikov, PTRF 119, 2001; -1.77 is the mean
  of the Tracy-Widom law), of which 0.85 at m of 1 to 16 p.
- loose (interleaved, V): microbatches in flight absorb the waits, which remain in the ramps:
  0.85 p (1 - 1.6 v^(-1/2) p^(-2/3)) deviations in all.

The other numbers, and the 0.85, are fitted to drawn steps of even stages with p = 2 to 32,
m = p to 16 p and v = 1 to 8 (within 0.1 deviations a slot, which is 0.2 % of a step). The slowest
of R replicas and of R p paces are of the order of normal extremes (Blom 1958). Independent parts
add as squares. Valid for noise of a few per cent, even sequences and no hot racks; against drawn
steps of whole plans the mean is within 1 %.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated
from gangsaw.search.rank_rows import fabric_shares, rank_loads
from gangsaw.simulate.noise import (
    Routing,
    congestion_factors,
    coupled_members,
    fabric_of,
    routing_of,
)
from gangsaw.spec.plan import Plan
from gangsaw.spec.reliability import Noise, Reliability

TIGHT = ("1f1b", "zb-h1", "izb", "dualpipe", "dualpipe-v", "auto")
THROUGH = ("gpipe", "bfs")
COLLISION_DRAWS = 4096
POINTS = 33
"""Quantiles by which a normal part enters the percentiles."""
SLOTS_SD = 0.67
"""Deviation of a rank's whole work in those of one operation over sqrt(m v): sqrt(5)/3 where a
backward takes two forwards, a tenth less since waits even it out."""

LAW_ERROR = 0.015
"""Share of the mean step within which these laws agree with drawn steps (tests/search)."""
LIGHT = 0.4
"""Deviations of an operation by which a stage may be lighter than the heaviest and still count."""

_Z = NormalDist()


class StepLaw(NamedTuple):
    """Seconds of a step: mean, P50, P95; no draws, so no seed and no standard error."""

    mean_s: float
    p50_s: float
    p95_s: float


def extreme(n: float) -> float:
    """Mean of the largest of n standard normals (Blom 1958), within 0.02."""
    return _Z.inv_cdf((n - 0.375) / (n + 0.25))


def extreme_sd(n: float) -> float:
    """Standard deviation of the largest of n standard normals, within 0.04 up to n = 10,000."""
    return 1.0 / math.sqrt(1.0 + 0.9 * math.log(n))


@lru_cache(maxsize=256)
def largest(cv: float, members: int, slow: int = 0, loss: float = 0.0) -> tuple[float, float]:
    """Mean and deviation of the largest of `members` lognormal factors of mean 1 and deviation
    `cv`, `slow` of them longer by `loss`."""
    if cv == 0.0:
        return (1.0 + loss if slow else 1.0), 0.0
    sigma = math.sqrt(math.log1p(cv * cv))
    x = np.linspace(-4.0, 7.0 + math.log1p(loss) / sigma, 241)
    if slow == 0:
        cdf = _normal_cdf(x) ** members
    else:
        cdf = _normal_cdf(x) ** (members - slow)
        cdf = cdf * _normal_cdf(x - math.log1p(loss) / sigma) ** slow
    weight = np.diff(cdf)
    value = np.exp(sigma * 0.5 * (x[1:] + x[:-1]) - 0.5 * sigma * sigma)
    mean = float((weight * value).sum() / weight.sum())
    return mean, math.sqrt(float((weight * (value - mean) ** 2).sum() / weight.sum()))


def _normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x])


def waits(plan: Plan, p: float) -> float:
    """What waiting between `p` equal stages adds to the work of a rank, as a share of it, in
    standard deviations of one operation."""
    m, v = float(plan.num_microbatches), float(plan.vpp)
    if p <= 1.0:
        return 0.0
    if plan.schedule in THROUGH:
        limit = max(0.0, 2.0 * math.sqrt(p) - 1.77 * math.pow(p, -1.0 / 6.0))
        return 0.85 * limit / math.sqrt(m * v)
    if plan.schedule in TIGHT:
        return 1.13 * (1.0 - math.pow(p, -2.0 / 3.0)) * max(0.0, 1.0 - 1.45 * math.pow(p, 0.44) / m)
    return 0.85 * p * (1.0 - 1.6 / math.sqrt(v) * math.pow(p, -2.0 / 3.0)) / m


class _Parts(NamedTuple):
    """Shares of the pipeline's time: mean factor less 1, standard deviation, and what is added in
    each case of slow hosts (none, then the worst of them on each kind of rank) by its chance."""

    mean: float
    sd: float
    excess: Array
    chance: Array


def _parts(ev: Evaluated, noise: Noise, pipeline_s: float) -> _Parts:
    """Noise of the pipeline, whose time without it is `pipeline_s`."""
    plan, host = ev.plan, ev.job.cluster.host.devices
    g = coupled_members(plan)
    replicas = plan.devices // plan.pp // g
    mean, sd = largest(noise.op_cv, g)
    both, _ = largest(math.hypot(noise.op_cv, noise.device_cv), g)
    seconds, ranks = rank_loads(ev)
    longest = float(seconds.max())
    work = min(1.0, plan.num_microbatches * longest / pipeline_s)
    light = 1.0 - seconds / longest
    # Stages lighter by more than the noise are never waited for.
    near = float((ranks * np.exp(-light / max(LIGHT * sd / mean, 1e-9))).sum())
    own = SLOTS_SD * sd / mean / math.sqrt(plan.num_microbatches * plan.vpp)
    spread = noise.device_cv
    if noise.op_cv > 0.0:
        a, b = noise.op_cv**2, noise.device_cv**2
        spread *= math.sqrt((a / g + b * extreme_sd(g) ** 2) / (a + b))
    plain = work * math.hypot(
        waits(plan, near) * sd / mean + extreme(replicas) * own, spread * extreme(replicas * near)
    )
    slowed, _ = largest(noise.op_cv, g, min(g, host), noise.slow_host_loss)
    slow = work * np.maximum(0.0, slowed / mean * (1.0 - light) - 1.0)
    order = np.argsort(-slow)
    hosts = ranks[order] * (plan.devices / plan.pp / host)
    free = (1.0 - noise.slow_host_frac) ** hosts
    before = np.concatenate(([1.0], np.cumprod(free)))
    return _Parts(
        both - 1.0,
        work * math.hypot(own * extreme_sd(replicas), spread * extreme_sd(replicas * near)),
        np.hypot(plain, np.concatenate(([0.0], slow[order]))),
        np.concatenate((before[-1:], before[:-1] * (1.0 - free))),
    )


@lru_cache(maxsize=32)
def _collisions(
    leaf: int, over: float, flows: float, routing: Routing, background: float
) -> tuple[Array, Array]:
    """Factors on fabric-wide traffic and their chances, [n] each; there are few of them."""
    shape = fabric_of(leaf, over, flows)
    drawn = congestion_factors(shape, routing, background, COLLISION_DRAWS, 0)
    factor, count = np.unique(drawn, return_counts=True)
    return factor, count / COLLISION_DRAWS


def step_law(ev: Evaluated, reliability: Reliability) -> StepLaw:
    """Mean, P50 and P95 of the plan's step. Raises InputError for uneven sequences."""
    noise, cluster, plan = reliability.noise, ev.job.cluster, ev.plan
    if noise.sequence_cv > 0.0:
        raise InputError("uneven sequences have no closed form: gangsaw tail draws them")
    pipeline = ev.cost.step - ev.cost.dp_comm - ev.cost.optimizer
    part = _parts(ev, noise, pipeline)
    leaf = min(cluster.devices, cluster.host.devices * reliability.site.rack_hosts)
    over = max(t.oversubscription for t in cluster.tiers)
    fabric, hit = _collisions(
        leaf, over, noise.flows_per_uplink, routing_of(cluster), noise.background_frac
    )
    on_fabric = ev.cost.dp_comm
    if float(fabric.max()) > 1.0:
        inside, hops = fabric_shares(ev)
        on_fabric += inside * plan.num_microbatches * float(rank_loads(ev)[0].max())
        on_fabric += hops * ev.cost.pp_comm
    every = 1.0 if noise.planned_pauses else float(plan.devices)
    pause = 1.0 - (1.0 - 1.0 / noise.pause_every_steps) ** every
    normal = np.array([_Z.inv_cdf((k + 0.5) / POINTS) for k in range(POINTS)])
    even = np.full(POINTS, 1.0 / POINTS)
    stretch = part.mean + (1.0 + part.mean) * (part.excess[:, None] + part.sd * normal)
    seconds = (
        ev.cost.step
        + pipeline * stretch[:, :, None, None]
        + on_fabric * (fabric - 1.0)[:, None]
        + np.array([0.0, noise.pause_s])
    )
    stop = np.array([1.0 - pause, pause])
    weight = (part.chance[:, None] * even)[:, :, None, None] * hit[:, None] * stop
    flat, mass = seconds.ravel(), weight.ravel()
    order = np.argsort(flat)
    reached = np.cumsum(mass[order])
    at = [flat[order[min(len(flat) - 1, int(np.searchsorted(reached, q)))]] for q in (0.5, 0.95)]
    return StepLaw(float((flat * mass).sum()), float(at[0]), float(at[1]))
