"""DeepSeek-V3's published training step, cut into phases, against DualPipe in the event loop.

Table 4 of arXiv:2505.09343 (network MPFT): mean seconds over 2,048 H800 of what a rank does in a
step. 16 pipeline ranks and 120 microbatches: 15,360 sequences over 128 replicas.
"""

import numpy as np
import pytest

from gangsaw.schedule import generate
from gangsaw.schedule.actions import SINGLE, B, F, I
from gangsaw.simulate import StageTimes, simulate
from gangsaw.simulate.timeline import COMPUTE, IDLE

STEP, FORWARD, BACKWARD, WEIGHT, BOTH, BUBBLE, OPTIMIZER = (
    19.926,
    1.13,
    1.99,
    0.48,
    13.95,
    2.06,
    0.29,
)
RANKS, MICROBATCHES = 16, 120


def counts():
    """Actions of a rank, on average: forwards, backwards, input gradients, pairs."""
    made = generate("dualpipe", RANKS, MICROBATCHES)
    alone = made.pair == SINGLE
    per_rank = [np.count_nonzero(alone & (made.kind == kind)) / RANKS for kind in (F, B, I)]
    return made, *per_rank, np.count_nonzero(made.pair == 1) / RANKS


def test_the_phases_sum_to_the_step():
    phases = (FORWARD, BACKWARD, WEIGHT, BOTH, BUBBLE, OPTIMIZER)
    assert sum(phases) == pytest.approx(STEP, rel=2e-3)


def test_dualpipe_with_the_published_phases():
    made, forwards, backwards, splits, pairs = counts()
    assert forwards + pairs == backwards + splits + pairs == MICROBATCHES
    # A stage's F, I and W that fill the published phases; a full backward is I and W.
    forward_s, weight_s = FORWARD / forwards, WEIGHT / splits
    input_s = (BACKWARD - backwards * weight_s) / (forwards)
    pair_s = BOTH / pairs
    hidden = forward_s + input_s + weight_s - pair_s
    assert 0.0 < hidden < forward_s < input_s + weight_s
    times = StageTimes.of(made.stages, forward_s, input_s, weight_s, hidden / forward_s)
    line = simulate(made, times)
    own = (line.stream == COMPUTE) & (line.kind != IDLE)
    work = (line.end_s - line.start_s)[own].sum() / RANKS
    assert work == pytest.approx(FORWARD + BACKWARD + WEIGHT + BOTH, rel=1e-6)
    waits = line.makespan_s - work
    # Means over stages hide what 61 layers, a head and a prediction layer leave uneven on 16 ranks.
    assert 0.3 * BUBBLE < waits < BUBBLE
    assert line.makespan_s + OPTIMIZER == pytest.approx(STEP, rel=0.07)
