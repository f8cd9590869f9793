"""`gangsaw plan`: each plan with tails and failures, and lists ordered by another goal."""

import json

import pytest

from gangsaw.cli.main import run

SMALL = ["plan", "llama-3.1-8b", "h100-sxm:64", "--seq-len", "4096", "--global-batch", "128"]


def plans_of(*words):
    code, out, _ = run([*SMALL, "--json", *words])
    assert code == 0
    return json.loads(out)


def test_each_plan_carries_its_bad_day():
    found = plans_of()
    for plan in found["plans"]:
        assert plan["expected_step_s"] > plan["step_time_s"]
        assert 0.9 < plan["goodput_frac"] < 1.0 <= plan["p95_over_p50"] < 1.2
        ratio = plan["expected_usd_per_million_tokens"] / plan["bill"]["usd_per_million_tokens"]
        assert ratio == pytest.approx(plan["expected_step_s"] / plan["step_time_s"])
    steps = [p["step_time_s"] for p in found["plans"]]
    assert steps == sorted(steps)
    said = [n for n in found["notes"] if "tails and failures" in n]
    by_expected = sorted(range(len(steps)), key=lambda i: found["plans"][i]["expected_step_s"])
    if by_expected == list(range(len(steps))):
        assert said == ["tails and failures do not change the order of these plans"]
    else:
        assert f"the order is {', '.join(str(i + 1) for i in by_expected)}" in said[0]


@pytest.mark.parametrize(
    ("goal", "key"), [("predictability", "p95_over_p50"), ("expected", "expected_step_s")]
)
def test_lists_by_another_goal(goal, key):
    by_time = plans_of()["plans"]
    found = plans_of("--objective", goal)
    values = [p[key] for p in found["plans"]]
    assert values == sorted(values)
    assert values[0] <= min(p[key] for p in by_time)
    assert any(n.startswith(f"ordered by {goal}") for n in found["notes"])


def test_text_and_report_show_it(tmp_path):
    path = tmp_path / "report.html"
    code, out, _ = run([*SMALL, "--top", "2", "--report", str(path)])
    assert code == 0
    assert "with tails and failures" in out and "goodput" in out and "P95/P50" in out
    assert "with tails and failures" in path.read_text(encoding="utf-8")
    assert max(map(len, out.splitlines())) <= 100
