"""Goals for peak memory: distinct topologies, and errors worked out from the rows here."""

from statistics import mean

import pytest

from gangsaw.fit.memory_goals import (
    MEMORY_GOALS,
    MemoryGoal,
    Reached,
    as_reserved,
    memory_goal_lines,
    reached,
    topology,
)
from gangsaw.fit.rows import load_shipped
from gangsaw.fit.validate import validate

GIB = 2**30


def test_rows_of_one_topology_count_once():
    rows = load_shipped("torchtitan")
    with_peak = [r for r in rows if r["measured"].get("peak_mem_gb")]
    found = reached(MemoryGoal("torchtitan", "torchtitan", 0.08))
    assert found.topologies == len({topology(r) for r in with_peak}) < len(with_peak)
    first = with_peak[0]
    newer = {**first, "plan": {**first["plan"], "framework": "another revision"}}
    wider = {**first, "plan": {**first["plan"], "tp": 64}}
    assert topology(newer) == topology(first) != topology(wider)


@pytest.mark.parametrize("source", ["simumax-b200", "zerobubble2"])
def test_errors_are_those_of_validate(source):
    rows = load_shipped(source)
    errors = {}
    for r in validate(rows).rows:
        if r.measured_peak_bytes:
            errors[r.id] = abs(r.predicted_peak_bytes / r.measured_peak_bytes - 1.0)
    (goal,) = (g for g in MEMORY_GOALS if g.source == source and not g.reserved)
    found = reached(goal)
    groups = {}
    for r in rows:
        if r["id"] in errors:
            groups.setdefault(topology(r), []).append(errors[r["id"]])
    assert found.mean == pytest.approx(mean(mean(v) for v in groups.values()))
    assert found.worst == pytest.approx(max(mean(v) for v in groups.values()))


def test_reserved_peak_stands_beside_the_allocated_one():
    row = load_shipped("simumax-b200")[0]
    other = as_reserved(row)
    assert other["measured"]["peak_mem_gb"] == row["measured"]["peak_reserved_gib"]
    assert other["measured"]["peak_mem_gb"] > row["measured"]["peak_mem_gb"]
    assert row["measured"]["peak_kind"] == "allocated"
    assert as_reserved(load_shipped("torchtitan")[0]) is None


def test_a_goal_that_is_missed_is_said():
    found = {g.name: Reached(3, g.mean, g.worst or 1.0) for g in MEMORY_GOALS}
    assert all("yes" in line for line in memory_goal_lines(found)[2:])
    goal = MEMORY_GOALS[0]
    for bad in (Reached(3, 1.01 * goal.mean, 0.0), Reached(3, 0.0, 1.01 * goal.worst)):
        assert memory_goal_lines({**found, goal.name: bad})[2].endswith(": no |")


@pytest.mark.parametrize("goal", MEMORY_GOALS, ids=lambda g: g.name)
def test_goals_hold(goal):
    found = reached(goal)
    assert found.topologies > 1
    assert found.mean <= goal.mean
    assert goal.worst is None or found.worst <= goal.worst
