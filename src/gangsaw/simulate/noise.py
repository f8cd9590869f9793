"""Where the time of a step varies: tables of factors to draw from, and factors of a whole fleet.

Work on one device is lognormal around its mean, once an operation (a device that is slow at the
begin of a stage pass is slow to its end); a group that meets in collectives runs at the pace of
its slowest member, so the group's factor is the largest of its members'. The distribution of the
largest of n is F^n, drawn by its quantiles.

Congestion: flows are hashed onto the uplinks of their leaf (ECMP), balls into bins (Raab and
Steger 1998); flows of one link share it equally, and a collective ends with its slowest flow.
Packets sprayed over all uplinks never collide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.plan import Plan
from gangsaw.spec.reliability import Noise

TABLE = 2**16
"""Quantiles of a table: one is drawn with 16 random bits. Beyond the last half of one (1/131072)
a tail is cut off."""
GROUP_DRAWS = 64
Routing = Literal["hashed", "sprayed"]
Float32 = NDArray[np.float32]


@lru_cache(maxsize=64)
def lognormal_table(cv: float, members: float = 1.0) -> Float32:
    """Quantiles of the largest of `members` lognormal factors of mean 1 and deviation `cv`."""
    if cv < 0.0 or members < 1.0:
        raise InputError(f"cv={cv}, members={members}: not negative, and at least one member")
    if cv == 0.0:
        return np.ones(TABLE, np.float32)
    from scipy.special import ndtri

    sigma = np.sqrt(np.log1p(cv * cv))
    u = (np.arange(TABLE) + 0.5) / TABLE
    z = ndtri(np.exp(np.log(u) / members))
    factors: Float32 = np.exp(sigma * z - 0.5 * sigma * sigma).astype(np.float32)
    return factors


def coupled_members(plan: Plan) -> int:
    """Devices that wait for each other in every layer: tensor and context groups, experts, and the
    whole data-parallel group where ZeRO 2 or 3 talks behind every microbatch (ZeRO-3 under a
    pipeline gathers once a step)."""
    inside = plan.tp * plan.cp
    if plan.zero == 2 or (plan.zero == 3 and plan.pp == 1):
        return inside * plan.dp
    return max(inside, plan.ep * plan.etp)


class Fleet(NamedTuple):
    """Conditions of a cluster beside its ordinary spread: shares by which parts are slower."""

    hot_racks: int = 0
    hot_rack_loss: float = 0.0
    slow_link_loss: float = 0.0
    slow_device_loss: float = 0.0


def device_factors(
    noise: Noise,
    devices: int,
    host_devices: int,
    rack_devices: int,
    fleet: Fleet,
    rng: np.random.Generator,
) -> Array:
    """Factor on the time of work of every device for one draw of the cluster, [devices]."""
    sigma = np.sqrt(np.log1p(noise.device_cv**2))
    factors = np.exp(sigma * rng.standard_normal(devices) - 0.5 * sigma * sigma)
    hosts = -(-devices // host_devices)
    slow = rng.random(hosts) < noise.slow_host_frac
    factors *= 1.0 + noise.slow_host_loss * np.repeat(slow, host_devices)[:devices]
    if fleet.hot_racks and fleet.hot_rack_loss > 0.0:
        racks = -(-devices // rack_devices)
        chosen = rng.choice(racks, min(fleet.hot_racks, racks), replace=False)
        hot = np.isin(np.arange(devices) // rack_devices, chosen)
        factors *= 1.0 + fleet.hot_rack_loss * hot
    if fleet.slow_device_loss > 0.0:
        factors[rng.integers(devices)] *= 1.0 + fleet.slow_device_loss
    return np.asarray(factors)


def group_of_devices(plan: Plan, members: int) -> NDArray[np.int64]:
    """(replica x pp + rank) of every device; a replica here is what runs in lock-step.

    Devices of a pipeline rank are counted off in their order into groups of `members`.
    """
    from gangsaw.simulate.blast import coordinates

    where = coordinates(plan)
    rank = where["pp"]
    inside = (where["dp"] * plan.cp + where["cp"]) * plan.tp + where["tp"]
    found: NDArray[np.int64] = (inside // members) * plan.pp + rank
    return found


def group_factors(
    plan: Plan, members: int, factors: Array, op_cv: float, rng: np.random.Generator
) -> Array:
    """Mean pace of each lock-step group over that of a group of equal devices, [replicas, pp].

    E max(d_i x_i) / E max(x_i) over the operations' own noise x, by `GROUP_DRAWS` draws that all
    groups share: a spread smaller than the noise is felt in part, a slow device in full.
    """
    order = np.argsort(group_of_devices(plan, members), kind="stable")
    own = np.ascontiguousarray(factors[order].reshape(-1, members).T)
    if op_cv == 0.0 or members == 1:
        worst = own.max(axis=0)
        return np.asarray(worst.reshape(-1, plan.pp))
    sigma = np.sqrt(np.log1p(op_cv * op_cv))
    total, plain = np.zeros(own.shape[1]), 0.0
    for _ in range(GROUP_DRAWS):
        x = np.exp(sigma * rng.standard_normal(members))
        total += (own * x[:, None]).max(axis=0)
        plain += float(x.max())
    return np.asarray((total / plain).reshape(-1, plan.pp))


def routing_of(cluster: ClusterSpec) -> Routing:
    """How flows find their way where nothing is stated: hashed on Ethernet, sprayed elsewhere.

    InfiniBand routes adaptively, and the efficiencies of the catalog's tiers were measured there.
    """
    said = " ".join((cluster.name, *(t.source for t in cluster.tiers))).lower()
    return "hashed" if "roce" in said or "ethernet" in said else "sprayed"


class Fabric(NamedTuple):
    """A leaf as the collision model sees it: devices under it, uplinks, flows a device."""

    devices: int
    uplinks: int
    flows_each: int


def fabric_of(leaf_devices: int, oversubscription: float, flows_each: float) -> Fabric:
    """A leaf with uplinks as fast as its ports: fewer of them by the oversubscription."""
    uplinks = max(1, round(leaf_devices / oversubscription))
    return Fabric(leaf_devices, uplinks, max(1, round(flows_each)))


def congestion_factors(
    fabric: Fabric, routing: Routing, background_frac: float, draws: int, seed: int
) -> Array:
    """Factors on the time of a fabric-wide collective, against uplinks shared evenly, [draws].

    hashed: own and background flows land on uplinks at random; each is as fast as the fullest link
    of its kind lets it. Background flows of an unrelated job take `background_frac` of the links
    on average. sprayed: 1/(1 - background_frac). Never below 1.
    """
    if not 0.0 <= background_frac < 1.0:
        raise InputError(f"background={background_frac}: a share from 0 to below 1")
    if routing == "sprayed":
        return np.full(draws, 1.0 / (1.0 - background_frac))
    rng = np.random.default_rng(seed)
    own = fabric.devices * fabric.flows_each
    even = own / fabric.uplinks
    counts = rng.multinomial(own, np.full(fabric.uplinks, 1.0 / fabric.uplinks), draws)
    if background_frac > 0.0:
        other = round(own * background_frac / (1.0 - background_frac))
        # Links without own flows hold nobody up.
        extra = rng.multinomial(other, np.full(fabric.uplinks, 1.0 / fabric.uplinks), draws)
        counts = np.where(counts > 0, counts + extra, 0)
    # A link as fast as a port is full only from one device's worth of flows on.
    limit = max(even, float(fabric.flows_each))
    return np.asarray(np.maximum(1.0, counts.max(axis=1) / limit))


def quantile_table(values: Array) -> Float32:
    """A table of TABLE quantiles of a sample, to draw from."""
    u = (np.arange(TABLE) + 0.5) / TABLE
    table: Float32 = np.quantile(values, u).astype(np.float32)
    return table
