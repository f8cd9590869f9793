"""CPU seconds of the commands that a user waits for, start of Python included.

    .venv/bin/python benchmarks/bench_cli.py [--repeat 3]

`plan` is the demo: Llama-3.1-405B on 16,384 H100, 2,048 sequences of 8,192. Machine code is in
the cache before anything is timed; the first line says what making it costs, once a machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import gangsaw

MODELS = Path(gangsaw.__file__).parent / "catalog" / "models"
JOB = [str(MODELS / "llama-3.1-405b.config.json"), "h100-sxm:16384", "--seq-len", "8192",
       "--global-batch", "2048"]  # fmt: skip
PLAN = ["--tp", "8", "--pp", "16", "--vpp", "7", "--mbs", "1", "--schedule", "interleaved"]
COMMANDS = {
    "--help": (["--help"], 0.3),
    "model": (["model", JOB[0]], None),
    "estimate": (["estimate", *JOB, *PLAN], 1.5),
    "plan": (["plan", *JOB], 3.0),
    "plan, report": (["plan", *JOB, "--report"], None),
    "plan --json": (["plan", *JOB, "--json"], 3.0),
}
"""Arguments, and the CPU seconds that the command is meant to stay under."""


def cpu_s(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """CPU seconds, and peak memory in MB so far of any command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gangsaw", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, after.ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="time the first compile too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if args.first:
            environment["GANGSAW_CACHE"] = folder
        first_s, _ = cpu_s(["plan", *JOB], environment)
        print(f"{'first plan' if args.first else 'warming up':<14} {first_s:6.2f} CPU-s")
        for name, (arguments, goal_s) in COMMANDS.items():
            told = list(arguments)
            if told[-1] == "--report":
                told.append(str(Path(folder) / "report.html"))
            runs = [cpu_s(told, environment) for _ in range(args.repeat)]
            goal = f" of {goal_s:.1f}" if goal_s else ""
            middle_s = statistics.median(s for s, _ in runs)
            print(f"{name:<14} {middle_s:6.2f}{goal} CPU-s, peak so far {runs[-1][1]:.0f} MB")


if __name__ == "__main__":
    main()
