"""A stated mix of jobs beside the survey of 3,079 (arXiv:2505.05713)."""

import pytest

from gangsaw.search.tail_mix import RULED_STATE_BYTES, JobMix, mix_result, ruled_cases, survey_cases


def test_a_mix_can_explain_the_survey():
    """Chosen with the survey's figures in view, so the bounds are wide: no forecast."""
    found = mix_result(survey_cases(), JobMix(jobs=250))
    assert found.straggling_frac == pytest.approx(0.425, abs=0.2)
    assert found.mean_slowdown == pytest.approx(1.28, abs=0.05)
    assert found.wasted_frac == pytest.approx(0.104, abs=0.04)
    assert found.p90_waste == pytest.approx(0.213, abs=0.07)
    assert found.p99_waste == pytest.approx(0.45, abs=0.25)
    assert found.last_stage_frac == pytest.approx(0.393, abs=0.1)
    assert found.faulty_slowdown == pytest.approx(3.04, rel=0.2)


def test_without_conditions_only_the_stages_are_uneven():
    quiet = mix_result(survey_cases(), JobMix(long_context_frac=0.0, faulty_frac=0.0, jobs=60))
    assert quiet.uneven_frac == 0.0 and quiet.faulty_slowdown == 1.0
    assert quiet.straggling_frac < mix_result(survey_cases(), JobMix(jobs=60)).straggling_frac


def test_a_mix_by_one_rule_that_nothing_was_adjusted_for():
    """What the survey did not feed in: slowdown and losses. The last stage's share is not met."""
    cases = ruled_cases()
    assert len(cases) > 40 and {j.cluster.devices for j, _ in cases} == {128, 512, 1024}
    for job, plan in cases:
        assert 18 * job.model.params() / (plan.tp * plan.pp) <= RULED_STATE_BYTES
        assert job.model.layers % plan.pp == 0 and plan.devices == job.cluster.devices
    found = mix_result(cases, JobMix(jobs=200))
    assert found.mean_slowdown == pytest.approx(1.28, abs=0.1)
    assert found.wasted_frac == pytest.approx(0.104, abs=0.04)
    assert found.p90_waste == pytest.approx(0.213, abs=0.08)
    assert found.straggling_frac < 0.425 and found.last_stage_frac < 0.2
