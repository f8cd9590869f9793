"""The doctor's first look: a launch file against the rules of its framework and version."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field

from gangsaw.doctor.context import names_of
from gangsaw.doctor.expressions import UNKNOWN, Evaluator
from gangsaw.doctor.predict import Predicted, changed, job_of, predict
from gangsaw.doctor.resume import ResumeResult
from gangsaw.doctor.rulebook import Rule, Severity, rules
from gangsaw.read.launch.document import Assumed, LaunchFile, Value
from gangsaw.spec import ClusterSpec, Job, StackProfile
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
    peak_bytes: float | None = Field(None, description="predicted device peak after the repair")
    peak_change_bytes: float | None = None
    step_time_change_frac: float | None = None


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
    rules_checked: int = 0
    resume: ResumeResult | None = Field(None, description="where a saved layout was stated")


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
    names = names_of(launch, cluster, stack)
    flags = {key: "None" if value is None else value for key, value in launch.flags.items()}
    judge = Evaluator(names, flags, frozenset(launch.wheres))
    job = job_of(launch, cluster, stack)
    base = predict(job, launch.plan)
    found: list[Fault] = []
    checked = 0
    for rule in rules():
        if not rule.applies(launch.framework, version or launch.version):
            continue
        checked += 1
        if judge.holds(rule.when):
            found.append(_fault(rule, judge, launch, job, base))
    found.sort(key=lambda fault: ORDER.index(fault.severity))
    return CheckResult(
        path=launch.path, framework=launch.framework, version=version or launch.version,
        model=launch.model_name or (launch.model.name if launch.model else ""),
        faults=tuple(found), refused=refused(launch), unread=launch.unread,
        assumed=launch.assumed, missing=launch.missing, stages=_stages(launch),
        grid=_grid(names), peak_bytes=base.peak_bytes if base else None,
        step_time_s=base.step_s if base else None, rules_checked=checked,
    )  # fmt: skip


def _fault(
    rule: Rule, judge: Evaluator, launch: LaunchFile, job: Job | None, base: Predicted | None
) -> Fault:
    legal = judge.value(rule.legal) if rule.legal else []
    change = {key: judge.value(text) for key, text in rule.change.items()}
    after = None
    if change and base is not None and UNKNOWN not in change.values():
        after = predict(job, changed(launch.plan, change))
    return Fault(
        code=rule.code, severity=rule.severity, where=_where(rule, judge, launch),
        message=judge.fill(rule.message), rule=rule.rule,
        legal=tuple(cast("list[Value]", legal)) if isinstance(legal, list) else (),
        repair=judge.fill(rule.repair), source=rule.source,
        peak_bytes=after.peak_bytes if after else None,
        peak_change_bytes=after.peak_bytes - base.peak_bytes if after and base else None,
        step_time_change_frac=after.step_s / base.step_s - 1 if after and base else None,
    )  # fmt: skip


def _where(rule: Rule, judge: Evaluator, launch: LaunchFile) -> str:
    """Where the fault stands: a fact's or key's line, or that of the key which a name holds."""
    key = judge.names.get("misspelt") if rule.at == "misspelt_at" else None
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
    return {k: names[k] for k in keys if isinstance(names.get(k), int)}
