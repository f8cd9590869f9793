"""Rotary positions of a Hugging Face config: base and scaling, as stated.

Keys: `rope_theta` and `rope_scaling`, or since transformers 5 `rope_parameters` with both. A config
that states nothing, or a base for each kind of layer, gives None: a default is not a statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gangsaw.spec.model import RotaryScaling, RotarySpec

KINDS = ("llama3", "yarn", "linear")
_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim",
)  # fmt: skip
PLAIN = ("default", "mrope", None)
"""Types that leave the frequencies as they are."""


def _number(value: Any) -> float | None:  # noqa: ANN401 - JSON value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    found = float(value)
    return found if math.isfinite(found) and found > 0.0 else None


def rotary_of(values: Mapping[str, Any]) -> tuple[RotarySpec | None, str]:
    """Base and scaling that a config states, and a note on what of it is not carried."""
    table = values.get("rope_parameters")
    scaling = table if isinstance(table, dict) else values.get("rope_scaling")
    base = _number(values.get("rope_theta"))
    if base is None and isinstance(table, dict):
        base = _number(table.get("rope_theta"))
    if base is None:
        return None, ""
    kind = None
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type"))
    if kind in PLAIN or not isinstance(scaling, dict):
        return RotarySpec(base=base), ""
    factor = _number(scaling.get("factor"))
    if kind not in KINDS or factor is None:
        return RotarySpec(base=base), f"rotary scaling {str(kind)[:40]!r} is not carried"
    stated = {k: v for k in _NUMBERS if (v := _number(scaling.get(k))) is not None}
    length = _number(scaling.get("original_max_position_embeddings"))
    if length is None and kind != "linear":
        length = _number(values.get("original_max_position_embeddings")) or _number(
            values.get("max_position_embeddings")
        )
    found = RotaryScaling(kind=kind, original_positions=int(length or 0), **stated)
    return RotarySpec(base=base, scaling=found), ""
