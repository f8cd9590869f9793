"""The doctor's first look: a launch file against the rules of its framework and version."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gangsaw.doctor.context import names_of
from gangsaw.doctor.effect import Site, effect_of
from gangsaw.doctor.experts import expert_comm_s
from gangsaw.doctor.expressions import Evaluator
from gangsaw.doctor.predict import Predicted, full_estimate, job_of, predict, why_not
from gangsaw.doctor.resume import ResumeResult
from gangsaw.doctor.rulebook import Rule, Severity, rules
from gangsaw.doctor.saving import SaveResult
from gangsaw.errors import InputError
from gangsaw.read.launch.document import Assumed, LaunchFile, Value
from gangsaw.read.launch.frameworks import Restated, restate
from gangsaw.read.models import load_model
from gangsaw.spec import ClusterSpec, Job, ModelSpec, StackProfile
from gangsaw.spec.base import Document

ORDER = ("error", "wrong-model", "waste")


class Fault(Document):
    """One fault: where it stands, what is wrong, the rule, what is legal, and the repair."""

    code: str
    severity: Severity
    where: str = Field(description="file:line, or the file where the value is a default")
    message: str
    rule: str
    legal: tuple[Value, ...] = ()
    repair: str
    source: str = Field(description="file and release of the framework, or publication")
    effect: str = Field(description="what the repair changes, or why that is not predicted")
    params_change: float | None = Field(None, description="parameters after the repair less now")
    peak_bytes: float | None = Field(None, description="predicted device peak after the repair")
    step_time_s: float | None = Field(None, description="predicted step time after the repair")
    peak_change_bytes: float | None = None
    step_time_change_frac: float | None = Field(None, description="at equal tokens")


class ModelSize(Document):
    """A model's size, and what the plan makes of it where that can be predicted."""

    params: float
    active_params: float
    peak_bytes: float | None = None
    step_time_s: float | None = None


class CheckResult(Document):
    """What `check --json` prints."""

    path: str
    framework: str
    version: str = ""
    model: str = ""
    faults: tuple[Fault, ...] = ()
    refused: tuple[str, ...] = Field((), description="what gangsaw cannot judge, in one line each")
    unread: tuple[str, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    missing: tuple[str, ...] = ()
    stages: tuple[int, ...] = Field((), description="layers of each chunk, resolved")
    grid: dict[str, int] = Field({}, description="resolved degrees, experts and devices")
    peak_bytes: float | None = None
    step_time_s: float | None = None
    not_predicted: str = Field("", description="why memory and time are not predicted")
    runs: ModelSize | None = Field(None, description="the model that would run")
    named: ModelSize | None = Field(None, description="the model named, where it is another")
    rules_checked: int = 0
    expert_comm_s: dict[str, float] = Field(
        {}, description="exposed seconds a step of ways to bring tokens to experts"
    )
    resume: ResumeResult | None = Field(None, description="where a saved layout was stated")
    saving: SaveResult | None = Field(None, description="where the time of a save was stated")


def check(
    launch: LaunchFile,
    cluster: ClusterSpec | None = None,
    stack: StackProfile | None = None,
    version: str = "",
) -> CheckResult:
    """All faults of a launch file: errors first, then wrong models, then waste.

    With a cluster, memory and time of the plan and of its repairs are predicted too. `version` is
    the framework's release where the file does not state it; without one the newest rules hold.
    """
    launch = on_cluster(launch, cluster)
    names = names_of(launch, cluster, stack, version)
    flags = {key: "None" if value is None else value for key, value in launch.flags.items()}
    judge = Evaluator(names, flags, frozenset(launch.wheres))
    job = job_of(launch, cluster, stack)
    site = Site(launch, cluster, stack, predict(job, launch.plan))
    found: list[Fault] = []
    checked = 0
    for rule in rules():
        if not rule.applies(launch.framework, version or launch.version):
            continue
        checked += 1
        if judge.holds(rule.when):
            found.append(_fault(rule, judge, site))
    found = _without_summaries(found)
    found.sort(key=lambda fault: ORDER.index(fault.severity))
    why = ""
    if cluster is not None and site.base is None:
        why = "; ".join(launch.missing) or why_not(job, launch.plan)
    return CheckResult(
        path=launch.path, framework=launch.framework, version=version or launch.version,
        model=launch.model_name or (launch.model.name if launch.model else ""),
        faults=tuple(found), refused=refused(launch), unread=launch.unread,
        assumed=launch.assumed, missing=launch.missing, stages=_stages(launch),
        grid=_grid(names), peak_bytes=site.base.peak_bytes if site.base else None,
        step_time_s=site.base.step_s if site.base else None, rules_checked=checked,
        expert_comm_s=_experts(job, launch), not_predicted=why,
        runs=_size(launch.model, site.base), named=_named(site),
    )  # fmt: skip


def _without_summaries(found: list[Fault]) -> list[Fault]:
    """Faults less those that only sum up what others of the same kind say in full."""
    lone = {rule.code for rule in rules() if rule.alone}
    if any(f.severity == "wrong-model" and f.code not in lone for f in found):
        return [fault for fault in found if fault.code not in lone]
    return found


def on_cluster(launch: LaunchFile, cluster: ClusterSpec | None) -> LaunchFile:
    """The launch on a stated cluster: where the file leaves the devices open, it has them all."""
    if cluster is None or launch.facts.get("world") is not None:
        return launch
    return restate(launch, Restated({}, cluster.devices))


def _experts(job: Job | None, launch: LaunchFile) -> dict[str, float]:
    if job is None or launch.plan is None or launch.plan.ep == 1:
        return {}
    found = full_estimate(job, launch.plan)
    return {} if found is None else expert_comm_s(job.model, launch.plan, found)


def _size(model: ModelSpec | None, found: Predicted | None) -> ModelSize | None:
    if model is None:
        return None
    return ModelSize(
        params=float(model.params()), active_params=float(model.active_params()),
        peak_bytes=found.peak_bytes if found else None,
        step_time_s=found.step_s if found else None,
    )  # fmt: skip


def _named(site: Site) -> ModelSize | None:
    """The model that the file names, under the file's plan; None where it is the one that runs."""
    launch = site.launch
    if not launch.model_name or launch.model is None:
        return None
    try:
        model = load_model(launch.model_name)
    except InputError:
        return None
    # A padded vocabulary is the same model.
    spare = max(0, launch.model.vocab - model.vocab) * model.hidden * (1 if model.tied else 2)
    if abs(launch.model.params() - model.params()) <= spare + 1e-4 * model.params():
        return None
    job = job_of(launch, site.cluster, site.stack)
    if job is not None:
        job = job.model_copy(update={"model": model})
    return _size(model, predict(job, launch.plan))


def _fault(rule: Rule, judge: Evaluator, site: Site) -> Fault:
    legal = judge.value(rule.legal) if rule.legal else []
    change = effect_of(rule, judge, site)
    return Fault(
        code=rule.code, severity=rule.severity, where=_where(rule, judge, site.launch),
        message=judge.fill(rule.message), rule=rule.rule,
        legal=_legal(legal),
        repair=judge.fill(rule.repair), source=rule.source, effect=change.text,
        params_change=change.params_change, peak_bytes=change.peak_bytes,
        step_time_s=change.step_time_s, peak_change_bytes=change.peak_change_bytes,
        step_time_change_frac=change.step_time_change_frac,
    )  # fmt: skip


def _legal(found: object) -> tuple[Value, ...]:
    """Legal values that are known, each once."""
    if not isinstance(found, list):
        return ()
    plain = [item for item in found if isinstance(item, (bool, int, float, str))]
    return tuple(dict.fromkeys(plain))


def _where(rule: Rule, judge: Evaluator, launch: LaunchFile) -> str:
    """Where the fault stands: a fact's or key's line, or that of the key which a name holds."""
    key = judge.names.get(rule.at[1:]) if rule.at.startswith("@") else None
    return launch.where(str(key) if key else rule.at)


def refused(launch: LaunchFile) -> tuple[str, ...]:
    """One line for each thing that gangsaw does not judge: mixed devices, shared devices."""
    lines = []
    kinds = {kind.lower() for kind in launch.devices}
    if len(kinds) > 1:
        lines.append(
            f"{launch.path}: devices of {len(kinds)} types ({', '.join(sorted(kinds))}) in one job;"
            " a group of mixed types is not modelled. Split the job by type"
        )
    share = launch.facts.get("rollout_share")
    rollout = launch.framework == "verl" or share is not None
    if rollout:
        part = f" ({100 * share:.0f} % of each device)" if isinstance(share, float) else ""
        lines.append(
            f"{launch.path}: a rollout engine shares the devices{part}; its weights and cache are"
            " not part of the predicted memory"
        )
    return tuple(lines)


def _stages(launch: LaunchFile) -> tuple[int, ...]:
    plan, model = launch.plan, launch.model
    if plan is not None and plan.stages is not None:
        return plan.stages
    facts = launch.facts.get("stages")
    if isinstance(facts, list):
        return tuple(int(str(item)) for item in facts)
    if plan is None or model is None or model.layers % (plan.pp * plan.vpp):
        return ()
    return (model.layers // (plan.pp * plan.vpp),) * (plan.pp * plan.vpp)


def _grid(names: dict[str, Any]) -> dict[str, int]:
    keys = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "expert_dp", "mbs", "num_microbatches",
            "zero", "world", "per_node")  # fmt: skip
    routed = names.get("experts_n") != 1
    shown = [k for k in keys if routed or k not in ("ep", "etp", "expert_dp")]
    return {k: names[k] for k in shown if isinstance(names.get(k), int)}
