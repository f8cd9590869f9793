"""Pictures of timelines: what is drawn agrees with the timeline, and every form opens."""

import base64
import itertools
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from gangsaw.errors import InputError
from gangsaw.report.memory_steps import memory_steps
from gangsaw.report.timeline_html import page_data, timeline_html
from gangsaw.report.timeline_svg import MAX_BOXES, boxes, timeline_svg
from gangsaw.schedule import generate
from gangsaw.simulate import DataParallel, StageMemory, StageTimes, Timeline, Transfers, simulate
from gangsaw.simulate.timeline import MemoryCurve
from gangsaw.trace.chrome import chrome_trace


def made(name="1f1b", p=4, m=8, v=1):
    schedule = generate(name, p, m, v)
    s = schedule.stages
    return simulate(
        schedule, StageTimes.of(s, 1.0, 1.0, 1.0), Transfers.of(s, 8.0, 100.0, 0.02),
        DataParallel.of(s, 0.3, 0.5), StageMemory.of(s, p, 2e9),
    )  # fmt: skip


def test_boxes_tile_every_rank():
    timeline = made()
    drawn = boxes(timeline)
    for rank in range(4):
        mine = sorted((b for b in drawn if b.rank == rank), key=lambda b: b.start_s)
        assert mine[0].start_s == 0.0 and mine[-1].end_s == timeline.makespan_s
        assert all(a.end_s == b.start_s for a, b in itertools.pairwise(mine))
    idle = sum(b.end_s - b.start_s for b in drawn if b.idle_cause)
    assert idle == pytest.approx(timeline.idle_s().sum())
    assert sum(b.kind == "F" for b in drawn) == 32


def test_svg_shows_two_schedules_on_one_axis():
    one, two = made(), made("zb-v", 4, 8, 2)
    text = timeline_svg([one, two], ["1F1B", "ZB-V"])
    root = ET.fromstring(text)
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) >= len(boxes(one)) + len(boxes(two))
    assert text.count("<polyline") == 2 and text.count("<polygon") == 8
    assert "critical path" in text and ">1F1B<" in text and ">ZB-V<" in text
    assert not re.search(r'width="-|NaN|nan', text)


def test_critical_path_is_a_chain_without_a_hole():
    timeline = made()
    rows = timeline.critical
    ends, starts = timeline.end_s[rows[:-1]], timeline.start_s[rows[1:]]
    assert np.all(starts >= ends - 1e-12)
    # Between two actions of the chain there is a transfer at most.
    assert np.all(starts - ends <= 0.1 + 1e-9)
    compute = timeline.end_s[timeline.busy()].max()
    assert timeline.end_s[rows[-1]] == compute


def test_too_many_boxes_name_the_other_form():
    schedule = generate("1f1b", 8, MAX_BOXES // 8)
    with pytest.raises(InputError, match=r"FILE\.html"):
        timeline_svg([simulate(schedule, StageTimes.of(8, 1, 1, 1))])


def test_page_holds_every_box():
    timeline = made("dualpipe-v", 4, 12, 2)
    data = page_data(timeline, "x")
    start = np.frombuffer(base64.b64decode(data["start"]), np.float64)
    end = start + np.frombuffer(base64.b64decode(data["lasts"]), np.float32)
    assert len(start) == data["first"][-1] == len(boxes(timeline))
    for rank in range(4):
        span = slice(data["first"][rank], data["first"][rank + 1])
        assert np.allclose(start[span][1:], end[span][:-1], rtol=1e-6)
    page = timeline_html([timeline], ["</script><b>"])
    assert "{{" not in page and page.count("</script>") == 2 and "<b>" not in page
    inside = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(inside)[0]["ranks"] == 4


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.mark.parametrize("name,chunks", [("1f1b", 1), ("dualpipe-v", 2)])
def test_page_holds_memory_and_critical_path(name, chunks):
    timeline = made(name, 4, 12, chunks)
    data = page_data(timeline, "x")
    memory = data["memory"]
    when, level = unpacked(memory["when"], np.float64), unpacked(memory["level"], np.float32)
    for rank in range(4):
        span = slice(memory["first"][rank], memory["first"][rank + 1])
        assert np.all(np.diff(when[span]) >= 0.0)
        # Activations come and go: what is left is what was there before the step.
        assert level[span][-1] == pytest.approx(memory["base"][rank], rel=1e-6)
        assert level[span].max() <= timeline.memory.peak_bytes[rank] * (1 + 1e-6)
    assert memory["most"] == timeline.memory.peak_bytes.max()
    path = unpacked(data["critical"], np.int32)
    start = unpacked(data["start"], np.float64)
    end = start + unpacked(data["lasts"], np.float32)
    assert len(path) == len(timeline.critical)
    assert np.allclose(start[path], timeline.start_s[timeline.critical])
    assert end[path[-1]] == pytest.approx(timeline.end_s[timeline.busy()].max())
    bare = simulate(generate("1f1b", 2, 4), StageTimes.of(2, 1.0, 1.0, 1.0))
    assert page_data(bare, "x")["memory"] is None


def test_steps_of_memory_come_in_order_of_time():
    """A gather listed behind an action that ends after it began: gains keep their own times."""
    first, when = np.array([0, 3, 5]), np.array([1.0, 4.0, 2.0, 0.5, 3.0])
    level = np.array([11.0, 13.0, 18.0, 22.0, 20.0])
    curve = MemoryCurve(first, when, level, np.array([18.0, 22.0]), np.array([10.0, 20.0]))
    steps = memory_steps(curve)
    assert steps.of_rank(0)[0].tolist() == [1.0, 2.0, 4.0]
    assert steps.of_rank(0)[1].tolist() == [11.0, 16.0, 18.0]
    assert steps.of_rank(1)[1].tolist() == [22.0, 20.0]


def test_chrome_trace_has_ranks_streams_and_arrows():
    timeline = made()
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {f"rank {r}" for r in range(4)}
    flows = [e for e in events if e["ph"] in "sf"]
    transfers = int(np.count_nonzero(timeline.stream == 1))
    assert len(flows) == 2 * transfers == 2 * 3 * 2 * 8
    begin = {e["id"]: e for e in flows if e["ph"] == "s"}
    for e in flows:
        if e["ph"] == "f":
            assert e["ts"] >= begin[e["id"]]["ts"] and e["pid"] != begin[e["id"]]["pid"]
    work = [e for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert len(work) == 4 * 16
    assert max(e["ts"] + e["dur"] for e in work) <= timeline.makespan_s * 1e6 + 1e-3


def test_no_two_events_of_a_thread_overlap():
    """A viewer counts in whole nanoseconds, cut off, and drops what overlaps."""
    stages = StageTimes.of(8, np.linspace(0.9e-3, 1.3e-3, 8) / 3, 0.7e-3, 0.3e-3)
    schedule = generate("interleaved", 4, 16, 2)
    line = simulate(schedule, stages, Transfers.of(8, 1.0, 1.2e4, 7.1e-4))
    found = json.loads(chrome_trace(line))["traceEvents"]
    by_thread = {}
    for e in found:
        if e["ph"] == "X":
            span = (int(e["ts"] * 1000), int(e["ts"] * 1000) + int(e["dur"] * 1000))
            by_thread.setdefault((e["pid"], e["tid"]), []).append(span)
    for spans in by_thread.values():
        spans.sort()
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    # Transfers that come one behind the other overlap by their latency: there is a second lane.
    names = {e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert {"compute", "transfers", "transfers 2", "receives", "receives 2"} <= names
    inside = {(e["pid"], e["tid"]) for e in found if e["ph"] in "sf"}
    assert inside <= set(by_thread)
    for e in found:
        if e["ph"] in "sf":
            at = int(e["ts"] * 1000)
            assert any(a <= at < b for a, b in by_thread[e["pid"], e["tid"]])


def test_table_round_trip():
    timeline = made("dualpipe-v", 4, 12, 2)
    again = Timeline.from_table(timeline.to_table(), measured=False)
    for column in ("rank", "stream", "kind", "stage", "start_s", "end_s", "cause", "peer"):
        assert np.array_equal(getattr(timeline, column), getattr(again, column))
    assert again.by_cause_s() == timeline.by_cause_s()
