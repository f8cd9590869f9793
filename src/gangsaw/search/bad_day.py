"""Failures, restarts, spares and checkpoints of one plan, priced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gangsaw.bill.expected import (
    effective_restart_s,
    expected_lost_s,
    goodput_frac,
    optimum_interval_s,
)
from gangsaw.cost.checkpoint import (
    PER_MONTH_S,
    Checkpoint,
    Content,
    Layout,
    Monthly,
    MonthlyCost,
    Prices,
    checkpoint_of,
    monthly_cost,
    requests_of,
    save_times,
)
from gangsaw.cost.memory_doc import rank_memories
from gangsaw.search.estimate import Evaluated
from gangsaw.search.goodput import COLD, Saved, saved_on
from gangsaw.search.tail_docs import (
    BlastRow,
    CheckpointRow,
    FailureRow,
    Failures,
    SpareRow,
    SpotRow,
    StrategyRow,
)
from gangsaw.simulate.blast import blast_radius, replicas_away
from gangsaw.simulate.failures import (
    FailureClass,
    RunPlan,
    Strategy,
    failure_classes,
    mtbf_s,
    restart_s,
    simulate_runs,
)
from gangsaw.simulate.spares import availability_of, spares_needed
from gangsaw.simulate.spot import Restarts, recorded_spells, spot_result
from gangsaw.spec.price import PriceBook
from gangsaw.spec.reliability import Reliability, StorageTier
from gangsaw.units import HOUR_S, format_bandwidth, format_s

RUNS = 60
FAILURES_A_RUN = 150


@dataclass(frozen=True)
class Wishes:
    """What is asked of recovery, and how checkpoints are written and kept."""

    recovery_s: float | None = None
    availability_frac: float = 0.999
    kept: int = 3
    content: Content = "full"
    layout: Layout = "sharded"


def _price(book: PriceBook, key: str, unit: str) -> float:
    return book.value(key, unit) if key else 0.0


def tier_prices(tier: StorageTier, book: PriceBook) -> Prices:
    """Prices of a tier from the book."""
    return Prices(
        _price(book, tier.capacity_key, "USD/GB-month"),
        _price(book, tier.put_key, "USD/1000-requests"),
        _price(book, tier.get_key, "USD/1000-requests"),
        _price(book, tier.egress_key, "USD/GB"),
    )


def _money(
    ev: Evaluated, saved: Saved, ck: Checkpoint, mean: float, book: PriceBook, kept: int
) -> MonthlyCost:
    useful = PER_MONTH_S * saved.goodput_frac
    hosts = ev.plan.devices / ev.job.cluster.host.devices
    month = Monthly(useful / saved.interval_s, PER_MONTH_S / mean, kept, hosts)
    return monthly_cost(ck, saved.tier, tier_prices(saved.tier, book), month)


def _binding(ck: Checkpoint, saved: Saved, hosts: float) -> str:
    """What bounds a tier: its requests, the drives' endurance, or bandwidth."""
    tier = saved.tier
    if tier.put_per_s:
        asked_s = requests_of(tier, ck.written, ck.files) / (tier.put_per_s * tier.prefixes)
        if asked_s > 0.9 * saved.times.save_s:
            return f"requests: {tier.put_per_s * tier.prefixes:,.0f} a second"
    if tier.endurance_bytes:
        a_month = PER_MONTH_S / saved.interval_s * ck.written / hosts
        months = tier.endurance_bytes / a_month
        if months < 36:
            return f"endurance: drives worn out in {months:.1f} months"
    return "bandwidth"


def _recovery(reliability: Reliability, saved: Saved, ck: Checkpoint, wanted_s: float) -> str:
    """What would reach a wanted recovery time; '' where it is reached."""
    if saved.restart_s <= wanted_s:
        return ""
    without_load = saved.restart_s - saved.times.load_s
    if without_load < wanted_s:
        rate = ck.read / (wanted_s - without_load)
        return f"read at {format_bandwidth(rate)} in place of {format_s(saved.times.load_s)} a load"
    r = reliability.recovery
    return (
        f"{format_s(without_load - wanted_s)} less of detection ({format_s(r.detect_s)}), start-up"
        f" ({format_s(r.init_s)}) and swap ({format_s(r.cold_swap_s)} cold,"
        f" {format_s(r.warm_swap_s)} warm), even with a load that takes no time"
    )


def checkpoint_row(
    ev: Evaluated,
    reliability: Reliability,
    saved: Saved,
    ck: Checkpoint,
    book: PriceBook,
    wishes: Wishes,
) -> CheckpointRow:
    """One tier and mode with its losses and its money a month."""
    classes = failure_classes(reliability, ev.job.cluster, ev.plan.devices)
    mean, devices = mtbf_s(classes), ev.plan.devices
    month_h = PER_MONTH_S / HOUR_S
    lost = expected_lost_s(saved.times.block_s, saved.times.save_s, saved.interval_s)
    failures = PER_MONTH_S / mean
    money = _money(ev, saved, ck, mean, book, wishes.kept)
    lost_usd = (1 - saved.goodput_frac) * month_h * devices * ev.job.cluster.usd_per_device_hour
    useful_h = month_h * saved.goodput_frac * devices
    wanted = wishes.recovery_s
    return CheckpointRow(
        tier=saved.name,
        title=saved.tier.title,
        mode="asynchronous" if saved.asynchronous else "synchronous",
        bytes=ck.written,
        block_s=saved.times.block_s,
        save_s=saved.times.save_s,
        load_s=saved.times.load_s,
        interval_s=saved.interval_s,
        lost_s=lost,
        readable_frac=saved.readable_frac,
        goodput_frac=saved.goodput_frac,
        at_risk_device_h=failures * lost * devices / HOUR_S,
        lost_usd_month=lost_usd,
        storage_usd_month=money.usd,
        usd_month=lost_usd + money.usd,
        restart_s=saved.restart_s,
        restart_device_h_month=failures * saved.restart_s * devices / HOUR_S,
        bubble_device_h_month=useful_h * max(0.0, ev.cost.bubble) / ev.cost.step,
        recovery_reached=None if wanted is None else saved.restart_s <= wanted,
        recovery_needs="" if wanted is None else _recovery(reliability, saved, ck, wanted),
        binding=_binding(ck, saved, devices / ev.job.cluster.host.devices),
    )


def strategies_of(spares: int) -> tuple[Strategy, ...]:
    """Ways to go on after a failure. Without its lost replicas a job trains on smaller batches."""
    few = max(1, spares)
    return (
        Strategy("whole job, no spares", 0, False, False),
        Strategy("whole job, cold spares", few, False, False),
        Strategy("whole job, warm spares", few, True, False),
        Strategy("stage remapped onto a warm spare", few, True, True),
        Strategy("on without the replicas hit", 0, False, False, drop=True),
    )


def strategy_row(
    ev: Evaluated,
    reliability: Reliability,
    strategy: Strategy,
    saved: Saved,
    load_s: float,
    seed: int,
) -> StrategyRow:
    """Goodput of one strategy: events, and the closed form where spares do not run out.

    Where replicas are dropped, what they would have done while they are away is lost as well.
    """
    cluster, recovery = ev.job.cluster, reliability.recovery
    classes: Sequence[FailureClass] = failure_classes(reliability, cluster, ev.plan.devices)
    mean = mtbf_s(classes)
    kept = 1.0
    if strategy.drop:
        host = cluster.host.devices
        away = replicas_away(ev.plan, classes, host, recovery.repair_s)
        kept = max(0.0, 1.0 - away / ev.plan.dp)
        classes = [c._replace(replace=False) if c.replace else c for c in classes]
    pairs = []
    for c in failure_classes(reliability, cluster, ev.plan.devices):
        with_spare = restart_s(c, recovery, strategy, load_s, True)
        waited = restart_s(c, recovery, strategy, load_s, False)
        waits = c.replace and not strategy.drop
        pairs.append((with_spare, waited - recovery.repair_s if waits else with_spare))
    once = effective_restart_s(
        [(c.per_s, r) for c, (r, _) in zip(classes, pairs, strict=True)], mean
    )
    delay = max(0.0, saved.times.save_s - saved.times.block_s)
    run = RunPlan(
        FAILURES_A_RUN * mean, saved.interval_s, saved.times.block_s, delay, recovery.repair_s,
        strategy.spares,
    )  # fmt: skip
    found = simulate_runs(run, classes, pairs, RUNS, seed)
    closed = goodput_frac(saved.times.block_s, saved.times.save_s, saved.interval_s, mean, once)
    waiting = found.waited_s / found.wall_s
    return StrategyRow(
        name=strategy.name,
        spares=strategy.spares,
        restart_s=once,
        goodput_closed_frac=closed * kept if waiting < 1e-3 else None,
        goodput_frac=found.goodput_frac * kept,
        goodput_error_frac=found.error_frac,
        waiting_frac=waiting,
        draws=RUNS,
        seed=seed,
    )


def spare_rows(
    classes: Sequence[FailureClass],
    reliability: Reliability,
    wanted: float,
    loads: tuple[float, float],
) -> tuple[SpareRow, ...]:
    """Fewest cold, pre-warmed and remapped spares for a wanted availability of the job.

    Available: no host missing, and no failure within the last restart. The second is e^(-R/M) of
    the time for Poisson failures, whatever they strike; the two are taken as independent. `loads`:
    seconds to load for the whole job, and for one stage from a peer.
    """
    mean, recovery = mtbf_s(classes), reliability.recovery
    rows = []
    for strategy in strategies_of(1)[1:4]:
        load = loads[1] if strategy.remap else loads[0]
        each = [(c.per_s, restart_s(c, recovery, strategy, load, True)) for c in classes]
        up = math.exp(-effective_restart_s(each, mean) / mean)
        count = None
        if wanted < up:
            count = spares_needed(classes, recovery.repair_s, wanted / up)
        there = 1.0 if count is None else availability_of(classes, recovery.repair_s, count)
        rows.append(
            SpareRow(
                kind=strategy.name,
                spares=count,
                restart_s=effective_restart_s(each, mean),
                available_frac=up * there,
            )
        )
    return tuple(rows)


def phases_of(reliability: Reliability, load_s: float, lost_s: float) -> dict[str, float]:
    """A whole-job restart with a cold spare, phase by phase, and the work that is done again."""
    r = reliability.recovery
    return {
        "detection": r.detect_s,
        "new processes": r.reschedule_s,
        "cold spare": r.cold_swap_s,
        "start-up": r.init_s,
        "load": load_s,
        "work done again": lost_s,
    }


def _blast(ev: Evaluated, reliability: Reliability) -> tuple[BlastRow, ...]:
    host = ev.job.cluster.host.devices
    rack = host * reliability.site.rack_hosts
    flight = sum(found.in_flight for _, found in rank_memories(ev.job, ev.plan, ev.counts, ev.low))
    mean_flight = flight / ev.plan.pp
    rows = []
    for lost, devices in (("device", 1), ("host", host), ("rack", rack)):
        b = blast_radius(ev.plan, devices, mean_flight)
        rows.append(
            BlastRow(
                lost=lost,
                devices=b.devices,
                tensor_groups=b.tensor_groups,
                stages=b.stages,
                replicas=b.replicas,
                idle_devices=b.idle_devices,
                in_flight_microbatches=b.in_flight,
            )
        )
    return tuple(rows)


def _spot(ev: Evaluated, saved: Saved, seed: int) -> tuple[SpotRow, ...]:
    hosts = -(-ev.plan.devices // ev.job.cluster.host.devices)
    rows = []
    for zone in recorded_spells():
        for together in (True, False):
            # Spot hosts go far more often than they fail: their own interval.
            up = spot_result(zone, hosts, together, Restarts(0.0, 1.0, 0.0), seed)
            if up.losses_per_h > 0.0:
                mean = HOUR_S / up.losses_per_h
                interval = optimum_interval_s(saved.times.block_s, mean, saved.times.save_s)
                how = Restarts(saved.restart_s, interval, saved.times.block_s)
                up = spot_result(zone, hosts, together, how, seed)
            rows.append(
                SpotRow(
                    zone=zone,
                    hosts=hosts,
                    together=together,
                    available_frac=up.available_frac,
                    losses_per_h=up.losses_per_h,
                    useful_frac=up.useful_frac if up.available_frac else 0.0,
                )
            )
    return tuple(rows)


def failures_of(
    ev: Evaluated,
    reliability: Reliability,
    book: PriceBook,
    step_s: float,
    wishes: Wishes,
    seed: int,
) -> Failures:
    """Everything about failures of one plan whose step takes `step_s`. Raises InputError."""
    classes = failure_classes(reliability, ev.job.cluster, ev.plan.devices)
    ck = checkpoint_of(ev.job, ev.plan, wishes.content, wishes.layout)
    every = [
        saved_on(ev, reliability, name, mode, step_s, ck)
        for name in reliability.storage
        for mode in (True, False)
    ]
    best = max(every, key=lambda s: s.goodput_frac)
    wanted = spares_needed(classes, reliability.recovery.repair_s, wishes.availability_frac)
    rows = tuple(checkpoint_row(ev, reliability, s, ck, book, wishes) for s in every)
    peer = reliability.storage.get("peer-memory", best.tier)
    remap_s = save_times(ck, peer, ev.job.cluster, float(ev.plan.devices), True).load_s
    return Failures(
        mtbf_s=mtbf_s(classes),
        kinds=tuple(
            FailureRow(
                name=c.name,
                mtbf_s=1.0 / c.per_s,
                hosts=c.hosts,
                replaced=c.replace,
                restart_s=restart_s(c, reliability.recovery, COLD, best.times.load_s, True),
                source=c.source,
            )
            for c in classes
        ),
        blast=_blast(ev, reliability),
        strategies=tuple(
            strategy_row(ev, reliability, s, best, remap_s if s.remap else best.times.load_s, seed)
            for s in strategies_of(wanted)
            if not s.drop or ev.plan.dp > 1
        ),
        spares_wanted=wanted,
        availability_frac=wishes.availability_frac,
        spares=spare_rows(
            classes, reliability, wishes.availability_frac, (best.times.load_s, remap_s)
        ),
        phases_s=phases_of(
            reliability,
            best.times.load_s,
            expected_lost_s(best.times.block_s, best.times.save_s, best.interval_s),
        ),
        full_bytes=checkpoint_of(ev.job, ev.plan, wishes.content, first=True).unique,
        increment_bytes=ck.unique,
        copies_bytes=checkpoint_of(ev.job, ev.plan, wishes.content, "copies").written,
        spot=_spot(ev, best, seed),
        checkpoints=rows,
        best_tier=best.name,
        goodput_frac=best.goodput_frac,
    )
