"""`gangsaw timeline --replay`: a recorded job, and what repairs would bring back."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gangsaw.cli.main import run

DATA = Path(__file__).parent.parent / "data" / "straggler"
ST = str(DATA / "ST.parquet")


def replayed(*flags):
    code, out, err = run(["timeline", "--replay", ST, *flags, "--json"])
    assert code == 0, err
    return json.loads(out)


def test_published_slowdown_and_who_is_to_blame():
    """The published figures of job ST (arXiv:2505.05713): its stages are unequal."""
    found = replayed()
    known = json.loads(run(["schema", "timeline"]).out)["properties"]
    assert set(found) == set(known) - {"compared"}
    assert set(found["replay"]) == set(known["replay"]["properties"])
    replay = found["replay"]
    assert replay["slowdown"] == pytest.approx(1.178702, rel=0.01)
    assert replay["slowdown_by_delay"] == pytest.approx(1.019216, rel=0.01)
    assert replay["recorded_s"] == pytest.approx(2.214448, rel=0.01)
    first = replay["repairs"][0]
    assert first["what"] == "stage:3" and first["step_s"] == pytest.approx(1.771040, rel=0.01)
    assert {r["what"].partition(":")[0] for r in replay["repairs"]} == {
        "stage", "worker", "operation",
    }  # fmt: skip
    assert set(found["rank"]) == set(range(8))


def test_parts_repaired_together():
    alone = {r["what"]: r["step_s"] for r in replayed()["replay"]["repairs"]}
    both = replayed("--repair", "stage:3", "--repair", "operation:gc")["replay"]["repairs"]
    assert [r["what"] for r in both] == ["stage:3+operation:gc"]
    assert both[0]["step_s"] <= alone["stage:3"] * (1 + 1e-12)
    every = [f"operation:{name}" for name in known_operations(alone)]
    flags = [word for name in every for word in ("--repair", name)]
    found = replayed(*flags)["replay"]
    assert found["repairs"][0]["step_s"] == pytest.approx(found["ideal_s"])
    assert found["repairs"][0]["brought_back_frac"] == pytest.approx(1.0)


def known_operations(steps):
    return [what.partition(":")[2] for what in steps if what.startswith("operation:")]


def test_text_and_picture(tmp_path):
    path = tmp_path / "t.svg"
    code, out, err = run(["timeline", "--replay", ST, "--step", "33", "--out", str(path)])
    assert (code, err) == (0, f"written: {path}\n")
    assert out.isascii() and max(map(len, out.splitlines())) <= 100
    assert "slowdown 1.179" in out and "step 33 as it ran" in out
    assert ElementTree.fromstring(path.read_text("utf-8")).tag.endswith("svg")


@pytest.mark.parametrize(("flags", "said"), [
    (("--replay", ST, "--repair", "stage:4"), "stage:0 to stage:3"),
    (("--replay", ST, "--repair", "worker:9,9"), "worker:0,0 to worker:1,3"),
    (("--replay", ST, "--step", "7"), "step 7 is not in the record"),
    (("--replay", ST, "--tp", "2"), "--replay with tp"),
    (("--replay", ST, "--out", "t.csv"), ".csv is a schedule"),
    (("--replay", "/nowhere.parquet"), "cannot be read as Parquet"),
    (("gpt2", "h100-sxm:8", "--step", "1"), "--step belongs to a record"),
    ((), "MODEL and CLUSTER are missing"),
])  # fmt: skip
def test_wrong_input(flags, said):
    code, out, err = run(["timeline", *flags])
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
