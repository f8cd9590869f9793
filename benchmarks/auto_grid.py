"""`--schedule auto` against the named schedules over a grid of cases, and its time at p 16, m 128.

    .venv/bin/python benchmarks/auto_grid.py [--ranks 2,4,8,16] [--microbatches 2,4,8,16,32,64]

Equal and unequal stages, one chunk a rank and a V of two, three memory limits. Prints how far
auto and the best named schedule are above the lower bound, and where auto only equals it.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import numpy as np

from gangsaw.simulate import StageMemory, StageTimes, Transfers
from gangsaw.simulate.auto import AutoResult, loop_map, synthesise, v_map


def case(p: int, m: int, chunks: int, uneven: bool, limit: float, seed: int) -> AutoResult:
    draw = np.random.default_rng(seed)
    stages = p * chunks
    k = draw.uniform(0.8, 1.3, stages) if uneven else np.ones(stages)
    b, w = draw.uniform(0.9, 1.3), draw.uniform(0.6, 1.0)
    times = StageTimes.of(stages, k / chunks, k * b / chunks, k * w / chunks)
    return synthesise(
        loop_map(p, 1) if chunks == 1 else v_map(p), m, times,
        StageMemory.of(stages, p, 1.0 / chunks), np.full(p, max(1.0, limit * p)),
        Transfers.of(stages, 0.0, 1.0, 0.03),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8,16")
    parser.add_argument("--microbatches", default="2,4,8,16,32,64")
    args = parser.parse_args()
    ranks = [int(x) for x in args.ranks.split(",")]
    counts = [int(x) for x in args.microbatches.split(",")]
    autos, named, equal, opened, slower = [], [], [], 0, 0
    grid = product(ranks, counts, (1, 2), (False, True), (0.75, 1.0, 2.0))
    for number, (p, m, chunks, uneven, limit) in enumerate(grid):
        made = case(p, m, chunks, uneven, limit, number)
        autos.append(made.gap_frac)
        if not made.named_s:
            continue
        best = min(made.named_s.values())
        named.append(best / made.lower_bound_s - 1)
        slower += made.makespan_s > best
        if named[-1] > 0.02:
            opened += 1
            if not made.makespan_s < best:
                equal.append((p, m, chunks, uneven, limit, round(named[-1], 4)))
    print(f"{len(autos)} cases; above the bound: auto {np.mean(autos):.1%}, named"
          f" {np.mean(named):.1%}; slower than named: {slower}")  # fmt: skip
    print(f"named more than 2 % above the bound: {opened}, of these not beaten: {len(equal)}")
    for each in equal:
        print("  p, m, chunks, uneven, limit/p, gap:", *each)
    case(2, 2, 1, False, 1.0, 0)
    for chunks in (1, 2):
        started = time.process_time()
        made = case(16, 128, chunks, True, 1.0, 1)
        print(f"p 16, m 128, {chunks} chunks: {time.process_time() - started:.1f} s CPU,"
              f" {made.gap_frac:.1%} above the bound")  # fmt: skip


if __name__ == "__main__":
    main()
