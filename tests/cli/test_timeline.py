"""`gangsaw timeline` in all its forms."""

import json
from xml.etree import ElementTree

import pytest

from gangsaw.cli.main import run
from gangsaw.report.timeline_text import cells
from gangsaw.schedule import generate
from gangsaw.simulate import StageTimes, simulate

WORDS = (
    "timeline", "llama-3.1-8b", "h100-sxm:16", "--seq-len", "4096", "--global-batch", "32",
    "--tp", "2", "--pp", "4",
)  # fmt: skip


def test_cells_show_what_runs_and_where_ranks_wait():
    # Two stages, two microbatches, F 1 s and B 2 s: 9 s, rank 0 waits 3 s, rank 1 one at each end.
    timeline = simulate(generate("1f1b", 2, 2), StageTimes.of(2, 1.0, 1.0, 1.0))
    assert timeline.makespan_s == 9.0
    assert cells(timeline, 9) == ("FF..BB.BB"[:9], ".FBBFBB.."[:9])


def test_text_is_plain_and_has_a_row_for_each_rank():
    code, out, err = run(WORDS)
    assert (code, err) == (0, "")
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100
    rows = [line for line in out.splitlines() if line.startswith("rank ")]
    assert len(rows) == 4
    assert all("F" in row and "B" in row for row in rows)
    assert "pipeline bubble" in out


def test_json_is_the_table_of_the_timeline():
    table = json.loads(run([*WORDS, "--json"]).out)
    assert {"rank", "stream", "kind", "start_s", "end_s", "cause"} <= set(table)
    assert set(table["rank"]) == {0, 1, 2, 3}
    assert all(a <= b for a, b in zip(table["start_s"], table["end_s"], strict=True))


@pytest.mark.parametrize("ending", [".svg", ".html", ".csv", ".json"])
def test_files(ending, tmp_path):
    path = tmp_path / f"t{ending}"
    code, out, err = run([*WORDS, "--out", str(path)])
    assert code == 0, err
    assert err == f"written: {path}\n"
    assert out
    text = path.read_text("utf-8")
    if ending == ".svg":
        assert ElementTree.fromstring(text).tag.endswith("svg")
    elif ending == ".html":
        assert text.startswith("<!doctype html>")
    elif ending == ".json":
        assert any(event["ph"] == "X" for event in json.loads(text)["traceEvents"])
    else:
        assert len(text.splitlines()) == 4
        assert "0F0" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--schedule", "spiral"), "spiral"),
        (("--out", "t.png"), ".svg"),
        (("--out", "/nowhere/t.svg"), "/nowhere"),
    ],
)
def test_wrong_input(flags, said):
    code, out, err = run([*WORDS, *flags])
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
