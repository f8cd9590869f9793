"""A schedule file of the user's own in `estimate`, `bill` and `timeline`."""

import json

import pytest

from gangsaw.cli.main import run
from gangsaw.schedule import generate, to_csv

JOB = ("llama-3.1-8b", "h100-sxm:16", "--seq-len", "4096", "--global-batch", "32", "--tp", "2")


def written(tmp_path, name, p=4, m=16, v=1):
    path = tmp_path / f"{name}.csv"
    path.write_text(to_csv(generate(name, p, m, v)))
    return f"file:{path}"


def estimated(*flags):
    code, out, err = run(["estimate", *JOB, *flags, "--json"])
    assert code == 0, err
    return json.loads(out)


def held(result):
    return [stage["in_flight"] for stage in result["memory"]["per_stage"]]


@pytest.mark.parametrize(("name", "v", "near"), [
    ("1f1b", 1, 0.01), ("gpipe", 1, 0.01), ("interleaved", 2, 0.01), ("zb-v", 2, 0.03),
    ("zb-h1", 1, 0.02),
])  # fmt: skip
def test_a_written_schedule_costs_what_its_name_does(name, v, near, tmp_path):
    named = estimated("--pp", "4", "--vpp", str(v), "--schedule", name)
    own = estimated("--schedule", written(tmp_path, name, v=v))
    assert own["plan"]["schedule"] == f"file:{tmp_path}/{name}.csv"
    assert own["plan"]["pp"] == 4 and own["plan"]["vpp"] == v
    assert own["step_time_s"] == pytest.approx(named["step_time_s"], rel=near)
    assert held(own) == pytest.approx(held(named), abs=0.13)
    assert own["memory"]["peak_bytes"] == pytest.approx(named["memory"]["peak_bytes"], rel=0.12)
    device_s = sum(line["device_s"] for line in own["bill"]["lines"])
    assert device_s == pytest.approx(16 * own["step_time_s"])


def test_a_slower_order_costs_more(tmp_path):
    """1F1B whose first rank begins each forward only when the one before is all back."""
    rows = to_csv(generate("1f1b", 4, 16)).splitlines()
    rows[0] = ",".join(f"0F{k},0B{k}" for k in range(16))
    path = tmp_path / "slow.csv"
    path.write_text("\n".join(rows))
    # The other ranks wait for forwards that never come before their backwards do.
    code, out, err = run(["timeline", *JOB, "--schedule", f"file:{path}"])
    assert (code, out) == (2, "") and "deadlock" in err
    slow = "\n".join(",".join(f"{s}F{k},{s}B{k}" for k in range(16)) for s in range(4))
    path.write_text(slow)
    own = estimated("--schedule", f"file:{path}")
    fast = estimated("--pp", "4", "--schedule", "1f1b")
    assert own["step_time_s"] > 2.5 * fast["step_time_s"]
    assert held(own) == [1.0] * 4
    assert own["memory"]["peak_bytes"] < fast["memory"]["peak_bytes"]


def test_timeline_and_bill_take_it(tmp_path):
    flags = ["--schedule", written(tmp_path, "gpipe")]
    table = json.loads(run(["timeline", *JOB, *flags, "--json"]).out)
    first = [k for r, k in zip(table["rank"], table["kind"], strict=True) if r == 0 and k in "FB"]
    assert first == ["F"] * 16 + ["B"] * 16
    assert "GPipe" not in run(["bill", *JOB, *flags]).err


@pytest.mark.parametrize(("flags", "said"), [
    (("--pp", "8"), "is for pp=4, the plan has pp=8"),
    (("--mbs", "2"), "num_microbatches=16, the plan has num_microbatches=8"),
    (("--vpp", "2"), "is for vpp=1"),
])  # fmt: skip
def test_disagreements(flags, said, tmp_path):
    code, out, err = run(["estimate", *JOB, *flags, "--schedule", written(tmp_path, "1f1b")])
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_other_verbs_name_what_they_take(tmp_path):
    code, _, err = run(["plan", *JOB, "--schedule", written(tmp_path, "1f1b")])
    assert code == 2 and "estimate, bill and timeline" in err


def test_stages_that_lie_in_no_known_way(tmp_path):
    path = tmp_path / "back.csv"
    path.write_text("\n".join(reversed(to_csv(generate("1f1b", 4, 16)).splitlines())))
    code, _, err = run(["estimate", *JOB, "--schedule", f"file:{path}"])
    assert code == 2 and "4 stages lie on ranks 3, 2, 1, 0" in err
