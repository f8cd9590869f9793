"""The closed form on unequal stages against the event loop, on models that it was not set on.

`cost.step.uneven_s` was read off 126 equal layers on 16 ranks. Here: dense layers first and a
prediction layer (61 layers), a heavy head and windows (48), a vision tower in front (80); layouts
at equal counts and as refined. The closed form knows sums and the slowest rank, not where it
stands, so it is off where few microbatches fill the pipe and stages are far from equal.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from gangsaw.cost.layout import default_counts
from gangsaw.search.estimate import evaluate
from gangsaw.search.refine import PlanLayouts, refined
from gangsaw.search.timeline import named_schedule, stage_transfers
from gangsaw.simulate.rerun import Rerun

sys.path.insert(0, str(Path(__file__).parent))
from test_refine import ROOMY, job, plan_of

MODELS = ("deepseek-v3", "gemma-3-12b", "qwen2.5-vl-72b")


@pytest.fixture(scope="module")
def errors():
    """(chunks, microbatches over ranks): relative errors of the pipeline's seconds."""
    found = {}
    for model in MODELS:
        for p in (4, 8, 16):
            for v in (1, 2, 4):
                for share in (2, 8):
                    given = job(model, None, f"h100-sxm:{16 * p}", global_batch=2 * share * p)
                    if p * v > given.model.layers:
                        continue
                    experts = {"ep": 8} if model == "deepseek-v3" else {}
                    plan = plan_of(given, p, v, share * p, tp=8, dp=2, **experts)
                    ev = evaluate(given, plan)
                    layouts = PlanLayouts(ev, ROOMY)
                    schedule = named_schedule(plan.schedule, p, share * p, v)
                    rerun = Rerun(schedule, stage_transfers(ev))
                    for counts in (
                        default_counts(given.model.layers, p * v), refined(ev, ROOMY, 20).counts,
                    ):  # fmt: skip
                        loop = rerun.makespan_s(layouts.times(counts))
                        step, rest = layouts.costs.closed_form_s(counts)
                        found.setdefault((v, share), []).append((step - rest) / loop - 1)
    return {key: np.array(values) for key, values in found.items()}


def test_one_chunk_a_rank(errors):
    # A bottleneck at the front of the pipe costs less than one at its end; taken as the end's.
    assert errors[1, 8].min() > -0.02 and errors[1, 2].min() > -0.02
    assert errors[1, 8].mean() < 0.03 and errors[1, 8].max() < 0.08
    assert errors[1, 2].mean() < 0.10 and errors[1, 2].max() < 0.20


@pytest.mark.parametrize("v", [2, 4])
def test_chunks(errors, v):
    assert np.abs(errors[v, 8]).mean() < 0.04 and np.abs(errors[v, 8]).max() < 0.15
    assert np.abs(errors[v, 2]).mean() < 0.10 and np.abs(errors[v, 2]).max() < 0.20
