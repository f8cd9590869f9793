"""Blast radius: what of a plan stands still when one part of the cluster is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.errors import InputError
from gangsaw.simulate.failures import FailureClass
from gangsaw.spec.plan import Plan


class Blast(NamedTuple):
    """Groups hit by the loss of `devices` neighbouring devices, the mean over where they are.

    tensor_groups, stages and replicas are those with a member lost. Of these only the members
    lost need a spare; `idle_devices` are all devices of the replicas hit, which a run without
    spares could drop; `in_flight` counts microbatches that these replicas had begun.
    """

    devices: int
    tensor_groups: float
    stages: float
    replicas: float
    idle_devices: float
    in_flight: float


def coordinates(plan: Plan) -> dict[str, NDArray[np.int64]]:
    """Position of every device on the axes tp, cp, dp and pp, by the plan's rank order."""
    at = np.arange(plan.devices)
    out: dict[str, NDArray[np.int64]] = {}
    for axis in plan.rank_order.split("-"):
        if axis == "ep":
            continue
        size = getattr(plan, axis)
        out[axis] = at % size
        at = at // size
    return out


def blast_radius(plan: Plan, devices: int, in_flight: float) -> Blast:
    """What the loss of `devices` neighbours takes; `in_flight` microbatches of one replica.

    A unit starts at a multiple of its size; where that does not divide the job the last unit is
    smaller. Raises InputError for no devices.
    """
    if devices < 1:
        raise InputError(f"devices={devices}: at least one is lost")
    where = coordinates(plan)
    unit = np.arange(plan.devices) // min(devices, plan.devices)
    replica = where["dp"]
    stage = where["pp"]
    tensor = (stage * plan.dp + replica) * plan.cp + where["cp"]

    def mean_distinct(group: NDArray[np.int64]) -> float:
        pairs = np.unique(np.stack((unit, group)), axis=1)
        return float(pairs.shape[1] / (unit[-1] + 1))

    replicas = mean_distinct(replica)
    return Blast(
        devices=min(devices, plan.devices),
        tensor_groups=mean_distinct(tensor),
        stages=mean_distinct(stage),
        replicas=replicas,
        idle_devices=replicas * plan.devices / plan.dp,
        in_flight=replicas * in_flight,
    )


def replicas_away(
    plan: Plan, classes: Sequence[FailureClass], host_devices: int, repair_s: float
) -> float:
    """Mean number of replicas that lack a host, when each lost host is away for `repair_s`.

    Failures a second x repair x replicas that one hits (Little's law); failures that hit the same
    replica count twice, so it is an upper bound and close while few are away.
    """
    return sum(
        c.per_s * repair_s * blast_radius(plan, c.hosts * host_devices, 0.0).replicas
        for c in classes
        if c.replace
    )
