"""Network health of a plan: timeouts, bandwidth needed and offered, ZeRO-3, collisions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gangsaw.cost.collectives import group_path
from gangsaw.cost.lower import strides_of
from gangsaw.cost.lower_cluster import net_of
from gangsaw.search.collectives import collectives_of
from gangsaw.search.estimate import Evaluated
from gangsaw.search.tail_docs import CollectiveHealth, CongestionRow, NetworkHealth, TierNeed
from gangsaw.simulate.noise import Routing, congestion_factors, fabric_of
from gangsaw.simulate.tail import percentiles
from gangsaw.spec.reliability import Reliability
from gangsaw.spec.result import CollectiveDoc

TIMEOUT_S = 600.0
"""Default of a process group on NCCL: 10 minutes (torch.distributed)."""
OVERSUBSCRIPTIONS = (1.0, 2.0, 4.0, 7.0)
ROUTINGS: tuple[tuple[str, Routing, int], ...] = (
    ("hashed, 1 flow a pair", "hashed", 1),
    ("hashed, 16 flows a pair", "hashed", 16),
    ("sprayed by packet", "sprayed", 1),
)
DRAWS = 2000
RESAMPLES = 100
MODEL = (
    "flows hashed onto the uplinks of a leaf, balls into bins (Raab and Steger 1998), equal shares"
    " of a link, a collective as slow as its slowest flow; background flows are hashed likewise"
)


def sent_bytes(row: CollectiveDoc) -> float:
    """Bytes that one device sends in one such collective, by its ring or its direct exchange."""
    n = float(row.group)
    share = (n - 1.0) / n
    if "send" in row.operation:
        return row.bytes_each
    if "all-reduce" in row.operation or "+" in row.operation:
        return 2.0 * share * row.bytes_each
    return share * row.bytes_each


def _inner(ev: Evaluated, row: CollectiveDoc, index: int) -> float:
    """Members of a row's group inside one domain of the tier below: they share its uplinks."""
    if index == 0 or "send" in row.operation or "all-to-all" in row.operation:
        return 1.0
    stride = getattr(strides_of(ev.plan), row.axis)
    return max(1.0, group_path(ev.low.net, float(row.group), stride, index - 1))


def tier_needs(ev: Evaluated, rows: Sequence[CollectiveDoc]) -> tuple[TierNeed, ...]:
    """What the plan sends over each tier, spread evenly over its step, against what is offered.

    Members of a group inside a domain carry its traffic outwards together, each a part (as the
    rings of `cost.collectives`). All of a row counts on the outermost tier that it crosses.
    """
    net = net_of(ev.job.cluster)
    out = []
    for index, tier in enumerate(ev.job.cluster.tiers):
        mine = [r for r in rows if r.tier == tier.name]
        size = sum(sent_bytes(r) * r.count_per_step / _inner(ev, r, index) for r in mine)
        offered = float(net.bytes_per_s[index] * net.efficiency[index])
        need = size / ev.cost.step
        out.append(
            TierNeed(
                tier=tier.name,
                bytes_per_device=size,
                needed_bytes_per_s=need,
                offered_bytes_per_s=offered,
                headroom_frac=1.0 - need / offered,
            )
        )
    return tuple(out)


def zero3_need_bytes_per_s(ev: Evaluated, inner: float) -> float:
    """Bytes/s a device at which ZeRO-3 over all devices hides behind its compute at this batch.

    A microbatch gathers the weights twice and reduces the gradients once (arXiv:1910.02054); the
    `inner` devices of a domain share what enters it. With one microbatch a device, the best case,
    the compute that hides this is the step's, which all devices share evenly under any plan.
    """
    stack = ev.low.stack
    traffic = float(ev.job.model.params()) * (2.0 * stack.param_bytes + stack.grad_bytes)
    return traffic / inner / (ev.cost.compute + ev.cost.recompute)


def congestion_rows(
    reliability: Reliability, leaf_devices: int, seed: int
) -> tuple[CongestionRow, ...]:
    """Factor by oversubscription and routing against uplinks as fast as the ports, with tails."""
    return _congestion(reliability.noise.background_frac, leaf_devices, seed)


@lru_cache(maxsize=8)
def _congestion(background: float, leaf_devices: int, seed: int) -> tuple[CongestionRow, ...]:
    rows = []
    for over in OVERSUBSCRIPTIONS:
        for name, routing, flows in ROUTINGS:
            shape = fabric_of(leaf_devices, over, flows)
            found = over * congestion_factors(shape, routing, background, DRAWS, seed)
            mean, _, (p95, p99) = percentiles(found[None, :], (0.95, 0.99), seed, RESAMPLES)
            rows.append(
                CongestionRow(
                    oversubscription=over,
                    routing=name,
                    mean=mean,
                    p95=p95.value_s,
                    p99=p99.value_s,
                    p95_error=p95.error_s,
                    p99_error=p99.error_s,
                    draws=DRAWS,
                    seed=seed,
                )
            )
    return tuple(rows)


def network_health(
    ev: Evaluated, reliability: Reliability, routing: Routing, p99_step_s: float, seed: int
) -> NetworkHealth:
    """Collectives next to their timeout, tiers with their headroom, ZeRO-3, collisions.

    A member may come to a collective as early as a whole slow step before the last one does, so
    the time under the watchdog is the collective's and a P99 step together.
    """
    cluster = ev.job.cluster
    rows = collectives_of(ev.job, ev.plan, ev.counts, ev.low)
    leaf = min(cluster.devices, cluster.host.devices * reliability.site.rack_hosts)
    noise = reliability.noise
    factors = congestion_factors(
        fabric_of(leaf, max(t.oversubscription for t in cluster.tiers), noise.flows_per_uplink),
        routing, noise.background_frac, DRAWS, seed,
    )  # fmt: skip
    _, _, (p99,) = percentiles(factors[None, :], (0.99,), seed, RESAMPLES)
    inner = cluster.tiers[0].name
    health = []
    for r in rows:
        outside = 0.0 if r.tier == inner else 1.0
        slow = r.seconds_each * (1.0 + outside * (p99.value_s - 1.0))
        health.append(
            CollectiveHealth(
                axis=r.axis,
                operation=r.operation,
                tier=r.tier,
                expected_s=r.seconds_each,
                p99_s=slow,
                p99_error_s=outside * r.seconds_each * p99.error_s,
                timeout_s=TIMEOUT_S,
                timeout_frac=(slow + p99_step_s) / TIMEOUT_S,
            )
        )
    net = net_of(cluster)
    crossed = [i for i, t in enumerate(cluster.tiers) if t.devices >= ev.plan.devices]
    outer = crossed[0] if crossed else len(cluster.tiers) - 1
    offered = float(net.bytes_per_s[outer] * net.efficiency[outer])
    need = zero3_need_bytes_per_s(ev, float(net.size[outer - 1]) if outer else 1.0)
    return NetworkHealth(
        collectives=tuple(health),
        tiers=tier_needs(ev, rows),
        zero3_needs_bytes_per_s=need,
        zero3_offered_bytes_per_s=offered,
        zero3_carried=need <= offered,
        congestion=congestion_rows(reliability, leaf, seed),
        model=MODEL,
    )
