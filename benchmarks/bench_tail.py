"""10,000 noisy steps of 16 stages, 64 microbatches and 1,024 devices (TP 8, PP 16, DP 8)."""

import time

import numpy as np

from gangsaw.schedule import generate
from gangsaw.simulate import StageTimes, Transfers
from gangsaw.simulate.noise import TABLE, lognormal_table
from gangsaw.simulate.tail import After, Tables, draw_steps, graph_of, percentiles

LIMIT_S = 10.0

if __name__ == "__main__":
    ones = np.ones(TABLE, np.float32)
    tables = Tables(lognormal_table(0.025, 8), ones, ones, 0.02, 0.3)
    graph = graph_of(
        generate("1f1b", 16, 64, 1), StageTimes.of(16, 1.0, 1.0, 1.0), Transfers.of(16, 0.1, 1.0)
    )
    paces = np.ones((50, 8, 16))
    draw_steps(graph, paces[:2], tables, After(1.0, 1.0), 2, 0)
    began = time.perf_counter()
    draws = draw_steps(graph, paces, tables, After(1.0, 1.0), 200, 0)
    took = time.perf_counter() - began
    mean, error, rows = percentiles(draws.step_s, (0.5, 0.95, 0.99), 0)
    print(f"{draws.draws} steps of 1,024 devices: {took:.2f} s; mean {mean:.3f} +- {error:.4f} s")
    if took > LIMIT_S:
        raise SystemExit(f"more than {LIMIT_S} s")
