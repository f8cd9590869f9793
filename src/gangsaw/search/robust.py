"""How robust a ranking is: every input moved within its doubt, shocks, and what tiers carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gangsaw.cost.collectives import group_path
from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.kinds import kind_rows
from gangsaw.cost.layer import layer_time
from gangsaw.cost.legal import check_plan
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.lower_cluster import net_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.types import Strides
from gangsaw.errors import InputError
from gangsaw.jit import compiled
from gangsaw.read.clusters import list_nodes, load_cluster
from gangsaw.search.estimate import counts_of
from gangsaw.search.line import fit_now
from gangsaw.search.parameters import Case, Objective, inner_tiers
from gangsaw.spec.base import Document
from gangsaw.spec.cluster import ClusterSpec, DeviceSpec
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

MANY_DRAWS = 256
"""Draws from which the compiled formulas are worth loading."""
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Doubt:
    """An input, one standard deviation of its logarithm, and how a factor on it acts."""

    name: str
    sigma: float
    source: str
    put: Callable[[Lowered, float], Lowered]


def _device(low: Lowered, **factors: float) -> Lowered:
    """Device figures times factors."""
    fields = {k: getattr(low.device, k) * f for k, f in factors.items()}
    return replace(low, device=low.device._replace(**fields))


def _stack(low: Lowered, factor: float, names: Sequence[str], most: float = math.inf) -> Lowered:
    """Stack figures times a factor, at most `most`."""
    fields = {k: min(most, getattr(low.stack, k) * factor) for k in names}
    return replace(low, stack=low.stack._replace(**fields))


def _efficiency(low: Lowered, factor: float, inside: slice) -> Lowered:
    """Efficiency of some tiers times a factor, at most the line rate."""
    values = low.net.efficiency.copy()
    values[inside] = np.minimum(1.0, values[inside] * factor)
    return replace(low, net=low.net._replace(efficiency=values))


def _attention(low: Lowered, factor: float) -> Lowered:
    kinds = tuple(
        k._replace(
            attention_a_fwd=k.attention_a_fwd * factor, attention_a_bwd=k.attention_a_bwd * factor
        )
        for k in low.kinds
    )
    return replace(low, kinds=kinds)


_FIT = "spread of fitted values over published runs, about 15 % and correlated"
DOUBTS: tuple[Doubt, ...] = (
    Doubt(
        "matrix products",
        0.06,
        _FIT + "; one device and stack spread less",
        lambda low, f: _device(low, gemm_frac=f, linear_frac=f),
    ),
    Doubt("attention", 0.10, _FIT, _attention),
    Doubt("memory bandwidth", 0.08, "measured 0.6 to 0.9 of the data sheet",
          lambda low, f: _device(low, hbm_frac=f)),
    Doubt("links in the node", 0.08, "measured bus efficiency 0.64 to 0.84",
          lambda low, f: _efficiency(low, f, slice(0, 1))),
    Doubt("links beyond the node", 0.15, "measured collectives of many nodes, congestion aside",
          lambda low, f: _efficiency(low, f, slice(1, None))),
    Doubt("latency of a step", 0.30, "2 to 30 us by distance and fabric",
          lambda low, f: replace(low, net=low.net._replace(latency_s=low.net.latency_s * f))),
    Doubt("overhead of a collective", 0.40, "20 to 60 us measured",
          lambda low, f: _stack(low, f, ("collective_overhead_s",))),
    Doubt("exposed share", 0.25, "what a stack hides is hardly identified by public rows",
          lambda low, f: _stack(
              low, f, ("tp_exposed_fwd", "tp_exposed_bwd", "ep_exposed", "cp_exposed"), 1.0)),
    Doubt("host time", 0.50, "differs by container and host",
          lambda low, f: _stack(
              low, f, ("step_overhead_s", "microbatch_overhead_s", "launch_floor_layer_s"))),
)  # fmt: skip
"""Inputs of the time model with their doubt. Prices move all plans of a cluster alike."""


class Influence(Document):
    """How much of the variance of the gap between the two best plans an input explains."""

    name: str
    first_order: float = Field(description="alone (Sobol first-order index)")
    total: float = Field(description="with its interactions (Sobol total index)")
    sigma: float
    source: str


class Robustness(Document):
    """Share of draws in which each plan wins, and which input decides between the two best."""

    plans: tuple[str, ...]
    objective: str
    draws: int
    win_frac: tuple[float, ...]
    pair: tuple[str, str] = Field(description="the two plans whose gap is explained")
    influences: tuple[Influence, ...]


def _times(case: Case, objective: Objective, factors: F64) -> F64:
    """Objective of a plan for each row of factors [draws, inputs]."""
    fast = len(factors) >= MANY_DRAWS
    step = compiled(plan_step) if fast else plan_step
    check_plan(case.job, case.plan)
    base = lower(case.job)
    counts = counts_of(case.job, case.plan)
    loads = loads_of(case.job.model, case.plan, counts)
    cut, strides = cut_of(case.plan, case.job.recipe), strides_of(case.plan)
    state = memory_state(case.plan, case.job.recipe)
    scale = case.over_form
    out = np.empty(len(factors))
    for i, row in enumerate(factors):
        low = base
        for doubt, factor in zip(DOUBTS, row, strict=True):
            low = doubt.put(low, float(factor))
        kinds = kind_rows(low.kinds) if fast else low.kinds
        cost = step(
            kinds, low.ends, loads, cut, state, low.device, low.net, strides, low.stack, low.memory
        )
        out[i] = case.objective(objective, scale * float(cost.step))
    return out


def sobol_indices(
    f: Callable[[F64], F64], sigma: F64, log2_draws: int, seed: int
) -> tuple[F64, F64, F64]:
    """First-order and total Sobol indices of f over log-normal factors, and the first draws.

    `f` takes factors [n, k] and gives n values. Scrambled Sobol points; Saltelli et al. 2010
    (Computer Physics Communications 181, table 2: b for first order, f for total).
    """
    from scipy.stats import norm, qmc

    k, n = len(sigma), 2**log2_draws
    uniform = qmc.Sobol(2 * k, seed=seed).random(n)
    normal = norm.ppf(np.clip(uniform, 1e-9, 1 - 1e-9))
    a, b = np.exp(normal[:, :k] * sigma), np.exp(normal[:, k:] * sigma)
    f_a, f_b = f(a), f(b)
    centre = float(np.mean(np.concatenate([f_a, f_b])))
    f_a, f_b = f_a - centre, f_b - centre
    variance = float(np.mean(np.concatenate([f_a, f_b]) ** 2))
    first, total = np.zeros(k), np.zeros(k)
    if variance > 0.0:
        for i in range(k):
            mixed = a.copy()
            mixed[:, i] = b[:, i]
            f_m = f(mixed) - centre
            first[i] = np.mean(f_b * (f_m - f_a)) / variance
            total[i] = np.mean((f_a - f_m) ** 2) / 2 / variance
    return first, total, a


def robustness(
    cases: Sequence[Case], objective: Objective = "time", log2_draws: int = 10, seed: int = 0
) -> Robustness:
    """Move every input within its doubt (log-normal, independent) and rank the plans again.

    Draws are equal for all plans. The indices explain the logarithm of the ratio of the two plans
    that are best without doubt. Raises InputError for fewer than two plans.
    """
    if len(cases) < 2:
        raise InputError("a ranking needs two plans or more")
    sigma = np.array([d.sigma for d in DOUBTS])
    plain = [c.value(objective) for c in cases]
    first, second = (int(i) for i in np.argsort(plain)[:2])

    def gap(factors: F64) -> F64:
        one, two = (_times(cases[i], objective, factors) for i in (first, second))
        result: F64 = np.log(one / two)
        return result

    alone, whole, draws = sobol_indices(gap, sigma, log2_draws, seed)
    on_all = np.array([_times(c, objective, draws) for c in cases])
    wins = np.bincount(on_all.argmin(axis=0), minlength=len(cases)) / len(draws)
    influences = [
        Influence(
            name=doubt.name,
            first_order=float(alone[i]),
            total=float(whole[i]),
            sigma=doubt.sigma,
            source=doubt.source,
        )
        for i, doubt in enumerate(DOUBTS)
    ]
    return Robustness(
        plans=tuple(c.name for c in cases),
        objective=objective,
        draws=len(draws),
        win_frac=tuple(float(w) for w in wins),
        pair=(cases[first].name, cases[second].name),
        influences=tuple(sorted(influences, key=lambda x: -x.total)),
    )


class Shock(Document):
    """A change of the world, and the order of the plans after it, best first."""

    name: str
    order: tuple[str, ...] = Field(
        description="those that surely fit before those that may, and these before the others"
    )
    objective: tuple[float, ...]
    fits: tuple[Literal["yes", "risky", "no"], ...] = Field((), description="in the same order")
    best_changes: bool


FITS: tuple[Literal["yes", "risky", "no"], ...] = ("yes", "risky", "no")
"""Words of the grades of `grade_of`."""


def grade_of(case: Case) -> int:
    """0: surely fits, 1: may fit, 2: does not. Raises InputError where it is not legal."""
    fit = fit_now(case)
    return len(FITS) - 1 if fit is None else fit


def rankable(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The plans among which a ranking makes sense: two or more that surely fit, or that may.

    All of them where fewer than two fit: the ranking then leaves memory aside.
    """
    grades = [grade_of(c) for c in cases]
    for worst in range(len(FITS) - 1):
        some = tuple(c for c, g in zip(cases, grades, strict=True) if g <= worst)
        if len(some) > 1:
            return some
    return tuple(cases)


WITHDRAWN = {"h100-sxm": "h800-sxm", "h200-sxm": "h20-sxm", "a100-sxm-80g": "a100-pcie-80g"}
"""What is bought where a device may not be: the export variant, or the one without its link."""


def stand_in(node: str, cluster: ClusterSpec) -> str | None:
    """The node bought where that of a cluster is withdrawn; None for a device not in the catalog.

    The export variant where there is one; else the same vendor's strongest device that is neither
    faster in bf16 nor, at the same speed, larger; else, for a vendor's slowest, whatever is nearest
    to it in bf16. Variants of the same product, and of a device that has a node already, are out.
    """
    if node in WITHDRAWN:
        return WITHDRAWN[node]
    if node not in list_nodes():
        return None
    here, found = cluster.device, {cluster.device.name: (node, cluster)}
    for name in list_nodes():
        try:
            other = load_cluster(f"{name}:{cluster.devices}")
        except InputError:  # no whole number of its nodes
            continue
        if not (name.startswith(node) or node.startswith(name)):
            found.setdefault(other.device.name, (name, other))
    del found[here.name]

    def rate(device: DeviceSpec) -> float:
        peaks = device.peak_flops_per_s
        return peaks.get("bf16", peaks.get("fp16", 1.0))

    def size(item: tuple[str, ClusterSpec]) -> tuple[float, float, str]:
        return rate(item[1].device), item[1].device.memory_bytes, item[0]

    own = (rate(here), here.memory_bytes * 1.01)
    same = [x for x in found.values() if x[1].device.vendor == here.vendor]
    weaker = [x for x in same if size(x)[:2] < own]
    if weaker:
        return max(weaker, key=size)[0]
    nearest = sorted(found.values(), key=lambda x: (abs(math.log(size(x)[0] / rate(here))), x[0]))
    return nearest[0][0] if nearest else None


def shocks(cases: Sequence[Case], objective: Objective = "cost") -> tuple[Shock, ...]:
    """Re-rank after: device withdrawn, its link cut, a price doubled, energy doubled.

    A plan that is no longer legal is left out of the order.
    """
    out: list[Shock] = []
    for name, change in _worlds(next((c for c in cases if not c.elsewhere), cases[0])):
        ranked = []
        for case in cases:
            try:
                moved = change(case)
                ranked.append((grade_of(moved), moved.value(objective), case.name))
            except InputError:
                continue
        ranked.sort()
        order = tuple(n for _, _, n in ranked)
        out.append(
            Shock(
                name=name,
                order=order,
                objective=tuple(v for _, v, _ in ranked),
                fits=tuple(FITS[g] for g, _, _ in ranked),
                best_changes=bool(out) and order[:1] != out[0].order[:1],
            )
        )
    return tuple(out)


def _worlds(home: Case) -> list[tuple[str, Callable[[Case], Case]]]:
    """The shocks of a cluster, each as what it does to a case; cases elsewhere pay the energy."""

    def here(change: Callable[[Case], Case]) -> Callable[[Case], Case]:
        return lambda case: case if case.elsewhere else change(case)

    cluster = home.job.cluster
    worlds: list[tuple[str, Callable[[Case], Case]]] = [("as it is", lambda c: c)]
    node = cluster.name.partition(":")[0]
    other = stand_in(node, cluster)
    if other:
        swapped = load_cluster(f"{other}:{cluster.devices}")
        name = f"{node} withdrawn, {other} instead"
        if not swapped.usd_per_device_hour:
            name += " at its price"
        worlds.append((name, here(lambda c: _instead(c, swapped))))
    worlds.append(("links in the node halved", here(lambda c: _slower(c, 0.5, False))))
    if len(cluster.tiers) > inner_tiers(home).stop:
        worlds.append(("links beyond the node halved", here(lambda c: _slower(c, 0.5, True))))
    return [
        *worlds,
        ("device price doubled", here(lambda c: _paying(c, 2.0, 1.0))),
        ("energy doubled", lambda c: _paying(c, 1.0, 2.0)),
    ]


def _on(case: Case, cluster: object) -> Case:
    return replace(case, job=case.job.model_copy(update={"cluster": cluster}))


def _instead(case: Case, cluster: ClusterSpec) -> Case:
    """On other devices, at their price and power; where a figure lacks, what it was stays."""
    own, other = case.job.cluster, cluster
    power = 1.0
    if own.host.node_power_w and other.host.node_power_w:
        power = other.host.node_power_w / other.host.devices
        power /= own.host.node_power_w / own.host.devices
    money = replace(
        case.money,
        usd_per_device_hour=other.usd_per_device_hour or case.money.usd_per_device_hour,
        device_w=case.money.device_w * power,
    )
    return replace(_on(case, cluster), money=money)


def _slower(case: Case, factor: float, beyond: bool) -> Case:
    """Tiers beyond the fast domain, or those inside it, at `factor` of their bandwidth."""
    inside = inner_tiers(case).stop
    tiers = tuple(
        t.model_copy(update={"bytes_per_s": t.bytes_per_s * factor})
        if (i >= inside) == beyond
        else t
        for i, t in enumerate(case.job.cluster.tiers)
    )
    return _on(case, case.job.cluster.model_copy(update={"tiers": tiers}))


def _paying(case: Case, price: float, energy: float) -> Case:
    money = case.money
    return replace(
        case,
        money=replace(
            money,
            usd_per_device_hour=money.usd_per_device_hour * price,
            # What a rented hour includes rises by as much as energy that is billed on top.
            usd_per_kwh=money.usd_per_kwh
            + (energy - 1.0) * (money.usd_per_kwh or money.usual_usd_per_kwh),
        ),
    )


class TierCarries(Document):
    """A tier: bandwidth over compute, and the tensor-parallel degree that it carries."""

    tier: str
    devices: int
    bytes_per_s: float
    bytes_per_flop: float = Field(description="link of a device over its dense peak")
    comm_over_compute: dict[int, float] = Field(
        description="exposed TP communication over a layer's compute, by degree"
    )
    largest_tp: int = Field(description="largest degree within the wanted share; 1: none")


def tier_carries(job: Job, most_frac: float = 0.25) -> tuple[TierCarries, ...]:
    """For each tier, which TP degree keeps communication at `most_frac` of a layer's compute.

    A group of a tier has its members spread as far as the tier goes: one a domain of the tier
    below. So the step from the first to the second entry is the node boundary.
    """
    low = lower(job)
    layer = max(low.kinds, key=lambda k: k.attention_params + k.mlp_params)
    net, out = net_of(job.cluster), []
    inner = 1
    for index, tier in enumerate(job.cluster.tiers):
        ratios: dict[int, float] = {}
        degree = 2
        while degree <= min(64, tier.devices // inner, job.cluster.devices // inner):
            heads_split = layer.heads % degree == 0
            if heads_split and group_path(net, float(degree), float(inner), index) >= degree:
                width = float(degree * inner)
                strides = Strides(float(inner), width, width, width, width, width, width)
                cut = cut_of(Plan(tp=degree), job.recipe)
                time = layer_time(layer, cut, low.device, low.net, strides, low.stack)
                compute = time.fwd + time.bwd + time.wgrad
                ratios[degree] = (time.tp_fwd + time.tp_bwd) / compute
            degree *= 2
        carried = [d for d, r in ratios.items() if r <= most_frac]
        out.append(
            TierCarries(
                tier=tier.name,
                devices=tier.devices,
                bytes_per_s=tier.bytes_per_s,
                bytes_per_flop=tier.bytes_per_s / low.device.peak,
                comm_over_compute=ratios,
                largest_tp=max(carried, default=1),
            )
        )
        inner = tier.devices
    return tuple(out)


def spread_of(case: Case, log2_draws: int = 6, seed: int = 0) -> float:
    """Half-width of the central 80 % of step times over their median, inputs within their doubt."""
    from scipy.stats import norm, qmc

    uniform = qmc.Sobol(len(DOUBTS), seed=seed).random(2**log2_draws)
    sigma = np.array([d.sigma for d in DOUBTS])
    factors = np.exp(norm.ppf(np.clip(uniform, 1e-9, 1 - 1e-9)) * sigma)
    low, middle, high = np.quantile(_times(case, "time", factors), (0.1, 0.5, 0.9))
    return float((high - low) / 2 / middle)
