"""The folder of a measurement, read back; no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gangsaw.errors import InputError

RESULTS, CONFIG, CLUSTER = "measure.jsonl", "measure.json", "cluster.toml"


class MeasuredLayers(NamedTuple):
    """Seconds of one layer forward and backward, and the bytes it keeps between them, by TP size.

    Both are of one sequence of `seq_len` tokens in `precision`.
    """

    seq_len: int
    precision: str
    seconds: dict[int, float]
    kept_bytes: dict[int, float]


def read_lines(out: Path) -> list[dict[str, Any]]:
    """Finished probes of all rounds as they stand in the file; torn lines are left out."""
    path = out / RESULTS
    found: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
                row["key"]
            except (ValueError, KeyError, TypeError):
                continue
            found.append(row)
    return found


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """Each probe once, its rounds joined (see `joined`)."""
    rounds: dict[str, list[dict[str, Any]]] = {}
    for row in read_lines(out):
        rounds.setdefault(row["key"], []).append(row)
    return {key: joined(rows) for key, rows in rounds.items()}


def joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of a probe out of its rounds, which other probes lie between.

    The least of the low quartiles, since other work only ever adds time; `scatter_frac` is how far
    the rounds' low quartiles lie apart, over their mean: what measuring again would change.
    """
    lows = [float(r["low_s"]) for r in rows if "low_s" in r]
    if not lows:
        return rows[-1]
    best = min(rows, key=lambda r: float(r["low_s"]))
    mean = sum(lows) / len(lows)
    scatter = (max(lows) - min(lows)) / mean if mean > 0 else 0.0
    return {
        **rows[-1],
        **{k: best[k] for k in ("low_s", "median_s") if k in best},
        "scatter_frac": scatter,
        "repetitions": sum(int(r.get("repetitions", 0)) for r in rows),
    }


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
    mine = [r for r in rows if r["backward"] and r["dtype"] == precision and r["seq"] == seq_len]
    seconds = {int(r["tp"]): float(r["low_s"]) * _per_sequence(r) for r in mine}
    kept = {
        int(r["tp"]): float(r["kept_bytes"]) * _per_sequence(r)
        for r in mine if r.get("kept_bytes") is not None
    }  # fmt: skip
    return MeasuredLayers(seq_len, precision, seconds, kept)


def _per_sequence(row: dict[str, Any]) -> float:
    """One over the sequences of a layer probe: its seconds become those of one sequence."""
    return 1.0 / float(row["mbs"])
