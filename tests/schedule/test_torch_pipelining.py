"""Every generated schedule against torch.distributed.pipelining."""

import numpy as np
import pytest
import torch_oracle

from gangsaw.schedule import INFOS, generate, parse_csv, to_csv
from gangsaw.schedule.actions import from_rows
from gangsaw.simulate import StageMemory, StageTimes, simulate

TORCH_NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "bfs": "LoopedBFS",
    "izb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
SHAPES = [(1, 3), (2, 2), (2, 7), (4, 3), (4, 8), (4, 10), (5, 13), (8, 16), (8, 21)]


def cases():
    for name, info in INFOS.items():
        for p, m in SHAPES:
            for v in (1, 2, 3) if info.fixed_chunks == 0 else (info.fixed_chunks,):
                if not info.refuse(p, m, v) and not (name == "bfs" and v == 1 and p == 1):
                    yield name, p, m, v


def pipes(schedule):
    """Each direction of a two-way pipe as a schedule of its own: torch knows no second copy."""
    if schedule.pipes == 1:
        return [schedule]
    half = schedule.stages // 2
    result = []
    for low in (0, half):
        rows = []
        for rank in range(schedule.ranks):
            row = schedule.rank_row(rank)
            mine = (row.stage >= low) & (row.stage < low + half)
            columns = [column[mine] for column in row]
            columns[1] = columns[1] - low
            columns[3] = np.zeros(mine.sum(), np.int8)
            rows.append(type(row)(*columns))
        result.append(from_rows(schedule.name, rows, half, schedule.microbatches))
    return result


def test_torch_accepts_every_schedule():
    torch_oracle.check_version()
    seen = set()
    for name, p, m, v in cases():
        schedule = generate(name, p, m, v)
        for pipe in pipes(schedule):
            steps = torch_oracle.accept(to_csv(pipe), pipe.stages, pipe.microbatches)
            assert len(steps) == p
        seen.add(name)
    assert seen == set(INFOS)


TWO_WAY = [(2, 4), (4, 8), (4, 10), (6, 12), (8, 16), (8, 22)]


@pytest.mark.parametrize(("p", "m"), TWO_WAY)
def test_torch_accepts_both_directions_together(p, m):
    """Validated, lowered and dry-run as one program, and nothing is lost on the way."""
    schedule = generate("dualpipe", p, m)
    text = to_csv(schedule)
    steps = torch_oracle.accept_both_ways(text, schedule.stages, schedule.microbatches)
    assert len(steps) == p
    for rank, row in steps.items():
        compute = sum(a.is_compute_op for a in row)
        assert compute == len(schedule.rank_row(rank).kind)
        inner = 2 if 0 < rank < p - 1 else 1
        assert sum("SEND" in str(a) for a in row) == inner * m
        assert sum("RECV" in str(a) for a in row) == inner * m


def test_torch_finds_a_circle_between_the_directions():
    """Each direction by itself is legal; together they wait for each other for ever."""
    text = (
        "0F0,0F1,0B0,0B1,3F0,3F1,3B0,3B1\n"
        "1F0,1F1,1B0,1B1,2F0,2F1,2B0,2B1\n"
    )  # fmt: skip
    torch_oracle.accept_both_ways(text, 4, 2)
    wrong = (
        "3F0,3F1,3B0,3B1,0F0,0F1,0B0,0B1\n"
        "1F0,1F1,1B0,1B1,2F0,2F1,2B0,2B1\n"
    )  # fmt: skip
    with pytest.raises(AssertionError, match="can't schedule"):
        torch_oracle.accept_both_ways(wrong, 4, 2)


def test_why_dualpipe_is_no_csv_of_torch():
    """A stage on two ranks is refused, and a second entrance waits for the first pipe's exit."""
    twice = "0F0,1F1,0B0,1B1\n1F0,0F1,1B0,0B1\n"
    with pytest.raises(AssertionError, match="assigned to both"):
        torch_oracle.accept(twice, 2, 2)
    schedule = generate("dualpipe", 4, 8)
    with pytest.raises(AssertionError, match="can't schedule"):
        torch_oracle.accept(to_csv(schedule), schedule.stages, schedule.microbatches)


def test_text_round_trip():
    for name, p, m, v in cases():
        schedule = generate(name, p, m, v)
        again = parse_csv(to_csv(schedule), pipes=schedule.pipes)
        for column in ("row", "kind", "stage", "microbatch", "pair", "rank_of"):
            assert np.array_equal(getattr(schedule, column), getattr(again, column)), name


def timeline(schedule):
    chunks = schedule.chunks
    times = StageTimes.of(schedule.stages, 1 / chunks, 1 / chunks, 1 / chunks)
    memory = StageMemory.of(schedule.stages, schedule.ranks, 1 / chunks)
    return simulate(schedule, times, memory=memory)


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_bubble_and_in_flight_agree_with_torch(name):
    compared = 0
    for same, p, m, v in cases():
        if same != name or p == 1:
            continue
        if name == "1f1b" and m < p:
            continue  # torch's class refuses, its runtime does not
        rounds = max(1, m // p)
        if name in ("interleaved", "izb") and m % rounds:
            continue  # torch refuses; ours is checked by the event loop
        theirs = parse_csv(
            torch_oracle.to_text(torch_oracle.torch_order(TORCH_NAMES[name], p, m, v))
        )
        ours, other = timeline(generate(name, p, m, v)), timeline(theirs)
        assert ours.makespan_s == pytest.approx(other.makespan_s), (name, p, m, v)
        assert np.allclose(ours.idle_s(), other.idle_s()), (name, p, m, v)
        assert np.allclose(ours.memory.peak_bytes, other.memory.peak_bytes), (name, p, m, v)
        compared += 1
    assert compared >= 3
