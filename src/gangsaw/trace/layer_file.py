"""A recording of one layer: JSON of `run.record`, a table of saved tensors, or a profiler trace."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangsaw.errors import InputError
from gangsaw.fit.layer_saved import Saved, Times
from gangsaw.fit.layer_stack import Recording
from gangsaw.read.toml import parse_json, read_text, shown
from gangsaw.trace.kernels import KINDS, kernel_kind

FACTS = (
    "model", "mbs", "seq_len", "tp", "cp", "ep", "etp", "sequence_parallel", "precision",
    "layer_index", "module",
)  # fmt: skip
_KNOWN = (
    *FACTS, "gangsaw_layer", "layer", "torch", "device", "framework", "forward_s", "backward_s",
    "host_s", "saved", "operations",
)  # fmt: skip
_PRODUCTS = re.compile(r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm)$|mkldnn.*linear")
_ATTENTION = re.compile(r"aten::.*(scaled_dot_product|flash_attention|efficient_attention)")
LIMIT_BYTES = 64 * 10**6


def kind_of_operation(name: str) -> str:
    """`products`, `attention` or `other`: of a GPU kernel or a CPU operation by name."""
    if _PRODUCTS.search(name):
        return "products"
    if _ATTENTION.search(name):
        return "attention"
    if name.startswith("aten::"):
        return "other"
    kind = KINDS[kernel_kind(name)]
    return {"gemm": "products", "attention": "attention"}.get(kind, "other")


def operation_seconds(rows: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Seconds of products, attention and all else, as fields of `Times`."""
    out = {"products_s": 0.0, "attention_s": 0.0, "other_s": 0.0}
    for name, seconds in rows:
        if "nccl" not in name.lower():
            out[f"{kind_of_operation(name)}_s"] += seconds
    return out


def read_layer(path: Path | str) -> Recording:
    """The recording in a file; InputError names what is wrong with it.

    A profiler trace (it has `traceEvents`) goes through `trace.layer_kineto`.
    """
    from gangsaw.trace.layer_kineto import is_trace, read_kineto_layer

    if is_trace(Path(path)):
        return read_kineto_layer(Path(path))
    where, text = shown(path), read_text(path, LIMIT_BYTES)
    start = text.lstrip()
    if start.startswith("{") and not _is_lines(start):
        return _document(parse_json(text, where), where)
    return Recording(tuple(_table(text, where)), Times(), {})


def _is_lines(text: str) -> bool:
    """Whether each line is an object of its own, as JSON lines are."""
    first = text.partition("\n")[0].strip()
    try:
        return isinstance(json.loads(first), dict) and "saved" not in json.loads(first)
    except ValueError:
        return False


def _document(data: Mapping[str, Any], where: str) -> Recording:
    unknown = sorted(set(data) - set(_KNOWN))
    if unknown:
        raise InputError(
            f"{where}: unknown {', '.join(map(repr, unknown))}. Legal: {', '.join(_KNOWN)}"
        )
    rows = data.get("saved")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where}: saved is empty. Legal: a list of name and bytes")
    saved = tuple(_saved(row, f"{where}: saved {i}") for i, row in enumerate(rows, 1))
    seconds = {
        key: _number(data[key], f"{where}: {key}")
        for key in ("forward_s", "backward_s", "host_s")
        if data.get(key) is not None
    }
    operations = [
        (str(o["name"]), _number(o.get("seconds"), f"{where}: seconds of {o['name']}"))
        for o in data.get("operations") or []
        if isinstance(o, dict) and "name" in o
    ]
    parts = operation_seconds(operations) if operations else {}
    both = seconds.get("forward_s", 0.0) + seconds.get("backward_s", 0.0)
    if 0.0 < both < sum(parts.values()):
        # A profiler slows down what it looks at: its shares hold, the plain passes' sum does.
        parts = {k: v * both / sum(parts.values()) for k, v in parts.items()}
    times = Times(**seconds, **parts)
    return Recording(saved, times, {k: data[k] for k in FACTS if data.get(k) is not None})


def _table(text: str, where: str) -> list[Saved]:
    """Rows of JSON lines or of a table with a heading; columns name (or op), bytes, shape."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{where} is empty. Legal: rows of name and bytes")
    if lines[0].lstrip().startswith("{"):
        return [
            _saved(parse_json(line, f"{where}:{i}"), f"{where}:{i}")
            for i, line in enumerate(lines, 1)
        ]
    mark = "\t" if "\t" in lines[0] else "," if "," in lines[0] else None
    if mark is None:
        lines = [",".join(line.split()) for line in lines]
    reader = csv.DictReader(lines, delimiter=mark or ",", skipinitialspace=True)
    return [_saved(row, f"{where}:{i}") for i, row in enumerate(reader, 2)]


def _saved(row: Any, where: str) -> Saved:  # noqa: ANN401
    """One saved tensor, out of an object or a row of a table."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is no object. Legal: name and bytes")
    low = {str(k).strip().lower(): v for k, v in row.items()}
    name = next((low[k] for k in ("name", "op", "module") if low.get(k)), "")
    if low.get("bytes") in (None, ""):
        raise InputError(f"{where} has no bytes. Legal: name, bytes, and optional shape, dtype")
    shapes = low.get("shapes") or ([low["shape"]] if low.get("shape") else [])
    return Saved(
        bytes=_number(low["bytes"], f"{where}: bytes"),
        name=str(name).strip(),
        shapes=tuple(_shape(s, where) for s in shapes),
        dtype=str(low.get("dtype") or "").strip(),
    )


def _shape(value: Any, where: str) -> tuple[int, ...]:  # noqa: ANN401
    """A shape, as [2, 64, 256] or as text 2x64x256."""
    parts = re.findall(r"\d+", value) if isinstance(value, str) else value
    try:
        shape = tuple(int(n) for n in parts)
    except (TypeError, ValueError):
        raise InputError(f"{where}: shape={value!r} is no shape. Legal: as 2x64x256") from None
    if not all(0 < n < 10**12 for n in shape):
        raise InputError(f"{where}: shape={value!r} is no shape. Legal: positive numbers")
    return shape


def _number(value: Any, where: str) -> float:  # noqa: ANN401
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found) or found < 0.0:
        raise InputError(f"{where}={str(value)[:60]!r} is no amount. Legal: 0 and more")
    return found
