"""A stated mix of jobs beside the survey of 3,079 (arXiv:2505.05713)."""

import pytest

from gangsaw.search.tail_mix import JobMix, mix_result, survey_cases


def test_survey_of_stragglers():
    found = mix_result(survey_cases(), JobMix(jobs=400))
    assert found.straggling_frac == pytest.approx(0.425, abs=0.12)
    assert found.mean_slowdown == pytest.approx(1.28, abs=0.05)
    assert found.wasted_frac == pytest.approx(0.104, abs=0.04)
    assert found.p90_waste == pytest.approx(0.213, abs=0.07)
    assert found.p99_waste == pytest.approx(0.45, abs=0.25)
    assert found.last_stage_frac == pytest.approx(0.393, abs=0.06)
    assert found.faulty_slowdown == pytest.approx(3.04, rel=0.2)


def test_without_conditions_only_the_stages_are_uneven():
    quiet = mix_result(survey_cases(), JobMix(long_context_frac=0.0, faulty_frac=0.0, jobs=60))
    assert quiet.uneven_frac == 0.0 and quiet.faulty_slowdown == 1.0
    assert quiet.straggling_frac < mix_result(survey_cases(), JobMix(jobs=60)).straggling_frac
