"""What-if replay of two recorded jobs against the results published with them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from gangsaw.errors import InputError
from gangsaw.simulate.replay import RecordedOps, Replay, recorded_timeline
from gangsaw.trace.straggler import read_recorded_ops

DATA = Path(__file__).parent.parent / "data" / "straggler"
# Mean seconds a step: as run, without launch delays, ideal; slowdowns by delay and by stragglers;
# without delays and with the last stage repaired, and with only the last stage as it was.
PUBLISHED = {
    "ST": (2.214448, 2.172697, 1.843296, 1.019216, 1.178702, 1.771040, 2.271412),
    "AR": (46.649176, 46.336373, 23.484700, 1.006751, 1.973045, 46.364068, 23.540337),
}


@pytest.mark.parametrize("job", PUBLISHED)
def test_published_slowdowns(job):
    ran, no_delay, ideal, delay, slowdown, repaired, alone = PUBLISHED[job]
    replay = Replay(read_recorded_ops(DATA / f"{job}.parquet"))
    assert replay.recorded_s() == pytest.approx(ran, rel=1e-5)
    assert replay.no_delay_s() == pytest.approx(no_delay, rel=0.004)
    assert replay.ideal_step_s() == pytest.approx(ideal, rel=0.004)
    assert replay.recorded_s() / replay.no_delay_s() == pytest.approx(delay, rel=0.004)
    assert replay.slowdown() == pytest.approx(slowdown, rel=0.002)
    last = max(int(step.stage.max()) for step in replay.steps.values())
    assert replay.repaired_s(lambda op, dp, st: st == last) == pytest.approx(repaired, rel=0.004)
    assert replay.repaired_s(lambda op, dp, st: st != last) == pytest.approx(alone, rel=0.004)


def test_which_part_is_to_blame():
    # ST: the last stage; AR: the worker of data-parallel rank 0 on stage 0 (published M_W 1.00).
    uneven = Replay(read_recorded_ops(DATA / "ST.parquet"))
    assert uneven.share_brought_back(lambda op, dp, st: st == 3) == pytest.approx(1.219, rel=0.01)
    slow = Replay(read_recorded_ops(DATA / "AR.parquet"))
    share = slow.share_brought_back(lambda op, dp, st: (dp, st) == (0, 0))
    assert share == pytest.approx(1.0017, rel=0.01)


def test_by_hand():
    """Two stages, one microbatch: send waits for a receiver that comes late."""
    names = ("forward-compute", "forward-send", "optimizer", "forward-recv", "forward-compute")
    record = RecordedOps(
        np.zeros(5, np.int64),
        np.array([0, 0, 1, 1, 1]),
        np.zeros(5, np.int64),
        names,
        np.zeros(5, np.int64),
        np.array([0.0, 1.0, 0.0, 3.0, 3.5]),
        np.array([1.0, 2.5, 3.0, 0.5, 2.0]),
    )
    replay = Replay(record)
    step = replay.steps[0]
    assert step.recorded_s == 5.5
    # The send took 2.5 s, of which 2.0 s were waiting for the receiver.
    assert step.own_s.tolist() == [1.0, 0.5, 3.0, 0.5, 2.0]
    assert replay.no_delay_s() == 5.5
    assert replay.repaired_s(lambda op, dp, st: op == "optimizer") == 5.5
    faster = step.own_s.copy()
    faster[2] = 0.5
    assert step.play(faster) == 3.5


def test_bad_tables(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"garbage")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_recorded_ops(path)
    parquet.write_table(pa.table({"stage": [0]}), path)
    with pytest.raises(InputError, match="no column 'dp_rank'"):
        read_recorded_ops(path)
    one = {"dp_rank": [0], "stage": [0], "step": [0], "optype": ["dance"], "start_ts": [0.0],
           "duration": [1.0], "seq_id": [0]}  # fmt: skip
    parquet.write_table(pa.table(one), path)
    with pytest.raises(InputError, match="operation 'dance' is not known"):
        read_recorded_ops(path)
    # A transfer whose other side was not recorded costs what it took.
    one["optype"] = ["forward-send"]
    one["dp_rank"], one["stage"] = [0, 0], [0, 1]
    one = {k: (v * 2)[:2] for k, v in one.items()}
    one["optype"] = ["forward-send", "optimizer"]
    parquet.write_table(pa.table(one), path)
    assert Replay(read_recorded_ops(path)).no_delay_s() == 1.0


def test_recorded_step_as_a_timeline():
    record = read_recorded_ops(DATA / "ST.parquet")
    line = recorded_timeline(record, 33)
    assert line.ranks == 8 and line.measured
    assert line.makespan_s == pytest.approx(2.145037, abs=1e-5)
    for rank in range(8):
        own = (line.rank == rank) & (line.stream == 0)
        order = np.argsort(line.start_s[own], kind="stable")
        assert np.allclose(line.start_s[own][order][1:], line.end_s[own][order][:-1], atol=1e-9)
    spent = line.by_cause_s()
    assert sum(spent.values()) == pytest.approx(8 * line.makespan_s)
    work = (record.step == 33) & np.isin(record.operation, ["forward-compute", "backward-compute"])
    assert spent["compute"] == pytest.approx(record.duration_s[work].sum(), rel=1e-3)
    with pytest.raises(InputError, match="step 7 is not in the record"):
        recorded_timeline(record, 7)
