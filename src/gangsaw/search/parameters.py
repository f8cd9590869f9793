"""What a threshold can run over: one number of a job, with how it changes job and plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from gangsaw.bill.goodput import daly_interval_s, expected_wall_s, job_mtbf_s
from gangsaw.cost.lower import Lowered
from gangsaw.cost.types import StepCost
from gangsaw.errors import InputError
from gangsaw.search.estimate import closed_form, evaluate
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.units import HOUR_S

Objective = Literal["time", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("time", "cost")


@dataclass(frozen=True)
class Money:
    """What turns device time into money: a device-hour, its energy, and what failures cost."""

    usd_per_device_hour: float
    device_w: float = 0.0
    usd_per_kwh: float = 0.0
    device_mtbf_h: float = math.inf
    restart_s: float = 0.0
    checkpoint_block_s: float = 0.0
    usual_usd_per_kwh: float = 0.0
    """What energy usually costs: the middle of a range where none is billed on top."""

    def hour_usd(self) -> float:
        """Money of one device-hour: price, and energy at the meter on top of it."""
        return self.usd_per_device_hour + self.device_w / 1e3 * self.usd_per_kwh

    def stretch(self, devices: int) -> float:
        """Wall time over work: saves at Daly's interval and failures of `devices` devices."""
        if math.isinf(self.device_mtbf_h):
            return 1.0
        mtbf_s = job_mtbf_s(self.device_mtbf_h, devices)
        block_s = max(self.checkpoint_block_s, 1e-3)
        interval_s = daly_interval_s(block_s, mtbf_s)
        return expected_wall_s(1.0, block_s, interval_s, mtbf_s, self.restart_s)


@dataclass(frozen=True)
class Case:
    """A plan of a job, with the money around it."""

    name: str
    job: Job
    plan: Plan
    money: Money
    elsewhere: bool = False
    """On another cluster than the one asked about, whose hardware and price stand still."""
    root: Case | None = None
    """The case that this one was moved from, by whatever parameters."""

    def step(self, low: Lowered | None = None) -> StepCost:
        """Seconds of a step; InputError where the plan is not legal for this job.

        Of a case that was moved: the closed form times `over_form`.
        """
        if self.root is None:
            return evaluate(self.job, self.plan, low).cost
        return StepCost(*(self.over_form * x for x in closed_form(self.job, self.plan, low).cost))

    @property
    def over_form(self) -> float:
        """The step as estimated (event loop, a site's steps) over its closed form.

        On the hardware of the case that this one was moved from, with this one's microbatches and
        sequence: along rates of the hardware a line is one formula, and a map is the same whichever
        parameter is moved first.
        """
        root, recipe = self.root or self, self.job.recipe
        key = recipe.seq_len, recipe.global_batch, self.plan.num_microbatches
        if key not in root._forms:
            job = root.job.model_copy(update={"recipe": recipe})
            step_s = evaluate(job, self.plan).cost.step
            root._forms[key] = float(step_s / closed_form(job, self.plan).cost.step)
        return root._forms[key]

    @cached_property
    def _forms(self) -> dict[tuple[int, int, int], float]:
        return {}

    def value(self, objective: Objective, low: Lowered | None = None) -> float:
        """Seconds a million tokens, or US dollars a million tokens, failures included."""
        return self.objective(objective, self.step(low).step)

    def objective(self, objective: Objective, step_s: float) -> float:
        """The objective of a step of `step_s` seconds."""
        devices = self.job.cluster.devices
        millions = self.job.recipe.tokens_per_step / 1e6
        wall_s = step_s * self.money.stretch(devices) / millions
        if objective == "time":
            return wall_s
        return wall_s * devices / HOUR_S * self.money.hour_usd()


@dataclass(frozen=True)
class Parameter:
    """One number of a case: how it is read and set. Whole parameters take whole values only."""

    name: str
    unit: str
    text: str
    get: Callable[[Case], float]
    put: Callable[[Case, float], Case]
    whole: bool = False
    span: tuple[float, float] = (1 / 16, 16.0)
    """Default range, as factors of the present value."""
    memory: bool = False
    """Whether it changes what fits."""
    cluster: bool = False
    """Whether it is one cluster's own: a case elsewhere keeps what it has."""

    def middle(self, case: Case) -> float:
        """The present value; of energy that is not billed on top, what it usually costs."""
        return self.get(case) or (
            case.money.usual_usd_per_kwh if self.name == "energy-price" else 0.0
        )

    def at(self, case: Case, value: float) -> Case:
        """The case with this parameter set; InputError for values that no case can have."""
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{self.name}={value!r}: a positive number of {self.unit}")
        if self.cluster and case.elsewhere:
            return case
        case = replace(case, root=case.root or case)
        return self.put(case, float(round(value)) if self.whole else value)


def inner_tiers(case: Case) -> slice:
    """The tiers of the fast domain: up to the first that holds a whole host (a node, or a rack)."""
    tiers, host = case.job.cluster.tiers, case.job.cluster.host.devices
    return slice(0, next((i + 1 for i, t in enumerate(tiers) if t.devices >= host), len(tiers)))


def outer_tier(case: Case) -> int:
    """Index of the first tier beyond the fast domain; InputError where there is none."""
    index = inner_tiers(case).stop
    if index < len(case.job.cluster.tiers):
        return int(index)
    raise InputError(
        f"{case.job.cluster.name} with {case.job.cluster.devices} devices has no link beyond its"
        f" {domain_of(case)}. Legal: intra-node-bandwidth, or more devices than that holds"
    )


def domain_of(case: Case) -> str:
    """What the fast domain is called: a node, or a rack of its kind."""
    last: int = inner_tiers(case).stop - 1
    return case.job.cluster.tiers[last].name


def link_parameter(case: Case) -> Parameter:
    """The links that a cluster's size makes scarce: beyond the domain, or inside the only one."""
    outer = inner_tiers(case).stop < len(case.job.cluster.tiers)
    return parameter("inter-node-bandwidth" if outer else "intra-node-bandwidth")


def _scaled_tiers(case: Case, factor: float, outer: bool) -> Case:
    """Bandwidth of all tiers beyond the node (or of those inside it) times `factor`."""
    first = outer_tier(case) if outer else inner_tiers(case).stop
    tiers = tuple(
        tier.model_copy(update={"bytes_per_s": tier.bytes_per_s * factor})
        if (index >= first) == outer
        else tier
        for index, tier in enumerate(case.job.cluster.tiers)
    )
    return with_cluster(case, tiers=tiers)


def with_cluster(case: Case, **fields: object) -> Case:
    """The case with other fields of its cluster."""
    cluster = case.job.cluster.model_copy(update=fields)
    return replace(case, job=case.job.model_copy(update={"cluster": cluster}))


def _with_recipe(case: Case, **fields: object) -> Case:
    recipe = case.job.recipe.model_copy(update=fields)
    return replace(case, job=case.job.model_copy(update={"recipe": recipe}))


def _with_device(case: Case, **fields: object) -> Case:
    return with_cluster(case, device=case.job.cluster.device.model_copy(update=fields))


def _inter(case: Case) -> float:
    return case.job.cluster.tiers[outer_tier(case)].bytes_per_s


def _intra(case: Case) -> float:
    return case.job.cluster.tiers[0].bytes_per_s


def _put_batch(case: Case, batch: float) -> Case:
    """Another global batch: the plan keeps its degrees and takes other microbatches.

    Raises InputError where dp x mbs does not divide it.
    """
    whole = round(batch)
    group = case.plan.dp * case.plan.mbs
    if whole % group:
        raise InputError(
            f"global-batch={whole}: not a multiple of dp x mbs = {case.plan.dp} x {case.plan.mbs}"
        )
    plan = case.plan.model_copy(update={"num_microbatches": whole // group})
    return replace(_with_recipe(case, global_batch=whole), plan=plan)


def _put_microbatches(case: Case, count: float) -> Case:
    """Another number of microbatches at the same microbatch size: the batch follows."""
    plan = case.plan.model_copy(update={"num_microbatches": round(count)})
    batch = round(count) * plan.dp * plan.mbs
    return replace(_with_recipe(case, global_batch=batch), plan=plan)


def _money(name: str) -> Callable[[Case, float], Case]:
    def put(case: Case, value: float) -> Case:
        return replace(case, money=replace(case.money, **{name: value}))

    return put


def _put_rate(case: Case, per_1000_node_days: float) -> Case:
    hosts = case.job.cluster.host.devices
    hours = 24.0 * 1000.0 / per_1000_node_days * hosts
    return replace(case, money=replace(case.money, device_mtbf_h=hours))


def _get_rate(case: Case) -> float:
    if math.isinf(case.money.device_mtbf_h):
        raise InputError("failure-rate: the case has no mean time to failure")
    return 24.0 * 1000.0 / case.money.device_mtbf_h * case.job.cluster.host.devices


PARAMETERS: dict[str, Parameter] = {
    p.name: p
    for p in (
        Parameter(
            "inter-node-bandwidth", "bytes/s a device",
            "links beyond the node (or rack) of fast links, all tiers alike",
            _inter, lambda c, v: _scaled_tiers(c, v / _inter(c), True), cluster=True,
        ),
        Parameter(
            "intra-node-bandwidth", "bytes/s a device", "links inside the node",
            _intra, lambda c, v: _scaled_tiers(c, v / _intra(c), False), cluster=True,
        ),
        Parameter(
            "device-price", "USD a device-hour", "price of a device-hour",
            lambda c: c.money.usd_per_device_hour, _money("usd_per_device_hour"), cluster=True,
        ),
        Parameter(
            "energy-price", "USD a kWh", "energy on top of the device-hour",
            lambda c: c.money.usd_per_kwh, _money("usd_per_kwh"),
        ),
        Parameter(
            "failure-rate", "failures a 1,000 node-days", "unexpected stops",
            _get_rate, _put_rate,
        ),
        Parameter(
            "sequence-length", "tokens", "tokens a sequence at the same global batch",
            lambda c: float(c.job.recipe.seq_len),
            lambda c, v: _with_recipe(c, seq_len=round(v)), whole=True, memory=True,
        ),
        Parameter(
            "global-batch", "sequences", "sequences a step; microbatches follow",
            lambda c: float(c.job.recipe.global_batch), _put_batch, whole=True, memory=True,
        ),
        Parameter(
            "microbatches", "microbatches", "microbatches a step; the batch follows",
            lambda c: float(c.plan.num_microbatches), _put_microbatches, whole=True, memory=True,
        ),
        Parameter(
            "device-flops", "FLOP/s", "dense peak, all precisions alike",
            lambda c: c.job.cluster.device.peak_flops_per_s["bf16"],
            lambda c, v: _with_device(
                c,
                peak_flops_per_s={
                    k: x * v / c.job.cluster.device.peak_flops_per_s["bf16"]
                    for k, x in c.job.cluster.device.peak_flops_per_s.items()
                },
            ),
            cluster=True,
        ),
        Parameter(
            "device-bandwidth", "bytes/s", "memory bandwidth of a device",
            lambda c: c.job.cluster.device.memory_bytes_per_s,
            lambda c, v: _with_device(c, memory_bytes_per_s=v), cluster=True,
        ),
        Parameter(
            "device-memory", "bytes", "memory of a device",
            lambda c: c.job.cluster.device.memory_bytes,
            lambda c, v: _with_device(c, memory_bytes=v), memory=True, cluster=True,
        ),
    )
}  # fmt: skip
"""All parameters by name."""


def parameter(name: str, flag: str = "--over") -> Parameter:
    """A parameter by name, stated by `flag`; InputError with the names there are."""
    if name not in PARAMETERS:
        raise InputError(f"{flag} {name!r} is unknown. Legal: {', '.join(PARAMETERS)}")
    return PARAMETERS[name]
