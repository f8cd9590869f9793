"""The event loop against simpy: equal to the last digit."""

import random

import numpy as np
import simpy_oracle

from gangsaw.schedule import INFOS, generate, parse_csv, to_csv
from gangsaw.schedule.actions import UNSHARD
from gangsaw.simulate import DataParallel, StageMemory, StageTimes, Transfers
from gangsaw.simulate.loop import execute

CASES = 300


def random_case(rng, torch_lowered=None):
    while True:
        name = rng.choice(list(INFOS))
        p, m = rng.randint(1, 5), rng.randint(1, 9)
        v = INFOS[name].fixed_chunks or rng.randint(1, 3)
        if not INFOS[name].refuse(p, m, v):
            break
    schedule = generate(name, p, m, v)
    stages = schedule.stages

    def draw(low, high, size=stages):
        return np.array([rng.uniform(low, high) for _ in range(size)])

    times = StageTimes.of(
        stages, draw(0.5, 2), draw(0.5, 2), draw(0.5, 2), rng.choice([0.0, 0.37, 1.0])
    )
    transfers = data = memory = None
    if rng.random() < 0.8:
        links = None
        if rng.random() < 0.4:
            links = np.array([[rng.randrange(3) for _ in range(p)] for _ in range(p)], np.int32)
        transfers = Transfers.of(
            stages, draw(1, 5), draw(5, 20), draw(0, 0.2), rng.random() < 0.4, links
        )
    if rng.random() < 0.4:
        data = DataParallel(draw(0.1, 1.5), draw(0.1, 3), rng.randint(2, 3))
    if rng.random() < 0.7:
        memory = StageMemory(
            draw(0, 3, p), draw(1, 3), draw(0, 1), draw(0, 2), rng.choice([0.0, 0.5, 1.0])
        )
    return schedule, times, transfers, data, memory


def compare(case, interpreted=True):
    schedule, times, transfers, data, memory = case
    run = execute(schedule, times, transfers, data, memory, interpreted=interpreted)
    play = simpy_oracle.Play(run.schedule, times, transfers, data, memory)
    result = run.result
    label = (schedule.name, schedule.ranks, schedule.microbatches, transfers)
    for at in range(run.schedule.actions):
        assert result.start[at] == play.begin[at], label
        assert result.end[at] == play.finish[at], label
    assert {i for i in range(run.schedule.actions) if result.arrived[i] >= 0} == set(play.arrived)
    for at, when in play.arrived.items():
        assert result.arrived[at] == when and result.sent[at] == play.sent[at], label
    if memory is not None:
        assert np.allclose(run.memory.peak, play.peak, rtol=1e-12), label
    return run


def test_three_hundred_random_cases():
    rng = random.Random(20241130)
    shared = blocking = gathered = 0
    for _ in range(CASES):
        case = random_case(rng)
        run = compare(case)
        shared += case[2] is not None and case[2].links is not None
        blocking += case[2] is not None and case[2].blocking
        gathered += bool(np.any(run.schedule.kind == UNSHARD))
    assert min(shared, blocking, gathered) > 30


def test_compiled_equals_interpreted():
    rng = random.Random(7)
    for _ in range(60):
        compare(random_case(rng), interpreted=False)


def written_out(schedule):
    """Sends behind their compute, receives in front of theirs."""
    lines = []
    rank_of, per = schedule.rank_of, schedule.stages // schedule.pipes
    for line in to_csv(schedule.compute_only()).splitlines():
        cells = []
        for cell in line.split(","):
            parts = cell.strip("(").split(")")[0].split(";")
            before, behind = [], []
            for part in parts:
                kind = next(c for c in part if c.isalpha())
                stage, mb = (int(x) for x in part.split(kind))
                other = {"F": stage - 1, "I": stage + 1, "B": stage + 1}.get(kind)
                way = "F" if kind == "F" else "B"
                if other is not None and 0 <= other < per and rank_of[other] != rank_of[stage]:
                    before.append(f"{stage}RECV_{way}{mb}")
                onward = {"F": stage + 1, "I": stage - 1, "B": stage - 1}.get(kind)
                if onward is not None and 0 <= onward < per and rank_of[onward] != rank_of[stage]:
                    behind.append(f"{stage}SEND_{way}{mb}")
            cells += [*before, cell, *behind]
        lines.append(",".join(cells))
    return parse_csv("\n".join(lines))


def test_written_out_transfers():
    rng = random.Random(11)
    done = 0
    while done < 60:
        schedule, times, transfers, _, memory = random_case(rng)
        if schedule.pipes > 1:
            continue
        compare((written_out(schedule), times, transfers, None, memory))
        done += 1
