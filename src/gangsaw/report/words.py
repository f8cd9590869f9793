"""Numbers and plans as words: what every picture and table says the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby

from gangsaw.spec.result import IDLE_CAUSES, BillDoc, MemoryDoc, PlanDoc, PlanResult
from gangsaw.units import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    MS,
    US,
    format_count,
    format_frac,
    format_gib,
    format_s,
    format_usd,
    significant,
)

CAUSE_TITLES = {
    "compute": "compute",
    "recompute": "recompute",
    "bubble": "pipeline bubble",
    "tp_comm": "TP communication",
    "cp_comm": "CP communication",
    "ep_comm": "EP communication",
    "pp_comm": "PP communication",
    "dp_comm": "DP communication",
    "optimizer": "optimizer step",
    "host": "host and launch",
    "offload": "offload",
    "checkpoint": "checkpoint",
    "failure": "failures",
    "straggler": "stragglers",
    "unallocated": "unallocated",
}
_CAUSE_KEYS = re.compile(rf"\b({'|'.join(key for key in CAUSE_TITLES if '_' in key)})\b")
CAUSE_MEANINGS = {
    "compute": "forward and backward arithmetic of the model",
    "recompute": "activations computed a second time to save memory",
    "bubble": "devices that wait for the pipeline to fill, drain or balance",
    "tp_comm": "exposed tensor parallel (TP) collectives",
    "cp_comm": "exposed context parallel (CP) exchange of keys and values",
    "ep_comm": "exposed expert parallel (EP) dispatch and combine",
    "pp_comm": "exposed transfers between pipeline (PP) stages",
    "dp_comm": "exposed data parallel (DP) gradient reduction and parameter gather",
    "optimizer": "the optimizer's pass over its state",
    "host": "launch gaps, logging and clipping, with the device idle",
    "offload": "exposed copies to and from host memory",
    "checkpoint": "steps held back by checkpoints",
    "failure": "lost and repeated work, restarts",
    "straggler": "waiting for the slowest device",
    "unallocated": "devices that are paid for and not used by the plan",
}
SCHEDULE_TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B"}
MEMORY_PARTS = (
    ("params", "parameters"),
    ("grads", "gradients"),
    ("optimizer", "optimizer"),
    ("activations", "activations"),
    ("logits", "logits"),
    ("buffers", "buffers"),
    ("reserved", "reserved slack"),
    ("outside", "context"),
)


def _unit(value_s: float) -> tuple[str, float]:
    for unit, scale in (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S)):
        if abs(value_s) >= 2 * scale:
            return unit, scale
    for unit, scale in (("s", 1.0), ("ms", MS)):
        if abs(value_s) >= scale:
            return unit, scale
    return "us", US


def interval_s(value_s: float, low_s: float, high_s: float) -> str:
    """A time and its interval in one unit, `6.5 s (6.1-7.0)`; alone where it has no width."""
    if not low_s < high_s:
        return format_s(value_s)
    unit, scale = _unit(value_s)
    # As many digits as tell the ends of the interval apart, two at least, three at most.
    digits = 2
    if round_to(low_s / scale, 2) == round_to(high_s / scale, 2):
        digits = 3
    places = max(0, digits - 1 - math.floor(math.log10(abs(value_s) / scale))) if value_s else 0
    mid, low, high = (f"{x / scale:,.{places}f}" for x in (value_s, low_s, high_s))
    return f"{mid} {unit} ({low}-{high})"


def round_to(value: float, digits: int) -> float:
    """`value` to so many significant figures."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def step_time(result: PlanResult) -> str:
    """Step time with its interval."""
    return interval_s(result.step_time_s, result.step_time_lo_s, result.step_time_hi_s)


def bad_day(result: PlanResult) -> str:
    """A step with stragglers, checkpoints and failures beside the mean; '' where not asked for."""
    if result.p95_over_p50 is None:
        return ""
    spread = f"P95/P50 {result.p95_over_p50:.3f}"
    if result.expected_step_s is None:
        return f"with tails and failures no progress; {spread}"
    text = f"with tails and failures {significant(result.expected_step_s)} s"
    if result.goodput_frac is not None:
        text += f" (goodput {format_frac(result.goodput_frac)})"
    money = result.expected_usd_per_million_tokens
    return f"{text}, {spread}" + ("" if money is None else f", {money_per_tokens(money)}")


def whole_run(result: PlanResult) -> str:
    """Time, money and device-hours of all tokens of the run; '' where none are stated."""
    bill = result.bill
    if bill.run_s is None or bill.usd_per_run is None or bill.device_hours_per_run is None:
        return ""
    hours = f"{significant(bill.device_hours_per_run)} device-hours"
    money = f", {format_usd(bill.usd_per_run)}" if bill.usd_per_run else ""
    return f"the whole run without failures: {format_s(bill.run_s)}, {hours}{money}"


def runs(stages: Sequence[int]) -> str:
    """Layers a stage, runs folded: `7, 8x14, 7`."""
    parts = [(value, len(list(group))) for value, group in groupby(stages)]
    return ", ".join(f"{value}x{count}" if count > 1 else str(value) for value, count in parts)


def degrees(plan: PlanDoc) -> str:
    """All degrees, always: `TP 8  CP 1  PP 16x7  DP 128  EP 1  ETP 1`."""
    return (
        f"TP {plan.tp}  CP {plan.cp}  PP {plan.pp}x{plan.vpp}  DP {plan.dp}"
        f"  EP {plan.ep}  ETP {plan.etp}"
    )


def schedule_title(plan: PlanDoc) -> str:
    """The schedule as the field writes it."""
    return SCHEDULE_TITLES.get(plan.schedule, plan.schedule)


def sharding(plan: PlanDoc) -> str:
    """What data parallel ranks shard, and over how many."""
    group = f"/{plan.shard_group}" if plan.shard_group else ""
    return f"ZeRO {plan.zero}{group}"


def choices(plan: PlanDoc) -> str:
    """Everything of a plan but its degrees and microbatch."""
    parts = [schedule_title(plan), sharding(plan)]
    if plan.tp > 1:
        parts.append("SP" if plan.sequence_parallel else "no SP")
    parts.append(f"recompute {plan.recompute}")
    for what, share in (
        ("optimizer", plan.offload_optimizer),
        ("activations", plan.offload_activations),
    ):
        if share:
            parts.append(f"offload {what}" + (f" {format_frac(share)}" if share < 1 else ""))
    return ", ".join(parts)


def in_words(plan: PlanDoc) -> str:
    """The plan as a sentence's subject."""
    return (
        f"{degrees(plan)}, microbatch {plan.mbs} x {plan.num_microbatches}, {choices(plan)},"
        f" layers {runs(plan.stages)}"
    ).replace("  ", " ")


def money_per_tokens(usd_per_million: float) -> str:
    """Money a million tokens, or a billion where that reads better."""
    if usd_per_million <= 0.0:
        return "no price"
    if usd_per_million < 1.0:
        return f"{format_usd(1000.0 * usd_per_million)} / B tokens"
    return f"{format_usd(usd_per_million)} / M tokens"


def limits(result: PlanResult) -> str:
    """What holds the plan back: its largest loss, and memory where little is left."""
    losses = [line for line in result.bill.lines if line.cause in (*IDLE_CAUSES, "recompute")]
    total = result.bill.device_s
    if losses and total > 0:
        worst = max(losses, key=lambda line: line.device_s)
        text = f"largest loss {CAUSE_TITLES[worst.cause]}, {format_frac(worst.device_s / total)}"
    else:
        text = "no loss beside arithmetic"
    headroom = result.memory.headroom_frac
    if headroom < 0:
        text += f"; memory does not suffice, {free(headroom)}"
    elif headroom < 0.05:
        text += f"; memory is nearly full, {free(headroom)}"
    return text


def idle_hours(bill: BillDoc) -> str:
    """Idle device-hours of a step; in device-seconds where hours would be thousandths."""
    if 0 < bill.idle_device_hours < 0.01:
        return f"{significant(bill.idle_device_hours * HOUR_S)} idle device-s"
    return f"{significant(bill.idle_device_hours)} idle device-h"


def memory_peak(memory: MemoryDoc) -> str:
    """Peak against capacity in GiB: `71.2 of 79.6 GiB`."""
    peak = format_gib(memory.peak_bytes).removesuffix(" GiB")
    return f"{peak} of {format_gib(memory.capacity_bytes)}"


def spelled(text: str) -> str:
    """A line of reasons with each cause's name for readers in place of its key."""
    return _CAUSE_KEYS.sub(lambda match: CAUSE_TITLES[match.group(0)], text)


def title(model: str, cluster: str, plan: PlanDoc | None) -> str:
    """What is trained on what: `llama-3.1-405b on 16,384 x h100-sxm`."""
    if plan is None or ":" in cluster:
        return f"{model} on {cluster}"
    return f"{model} on {plan.tp * plan.cp * plan.pp * plan.dp:,} x {cluster}"


def free(headroom_frac: float) -> str:
    """Headroom in words: `12.3 % free`, or `3.4 % over`."""
    if headroom_frac < 0:
        return f"{format_frac(-headroom_frac)} over"
    return f"{format_frac(headroom_frac)} free"


def memory_use(result: PlanResult) -> str:
    """Peak of the tightest stage against capacity."""
    return memory_peak(result.memory)


def rate(result: PlanResult) -> str:
    """Tokens a second and device."""
    return f"{format_count_small(result.tokens_per_s_per_device)} tokens/s/device"


def format_count_small(value: float) -> str:
    """Three significant figures, with a letter from a million on."""
    return significant(value) if abs(value) < 1e6 else format_count(value)


def like(result: PlanResult) -> str:
    """The plans that share a row, each with its step time."""
    shown = ", ".join(f"{p.differs} ({format_s(p.step_time_s)})" for p in result.like)
    return f"and {len(result.like)} like it: {shown}"
