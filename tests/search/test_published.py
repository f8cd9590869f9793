"""Published whole runs: within the bound, and added up again by another path."""

import math
import re
from pathlib import Path

import pytest

from gangsaw.errors import InputError
from gangsaw.search.estimate import estimate
from gangsaw.search.published import (
    BOUND_FRAC,
    check_run,
    job_of,
    main,
    published_markdown,
    published_runs,
)

CHECKS = {name: check_run(name) for name in published_runs()}
BOUNDED = [name for name, c in CHECKS.items() if c.run.bounded]
MISSED = ("llama-2-34b",)
"""Its hours a token and parameter are 9 to 24 % above those of its sisters; no reason is
stated."""
ROOT = Path(__file__).parents[2]


def test_the_runs_that_must_be_there():
    hours = {name: c.run.device_hours for name, c in CHECKS.items()}
    assert hours["llama-3-1-405b"] == 30.84e6
    assert hours["deepseek-v3"] == 2.664e6
    assert hours["bloom-176b"] == 1_082_990
    assert {n for n in hours if n.startswith("llama-2-")} == {
        "llama-2-7b", "llama-2-13b", "llama-2-34b", "llama-2-70b"
    }  # fmt: skip
    unbounded = [c.run.assumed for c in CHECKS.values() if not c.run.bounded]
    assert all("neither plan" in why for why in unbounded)


@pytest.mark.parametrize("name", BOUNDED)
def test_device_hours_are_predicted_within_the_bound(name):
    check = CHECKS[name]
    assert (abs(check.ratio - 1) > BOUND_FRAC) == (name in MISSED), f"{name}: {check.ratio:.3f}"
    assert ("missed" in check.bound) == (abs(check.ratio - 1) > BOUND_FRAC)


def test_what_is_left_open_is_taken_another_way():
    for name, check in CHECKS.items():
        assert len(check.otherwise) == len(check.run.otherwise)
        for other, (label, ratio) in zip(check.run.otherwise, check.otherwise, strict=True):
            assert label == other.label and abs(ratio / check.ratio - 1) > 0.005, name
    seven = CHECKS["llama-2-7b"]
    rows = dict(seven.otherwise)
    assert rows["with nothing of the reduction hidden"] > seven.ratio
    run, phase = seven.run, seven.run.phases[0]
    plain = run.model_copy(update={"stack_time": {}})
    by_hand = estimate(job_of(plain, phase), phase.plan).step_time_s * phase.tokens
    by_hand *= phase.devices / (phase.seq_len * phase.global_batch) / 3600
    assert rows["with nothing of the reduction hidden"] == pytest.approx(
        by_hand / run.device_hours, rel=1e-3
    )


@pytest.mark.parametrize("name", list(CHECKS))
def test_hours_add_up_by_plain_arithmetic(name):
    run = CHECKS[name].run
    total = 0.0
    for phase, said in zip(run.phases, CHECKS[name].phases, strict=True):
        result = estimate(job_of(run, phase), phase.plan)
        batch = phase.seq_len * phase.global_batch
        full = math.ceil((phase.tokens - phase.ramp_tokens) / batch)
        hours = full * result.step_time_s * phase.devices / 3600
        if phase.ramp_tokens:
            # The ramp lies between the time in proportion to the batch and full steps throughout.
            f = phase.ramp_start_frac
            steps = phase.ramp_tokens / batch * math.log(1 / f) / (1 - f)
            step_h = result.step_time_s * phase.devices / 3600
            assert hours + phase.ramp_tokens / batch * step_h < said.device_hours
            assert said.device_hours < hours + steps * step_h
        else:
            assert said.device_hours == pytest.approx(hours, rel=1e-9)
        total += said.device_hours + said.lost_device_hours
        if run.effective_frac < 1:
            assert said.lost_device_hours == pytest.approx(
                said.device_hours * (1 / run.effective_frac - 1)
            )
    assert CHECKS[name].device_hours == pytest.approx(total)


def test_energy_of_bloom_at_its_nodes():
    check = CHECKS["bloom-176b"]
    # 48 nodes of 6.5 kW at 82 % over the predicted hours, by hand.
    by_hand = check.device_hours / 384 * 48 * 6.5 * 0.82
    assert check.node_kwh == pytest.approx(by_hand, rel=1e-9)
    assert check.node_kwh == pytest.approx(check.run.node_kwh, rel=BOUND_FRAC)


def test_document_shows_every_run_with_what_is_not_explained(tmp_path):
    text = published_markdown(tuple(CHECKS.values()))
    for check in CHECKS.values():
        assert f"| {check.run.title} |" in text
    assert text.count("not explained") == len(CHECKS)
    target = tmp_path / "runs.md"
    assert main([str(target)]) == 0
    assert target.read_text() == text
    shipped = (ROOT / "docs" / "published-runs.md").read_text()
    assert re.findall(r"^## .*", shipped, re.M) == re.findall(r"^## .*", text, re.M)
    with pytest.raises(InputError):
        main([])
    with pytest.raises(InputError, match="bloom-176b"):
        check_run("gpt-9")
