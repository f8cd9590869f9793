"""Intervals and calibration in closed form: limits, robustness, more rows never worse."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.doubt import (
    NAMES,
    PLACES,
    Site,
    View,
    Widths,
    best_probability,
    joint_log_covariance,
    predict_interval,
    tied_with,
)
from gangsaw.fit.choose import greedy
from gangsaw.fit.release import load_held_out
from gangsaw.fit.scores import judged, mean_over, scores, widths_by_source
from gangsaw.fit.widths import by_group, fit_widths

W = Widths()


def view(log_s=0.0, seed=0, moe=False):
    rng = np.random.default_rng(seed)
    phi = np.abs(rng.normal(0.0, 0.2, len(NAMES)))
    phi[0] = 1.0
    return View(log_s, phi, rng.normal(5.0, 1.0, PLACES), moe)


def test_without_rows_the_prediction_stands():
    (found,) = predict_interval([view(math.log(3.0))], Site(widths=W))
    assert found.step_s == pytest.approx(3.0)
    assert found.lo_s < 3.0 < found.hi_s
    assert found.lo_s * found.hi_s == pytest.approx(9.0)


def test_one_row_draws_its_twin_towards_it_and_narrows():
    v = view()
    site = Site((v,), (0.08,), ("a",), W)
    (before,), (after,) = predict_interval([v], Site(widths=W)), predict_interval([v], site)
    assert 1.0 < after.step_s < math.exp(0.08)
    assert after.log_sd < before.log_sd


def test_cause_that_is_absent_teaches_nothing():
    a, b = view(seed=1), view(seed=2)
    phi_a, phi_b = np.zeros(len(NAMES)), np.zeros(len(NAMES))
    phi_a[NAMES.index("tp")] = 1.0
    phi_b[NAMES.index("bubble")] = 1.0
    a, b = a._replace(phi=phi_a, z=np.zeros(PLACES)), b._replace(phi=phi_b, z=np.full(PLACES, 50.0))
    mean, _ = Site((a,), (0.2,), ("a",), W).predict([b])
    assert mean[0] == pytest.approx(0.0, abs=1e-9)


def test_bad_row_is_found_among_good_ones():
    held = [h for h in load_held_out() if h.source == "zerobubble2"][::6][:7]
    views = tuple(h.view for h in held)
    clean = [h.residual for h in held]
    labels = tuple(h.id for h in held)
    assert max(Site(views, tuple(clean), labels).bad_probability()) < 0.3
    for wrong in (1, 4):
        dirty = list(clean)
        dirty[wrong] += math.log(1.5)  # a step measured during a checkpoint
        site = Site(views, tuple(dirty), labels)
        bad = site.bad_probability()
        assert int(np.argmax(bad)) == wrong
        assert bad[wrong] > 0.5
        rest = [i for i in range(len(held)) if i != wrong]
        mean, _ = site.predict([views[i] for i in rest])
        believed, _ = Site(views, tuple(clean), labels).predict([views[i] for i in rest])
        assert np.abs(mean - believed).max() < 0.08


def test_a_lone_far_row_is_neither_believed_nor_discarded():
    v = view()
    mean, _ = Site((v,), (math.log(1.5),), ("a",), W).predict([v])
    assert 0.05 < mean[0] < 0.3


def test_difference_of_two_plans_is_surer_than_each():
    a, b = view(seed=3), view(seed=3)
    cov = joint_log_covariance([a, b._replace(z=a.z + 0.1)], Site(widths=W))
    alone = cov[0, 0] + cov[1, 1]
    assert cov[0, 0] + cov[1, 1] - 2 * cov[0, 1] < 0.3 * alone


def test_best_probability_sums_and_repeats():
    views = [view(seed=i) for i in range(4)]
    cov = joint_log_covariance(views, Site(widths=W))
    logs = [0.0, 0.01, 0.5, 2.0]
    found = best_probability(logs, cov)
    assert sum(found) == pytest.approx(1.0)
    assert found == best_probability(logs, cov)
    assert found[0] > found[2] > found[3]
    assert 1 in tied_with(logs, cov, 0)
    assert 3 not in tied_with(logs, cov, 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_covariances_are_positive_and_posteriors_smaller(seed, k):
    rng = np.random.default_rng(seed)
    views = [view(seed=int(s)) for s in rng.integers(0, 10**6, k + 3)]
    site = Site(tuple(views[:k]), tuple(rng.normal(0, 0.05, k)), ("x",) * k, W, scaled=False)
    _, prior = Site(widths=W).predict(views[k:])
    _, post = site.predict(views[k:])
    assert np.linalg.eigvalsh(prior).min() > -1e-9
    assert np.linalg.eigvalsh(post).min() > -1e-9
    assert (np.diag(post) <= np.diag(prior) * 1.2 + 1e-9).all()


def test_chosen_rows_lower_the_variance_more_than_the_first_ones():
    held = [h.view for h in load_held_out() if h.source == "llm-foundry"][:60]
    chosen = greedy(held, held, 3)

    def left(rows):
        site = Site(tuple(held[i] for i in rows), (0.0,) * 3, ("",) * 3, scaled=False)
        return float(np.trace(site.predict(held)[1]))

    assert len(set(chosen)) == 3
    assert left(chosen) < left([0, 1, 2])


@pytest.fixture(scope="module")
def rounds():
    rows = load_held_out()
    widths = widths_by_source(rows)
    return {k: scores(judged(rows, widths, k)) for k in (0, 3, 10)}


def test_intervals_hold_on_sources_left_out(rounds):
    covered = mean_over(rounds[0], lambda s: s.covered)
    assert 0.72 <= covered <= 0.94
    assert np.median([s.width for s in rounds[0]]) < 0.45
    assert np.median([s.width for s in rounds[3]]) < 0.30


def test_more_rows_are_never_worse_on_average(rounds):
    error = {k: {s.source: s.mean_abs for s in found} for k, found in rounds.items()}
    for fewer, more in ((0, 3), (3, 10)):
        both = error[fewer].keys() & error[more].keys()
        a, b = (np.mean([error[k][s] for s in both]) for k in (fewer, more))
        assert b < a
    assert np.mean(list(error[3].values())) < 0.085
    assert np.mean(list(error[10].values())) < 0.065


def test_widths_follow_from_the_stored_rows():
    rows = load_held_out()
    again = fit_widths(rows)
    assert again == fit_widths(rows)
    assert again.rho == pytest.approx(Site().widths.rho, rel=1e-2)
    assert len(by_group(rows)) >= 12


@pytest.mark.parametrize("factor", [4.0, 30.0, 1000.0])
def test_a_row_far_off_teaches_the_others_nothing(factor):
    """Four rows at +5 %, one of them `factor` times too long: the rest learn from three."""
    views = [view(seed=s) for s in range(5)]
    good = Site(tuple(views[:3]), (0.05,) * 3, ("a", "b", "c"), W)
    spoilt = Site(tuple(views[:4]), (0.05, 0.05, 0.05, 0.05 + math.log(factor)), tuple("abcd"), W)
    assert spoilt.bad_probability()[3] > 0.99
    want, _ = good.predict([views[4]])
    found, _ = spoilt.predict([views[4]])
    assert found[0] == pytest.approx(want[0], abs=0.01)
