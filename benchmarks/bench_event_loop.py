"""The event loop at 1.05 million actions: compiled, in plain Python, and simpy; peak memory.

    .venv/bin/python benchmarks/bench_event_loop.py [--ranks 64 --microbatches 1024 --chunks 8]

Each of the three runs the same schedule with transfers and memory. The compiled run counts with
everything that a timeline has: memory curves, all columns of all rows, and the critical path; the
plain loop with the same and without the columns, simpy without. These two are timed on a smaller
number of microbatches (--share of them) and scaled by the number of actions, unless --share 1.
Times are CPU seconds of this process; the machine code of the compiled run is loaded beforehand.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numba
import numpy as np

from gangsaw.schedule import Schedule, generate
from gangsaw.simulate import StageMemory, StageTimes, Timeline, Transfers, simulate
from gangsaw.simulate.loop import execute

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "simulate"))


def inputs(schedule: Schedule) -> tuple[StageTimes, Transfers, StageMemory]:
    stages = schedule.stages
    return (
        StageTimes.of(stages, 1.0, 1.0, 1.0),
        Transfers.of(stages, 0.01, 1.0, 0.01),
        StageMemory.of(stages, schedule.ranks, 1.0),
    )


def timed(run: object) -> float:
    started = time.process_time()
    run()  # type: ignore[operator]
    return time.process_time() - started


def everything(schedule: Schedule, interpreted: bool | None = None) -> Timeline:
    """A timeline with its columns and its critical path made."""
    times, transfers, memory = inputs(schedule)
    timeline = simulate(schedule, times, transfers, memory=memory, interpreted=interpreted)
    if timeline.rows <= schedule.actions or timeline.critical is None:
        raise RuntimeError("the timeline lacks rows or its critical path")
    return timeline


def compiled_once(args: argparse.Namespace) -> None:
    """What a fresh process pays in time and memory; then the least of five, loop and all."""
    schedule = generate("interleaved", args.ranks, args.microbatches, args.chunks)
    everything(generate("interleaved", 2, 4, 2), interpreted=False)
    first_s = timed(lambda: everything(schedule))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    times, transfers, memory = inputs(schedule)
    run = partial(execute, schedule, times, transfers, memory=memory)
    loop_s = min(timed(run) for _ in range(5))
    whole_s = min(timed(lambda: everything(schedule)) for _ in range(5))
    print(json.dumps({"actions": schedule.actions, "loop_s": loop_s, "first_s": first_s,
                      "whole_s": whole_s, "peak_mb": peak_mb}))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1024)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--share", type=float, default=1 / 16)
    parser.add_argument("--compiled-once", action="store_true")
    args = parser.parse_args()
    if args.compiled_once:
        compiled_once(args)
        return
    command = [sys.executable, __file__, "--compiled-once", "--ranks", str(args.ranks),
               "--microbatches", str(args.microbatches), "--chunks", str(args.chunks)]  # fmt: skip
    fast = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    import simpy_oracle

    m = max(args.ranks, round(args.microbatches * args.share))
    part = generate("interleaved", args.ranks, m, args.chunks)
    times, transfers, memory = inputs(part)
    scale = fast["actions"] / part.actions
    plain = partial(execute, part, times, transfers, memory=memory, interpreted=True)
    plain_s = scale * timed(plain)
    plain_all_s = scale * timed(lambda: everything(part, interpreted=True))
    simpy_s = scale * timed(lambda: simpy_oracle.Play(part, times, transfers, memory=memory))
    same = np.array_equal(
        execute(part, times, transfers).result.end,
        execute(part, times, transfers, interpreted=True).result.end,
    )
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()},"
          f" numpy {np.__version__}, numba {numba.__version__}")  # fmt: skip
    print(f"{fast['actions']:,} actions, transfers and memory on; compiled equals plain: {same}")
    print(f"compiled  loop and memory {fast['loop_s']:.3f} s; with all columns"
          f" {fast['whole_s']:.3f} s, {fast['first_s']:.3f} s the first time,"
          f" peak {fast['peak_mb']:.0f} MB")  # fmt: skip
    for name, seconds in (
        ("plain Python loop", plain_s), ("the same, columns", plain_all_s), ("simpy", simpy_s)
    ):  # fmt: skip
        print(f"{name:18s}{seconds:8.1f} s   {seconds / fast['first_s']:6.0f} x the first run with"
              f" all columns, {seconds / fast['whole_s']:.0f} x the best,"
              f" {seconds / fast['loop_s']:.0f} x the loop alone")  # fmt: skip


if __name__ == "__main__":
    main()
