"""The invoice of one step: device-seconds and money by cause, summing exactly to the total.

Rounding rule. A total is fixed first (devices x step time; device-hours x price). Every line but
one is rounded down to the last binary digit of the total, and the largest line, the closing line,
takes what is left. All lines are then whole multiples of one unit and none of their partial sums
passes the total, so they add up to it exactly, in any order, by plain addition or `math.fsum`.
The closing line moves by less than a unit a line: under 1e-14 of the total for fifteen causes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gangsaw.errors import InputError
from gangsaw.spec.result import CAUSES, IDLE_CAUSES, BillDoc, BillLine
from gangsaw.units import HOUR_S

SUM_TOLERANCE_FRAC = 1e-6
"""How far the causes may miss the step time before it is an error and not rounding."""


def close_exactly(amounts: Sequence[float], total: float) -> tuple[float, ...]:
    """`amounts` (non-negative, summing to about `total`) rounded so that they sum exactly.

    The largest amount is the closing line. Raises InputError when the amounts miss the total by
    more than SUM_TOLERANCE_FRAC of it, or when one is negative or not finite.
    """
    wrong = [a for a in (*amounts, total) if not (math.isfinite(a) and a >= 0)]
    if wrong:
        raise InputError(f"{wrong[0]!r} on a bill: amounts are finite and not negative")
    said = math.fsum(amounts)
    if abs(said - total) > SUM_TOLERANCE_FRAC * total + len(amounts) * math.ulp(total):
        raise InputError(f"lines sum to {said!r}, the total is {total!r}: they must be equal")
    if not amounts or total == 0.0:
        return tuple(0.0 for _ in amounts)
    unit = math.ulp(total)
    closing = max(range(len(amounts)), key=lambda i: amounts[i])
    lines = [math.floor(a / unit) * unit for a in amounts]
    lines[closing] = total - math.fsum(x for i, x in enumerate(lines) if i != closing)
    return tuple(lines)


def check_causes(cause_s: Mapping[str, float]) -> None:
    """Raise InputError when a cause is not one of spec.result.CAUSES."""
    unknown = sorted(set(cause_s) - set(CAUSES))
    if unknown:
        raise InputError(f"cause {unknown[0]!r} is not on the bill. Legal: {', '.join(CAUSES)}")


def steps_of(run_tokens: float, tokens_per_step: int) -> int:
    """Optimizer steps that consume `run_tokens`: the last step is a whole one."""
    return math.ceil(run_tokens / tokens_per_step)


def step_bill(
    cause_s: Mapping[str, float],
    devices: int,
    step_time_s: float,
    usd_per_device_hour: float,
    tokens_per_step: int,
    run_tokens: float | None,
) -> BillDoc:
    """The invoice of one step, and what a million tokens and a run of `run_tokens` cost at it.

    `cause_s`: seconds of the average device by cause; they sum to `step_time_s`. Devices are all
    that are paid for, so a device that the plan does not use appears under `unallocated`. The
    lines come dearest first; causes without time have none. The run is steps x step: warm-up,
    failures and checkpoints of a whole run are `bill.run`'s. Raises InputError on unknown
    causes, negative or non-finite numbers, and causes that do not sum to the step time.
    """
    check_causes(cause_s)
    for name, value in (
        ("devices", devices),
        ("step_time_s", step_time_s),
        ("tokens_per_step", tokens_per_step),
    ):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name}={value!r} on a bill: a positive number is needed")
    if not (math.isfinite(usd_per_device_hour) and usd_per_device_hour >= 0):
        raise InputError(f"price of {usd_per_device_hour!r} USD a device-hour: zero or more")
    device_s = devices * step_time_s
    usd = device_s / HOUR_S * usd_per_device_hour
    names = [c for c in CAUSES if cause_s.get(c, 0.0) != 0.0]
    closed_s = close_exactly([devices * cause_s[c] for c in names], device_s)
    closed_usd = close_exactly([x / HOUR_S * usd_per_device_hour for x in closed_s], usd)
    lines = [
        BillLine(cause=c, device_s=s, usd=u)
        for c, s, u in zip(names, closed_s, closed_usd, strict=True)
    ]
    idle_s = math.fsum(line.device_s for line in lines if line.cause in IDLE_CAUSES)
    steps = None if run_tokens is None else steps_of(run_tokens, tokens_per_step)
    return BillDoc(
        lines=tuple(sorted(lines, key=lambda line: -line.device_s)),
        device_s=device_s,
        usd=usd,
        idle_device_hours=idle_s / HOUR_S,
        idle_frac=idle_s / device_s,
        usd_per_million_tokens=usd / tokens_per_step * 1e6,
        usd_per_run=None if steps is None else steps * usd,
        device_hours_per_run=None if steps is None else steps * device_s / HOUR_S,
        run_s=None if steps is None else steps * step_time_s,
    )
