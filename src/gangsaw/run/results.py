"""The folder of a measurement, read back; no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gangsaw.errors import InputError

RESULTS, CONFIG, CLUSTER = "measure.jsonl", "measure.json", "cluster.toml"


class MeasuredLayers(NamedTuple):
    """Seconds of one layer forward and backward by TP size, and what it was measured with."""

    seq_len: int
    precision: str
    seconds: dict[int, float]


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """Finished probes of an earlier run; a torn last line is left out."""
    path = out / RESULTS
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
                found[row["key"]] = row
            except (ValueError, KeyError, TypeError):
                continue
    return found


def measured_layers(folder: Path) -> MeasuredLayers:
    """The layer timings of a finished measurement at its sequence length and first precision.

    Low quartiles, as the cluster file is fitted to. Raises InputError where `folder` holds no
    finished measurement.
    """
    if not (folder / CLUSTER).is_file():
        raise InputError(
            f"--measured {folder}: no {CLUSTER} in it. Legal: a folder that gangsaw measure wrote"
        )
    try:
        cfg = json.loads((folder / CONFIG).read_text())
        precision, seq_len = str(cfg["precisions"][0]), int(cfg["seq_len"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"--measured {folder}: {CONFIG} cannot be read: {error}") from error
    rows = [r for r in read_results(folder).values() if r.get("kind") == "layer"]
    seconds = {
        int(r["tp"]): float(r["low_s"]) * _per_sequence(r)
        for r in rows
        if r["backward"] and r["dtype"] == precision and r["seq"] == seq_len
    }
    return MeasuredLayers(seq_len, precision, seconds)


def _per_sequence(row: dict[str, Any]) -> float:
    """One over the sequences of a layer probe: its seconds become those of one sequence."""
    return 1.0 / float(row["mbs"])
