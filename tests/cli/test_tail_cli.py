"""`gangsaw tail`: one document, readable text, one line for each wrong input."""

import json

import pytest

from gangsaw.cli.main import run

SMALL = ["tail", "llama-3.1-8b", "h100-sxm:64", "--seq-len", "4096", "--global-batch", "128"]
CUT = ["--tp", "2", "--pp", "2", "--mbs", "1"]
FEW = ["--steps", "200", "--clusters", "10"]


def test_json_of_one_plan():
    code, out, err = run([*SMALL, *CUT, *FEW, "--recovery", "5min", "--json", "--seed", "7"])
    found = json.loads(out)
    assert (code, err) == (0, "")
    (plan,) = found["plans"]
    assert plan["step"]["draws"] == 200 and plan["step"]["seed"] == 7
    assert plan["step"]["estimate_s"] < plan["step"]["mean_s"] < plan["expected_step_s"]
    assert {c["tier"] for c in plan["failures"]["checkpoints"]} >= {"nvme", "object-store"}
    assert run([*SMALL, *CUT, *FEW, "--recovery", "5min", "--json", "--seed", "7"]).out == out


def test_text_is_plain_within_100_columns(tmp_path):
    cut = tmp_path / "other.toml"
    cut.write_text("tp = 4\npp = 1\nmbs = 1\n")
    code, out, _ = run([*SMALL, str(cut), *CUT, *FEW, "--objective", "p95", "--hot-racks", "1:10%"])
    assert code == 0
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100
    for word in (
        "P95",
        "seed 0",
        "goodput",
        "checkpoints",
        "ZeRO-3",
        "other trainings",
        "ordered by",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps"),
        (["--slow-device", "3"], "--slow-device"),
        (["--background", "1"], "--background"),
        (["--background", "130%"], "--background"),
        (["--routing", "carrier"], "Legal: hashed, sprayed"),
        (["--recovery", "5"], "a number and one of"),
        (["--availability", "1"], "--availability"),
        (["--objective", "luck"], "Legal: mean, p50"),
        (["--content", "half"], "Legal: full, state, weights"),
        (["--layout", "heap"], "Legal: sharded"),
        (["--hot-racks", "x"], "--hot-racks"),
        (["--failures", "/nowhere.toml"], "no such file"),
    ],
)
def test_wrong_input_is_one_line(words, said):
    code, out, err = run([*SMALL, *CUT, *words])
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("rate", ['"0/h"', '"5/s"', "5", '"5"', '"x/h"'])
def test_rates_without_units_or_sense(tmp_path, rate):
    path = tmp_path / "mine.toml"
    path.write_text(f"[components.device]\nrate = {rate}\n")
    code, out, err = run([*SMALL, *CUT, "--failures", str(path)])
    assert (code, out) == (2, "")
    assert "components.device.rate" in err and "Legal" in err and err.count("\n") == 1


@pytest.mark.parametrize("text", ["components = 5", "noise = 'much'", "[storage]\nnvme = 3"])
def test_a_file_of_something_else_is_one_line(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    code, out, err = run([*SMALL, *CUT, "--failures", str(path)])
    assert (code, out) == (2, "")
    assert "no table" in err and err.count("\n") == 1


def test_without_a_plan_the_best_of_each_kind_are_compared():
    code, out, _ = run([*SMALL, "--steps", "100", "--clusters", "5", "--json"])
    found = json.loads(out)
    assert code == 0
    names = [p["name"] for p in found["plans"]]
    assert len(names) > 1 and set(names) <= {"fastest", "pipeline", "tensor", "sharded", "hybrid"}
    steps = {p["name"]: p["step"]["estimate_s"] for p in found["plans"]}
    assert found["best"]["estimate"] == min(steps, key=steps.get)
