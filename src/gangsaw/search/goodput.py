"""What checkpoints of one tier leave of the time under a plan: interval, restart, goodput."""

from __future__ import annotations

from dataclasses import dataclass

from gangsaw.bill.expected import (
    effective_restart_s,
    expected_lost_s,
    goodput_frac,
    optimum_interval_s,
)
from gangsaw.cost.checkpoint import Checkpoint, SaveTimes, checkpoint_of, save_times
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated
from gangsaw.simulate.failures import (
    FailureClass,
    Strategy,
    failure_classes,
    mtbf_s,
    restart_s,
)
from gangsaw.spec.reliability import Reliability, StorageTier

SAFE_TIER = "parallel-fs"
"""Where a checkpoint is read from that the failure took with it."""
COLD = Strategy("whole job, cold spares", 1, False, False)


@dataclass(frozen=True)
class Saved:
    """One tier and mode under one plan: its times, interval, and the restart it leads to."""

    name: str
    tier: StorageTier
    asynchronous: bool
    times: SaveTimes
    interval_s: float
    restart_s: float
    readable_frac: float
    goodput_frac: float


def readable(tier: StorageTier, failure: FailureClass) -> bool:
    """Whether a checkpoint on the tier can be read after the failure."""
    if tier.survives == "job" or not failure.replace:
        return True
    return tier.survives == "host" and failure.hosts <= 1


def saved_on(
    ev: Evaluated,
    reliability: Reliability,
    name: str,
    asynchronous: bool,
    step_s: float,
    ck: Checkpoint,
) -> Saved:
    """Times, best interval and goodput of saving to one tier, cold spares at hand.

    After a failure that took the tier's bytes with it, the safe tier is read instead, which is
    written at its own best interval: the work since then is lost as well (to first order in the
    interval over the mean time to failure).
    """
    cluster, devices = ev.job.cluster, float(ev.plan.devices)
    classes = failure_classes(reliability, cluster, ev.plan.devices)
    mean = mtbf_s(classes)
    tier = reliability.storage[name]
    times = save_times(ck, tier, cluster, devices, asynchronous)
    interval = max(step_s, optimum_interval_s(times.block_s, mean, times.save_s))
    restarts = []
    readable_s = 0.0
    for c in classes:
        if readable(tier, c):
            readable_s += c.per_s
            restarts.append((c.per_s, restart_s(c, reliability.recovery, COLD, times.load_s, True)))
            continue
        safe = save_times(ck, reliability.storage[SAFE_TIER], cluster, devices, True)
        behind = max(step_s, optimum_interval_s(safe.block_s, mean, safe.save_s))
        lost = expected_lost_s(safe.block_s, safe.save_s, behind)
        once = restart_s(c, reliability.recovery, COLD, safe.load_s, True)
        restarts.append((c.per_s, once + lost))
    once = effective_restart_s(restarts, mean)
    good = goodput_frac(times.block_s, times.save_s, interval, mean, once)
    return Saved(name, tier, asynchronous, times, interval, once, readable_s * mean, good)


def best_goodput(ev: Evaluated, reliability: Reliability, step_s: float) -> float:
    """Share of wall time that is work done once, on the best tier, cold spares at hand.

    Raises InputError where failures leave no progress on any tier.
    """
    ck = checkpoint_of(ev.job, ev.plan)
    found = max(
        saved_on(ev, reliability, name, True, step_s, ck).goodput_frac
        for name in reliability.storage
    )
    if found <= 0.0:
        raise InputError(
            "failures come faster than any checkpoint is safe: the run never ends; fewer devices,"
            " a faster tier or lower rates are needed"
        )
    return found
