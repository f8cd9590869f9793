"""The answer of `tail`: each plan on a bad day, the best at each percentile, and what changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gangsaw.cost.evaluate import time_table
from gangsaw.cost.keep import LayerChoice, Links, best_mix, single_costs_s, useful_nvme_bytes_per_s
from gangsaw.cost.lower import cut_of, loads_of, strides_of
from gangsaw.cost.memory import memory_table
from gangsaw.cost.memory_doc import capacity_of, rank_memories
from gangsaw.cost.step import (
    BWD,
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    FWD,
    HOST_B,
    HOST_F,
    R_FULL,
    TP_B,
    TP_F,
    TP_R,
    WGRAD,
)
from gangsaw.errors import InputError
from gangsaw.search.bad_day import Wishes, failures_of
from gangsaw.search.estimate import Evaluated, plan_doc
from gangsaw.search.fabric_health import network_health
from gangsaw.search.tail import Conditions, step_tail
from gangsaw.search.tail_docs import (
    OBJECTIVES,
    KeepRow,
    Objective,
    PlanTail,
    TailAnswer,
)
from gangsaw.spec.price import PriceBook

KEPT_NONE, KEPT_FULL = 0, 2
HOST_LINK_SHARE = 0.8
NOTES = (
    "the closed form is fitted to measured runs, which had some noise of their own: what ordinary"
    " jitter adds here is an upper estimate, what slow parts and failures add is not in it",
    "asynchronous and stale-weight pipelines (PipeDream, PipeDream-2BW, local SGD) wait for less"
    " but train on old weights: other trainings, not other schedules, and not compared here",
)


@dataclass(frozen=True)
class TailQuestion:
    """What is asked: the day, the wishes, and by what plans are ordered."""

    day: Conditions
    wishes: Wishes = field(default_factory=Wishes)
    objective: Objective = "mean"


def layer_choice(ev: Evaluated, kind: int) -> LayerChoice:
    """One layer of a kind as `cost.keep` sees it, communication that is exposed included."""
    low, plan = ev.low, ev.plan
    cut = cut_of(plan, ev.job.recipe)
    t = time_table(low.kinds, cut, low.device, low.net, strides_of(plan), low.stack)[kind]
    held = memory_table(low.kinds, cut, low.memory)[kind]
    return LayerChoice(
        kept_bytes=float(held[KEPT_NONE]),
        input_bytes=float(held[KEPT_FULL]),
        forward_s=float(t[FWD] + t[TP_F] + t[CP_F] + t[EP_F] + t[HOST_F]),
        backward_s=float(t[BWD] + t[WGRAD] + t[TP_B] + t[CP_B] + t[EP_B] + t[HOST_B]),
        recompute_s=float(t[R_FULL] + t[TP_R] + t[CP_F] + t[EP_F]),
    )


def links_of(ev: Evaluated) -> Links:
    """Host link of a device, and its share of the host's drives."""
    host = ev.job.cluster.host
    link = HOST_LINK_SHARE * ev.low.device.pcie
    drives = host.nvme_bytes_per_s / host.devices
    return Links(link, min(link, drives) if drives > 0.0 else 1.0)


def keep_rows(ev: Evaluated) -> tuple[KeepRow, ...]:
    """For the first and last pipeline rank: what to keep, recompute or send away, and the price.

    Room is what the device has beside state, logits and buffers; layers of the most frequent kind
    stand for all of a rank.
    """
    memories = rank_memories(ev.job, ev.plan, ev.counts, ev.low)
    capacity, mem = capacity_of(ev.job.cluster), ev.low.memory
    host = ev.job.cluster.host
    table = loads_of(ev.job.model, ev.plan, ev.counts)
    kind = int(table.layers[:, : len(ev.job.model.kinds)].sum(axis=0).argmax())
    layer, links = layer_choice(ev, kind), links_of(ev)
    rows = []
    for place in sorted({0, ev.plan.pp - 1}):
        load, found = memories[place]
        layers = max(1, round(float(load.layers.sum())))
        fixed = found.params + found.grads + found.optimizer + found.logits + found.buffers
        room = (capacity - mem.workspace_bytes - mem.context_bytes) / mem.reserved_factor - fixed
        cost = single_costs_s(layer, layers, links)
        useful = useful_nvme_bytes_per_s(layer, layers)
        note = "" if links.nvme_bytes_per_s >= useful else "NVMe is slower than recomputing"
        mix = None
        try:
            free = max(0.0, host.memory_bytes * 0.8 / host.devices - found.host)
            mix = best_mix(layer, layers, max(1.0, found.in_flight), room, links, free)
        except InputError:
            note = "no mix fits: the state alone is too large"
        rows.append(
            KeepRow(
                stage=place,
                layers=layers,
                keep=mix.keep if mix else 0,
                recompute=mix.recompute if mix else 0,
                host=mix.host if mix else 0,
                nvme=mix.nvme if mix else 0,
                added_s=(mix.added_s if mix else 0.0) * ev.plan.num_microbatches,
                cost_s=cost,
                useful_nvme_bytes_per_s=useful,
                nvme_bytes_per_s=links.nvme_bytes_per_s,
                note=note,
            )
        )
    return tuple(rows)


def plan_tail(name: str, ev: Evaluated, asked: TailQuestion, book: PriceBook) -> PlanTail:
    """One plan on a bad day. Raises InputError where failures leave no progress."""
    day = asked.day
    step = step_tail(ev, day)
    failures = failures_of(ev, day.reliability, book, step.mean_s, asked.wishes, day.seed)
    if failures.goodput_frac <= 0.0:
        raise InputError(
            f"{name}: a failure every {failures.mtbf_s:.3g} s leaves no progress on any tier"
        )
    expected = step.mean_s / failures.goodput_frac
    job = ev.job
    usd = job.cluster.usd_per_device_hour * job.cluster.devices / 3600.0
    usd *= 1e6 / job.recipe.tokens_per_step
    return PlanTail(
        name=name,
        plan=plan_doc(ev.plan, ev.counts),
        step=step,
        failures=failures,
        network=network_health(
            ev, day.reliability, day.routing_of(job.cluster), step.percentiles[-1].step_s, day.seed
        ),
        keep=keep_rows(ev),
        expected_step_s=expected,
        usd_per_million_tokens=usd * expected,
        usd_per_million_tokens_mean=usd * ev.cost.step,
    )


def value_of(plan: PlanTail, objective: Objective) -> float:
    """What an objective makes of a plan; less is better."""
    p50, p95, p99 = (p.step_s for p in plan.step.percentiles)
    return {
        "mean": plan.step.mean_s,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "predictability": plan.step.p95_over_p50,
        "cost": plan.expected_step_s,
    }[objective]


def tail_answer(
    named: Sequence[tuple[str, Evaluated]], asked: TailQuestion, book: PriceBook
) -> TailAnswer:
    """Each plan, which is best by each objective, and whether the order is still that of the
    closed form."""
    plans = tuple(plan_tail(name, ev, asked, book) for name, ev in named)
    best = {"estimate": min(plans, key=lambda p: p.step.estimate_s).name}
    for objective in OBJECTIVES:
        best[objective] = min(plans, key=lambda p: value_of(p, objective)).name
    by_estimate = sorted(plans, key=lambda p: p.step.estimate_s)
    ordered = sorted(plans, key=lambda p: value_of(p, asked.objective))
    ev = named[0][1]
    return TailAnswer(
        model=ev.job.model.name,
        cluster=f"{ev.job.cluster.name}:{ev.job.cluster.devices}",
        objective=asked.objective,
        plans=plans,
        best=best,
        order=tuple(p.name for p in ordered),
        order_changes=[p.name for p in ordered] != [p.name for p in by_estimate],
        notes=NOTES,
    )
