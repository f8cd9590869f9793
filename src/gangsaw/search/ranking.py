"""From all evaluated plans to the short list: who is listed, with which merit, and why.

The list is ordered by step time. Plans that differ only in chunks a rank, in how state is sharded,
in rank order or in sequence parallelism count as one choice; of those that are within half a per
cent of its fastest, which no prediction can tell apart, the simplest is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.memory_doc import interval
from gangsaw.search.estimate import Evaluated, causes_of, evaluate
from gangsaw.search.space import Searched, layout_of
from gangsaw.spec import Plan
from gangsaw.spec.result import PlanResult
from gangsaw.units import format_s

SAFE_SLACK, SIMPLE_SLACK = 1.15, 1.1
"""How much slower than the fastest the safest and the simplest plan may be to be named."""
ALIKE = 1.005
"""Plans of one choice within this factor of its fastest cannot be told apart."""
LOOK = 4000
"""Evaluated plans looked at, fastest first, for the distinct choices of the list."""
WORTH_SAYING = 0.005
"""By how much of the step even stages must be slower for the layout to be mentioned."""
WORTH_RISK = 0.97
"""A plan that only may fit is mentioned where it is 3 % faster than all that surely do."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Merit:
    """A place in the result arrays and what it is listed for."""

    index: int
    labels: tuple[str, ...]


def sharded_weights(plan: Plan) -> bool:
    """Whether parameters are gathered for use: ZeRO-3 over more than one rank."""
    return plan.zero >= 3 and plan.dp * plan.cp > 1


def choice_of(plan: Plan) -> tuple[object, ...]:
    """What makes a plan another choice to a user."""
    return (
        plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.etp, plan.mbs, plan.schedule,
        plan.recompute, bool(plan.recompute_layers), sharded_weights(plan),
        plan.offload_optimizer > 0, plan.offload_activations > 0,
    )  # fmt: skip


def complexity(plan: Plan) -> int:
    """How many mechanisms a plan switches on."""
    parts = [
        plan.tp > 1, plan.cp > 1, plan.pp > 1, plan.ep > 1, plan.etp > 1, plan.vpp > 1,
        plan.recompute != "none", plan.recompute_layers > 0, plan.zero >= 2, sharded_weights(plan),
        plan.shard_group > 0, plan.offload_optimizer > 0, plan.offload_activations > 0,
        plan.schedule not in ("1f1b", "interleaved"), plan.rank_order != "tp-cp-ep-dp-pp",
    ]  # fmt: skip
    return sum(parts)


def fitting(searched: Searched, capacity: float) -> tuple[Mask, Mask]:
    """Which plans surely fit (the whole 80 % interval of the peak), and which may."""
    _, high = interval(1.0, searched.job.stack.memory_doubt_frac)
    peak = searched.found.peak
    return peak * high < capacity, peak <= capacity


def distinct(searched: Searched, mask: Mask, wanted: int) -> list[int]:
    """Places of the fastest plans of different choices, at most `wanted`."""
    places = np.flatnonzero(mask)
    if not len(places):
        return []
    times = searched.found.step_s[places]
    many = min(LOOK, len(places))
    first = np.argpartition(times, many - 1)[:many]
    best: dict[tuple[object, ...], float] = {}
    shown: dict[tuple[object, ...], tuple[int, int]] = {}
    for place in places[first[np.lexsort((searched.found.peak[places[first]], times[first]))]]:
        plan = searched.plan_at(int(place))
        choice, seconds = choice_of(plan), float(searched.found.step_s[place])
        if choice not in best:
            if len(best) == wanted:
                continue
            best[choice] = seconds
            shown[choice] = (complexity(plan), int(place))
        elif seconds <= best[choice] * ALIKE and complexity(plan) < shown[choice][0]:
            shown[choice] = (complexity(plan), int(place))
    out = [place for _, place in shown.values()]
    return sorted(out, key=lambda i: float(searched.found.step_s[i]))


def safest(searched: Searched, mask: Mask, fastest_s: float) -> int | None:
    """The plan with most headroom among those near the fastest."""
    near = mask & (searched.found.step_s <= fastest_s * SAFE_SLACK)
    if not near.any():
        return None
    places = np.flatnonzero(near)
    peak = searched.found.peak[places]
    low = places[peak <= peak.min() * 1.001]
    return int(low[np.argmin(searched.found.step_s[low])])


def simplest(searched: Searched, mask: Mask, fastest_s: float) -> int | None:
    """The plan with the fewest mechanisms among those near the fastest; the fastest such."""
    near = np.flatnonzero(mask & (searched.found.step_s <= fastest_s * SIMPLE_SLACK))
    if not len(near):
        return None
    best, found = (math.inf, math.inf), None
    order = near[np.argsort(searched.found.step_s[near], kind="stable")][: 5 * LOOK]
    for place in order:
        score = (complexity(searched.plan_at(int(place))), float(searched.found.step_s[place]))
        if score < best:
            best, found = score, int(place)
    return found


def short_list(searched: Searched, capacity: float, top: int) -> list[Merit]:
    """The places that are listed, with their merits, fastest first."""
    sure, maybe = fitting(searched, capacity)
    mask = sure if sure.any() else maybe
    if not mask.any():
        return []
    labels: dict[int, list[str]] = {}
    listed = distinct(searched, mask, top)
    fastest = listed[0]
    fastest_s = float(searched.found.step_s[fastest])
    for place in listed:
        labels.setdefault(place, [])
    labels[fastest].append("fastest")
    for name, found in (
        ("safest", safest(searched, mask, fastest_s)),
        ("simplest", simplest(searched, mask, fastest_s)),
    ):
        if found is not None:
            labels.setdefault(found, []).append(name)
    order = sorted(labels, key=lambda i: float(searched.found.step_s[i]))
    return [Merit(i, tuple(labels[i])) for i in order]


def risky_faster(searched: Searched, capacity: float, fastest_s: float) -> int | None:
    """A plan that only may fit (capacity lies in its interval) and is clearly faster, or None."""
    sure, maybe = fitting(searched, capacity)
    if not sure.any():
        return None
    risky = distinct(searched, maybe & ~sure, 1)
    if risky and searched.found.step_s[risky[0]] < WORTH_RISK * fastest_s:
        return risky[0]
    return None


def pareto_places(searched: Searched, mask: Mask, most: int = 12) -> list[int]:
    """Plans that no other beats in both time and memory, thinned to at most `most`."""
    places = np.flatnonzero(mask)
    if not len(places):
        return []
    order = places[np.lexsort((searched.found.peak[places], searched.found.step_s[places]))]
    peak = searched.found.peak[order]
    running = np.minimum.accumulate(peak)
    front = order[np.concatenate(([True], peak[1:] < running[:-1] * 0.995))]
    if len(front) <= most:
        return [int(i) for i in front]
    pick = np.unique(np.linspace(0, len(front) - 1, most).round().astype(int))
    return [int(i) for i in front[pick]]


def finish(searched: Searched, place: int, thorough: bool = True) -> Evaluated:
    """The plan at a place with its solved stage layout, evaluated once more by itself.

    `thorough`: with the faster of the search's own layout and one that was looked for further.
    """
    plan, which = searched.plan_at(place), searched.room_at(place)
    found = layout_of(searched, plan, which)
    ev = evaluate(searched.job, plan.model_copy(update={"stages": found}), searched.low)
    further = layout_of(searched, plan, which, True) if thorough and plan.vpp > 1 else found
    if further != found:
        other = evaluate(searched.job, plan.model_copy(update={"stages": further}), searched.low)
        ev = min(ev, other, key=lambda e: e.cost.step)
    return ev


def words_of(plan: Plan) -> str:
    """A plan in a few words."""
    shown = [f"{a.upper()}{n}" for a in ("tp", "cp", "pp", "ep") if (n := getattr(plan, a)) > 1]
    return " ".join([*shown, f"DP{plan.dp}"])


def told_apart(plan: Plan, other: Plan) -> str:
    """A plan in a few words, with what differs where these are the same as another's."""
    words = words_of(plan)
    if words != words_of(other):
        return words
    for name in ("mbs", "schedule", "vpp", "recompute", "zero"):
        if getattr(plan, name) != getattr(other, name):
            return f"{words} with {name} {getattr(plan, name)}"
    return words


def why_faster(mine: Evaluated, other: Evaluated) -> str:
    """In one line why a plan beats the next of the list."""
    a, b = causes_of(mine.cost), causes_of(other.cost)
    gain = other.cost.step / mine.cost.step - 1.0
    saved = {k: b[k] - a[k] for k in a}
    best = sorted(saved, key=lambda k: -saved[k])[:2]
    shown = [k for k in best if saved[k] > 0.002 * other.cost.step]
    less = ", ".join(f"{k} {100 * saved[k] / other.cost.step:.1f} %" for k in shown)
    worst = min(saved, key=lambda k: saved[k])
    how = "faster" if gain >= 0.0 else "slower"
    text = f"{100 * abs(gain):.1f} % {how} than {told_apart(other.plan, mine.plan)}"
    if less:
        text += f": saves {less}"
    if saved[worst] < -0.002 * other.cost.step:
        text += f"; pays {worst} {-100 * saved[worst] / other.cost.step:.1f} %"
    return text


def whys(rows: Sequence[tuple[Evaluated, tuple[str, ...], PlanResult]]) -> list[PlanResult]:
    """The results with a line each on why it beats the next, or what it is listed for."""
    out = []
    for i, (ev, labels, result) in enumerate(rows):
        if i + 1 < len(rows):
            text = why_faster(ev, rows[i + 1][0])
        else:
            slower = ev.cost.step / min(r[0].cost.step for r in rows) - 1.0
            text = f"{100 * slower:.1f} % slower than the fastest" if i else result.why
        stages = result.layout
        saved = round(stages.devices_saved) if stages else 0
        if stages and saved and stages.even_step_time_s > (1 + WORTH_SAYING) * result.step_time_s:
            even = format_s(stages.even_step_time_s)
            text += f"; its stages save {saved} device{'' if saved == 1 else 's'} against even ones"
            text += f" ({even} a step)"
            best = (
                "no stages are faster"
                if stages.proved
                else (f"no stages are more than {100 * stages.gap_frac:.1f} % faster")
            )
            text += f", and {best}"
        if "safest" in labels:
            text += f"; {100 * result.memory.headroom_frac:.0f} % of memory free"
        if "simplest" in labels:
            many = complexity(ev.plan)
            text += f"; {many} mechanism{'' if many == 1 else 's'} switched on"
        out.append(result.model_copy(update={"labels": labels, "why": text}))
    return out
