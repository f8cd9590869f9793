"""Long fault tests: ranks killed in the middle of a run, saves killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_train_cli import MODEL

from gangsaw.run import checkpoints

pytestmark = pytest.mark.soak

STEPS = 200
"""Many: the run must still be going when a slow test process gets to kill a rank of it."""


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def start(job: Path, steps: int, *more: str) -> subprocess.Popen[str]:
    (job / "config.json").write_text(MODEL)
    (job / "plan.toml").write_text("pp = 2\nnum_microbatches = 2\n")
    (job / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    words = [
        "train",
        str(job / "plan.toml"),
        "--model",
        str(job / "config.json"),
        "--data",
        str(job / "text.txt"),
        "--seq-len",
        "32",
        "--out",
        str(job / "run"),
        "--steps",
        str(steps),
        "--checkpoint-every",
        "1",
        "--trace-steps",
        "0",
        *more,
    ]
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    with (job / "stderr.txt").open("a") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", "gangsaw.cli.main", *words],
            text=True,
            env=env,
            stderr=log_file,
        )


def log(job: Path) -> list[dict]:
    path = job / "run" / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(job: Path, steps: int, limit_s: float = 900.0) -> None:
    end = time.monotonic() + limit_s
    while len(log(job)) < steps:
        assert time.monotonic() < end, f"{len(log(job))} of {steps} steps"
        time.sleep(0.02)


def test_a_killed_rank_starts_again_and_the_run_is_the_same(tmp_path):
    """kill -9 of a rank: the agent starts all again from the checkpoint; losses as without it."""
    quiet, hit = tmp_path / "quiet", tmp_path / "hit"
    quiet.mkdir()
    hit.mkdir()
    assert start(quiet, STEPS).wait(timeout=900) == 0
    process = start(hit, STEPS, "--restarts", "2")
    wait_for(hit, 10)
    ranks = children(process.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    assert process.wait(timeout=900) == 0, (hit / "stderr.txt").read_text()
    whole = {r["step"]: r["loss"] for r in log(quiet)}
    again = {r["step"]: r["loss"] for r in log(hit)}
    assert again == whole
    steps = [r["step"] for r in log(hit)]
    assert steps[-1] == STEPS
    assert len(ranks) >= 2


@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_anywhere_resumes(tmp_path, seed):
    """All processes killed at some moment, also inside a save: what is pointed to is whole."""
    process = start(tmp_path, 400)
    wait_for(tmp_path, 3 + seed)
    time.sleep(0.013 * seed)
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    found = checkpoints.newest(tmp_path / "run")
    assert found is not None
    assert checkpoints.fault(found) == ""
    done = int(found.name.partition("-")[2])
    process = start(tmp_path, 400, "--resume")
    wait_for(tmp_path, len(log(tmp_path)) + 3)
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    steps = [r["step"] for r in log(tmp_path)]
    assert done + 1 in steps
    assert max(steps) > done
