"""Traced peaks of `benchmarks/bench_memory_oracle.py` beside predictions, as lines of a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangsaw.units import GIB

STORE = "memory-oracle.json"
"""The checked-in results, beside the page."""


def read_oracle(folder: Path) -> list[dict[str, Any]]:
    """The traced rows; none where the benchmark has not been run."""
    path = folder / STORE
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def oracle_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, one row a traced rank."""
    lines = [
        "| case | rank | tokens | traced GiB | predicted GiB | error | predicted peak in |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        traced, predicted = float(r["traced_bytes"]) / GIB, float(r["predicted_bytes"]) / GIB
        lines.append(
            f"| {r['case']} | {r['rank']} | {r['seq_len']} | {traced:.2f} | {predicted:.2f} |"
            f" {100 * (predicted / traced - 1):+.1f} % | {r['phase']} |"
        )
    return lines


def oracle_part(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the accuracy page says of them."""
    if not rows:
        return ""
    worst = max(abs(float(r["predicted_bytes"]) / float(r["traced_bytes"]) - 1) for r in rows)
    said = (
        "Peaks of forward and backward of the `torchtitan` stack against torch's own MemTracker on"
        " fake tensors, which shares no formula with the prediction"
        f" (`benchmarks/bench_memory_oracle.py`): {len(rows)} traced ranks, the worst"
        f" {100 * worst:.1f} % off. Traced on the CPU: what GPU kernels and the allocator add is"
        " not in it. More in [memory-oracle.md](memory-oracle.md)."
    )
    return "\n".join([said, "", *oracle_lines(rows)])
