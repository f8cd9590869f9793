"""Search speed: GPT-3 175B on 1,024 A100-80G, every legal plan, on one core.

    .venv/bin/python benchmarks/bench_search.py [--devices 1024] [--batch 1536] [--repeat 3]

Prints evaluated plans a CPU-second once warm and for the whole process (start, reading, counting,
search, short list, results), peak memory, time for half and all of the space, and the time a plan
on other numbers of devices. Machine code is in the cache before anything is timed. Calculon
(github.com/calculon-ai/calculon) is the fastest analytic search that publishes a figure for this
job: 560,000 configurations in 270 CPU-seconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import numba

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search import space
from gangsaw.search.search import search
from gangsaw.spec.job import Job
from gangsaw.spec.recipe import Recipe

CALCULON_PLANS_A_S = 560_000 / 270.0


def job_of(devices: int, batch: int) -> Job:
    return Job(
        model=load_model("gpt3-175b"),
        recipe=Recipe(seq_len=2048, global_batch=batch),
        cluster=load_cluster(f"a100-sxm-80g:{devices}"),
        stack=load_stack("unknown"),
    )


def evaluate_all(job: Job, fixed: dict[str, object]) -> tuple[int, float]:
    """Evaluated plans and CPU seconds of the exhaustive search."""
    breadth = space.exhaustive(space.stack_breadth(job.stack.name))
    started = time.process_time()
    found = space.search_all(job, fixed, breadth)
    return found.evaluated, time.process_time() - started


def whole_process(job: Job) -> None:
    """In a process of its own: what one `plan --exhaustive` does, without printing."""
    result = search(job, space.Limits(exhaustive=True))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "plans": result.searched.plans, "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1e3,
    }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1536)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--whole-process", action="store_true")
    args = parser.parse_args()
    job = job_of(args.devices, args.batch)
    if args.whole_process:
        whole_process(job)
        return
    evaluate_all(job_of(8, 8), {})  # machine code into the cache and into memory
    print(f"{platform.machine()}, Python {platform.python_version()}, numba {numba.__version__};"
          f" gpt3-175b on {args.devices} x A100-80G, batch {args.batch}")  # fmt: skip

    runs = [evaluate_all(job, {}) for _ in range(args.repeat)]
    plans, best_s = runs[0][0], min(s for _, s in runs)
    rate = plans / best_s
    print(f"warm           {plans:>12,} plans {best_s:7.2f} CPU-s {rate:>12,.0f} a CPU-second"
          f"  {rate / CALCULON_PLANS_A_S:6.0f} x Calculon")  # fmt: skip

    command = [sys.executable, __file__, "--whole-process", "--devices", str(args.devices),
               "--batch", str(args.batch)]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole = json.loads(done.stdout)
    rate = whole["plans"] / whole["cpu_s"]
    print(f"whole process  {whole['plans']:>12,} plans {whole['cpu_s']:7.2f} CPU-s"
          f" {rate:>12,.0f} a CPU-second  {rate / CALCULON_PLANS_A_S:6.0f} x Calculon,"
          f" peak {whole['peak_mb']:.0f} MB")  # fmt: skip

    half: dict[str, object] = {"recompute": "full", "zero": 1}
    few, few_s = evaluate_all(job, {**half, "sequence_parallel": True})
    more, more_s = evaluate_all(job, half)
    print(f"doubling       {more / few:5.2f} x the plans in {more_s / few_s:5.2f} x the time")

    for devices in (256, 4096):
        # As many sequences a device, so that the degrees are as many; the rate is what counts.
        other, other_s = evaluate_all(job_of(devices, args.batch), {"recompute": "full"})
        print(f"{devices:>5} devices  {other:>12,} plans {other_s:7.2f} CPU-s"
              f" {1e9 * other_s / other:8.0f} ns a plan")  # fmt: skip


if __name__ == "__main__":
    main()
