"""Figures of a row that no run can have: such a row is skipped, and its reason names them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST_STEP_S = 1e6
"""A step of twelve days: beyond it the figure stands in another unit."""
SHORTEST_STEP_S = 1e-6
LARGEST_PEAK_GB = 2000.0
"""Several times the memory of the largest device: beyond it the figure is in MB or bytes."""
_LARGEST = 1e12
_COUNTS = {
    "model": ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "experts"),
    "hardware": ("devices", "per_node"),
    "plan": ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "mbs", "num_microbatches", "gbs"),
}
_NEVER_ZERO = ("layers", "hidden", "heads", "tp", "pp", "devices", "seq_len")
"""Elsewhere tables write 0 for what a run does not use."""


def fault_of(row: Mapping[str, Any]) -> str | None:
    """What no run can have, with the key, the value and what is legal; None where all can be."""
    for part, keys in _COUNTS.items():
        stated = row.get(part)
        if stated is not None and not isinstance(stated, Mapping):
            return f'{part}={stated!r:.40} is no object. Legal: an object, as {{"{keys[0]}": 8}}'
        for key in keys:
            value = (stated or {}).get(key)
            if value is not None and not _is_count(value, key):
                low = 1 if key in _NEVER_ZERO else 0
                return f"{part}.{key}={value!r:.40} is no count. Legal: whole numbers from {low}"
    return _shape(row) or _time(row.get("measured")) or _memory(row.get("measured"))


def _is_count(value: object, key: str) -> bool:
    """Whether it is a whole number that can be; text is read as rows of tables state it."""
    try:
        number = float(str(value))
    except ValueError:
        return False
    least = 1 if key in _NEVER_ZERO else 0
    return math.isfinite(number) and number == int(number) and least <= number <= _LARGEST


def _shape(row: Mapping[str, Any]) -> str | None:
    heads = (row.get("model") or {}).get("heads")
    tp = (row.get("plan") or {}).get("tp")
    if heads and tp and int(float(str(heads))) % int(float(str(tp))):
        return f"plan.tp={tp} does not divide model.heads={heads}. Legal: its divisors"
    return None


def _time(measured: object) -> str | None:
    if measured is None:
        return None
    if not isinstance(measured, Mapping):
        return f"measured={measured!r:.40} is no object. Legal: an object with step_time_s"
    value = measured.get("step_time_s")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and SHORTEST_STEP_S <= value <= LONGEST_STEP_S:
        return None
    return (
        f"measured.step_time_s={value!r:.40} is no time of a step."
        f" Legal: {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:g} seconds"
    )


def _memory(measured: object) -> str | None:
    value = measured.get("peak_mem_gb") if isinstance(measured, Mapping) else None
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0.0 <= value <= LARGEST_PEAK_GB:
        return None
    return (
        f"measured.peak_mem_gb={value!r:.40} is no memory of one device: in bytes or MB?"
        f" Legal: 0 to {LARGEST_PEAK_GB:g}, in GB (mem_unit says GiB)"
    )
