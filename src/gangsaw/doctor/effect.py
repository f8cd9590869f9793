"""What a repair changes: parameters, memory and time of the launch file as it would then read."""

from __future__ import annotations

from typing import NamedTuple, cast

from gangsaw.doctor.expressions import UNKNOWN, Evaluator
from gangsaw.doctor.predict import Predicted, job_of, predict, why_not
from gangsaw.doctor.rulebook import Rule
from gangsaw.read.launch.document import LaunchFile, Value
from gangsaw.read.launch.frameworks import Restated, restate
from gangsaw.spec import ClusterSpec, StackProfile
from gangsaw.units import format_count, format_gib, format_s

NONE = "no change in memory or time"
_SMALL_BYTES = 1e6
_SMALL_FRAC = 5e-5


class Effect(NamedTuple):
    """What a repair changes. `text` is never empty: without a prediction it says why."""

    text: str
    params_change: float | None = None
    peak_bytes: float | None = None
    step_time_s: float | None = None
    peak_change_bytes: float | None = None
    step_time_change_frac: float | None = None


class Site(NamedTuple):
    """A launch file where it runs, with its own prediction (None: it cannot be had)."""

    launch: LaunchFile
    cluster: ClusterSpec | None
    stack: StackProfile | None
    base: Predicted | None


def effect_of(rule: Rule, judge: Evaluator, site: Site) -> Effect:
    """The effect of a rule's repair on the launch file."""
    if not rule.change:
        return Effect(NONE if rule.effect == "none" else f"not predicted: {rule.effect}")
    facts: dict[str, Value] = {}
    for key, text in rule.change.items():
        value = judge.value(text)
        if value is UNKNOWN:
            return Effect("not predicted: it depends on what the file leaves open")
        name = str(judge.names.get(key[1:])) if key.startswith("@") else key
        facts[name] = cast(Value, value)
    after = restate(site.launch, Restated(facts, _world(site.cluster)))
    before, then = site.launch.model, after.model
    params = None
    if before is not None and then is not None:
        params = float(then.params()) - float(before.params())
    if site.cluster is None:
        text = "not predicted: no cluster is stated (--cluster)"
        return Effect(f"{_params(params)}; memory and time {text}" if params else text, params)
    job = job_of(after, site.cluster, site.stack)
    found = predict(job, after.plan)
    if found is None:
        why = "; ".join(after.missing) or why_not(job, after.plan)
        return Effect(f"not predicted: {why}", params)
    return _compared(rule, params, found, site.base)


def _world(cluster: ClusterSpec | None) -> int | None:
    return None if cluster is None else cluster.devices


def _compared(rule: Rule, params: float | None, found: Predicted, base: Predicted | None) -> Effect:
    """After against before; where nothing runs before the repair, what it is then."""
    refused = rule.severity == "error" and rule.base != "runs"
    if base is None or refused or rule.base == "unknown":
        text = f"then {format_gib(found.peak_bytes)}, {format_s(found.step_s)} a step"
        if rule.base == "unknown":
            text += "; what it is now is not modelled"
        return Effect(_joined(params, text), params, found.peak_bytes, found.step_s)
    peak = found.peak_bytes - base.peak_bytes
    time = (found.step_s / found.tokens) / (base.step_s / base.tokens) - 1.0
    if abs(peak) < _SMALL_BYTES and abs(time) < _SMALL_FRAC:
        text = NONE
    else:
        per = "step" if found.tokens == base.tokens else "time a token"
        sign = "+" if peak >= 0 else "-"
        parts = [
            f"peak {sign}{format_gib(abs(peak))}" if abs(peak) >= _SMALL_BYTES else "same peak",
            f"{per} {100 * time:+.1f} %" if abs(time) >= 5e-4 else f"same {per}",
        ]
        text = ", ".join(parts)
    return Effect(_joined(params, text), params, found.peak_bytes, found.step_s, peak, time)


def _params(change: float | None) -> str:
    if not change:
        return ""
    return f"{'+' if change > 0 else '-'}{format_count(abs(change))} parameters"


def _joined(params: float | None, text: str) -> str:
    part = _params(params)
    return f"{part}, {text}" if part else text
