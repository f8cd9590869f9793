"""Plans on a bad day: the distribution of their steps, drawn, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated
from gangsaw.search.rank_rows import fabric_shares
from gangsaw.search.tail_docs import PercentileDoc, StepTail
from gangsaw.search.timeline import plan_schedule, stage_times, stage_transfers
from gangsaw.simulate.noise import (
    TABLE,
    Fleet,
    Routing,
    congestion_factors,
    coupled_members,
    device_factors,
    fabric_of,
    group_factors,
    lognormal_table,
    quantile_table,
    routing_of,
)
from gangsaw.simulate.tail import (
    After,
    Graph,
    StepDraws,
    Tables,
    draw_steps,
    graph_of,
    percentiles,
    play_vector,
    variance_by_axis,
)
from gangsaw.simulate.times import StageTimes, Transfers
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.reliability import Noise, Reliability

AT = (0.5, 0.95, 0.99)
COLLISION_DRAWS = 4096


@dataclass(frozen=True)
class Conditions:
    """The day: figures of failure and noise, the fleet's state, the fabric, draws and seed."""

    reliability: Reliability
    fleet: Fleet = field(default_factory=Fleet)
    routing: Routing | None = None
    steps: int = 10_000
    clusters: int = 50
    seed: int = 0
    slow_device_frac: float = 0.10

    def __post_init__(self) -> None:
        if self.steps < self.clusters or self.clusters < 1:
            raise InputError(
                f"steps={self.steps}, clusters={self.clusters}: at least one step a cluster"
            )

    def routing_of(self, cluster: ClusterSpec) -> Routing:
        """How flows find their way: as stated, else as the fabric does."""
        return self.routing or routing_of(cluster)

    @property
    def noise(self) -> Noise:
        """Figures of noise."""
        return self.reliability.noise


def _doubled(ev: Evaluated, pipes: int) -> tuple[StageTimes, Transfers | None]:
    """Stage times and transfers, twice where the schedule runs two copies of the model."""
    times, hops = stage_times(ev), stage_transfers(ev)
    if pipes == 1:
        return times, hops
    two = (pipes,)
    times = StageTimes(
        np.tile(times.forward_s, two), np.tile(times.backward_s, two),
        np.tile(times.weight_s, two), np.tile(times.whole_s, two), times.overlap_frac,
    )  # fmt: skip
    if hops is not None:
        hops = replace(
            hops, bytes_each=np.tile(hops.bytes_each, two),
            bytes_per_s=np.tile(hops.bytes_per_s, two), latency_s=np.tile(hops.latency_s, two),
        )  # fmt: skip
    return times, hops


def step_graph(ev: Evaluated) -> Graph:
    """The plan's pipeline as a graph."""
    schedule = plan_schedule(ev)
    times, hops = _doubled(ev, schedule.pipes)
    return graph_of(schedule, times, hops)


def after_of(ev: Evaluated, pipeline_s: float) -> tuple[After, float]:
    """What a step has beside its pipeline, and a factor by which the pipeline meets the estimate.

    The estimate's step is kept. Exposed traffic of other axes that leaves the innermost domain
    is a share of every operation; hops between stages leave it likewise. Exposed data-parallel
    traffic is on the fabric wherever it lies: what ZeRO 2 and 3 have of it inside the pipeline is
    taken out there.
    """
    outside = max(0.0, ev.cost.step - pipeline_s)
    fabric = ev.cost.dp_comm
    after = min(outside, fabric)
    pipe = ev.cost.step - outside - (fabric - after)
    return After(fabric, outside - after, *fabric_shares(ev)), pipe / pipeline_s


def tables_of(ev: Evaluated, day: Conditions, members: int, off: str = "") -> Tables:
    """What is drawn from under these conditions; `off` names a source to leave out."""
    noise = day.noise
    ones = np.ones(TABLE, np.float32)
    cluster = ev.job.cluster
    operation = ones if off == "operations" else lognormal_table(noise.op_cv, members)
    length = ones if off == "sequences" else lognormal_table(noise.sequence_cv)
    fabric = np.ones(COLLISION_DRAWS)
    if off != "fabric":
        leaf = min(cluster.devices, cluster.host.devices * day.reliability.site.rack_hosts)
        over = max(t.oversubscription for t in cluster.tiers)
        shape = fabric_of(leaf, over, noise.flows_per_uplink)
        fabric = congestion_factors(
            shape, day.routing_of(cluster), noise.background_frac, COLLISION_DRAWS, day.seed
        )
        fabric = fabric * (1.0 + day.fleet.slow_link_loss)
    pause = 0.0 if off == "pauses" else 1.0 - (1.0 - 1.0 / noise.pause_every_steps) ** members
    if noise.planned_pauses and pause > 0.0:
        # All pause in the same step: as if one did.
        pause = 1.0 / noise.pause_every_steps / max(1, ev.plan.pp * (ev.plan.devices // members))
    return Tables(operation, length, quantile_table(fabric), pause, noise.pause_s)


def paces_of(ev: Evaluated, day: Conditions, members: int, clusters: int, off: str = "") -> Array:
    """Pace of each lock-step group in each drawn cluster, [clusters, replicas, ranks]."""
    plan, cluster, noise = ev.plan, ev.job.cluster, day.noise
    if off == "devices":
        noise = noise.model_copy(update={"device_cv": 0.0, "slow_host_frac": 0.0})
    fleet = Fleet() if off == "devices" else day.fleet
    rack = cluster.host.devices * day.reliability.site.rack_hosts
    op_cv = 0.0 if off == "operations" else noise.op_cv
    out = []
    for k in range(clusters):
        rng = np.random.default_rng((day.seed, k))
        devices = device_factors(noise, plan.devices, cluster.host.devices, rack, fleet, rng)
        out.append(group_factors(plan, members, devices, op_cv, rng))
    return np.stack(out)


def draws_of(
    ev: Evaluated, day: Conditions, graph: Graph, paces: Array, off: str = ""
) -> StepDraws:
    """Steps of a plan in clusters of these paces, a source left out where `off` names one."""
    pipeline = float(play_vector(graph, np.ones((graph.ranks, 1))).max())
    after, factor = after_of(ev, pipeline)
    tables = tables_of(ev, day, coupled_members(ev.plan), off)
    return draw_steps(graph, paces * factor, tables, after, day.steps // day.clusters, day.seed)


SOURCES = ("operations", "devices", "sequences", "pauses", "fabric")


def step_tail(ev: Evaluated, day: Conditions) -> StepTail:
    """The distribution of the plan's step, where it comes from, and the price of a slow device."""
    graph = step_graph(ev)
    paces = paces_of(ev, day, coupled_members(ev.plan), day.clusters)
    draws = draws_of(ev, day, graph, paces)
    mean, error, rows = percentiles(draws.step_s, AT, day.seed)
    members = coupled_members(ev.plan)
    replicas = ev.plan.devices // ev.plan.pp // members
    slow_mean, slow_worst = slow_device_s(ev, graph, members, day)
    hour = ev.plan.devices * ev.job.cluster.usd_per_device_hour
    return StepTail(
        estimate_s=ev.cost.step,
        mean_s=mean,
        mean_error_s=error,
        percentiles=tuple(
            PercentileDoc(at_frac=r.at_frac, step_s=r.value_s, error_s=r.error_s) for r in rows
        ),
        p95_over_p50=rows[1].value_s / rows[0].value_s,
        slowdown=mean / ev.cost.step,
        draws=draws.draws,
        clusters=day.clusters,
        seed=day.seed,
        lock_step_devices=members,
        replicas=replicas,
        added_s_by_axis=_added(ev, day, graph, paces, draws),
        variance_by_axis=variance_by_axis(draws),
        variance_by_source=_by_source(ev, day, graph, paces),
        slow_device_frac=day.slow_device_frac,
        slow_device_mean_s=slow_mean,
        slow_device_worst_s=slow_worst,
        slow_device_usd_per_h=hour * slow_mean / ev.cost.step,
    )


def _added(
    ev: Evaluated, day: Conditions, graph: Graph, paces: Array, draws: StepDraws
) -> dict[str, float]:
    """Mean seconds over the closed form by axis; they sum to the whole.

    Lock-step: the mean pace of groups, as if all kept it; pipeline: stages that wait for stages;
    data parallel: the slowest replica over the mean one; fabric: collisions.
    """
    members = coupled_members(ev.plan)
    pipeline = float(play_vector(graph, np.ones((graph.ranks, 1))).max())
    after, factor = after_of(ev, pipeline)
    tables = tables_of(ev, day, members)
    pace = float(paces.mean()) * float(tables.operation.mean())
    base = pipeline * factor
    inside = base * pace * after.inside_frac * (float(tables.fabric.mean()) - 1.0)
    parts = {
        "lock-step groups": base * (pace - 1.0),
        "pipeline": float(draws.mean_replica_s.mean()) - base * pace - inside,
        "data parallel": float((draws.slowest_replica_s - draws.mean_replica_s).mean()),
        "fabric": float(draws.fabric_s.mean()) - after.fabric_s + inside,
    }
    # Tables are single precision: differences below that are nothing.
    return {k: v if abs(v) > 1e-6 * base else 0.0 for k, v in parts.items()}


def _by_source(ev: Evaluated, day: Conditions, graph: Graph, paces: Array) -> dict[str, float]:
    """Share of the variance that goes with each source, from a tenth of the steps.

    Not additive: a pause shows only where nothing else is slower.
    """
    few = replace(day, steps=max(day.clusters, day.steps // 10))
    # The same random numbers with everything on: what differs is the source and nothing else.
    total = float(draws_of(ev, few, graph, paces).step_s.var())
    out = {}
    for source in SOURCES:
        if source == "sequences" and day.noise.sequence_cv == 0.0:
            continue
        own = paces
        if source in ("devices", "operations"):
            own = paces_of(ev, day, coupled_members(ev.plan), day.clusters, source)
        left = float(draws_of(ev, few, graph, own, source).step_s.var())
        out[source] = 1.0 - left / total if total > 0.0 else 0.0
    return out


def slow_device_s(
    ev: Evaluated, graph: Graph, members: int, day: Conditions
) -> tuple[float, float]:
    """Seconds that one device slower by `slow_device_frac` adds: mean over stages, and worst.

    The device's whole lock-step group goes at its pace, in a step without noise.
    """
    ranks = graph.ranks
    factor = np.ones((ranks, ranks + 1))
    factor[np.arange(ranks), np.arange(ranks)] += day.slow_device_frac
    ends = play_vector(graph, factor).max(axis=0)
    scale = after_of(ev, float(ends[-1]))[1]
    added = (ends[:-1] - ends[-1]) * scale
    return float(added.mean()), float(added.max())
