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


VISION = (
    "qwen2.5-vl-7b", "h100-sxm:16", "--seq-len", "4096", "--global-batch", "64", "--tp", "2",
    "--pp", "4", "--mbs", "1",
)  # fmt: skip


def test_stages_behind_a_vision_tower_before_and_after(tmp_path):
    """Even layers idle the cheap stages behind the tower: both on one axis, with their steps."""
    path = tmp_path / "t.svg"
    code, out, _ = run(["timeline", *VISION, "--against", "balanced", "--out", str(path), "--json"])
    before, after = json.loads(out)["compared"]
    assert code == 0
    assert (before["name"], after["name"]) == ("even stages", "balanced stages")
    assert sum(before["stages"]) == sum(after["stages"]) and after["stages"][0] < 7
    # The tower alone is worth several of the seven layers of an even stage.
    assert after["step_time_s"] < 0.9 * before["step_time_s"]
    assert after["idle_frac"] < before["idle_frac"]
    more = 16 * (before["step_time_s"] / after["step_time_s"] - 1)
    assert before["more_devices"] == pytest.approx(more) and after["more_devices"] == 0
    # The steps are those of `estimate`.
    for each in (before, after):
        stages = ("--stages", ",".join(map(str, each["stages"])))
        found = json.loads(run(["estimate", *VISION, *stages, "--json"]).out)
        assert found["step_time_s"] == pytest.approx(each["step_time_s"], rel=1e-12)
    # One axis: the shorter pipeline ends where its seconds are.
    ends = {}
    for rank in range(4):
        assert path.read_text("utf-8").count(f">rank {rank}<") == 2
    for box in ElementTree.fromstring(path.read_text("utf-8")).iter():
        title = box.find("{http://www.w3.org/2000/svg}title")
        if box.tag.endswith("rect") and title is not None and title.text.startswith("rank 0: "):
            y, end = float(box.get("y")), float(box.get("x")) + float(box.get("width"))
            ends[y] = max(end, ends.get(y, 0.0))
    first, second = (ends[y] - 58.0 for y in sorted(ends))
    assert second / first == pytest.approx(after["pipeline_s"] / before["pipeline_s"], rel=1e-3)
    code, out, _ = run(["timeline", *VISION, "--against", "balanced"])
    assert "balanced stages: " in out and "a step instead of" in out
    assert code == 0 and out.isascii() and max(map(len, out.splitlines())) <= 100


def test_stated_stages_against_even_ones():
    flags = ("--stages", "2,8,9,9", "--against", "even")
    one, two = json.loads(run(["timeline", *VISION, *flags, "--json"]).out)["compared"]
    assert one["name"] == "stages as stated" and two["name"] == "even stages"
    assert one["stages"] == [2, 8, 9, 9] and two["stages"] == [7, 7, 7, 7]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--against", "even"), "even already"),
        (("--against", "spiral"), "balanced"),
        (("--against", "balanced", "--schedule", "auto"), "no stages to lay out"),
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


def test_a_schedule_says_its_condition_and_published_figures():
    said = " ".join(run([*WORDS, "--schedule", "dualpipe"]).out.split())
    assert "condition: p even, m even and >= 2p, two copies of the weights" in said
    assert "microbatches held p+1; transfers of each 2(p-1);" in said
    assert "condition:" not in run([*WORDS, "--schedule", "auto"]).out


def test_dualpipe_is_written_with_what_torch_needs(tmp_path):
    """Both commands write the same program; it is known again and refused as a file of one model."""
    path = tmp_path / "two.csv"
    words = (*WORDS[1:3], *WORDS[3:5], *WORDS[7:], "--mbs", "1", "--global-batch", "32")
    flags = ("--schedule", "dualpipe")
    code, _, err = run(["timeline", *words, *flags, "--out", str(path)])
    assert code == 0 and "enter at stage 4 too and leave at stage 3" in err
    code, out, note = run(["export", *words, *flags, "--to", "schedule-csv"])
    assert code == 0 and out == path.read_text("utf-8") and note in err
    code, out, err = run(["timeline", *words, "--schedule", f"file:{path}"])
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "two copies of a model" in err and "Legal: --schedule dualpipe" in err
    odd = (*words[:-1], "18")
    for verb in ("timeline", "estimate"):
        code, out, err = run([verb, *odd, *flags])
        assert (code, out) == (2, "") and "needs an even num_microbatches" in err
