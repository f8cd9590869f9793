"""Whole published training runs: device-hours and energy predicted from what reports state.

`python -m gangsaw.search.published docs/published-runs.md` writes the comparison.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path

from pydantic import Field

from gangsaw.bill.power import site_power
from gangsaw.bill.run import run_account
from gangsaw.bill.use import use_of_plan
from gangsaw.errors import InputError
from gangsaw.read.clusters import cluster_of, load_cluster, with_inter_efficiency
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.read.stacks import load_stack
from gangsaw.read.toml import parse_toml, validate
from gangsaw.search.estimate import estimate
from gangsaw.spec.base import Count, Document, Frac, NonNegative, Positive
from gangsaw.spec.invoice import RunTerms
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Precision, Recipe
from gangsaw.spec.stack import blocking
from gangsaw.units import GBPS, HOUR_S

BOUND_FRAC = 0.15
"""A run whose report states enough is predicted within this."""
WEEK_H = 168.0
_FILE = "published_runs.toml"


class RunPhase(Document):
    """A stretch of a run with one batch and plan."""

    label: str
    tokens: Positive
    devices: Count
    seq_len: Count
    global_batch: Count
    precision: Precision = "bf16"
    ramp_tokens: NonNegative = 0.0
    ramp_start_frac: Frac = 1.0
    plan: Plan


class Otherwise(Document):
    """What a report leaves open, taken another way."""

    label: str
    stack_time: dict[str, float | str] = Field(default_factory=dict)
    vpp: Count | None = None


class PublishedRun(Document):
    """A run as its report states it."""

    title: str
    model: str
    node: str
    nic_gbps: Positive | None = Field(
        None, description="network port of a device, Gbit/s, where it is not the node's usual one"
    )
    inter_efficiency: Frac | None = Field(
        None, description="share of that port's rate that collectives were measured to reach"
    )
    stack: str
    stack_time: dict[str, float | str] = Field(default_factory=dict)
    launch_blocking: bool = Field(False, description="run with CUDA_LAUNCH_BLOCKING=1")
    device_hours: Positive
    node_kwh: Positive | None = Field(None, description="at the nodes, without PUE")
    source: str
    effective_frac: Frac = Field(1.0, description="of wall time that was training")
    failures_per_week: NonNegative = 0.0
    checkpoint_interval_s: Positive | None = None
    checkpoint_block_s: NonNegative = 0.0
    restart_s: NonNegative = 0.0
    outage_h: NonNegative = Field(0.0, description="outages of the whole job, hours in all")
    planned_restart_h: Positive | None = Field(None, description="hours from restart to restart")
    effective_why: str = ""
    assumed: str = ""
    otherwise: tuple[Otherwise, ...] = ()
    bounded: bool = True
    phases: tuple[RunPhase, ...]


class PhaseHours(Document):
    """A phase as predicted."""

    label: str
    step_time_s: float
    mfu_frac: float
    device_hours: float = Field(description="of training, ramp included")
    lost_device_hours: float = Field(description="to saves and failures")


class RunCheck(Document):
    """A run predicted, beside what its report says it took."""

    name: str
    run: PublishedRun
    phases: tuple[PhaseHours, ...]
    device_hours: float
    ratio: float = Field(description="predicted over published")
    node_kwh: float | None = None
    otherwise: tuple[tuple[str, float], ...] = Field(
        (), description="ratio where what the report leaves open is taken another way"
    )

    @property
    def bound(self) -> str:
        """The bound that the run is held to, and whether it is missed."""
        if not self.run.bounded:
            return "none"
        missed = abs(self.ratio - 1.0) > BOUND_FRAC
        return f"{100 * BOUND_FRAC:.0f} %{', missed' if missed else ''}"


@lru_cache(maxsize=1)
def published_runs() -> dict[str, PublishedRun]:
    """The runs of the catalog by name."""
    text = resources.files("gangsaw.catalog").joinpath(_FILE).read_text("utf-8")
    table = parse_toml(text, _FILE)
    return {name: validate(PublishedRun, row, f"{_FILE}: {name}") for name, row in table.items()}


def job_of(run: PublishedRun, phase: RunPhase) -> Job:
    """The job of one phase, its stack changed where the report says so."""
    stack = load_stack(run.stack)
    if run.stack_time:
        stack = stack.model_copy(
            update={"time": stack.time.model_copy(update=dict(run.stack_time))}
        )
    if run.launch_blocking:
        stack = stack.model_copy(update={"time": blocking(stack.time)})
    cluster = cluster_of(
        run.node,
        phase.devices,
        inter_bytes_per_s=run.nic_gbps * GBPS if run.nic_gbps else None,
    )
    if run.inter_efficiency is not None:
        cluster = with_inter_efficiency(cluster, run.inter_efficiency, run.source)
    return Job(
        model=load_model(run.model),
        recipe=Recipe(
            seq_len=phase.seq_len, global_batch=phase.global_batch, precision=phase.precision
        ),
        cluster=cluster,
        stack=stack,
    )


def terms_of(run: PublishedRun, phase: RunPhase) -> RunTerms:
    """Ramp, failures and saves of a phase as the run bill takes them."""
    mtbf_h = None
    if run.failures_per_week:
        mtbf_h = WEEK_H / run.failures_per_week * phase.devices
    return RunTerms(
        tokens=phase.tokens,
        ramp_tokens=phase.ramp_tokens,
        ramp_start_frac=phase.ramp_start_frac,
        device_mtbf_h=mtbf_h,
        restart_s=run.restart_s,
        checkpoint_block_s=run.checkpoint_block_s,
        checkpoint_interval_s=run.checkpoint_interval_s,
    )


def check_run(name: str) -> RunCheck:
    """Predict a published run. Raises InputError for a name that the catalog does not have."""
    runs = published_runs()
    if name not in runs:
        raise InputError(f"no published run {name!r}. Legal: {', '.join(runs)}")
    run = runs[name]
    first = predicted(name, run)
    rows = tuple((o.label, predicted(name, _changed(run, o)).ratio) for o in run.otherwise)
    return first.model_copy(update={"otherwise": rows})


def _changed(run: PublishedRun, other: Otherwise) -> PublishedRun:
    """The run with one open choice taken another way."""
    phases = run.phases
    if other.vpp is not None:
        fields = {"vpp": other.vpp, "schedule": "interleaved" if other.vpp > 1 else "1f1b"}
        phases = tuple(
            p.model_copy(update={"plan": p.plan.model_copy(update=fields)}) for p in phases
        )
    time = {**run.stack_time, **other.stack_time}
    return run.model_copy(update={"phases": phases, "stack_time": time})


def predicted(name: str, run: PublishedRun) -> RunCheck:
    """A run's hours and energy, phase by phase."""
    phases = []
    for phase in run.phases:
        job = job_of(run, phase)
        result = estimate(job, phase.plan)
        use = use_of_plan(result, job.recipe.tokens_per_step)
        account, _, _ = run_account(use, terms_of(run, phase))
        lost_s = math.fsum(
            s for slot, s in account.slots.items() if slot[0] in ("checkpoints", "failures")
        )
        trained_h = (account.devices * account.wall_s - lost_s) / HOUR_S
        lost_h = lost_s / HOUR_S + trained_h * (1 / run.effective_frac - 1)
        lost_h += phase.devices * _stopped_h(run, trained_h / phase.devices)
        phases.append(
            PhaseHours(
                label=phase.label,
                step_time_s=result.step_time_s,
                mfu_frac=result.mfu_frac,
                device_hours=trained_h,
                lost_device_hours=lost_h,
            )
        )
    hours = math.fsum(p.device_hours + p.lost_device_hours for p in phases)
    return RunCheck(
        name=name,
        run=run,
        phases=tuple(phases),
        device_hours=hours,
        ratio=hours / run.device_hours,
        node_kwh=_node_kwh(run, hours),
    )


def _stopped_h(run: PublishedRun, wall_h: float) -> float:
    """Hours that the job stood still by outages and planned restarts."""
    planned = 0.0
    if run.planned_restart_h is not None:
        planned = wall_h / run.planned_restart_h * run.restart_s / HOUR_S
    return run.outage_h + planned


def _node_kwh(run: PublishedRun, hours: float) -> float | None:
    """Energy at the nodes at measured power, without network and PUE, where a report has it."""
    if run.node_kwh is None:
        return None
    power = site_power(shipped_prices(), run.node)
    per_node = load_cluster(f"{run.node}:{run.phases[0].devices}").host.devices
    return hours / per_node * power.node_rated_w * power.measured_frac / 1e3


_HEAD = """# Device-hours of published training runs

Predicted from what each report states: model, tokens, plan, phases, interruptions. "training" is
the step time times the steps, batch ramp included; "lost" is what interruptions and saves add.
What a report leaves open, and what stands in for it, is said under each run, and where it decides,
what another choice gives. Runs whose report states neither plan nor devices are shown without a
bound.

This file is generated: `python -m gangsaw.search.published docs/published-runs.md`.

| run | predicted M device-hours | published | ratio | bound |
|---|--:|--:|--:|---|
"""


def published_markdown(checks: tuple[RunCheck, ...]) -> str:
    """The comparison as a document."""
    out = [_HEAD.rstrip("\n")]
    for c in checks:
        out.append(
            f"| {c.run.title} | {c.device_hours / 1e6:.3f} | {c.run.device_hours / 1e6:.3f}"
            f" | {c.ratio:.2f} | {c.bound} |"
        )
    for c in checks:
        out += ["", f"## {c.run.title}", ""]
        for p in c.phases:
            out.append(
                f"- {p.label}: step {p.step_time_s:.2f} s, MFU {100 * p.mfu_frac:.1f} %,"
                f" training {p.device_hours / 1e6:.3f}M, lost {p.lost_device_hours / 1e6:.3f}M"
            )
        rest = c.run.device_hours - c.device_hours
        out.append(
            f"- not explained: {rest / 1e6:+.3f}M device-hours ({100 * (1 / c.ratio - 1):+.0f} %)"
        )
        if c.node_kwh is not None and c.run.node_kwh is not None:
            out.append(
                f"- energy at the nodes: {c.node_kwh / 1e3:,.0f} MWh predicted,"
                f" {c.run.node_kwh / 1e3:,.0f} MWh published"
            )
        if c.run.effective_why:
            out.append(f"- interruptions: {c.run.effective_why}")
        if c.run.assumed:
            out.append(f"- assumed: {c.run.assumed}")
        out += [f"- {label}: ratio {ratio:.2f}" for label, ratio in c.otherwise]
        out.append(f"- source: {c.run.source}")
    return "\n".join(out) + "\n"


def main(arguments: list[str]) -> int:
    """Write the document to the file named."""
    if len(arguments) != 1:
        raise InputError("published: one argument, the file to write")
    checks = tuple(check_run(name) for name in published_runs())
    Path(arguments[0]).write_text(published_markdown(checks), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
