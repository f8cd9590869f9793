"""Failures of a job: how often each kind strikes, and a run of failures event by event.

The process: each kind is Poisson at its rate times the units that the job uses; any failure stops
a synchronous job. The closed form of `bill.expected` covers ample spares; the events here also
cover spares that run out, repairs, and failures that come in clusters or early (any gaps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.jit import compiled, kernel
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.reliability import Recovery, Reliability

REPLACE = 1.0


class FailureClass(NamedTuple):
    """One kind of failure of this job: events a second, hosts that it takes, whether for good."""

    name: str
    per_s: float
    hosts: int
    replace: bool
    source: str


def units_of(unit: str, reliability: Reliability, cluster: ClusterSpec, devices: int) -> float:
    """How many units of a kind a job of `devices` uses."""
    hosts = -(-devices // cluster.host.devices)
    racks = -(-hosts // reliability.site.rack_hosts)
    return float(
        {
            "device": devices,
            "link": devices,
            "host": hosts,
            "rack": racks,
            "switch": racks * reliability.site.rack_switches,
            "feed": -(-racks // reliability.site.feed_racks),
            "job": 1,
        }[unit]
    )


def hosts_hit(hits: str, reliability: Reliability, cluster: ClusterSpec, devices: int) -> int:
    """Hosts that one failure takes: nothing but a rack or a feed takes more than one."""
    hosts = -(-devices // cluster.host.devices)
    rack = reliability.site.rack_hosts
    wide = {"rack": rack, "switch": rack, "feed": rack * reliability.site.feed_racks}
    return min(hosts, wide.get(hits, 1))


def failure_classes(
    reliability: Reliability, cluster: ClusterSpec, devices: int
) -> tuple[FailureClass, ...]:
    """Every kind of failure of a job of `devices`. Raises InputError where nothing can fail."""
    found = tuple(
        FailureClass(
            name,
            c.per_s * units_of(c.unit, reliability, cluster, devices),
            hosts_hit(c.hits, reliability, cluster, devices),
            c.cure == "replace",
            c.source,
        )
        for name, c in sorted(reliability.components.items())
    )
    if not found:
        raise InputError("no component has a failure rate: state one, as components.device.rate")
    return found


def mtbf_s(classes: Sequence[FailureClass]) -> float:
    """Mean seconds between failures of the job, all kinds together."""
    return 1.0 / sum(c.per_s for c in classes)


class Strategy(NamedTuple):
    """What happens after a failure: spares and whether they are warm, whole job or only a stage,
    or the job goes on without the replicas hit until their hosts are repaired."""

    name: str
    spares: int
    warm: bool
    remap: bool
    drop: bool = False


def restart_s(
    failure: FailureClass, recovery: Recovery, strategy: Strategy, load_s: float, spare: bool
) -> float:
    """Seconds from a failure to the next step.

    Whole job: detect, new processes, start-up, load. Remap: the other processes stay, so nothing
    is rescheduled and started up but the spare, and it alone loads. Drop: the other replicas form
    new groups and go on. Without a spare a lost host is waited for.
    """
    swap = 0.0
    if strategy.drop and failure.replace:
        return recovery.detect_s + recovery.reschedule_s
    if failure.replace:
        swap = recovery.warm_swap_s if strategy.warm else recovery.cold_swap_s
        swap = swap if spare else recovery.repair_s
    if strategy.remap and spare and failure.replace:
        return recovery.detect_s + swap + load_s
    return recovery.detect_s + recovery.reschedule_s + swap + recovery.init_s + load_s


class RunPlan(NamedTuple):
    """What a run does: work, seconds between saves, blocking seconds, safe after; repair, spares.

    `delay_s` counts from the end of the blocking part.
    """

    work_s: float
    interval_s: float
    block_s: float
    delay_s: float
    repair_s: float
    spares: int


@kernel
def play_run(
    plan: RunPlan,
    gaps: Array,
    kind: NDArray[np.int64],
    hosts: NDArray[np.int64],
    swapped_s: Array,
    waiting_s: Array,
) -> tuple[float, float, float, float]:
    """One run: wall seconds, failures, seconds redone, seconds waiting for repaired hosts.

    gaps [n] seconds between failures; kind [n] of each; hosts, swapped_s, waiting_s [kinds]: hosts
    taken (0: none is replaced), restart with a spare, restart less the wait without one. Lost hosts
    come back as spares `repair_s` later. Wall is negative where the gaps did not last.
    """
    wall = redone = waited = 0.0
    safe = 0.0
    segment = plan.interval_s + plan.block_s
    free = plan.spares
    back = np.zeros(0)
    failures = starting = there_at = 0.0
    for i in range(gaps.size):
        # Up from the end of the restart that goes on until the next failure.
        left = plan.work_s - safe
        saves = np.ceil(left / plan.interval_s) - 1.0
        need = starting + left + max(0.0, saves) * plan.block_s
        waited += min(max(0.0, there_at - wall), gaps[i])
        if gaps[i] >= need:
            return wall + need, failures, redone, waited
        up = gaps[i] - starting
        wall += gaps[i]
        if up > 0.0:
            kept = max(0.0, np.floor((up - plan.delay_s) / segment))
            done = np.floor(up / segment) * plan.interval_s
            done += min(up - np.floor(up / segment) * segment, plan.interval_s)
            safe += kept * plan.interval_s
            redone += done - kept * plan.interval_s
        failures += 1.0
        k = kind[i]
        again = swapped_s[k]
        if hosts[k] > 0:
            free += int((back <= wall).sum())
            back = back[back > wall]
            for _ in range(hosts[k]):
                back = np.append(back, wall + plan.repair_s)
            if free >= hosts[k]:
                free -= hosts[k]
            else:
                missing = hosts[k] - free
                free = 0
                back.sort()
                there_at = max(there_at, back[missing - 1])
                back = back[missing:]
                again = waiting_s[k]
        # Failures while hosts are waited for do not bring them back any sooner.
        starting = max(0.0, there_at - wall) + again
    return -1.0, failures, redone, waited


@dataclass(frozen=True)
class RunStats:
    """Many runs: mean goodput and its standard error, mean failures, seconds lost by cause."""

    goodput_frac: float
    error_frac: float
    failures: float
    redone_s: float
    waited_s: float
    wall_s: float
    draws: int
    seed: int


def exponential_gaps(rng: np.random.Generator, mean_s: float, count: int) -> Array:
    """Gaps of a Poisson process."""
    return rng.exponential(mean_s, count)


def weibull_gaps(rng: np.random.Generator, mean_s: float, count: int, shape: float) -> Array:
    """Gaps of a Weibull renewal process; shape below 1 brings failures in clusters.

    Schroeder and Gibson (DSN 2006) fit 0.7-0.8 to failures of large machines.
    """
    from scipy.special import gamma

    return rng.weibull(shape, count) * mean_s / float(gamma(1.0 + 1.0 / shape))


def simulate_runs(
    plan: RunPlan,
    classes: Sequence[FailureClass],
    restarts: Sequence[tuple[float, float]],
    runs: int = 200,
    seed: int = 0,
    shape: float = 1.0,
) -> RunStats:
    """`runs` runs drawn with `seed`. `restarts`: seconds with and without a spare of each class.

    `shape` 1 is Poisson, below 1 clustered. Raises InputError where the run does not end.
    """
    rng = np.random.default_rng(seed)
    mean = mtbf_s(classes)
    rates = np.array([c.per_s for c in classes])
    hosts = np.array([c.hosts if c.replace else 0 for c in classes], np.int64)
    swapped = np.array([a for a, _ in restarts])
    waiting = np.array([b for _, b in restarts])
    play = compiled(play_run)
    rows = []
    for _ in range(runs):
        count = int(4 * plan.work_s / mean) + 64
        for _attempt in range(12):
            gaps = (
                exponential_gaps(rng, mean, count)
                if shape == 1.0
                else weibull_gaps(rng, mean, count, shape)
            )
            kind = rng.choice(len(classes), count, p=rates / rates.sum()).astype(np.int64)
            row = play(plan, gaps, kind, hosts, swapped, waiting)
            if row[0] >= 0.0:
                rows.append(row)
                break
            count *= 2
        else:
            raise InputError(
                f"a failure every {mean:.3g} s: runs of {plan.work_s:.3g} s of work do not end"
            )
    table = np.array(rows)
    good = plan.work_s / table[:, 0]
    return RunStats(
        goodput_frac=float(plan.work_s / table[:, 0].mean()),
        error_frac=float(good.std(ddof=1) / np.sqrt(runs)) if runs > 1 else float("nan"),
        failures=float(table[:, 1].mean()),
        redone_s=float(table[:, 2].mean()),
        waited_s=float(table[:, 3].mean()),
        wall_s=float(table[:, 0].mean()),
        draws=runs,
        seed=seed,
    )
