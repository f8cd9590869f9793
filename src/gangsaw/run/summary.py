"""What a finished run did, from its folder; no torch."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from gangsaw.errors import RunFailedError
from gangsaw.run.config import TrainConfig


def run_summary(out: Path) -> dict[str, Any]:
    """Steps, losses, median step time (without the first two steps) and tokens a second.

    Times are those of the last start of the run: one before it may have been cut otherwise.
    """
    try:
        head = json.loads((out / "run.json").read_text())
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        cfg = TrainConfig.model_validate(head["config"])
    except (OSError, ValueError, KeyError) as error:
        raise RunFailedError(f"{out} is no folder of a run: {error}") from error
    if not rows:
        raise RunFailedError(f"{out}: no step was finished")
    begun = rows[-1].get("begun", 0)
    timed = [r["seconds"] for r in rows if r.get("begun", 0) == begun]
    seconds = timed[2:] or timed
    step_s = statistics.median(seconds)
    return {
        "out": str(out),
        "ranks": rows[-1].get("ranks", cfg.plan.devices),
        "steps": rows[-1]["step"],
        "first_loss": rows[0]["loss"],
        "last_loss": rows[-1]["loss"],
        "timed_from": begun,
        "step_time_s": step_s,
        "step_time_lo_s": min(seconds),
        "step_time_hi_s": max(seconds),
        "tokens_per_s": cfg.tokens_per_step / step_s,
        "torch": head["torch"],
    }
