"""A Chrome trace keeps the rules of the Trace Event Format, whatever runs; and is written in parts.

The rules are those of the format's document (Google, "Trace Event Format", sections "Event
Descriptions", "Complete Events", "Flow Events" and "Metadata Events"), as viewers apply them.
"""

import io
import json
import tracemalloc
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from gangsaw.schedule import generate
from gangsaw.simulate import DataParallel, StageTimes, Timeline, Transfers, simulate
from gangsaw.simulate.timeline import IDLE, P2P
from gangsaw.trace.chrome import chrome_trace, pieces, write_trace

CASES = [
    ("1f1b", 4, 8, 1, False), ("interleaved", 4, 16, 2, False), ("zb-v", 4, 12, 2, True),
    ("dualpipe", 4, 10, 1, False), ("dualpipe-v", 4, 12, 2, False), ("gpipe", 1, 3, 1, False),
]  # fmt: skip


def made(name, p, m, v, blocking=False):
    schedule = generate(name, p, m, v)
    s = schedule.stages
    times = StageTimes.of(s, np.linspace(0.9e-3, 1.3e-3, s) / 3, 0.7e-3, 0.3e-3)
    # Two transfers fly at once; a third of them arrive with the same nanosecond.
    transfers = Transfers.of(s, 1.0, 1.2e4, 7.1e-4, blocking=blocking)
    return simulate(schedule, times, transfers, DataParallel.of(s, 3e-4, 5e-4))


def read(text):
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ms"
    return document["traceEvents"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_events_keep_the_rules_of_the_format(case):
    timeline = made(*case)
    events = read(chrome_trace(timeline))
    assert Counter(e["ph"] for e in events).keys() <= {"M", "X", "s", "f"}
    named = {"process_name": {}, "thread_name": {}}
    slices = defaultdict(list)
    for e in events:
        assert isinstance(e["name"], str) and isinstance(e["pid"], int)
        if e["ph"] == "M":
            if e["name"] in named:
                place = e["pid"] if e["name"] == "process_name" else (e["pid"], e["tid"])
                assert place not in named[e["name"]]
                named[e["name"]][place] = e["args"]["name"]
            continue
        assert isinstance(e["cat"], str) and isinstance(e["tid"], int) and e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0
            slices[e["pid"], e["tid"]].append(e)
    # Rank as process, stream as thread, each with a name.
    assert named["process_name"] == {r: f"rank {r}" for r in range(timeline.ranks)}
    assert slices.keys() <= named["thread_name"].keys()
    by_name = {named["thread_name"][place].split(" ")[0] for place in slices}
    assert by_name <= {"compute", "transfers", "receives", "data"}
    # Complete events of a thread lie side by side or inside each other: here side by side.
    for found in slices.values():
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in found)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))
    assert_arrows(events, slices, timeline)


def assert_arrows(events, slices, timeline):
    """Each arrow begins once and ends once, later, inside the events that it binds to."""
    ends = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
    counts = Counter((e["ph"], e["id"]) for e in events if e["ph"] in "sf")
    assert set(counts.values()) <= {1} and ends["s"].keys() == ends["f"].keys()
    assert len(ends["s"]) == np.count_nonzero(timeline.stream == P2P)
    for number, first in ends["s"].items():
        last = ends["f"][number]
        assert (first["name"], first["cat"]) == (last["name"], last["cat"])
        assert last["bp"] == "e" and last["ts"] >= first["ts"]
        for end, name in ((first, None), (last, f"from rank {first['pid']}")):
            at = [
                e for e in slices[end["pid"], end["tid"]]
                if e["ts"] <= end["ts"] < e["ts"] + max(e["dur"], 1e-3)
            ]  # fmt: skip
            assert at and (name is None or at[-1]["name"] == name)
        assert (timeline.rank[number], timeline.peer[number]) == (first["pid"], last["pid"])


def test_every_row_that_is_work_is_one_event_at_its_time():
    timeline = made(*CASES[4])
    complete = [e for e in read(chrome_trace(timeline)) if e["ph"] == "X" and e["tid"] < 200]
    rows = np.flatnonzero(timeline.kind != IDLE)
    theirs = sorted((e["pid"], e["ts"], e["dur"], e["args"]["stage"]) for e in complete)
    mine = sorted(
        zip(
            timeline.rank[rows].tolist(), (timeline.start_s[rows] * 1e6).tolist(),
            ((timeline.end_s - timeline.start_s)[rows] * 1e6).tolist(),
            timeline.stage[rows].tolist(), strict=True,
        )
    )  # fmt: skip
    assert len(theirs) == len(mine)
    assert np.allclose(np.asarray(theirs), np.asarray(mine), atol=2e-3, rtol=0)


def test_a_trace_of_nothing_is_still_a_trace():
    table = {"rank": [0], "stream": ["compute"], "kind": ["idle"], "stage": [-1],
             "microbatch": [-1], "start_s": [0.0], "end_s": [1.0], "cause": ["bubble"]}  # fmt: skip
    events = read(chrome_trace(Timeline.from_table(table)))
    assert {e["ph"] for e in events} == {"M"}


class Count(io.TextIOBase):
    """A file that keeps nothing."""

    written = 0

    def write(self, text):
        self.written += len(text)
        return len(text)


def test_what_is_held_while_writing_does_not_grow_with_the_trace():
    held = []
    for m in (128, 512):
        timeline = made("interleaved", 8, m, 4)
        assert timeline.critical is not None  # columns are made
        out = Count()
        tracemalloc.start()
        write_trace(timeline, out)
        held.append((tracemalloc.get_traced_memory()[1], out.written, timeline.rows))
        tracemalloc.stop()
    (_, short, _), (most, long, rows) = held
    assert long > 3.9 * short
    # Some thousand events and a few numbers a row, where the text alone is hundreds of bytes.
    assert most < 4e6 + 40 * rows < 0.5 * long
    assert max(map(len, pieces(made(*CASES[1])))) < 1e5
