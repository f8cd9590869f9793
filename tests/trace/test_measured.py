"""From traces to a Timeline: every second once, causes as they were put in, clocks put right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kineto import DATA, kernel, launch, step, write

from gangsaw.errors import InputError
from gangsaw.simulate.timeline import COMPUTE
from gangsaw.trace.device import axis_of, covers, merged
from gangsaw.trace.kineto import Group
from gangsaw.trace.measured import measure_files

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def comm(ts, dur, corr, name=NCCL, said="allreduce", text="mesh_tp", elements=1000):
    return kernel(
        ts,
        dur,
        name,
        on=20,
        corr=corr,
        **{
            "Collective name": said,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": text,
            "Process Group Description": text,
            "Process Group Ranks": "[0, 1]",
        },
    )


def tiles(line):
    """Compute rows of each rank leave no gap and no overlap from 0 to the end."""
    for rank in range(line.ranks):
        own = (line.rank == rank) & (line.stream == COMPUTE)
        start, end = line.start_s[own], line.end_s[own]
        assert start[0] == pytest.approx(0.0, abs=1e-12)
        assert end[-1] == pytest.approx(line.makespan_s, abs=1e-12)
        assert np.abs(start[1:] - end[:-1]).max(initial=0.0) < 1e-12


def test_each_kind_of_time_is_found(tmp_path):
    """One rank: compute, hidden and exposed TP, optimizer, host gap, an unexplained gap."""
    events = [
        step(0, 1000),
        launch(0, 1), kernel(100, 200, "sgemm", corr=1),
        launch(1, 2), comm(250, 100, 2),
        launch(340, 3), kernel(360, 40, "sgemm", corr=3),
        launch(10, 4), kernel(430, 20, "sgemm", corr=4),
        launch(11, 5), kernel(450, 50, "multi_tensor_apply_kernel", corr=5),
    ]  # fmt: skip
    found = measure_files([write(tmp_path / "t.json", events)])
    line = found.timeline
    tiles(line)
    causes = {c: round(s * 1e6) for c, s in line.by_cause_s().items()}
    # 100-300 compute, 300-350 exposed, 350-360 nothing runs, launched at 340 (unexplained),
    # 360-400 compute, 400-430 a kernel that was launched long before, 430-450, 450-500 optimizer.
    assert causes == {"compute": 260, "tp_comm": 50, "optimizer": 50, "unallocated": 40}
    assert found.hidden_s == {"tp_comm": pytest.approx(50e-6)}


def test_a_gap_before_a_late_launch_is_the_hosts(tmp_path):
    events = [
        step(0, 1000),
        launch(0, 1),
        kernel(100, 100, corr=1),
        launch(380, 2),
        kernel(400, 100, corr=2),
    ]
    line = measure_files([write(tmp_path / "t.json", events)]).timeline
    causes = {c: round(s * 1e6) for c, s in line.by_cause_s().items()}
    assert causes == {"compute": 200, "host": 180, "unallocated": 20}


def two_ranks(tmp_path, late, skew=0):
    """Rank 1 computes `late` microseconds longer, so rank 0 waits in the collectives."""
    paths = []
    for rank in (0, 1):
        events, base = [step(0 + skew * rank, 20_000)], skew * rank
        for i in range(5):
            at = base + 2000 * i + 10
            work = 500 + late * rank
            events += [
                launch(at, 10 * i + 1),
                kernel(at + 10, work, corr=10 * i + 1),
                launch(at, 10 * i + 2),
            ]
            begin = at + 10 + work
            events.append(
                comm(begin, at + 10 + 500 + late + 300 - begin, 10 * i + 2, text="mesh_shard")
            )
        paths.append(write(tmp_path / f"r{rank}.json", events, rank=rank, baseTimeNanoseconds=0))
    return paths


@pytest.mark.parametrize("skew", [0, 7_000, -90_000])
def test_waiting_for_a_late_rank_is_straggler_whatever_the_clocks_say(tmp_path, skew):
    found = measure_files(two_ranks(tmp_path, late=200, skew=skew))
    tiles(found.timeline)
    # Times of a trace count from its own first event, so the skew is in the stamps alone.
    assert found.clocks.shift_s[1] == pytest.approx(0.0, abs=1e-9)
    causes = {c: round(s * 1e6) for c, s in found.timeline.by_cause_s().items()}
    assert causes["dp_comm"] == 2 * 5 * 300
    assert causes["straggler"] == 5 * 200
    assert causes["compute"] == 5 * (500 + 700)
    if skew:
        assert any(f"{-skew / 1e3:+.3f} ms off" in n for n in found.notes)


def test_real_pair_shares_a_clock():
    """Two ranks of one host: the shared collectives put them within 0.1 ms of the time stamps."""
    found = measure_files([DATA / f"kineto-rank{r}.json.gz" for r in (1, 0)])
    tiles(found.timeline)
    stamped = -0.157083
    assert found.clocks.matches[1] >= 3
    assert found.clocks.shift_s[1] == pytest.approx(stamped, abs=1e-4)
    assert found.clocks.residual_s[1] < 1e-3
    causes = found.timeline.by_cause_s()
    assert sum(causes.values()) == pytest.approx(2 * found.timeline.makespan_s)
    assert {"compute", "ep_comm", "dp_comm", "optimizer"} <= set(causes)


def test_real_trace_step_by_step():
    """Steps 4 to 6 are told apart; what is not known is said."""
    for number in (4, 5, 6):
        found = measure_files([DATA / "kineto-nccl.json.gz"], step=number)
        tiles(found.timeline)
        assert 0.15 < found.timeline.makespan_s < 0.25
        assert any("one rank only" in n for n in found.notes)
        assert any("no telling names" in n for n in found.notes)
    with pytest.raises(InputError, match="Legal: 4, 5, 6"):
        measure_files([DATA / "kineto-nccl.json.gz"], step=9)


def test_same_rank_twice_is_refused():
    with pytest.raises(InputError, match="same rank"):
        measure_files([DATA / "kineto-nccl.json.gz"] * 2)


AXES = {
    "mesh_tp": "tp_comm", "TENSOR_MODEL_PARALLEL_GROUP": "tp_comm", "mesh_pp": "pp_comm",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp_comm", "DATA_PARALLEL_GROUP": "dp_comm",
    "mesh_dp_shard_cp": "cp_comm", "EXPERT_MODEL_PARALLEL_GROUP": "ep_comm", "mesh_shard": "dp_comm",
    "mesh_ep": "ep_comm",
}  # fmt: skip


@pytest.mark.parametrize("text", AXES)
def test_axes_by_group_names(text):
    assert axis_of(Group("1", text, 2, ()), "all_gather") == AXES[text]


def test_axes_without_names():
    assert axis_of(None, "all_to_all") == "ep_comm"
    assert axis_of(None, "send_recv") == "pp_comm"
    assert axis_of(Group("0", "default_pg", 8, ()), "all_reduce") == "dp_comm"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 20)), min_size=1, max_size=30))
def test_union_of_intervals_equals_a_set_of_cells(pairs):
    start = np.asarray([a for a, _ in pairs], float)
    end = start + np.asarray([b for _, b in pairs], float)
    union = merged(start, end)
    cells = {x for a, b in pairs for x in range(a, a + b)}
    points = np.arange(130) + 0.5
    assert {int(p) for p in points[covers(union, points)]} == cells
    assert (union[0][1:] > union[1][:-1]).all()


def action(name, ts, dur, tid=1):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"Input Dims": [[2, 4]], "Input type": ["float"]},
    }


def test_cpu_ranks_are_read_by_their_actions(tmp_path):
    """Two stages on gloo: waiting at the head of an action is bubble, the transfer itself is not."""
    zero = [
        step(0, 1000), action("PP:0F0", 0, 100), action("PP:0SEND_F0", 100, 5), action("PP:0RECV_B0", 105, 5),
        action("gloo:recv", 110, 400, tid=2), action("PP:0B0", 110, 600), action("gangsaw:optimizer", 800, 100),
    ]  # fmt: skip
    one = [
        step(0, 1000), action("PP:1RECV_F0", 0, 5), action("gloo:recv", 2, 150, tid=2), action("PP:1F0", 5, 250),
        action("PP:1B0", 255, 200), action("PP:1SEND_B0", 455, 10), action("gangsaw:optimizer", 800, 100),
    ]  # fmt: skip
    files = [write(tmp_path / f"{r}.json", e, rank=r) for r, e in enumerate((zero, one))]
    line = measure_files(files).timeline
    tiles(line)
    own = (line.rank == 0) & (line.stream == COMPUTE)
    spent = {}
    from gangsaw.spec.result import CAUSES

    for cause, low, high in zip(line.cause[own], line.start_s[own], line.end_s[own], strict=True):
        spent[CAUSES[cause]] = spent.get(CAUSES[cause], 0) + round((high - low) * 1e6)
    assert spent == {"compute": 100 + 200, "pp_comm": 10 + 400, "optimizer": 100, "host": 190}
    work = own & (line.stage == 0) & (line.microbatch == 0)
    assert work.sum() >= 3


def test_own_runs_can_be_read_back():
    """A run's trace of CPU ranks, shortened: the tiling holds on real recorded actions."""
    path = Path(__file__).parents[1] / "data" / "own-run"
    found = measure_files(sorted(path.glob("rank*.json.gz")))
    tiles(found.timeline)
    causes = found.timeline.by_cause_s()
    assert {"compute", "bubble", "dp_comm", "optimizer"} <= set(causes)
    assert json.dumps(causes)
    assert found.timeline.ranks == 4
    # Each of the two stages ran 4 forwards and 4 backwards on both of its ranks.
    names = {
        (int(r), int(s), int(m))
        for r, s, m in zip(
            found.timeline.rank, found.timeline.stage, found.timeline.microbatch, strict=True
        )
        if s >= 0 and m >= 0
    }
    assert {(r, r // 2, m) for r in range(4) for m in range(4)} <= names
