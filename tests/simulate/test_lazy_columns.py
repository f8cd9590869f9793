"""A timeline makes its columns at the first look, and stays what it was."""

from dataclasses import replace

import numpy as np

from gangsaw.schedule import generate
from gangsaw.simulate import StageMemory, StageTimes, Timeline, Transfers, simulate


def made():
    return simulate(
        generate("interleaved", 2, 4, 2), StageTimes.of(4, 1.0, 1.5, 0.5),
        Transfers.of(4, 0.25, 1.0), memory=StageMemory.of(4, 2, 1.0),
    )  # fmt: skip


def test_step_and_memory_need_no_columns():
    line = made()
    step = line.makespan_s
    assert line.memory.peak_bytes.max() > 0.0 and "rank" not in vars(line)
    assert line.end_s.max() == step == line.makespan_s
    assert "rank" in vars(line)


def test_it_is_a_timeline_like_any_other():
    line = made()
    assert isinstance(line, Timeline)
    other = replace(line, measured=True)
    assert other.measured and not line.measured
    assert np.array_equal(other.start_s, line.start_s)
    assert other.makespan_s == line.makespan_s
    assert len(line.critical) > 0 and line.only_ranks(1).ranks == 1
