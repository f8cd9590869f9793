"""The rows of a timeline: they tile each rank's time, and are what simpy saw; compiled or not."""

import itertools
import random
from dataclasses import fields

import numpy as np
import pytest
import simpy_oracle
from test_against_simpy import random_case, written_out

from gangsaw.schedule.actions import PAIR_SECOND, REDUCE_GRAD, UNSHARD, B
from gangsaw.simulate import Timeline
from gangsaw.simulate.loop import execute
from gangsaw.simulate.record import record
from gangsaw.simulate.timeline import COMPUTE, DP, IDLE, P2P, PAIR, ROW_KINDS

COLUMNS = [
    name for name in (f.name for f in fields(Timeline))
    if name not in ("ranks", "name", "measured", "memory", "critical")
]  # fmt: skip


def cases(count, seed):
    rng = random.Random(seed)
    for i in range(count):
        schedule, times, transfers, data, memory = random_case(rng)
        if i % 4 == 0 and schedule.pipes == 1:
            schedule, data = written_out(schedule), None
        yield schedule, times, transfers, data, memory


@pytest.mark.parametrize("interpreted", [True, False])
def test_rows_are_what_simpy_saw(interpreted):
    kinds = set()
    for schedule, times, transfers, data, _ in cases(80, 3):
        run = execute(schedule, times, transfers, data, interpreted=interpreted)
        line = record(run)
        play = simpy_oracle.Play(run.schedule, times, transfers, data)
        ran = run.schedule
        label = (ran.name, ran.ranks, ran.microbatches)
        ranks = ran.rank_index()
        work, moves, side = set(), set(), set()
        for i in range(ran.actions):
            span = (play.begin[i], play.finish[i])
            who = (int(ranks[i]), int(ran.stage[i]), int(ran.microbatch[i]))
            if ran.kind[i] <= B and ran.pair[i] != PAIR_SECOND:
                work.add((*who, *span))
            if ran.kind[i] in (UNSHARD, REDUCE_GRAD):
                side.add((*who, *span))
            if i in play.arrived:
                moves.add((*who, play.sent[i], play.arrived[i]))
        for stream, expected in ((COMPUTE, work), (P2P, moves), (DP, side)):
            own = (line.stream == stream) & (line.kind != IDLE)
            found = zip(
                *(getattr(line, n)[own].tolist()
                  for n in ("rank", "stage", "microbatch", "start_s", "end_s")),
                strict=True,
            )  # fmt: skip
            assert sorted(found) == sorted(expected), label
        kinds |= {ROW_KINDS[k] for k in line.kind.tolist()}
    assert {"F", "I", "W", "B", "SEND_F", "SEND_B", "UNSHARD", "REDUCE_GRAD", "idle"} <= kinds
    assert ROW_KINDS[PAIR] in kinds


def test_compute_rows_tile_each_rank():
    for case in cases(80, 5):
        line = record(execute(*case, interpreted=True))
        for rank in range(line.ranks):
            own = np.flatnonzero((line.stream == COMPUTE) & (line.rank == rank))
            order = own[np.lexsort((line.end_s[own], line.start_s[own]))]
            start, end = line.start_s[order], line.end_s[order]
            assert start[0] == 0.0 and end[-1] == line.makespan_s
            assert np.array_equal(start[1:], end[:-1])


def test_compiled_rows_equal_interpreted():
    for case in cases(80, 7):
        plain = record(execute(*case, interpreted=True))
        fast = record(execute(*case, interpreted=False))
        for name in COLUMNS:
            one, two = getattr(plain, name), getattr(fast, name)
            assert one.dtype == two.dtype and np.array_equal(one, two), name
        assert np.array_equal(plain.critical, fast.critical)


def test_the_critical_path_has_no_gap_but_transfers():
    for schedule, times, transfers, _, _ in cases(60, 9):
        line = record(execute(schedule, times, transfers))
        chain = line.critical
        assert line.end_s[chain[-1]] == line.end_s[line.busy()].max()
        for before, after in itertools.pairwise(chain):
            assert line.end_s[before] <= line.start_s[after]
            if transfers is None:
                assert line.end_s[before] == line.start_s[after]
        if transfers is None:
            assert line.start_s[chain[0]] == 0.0
