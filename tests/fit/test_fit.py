"""The fit tells the offset of one set-up from physics that set-ups share."""

import dataclasses
import math

import numpy as np
import pytest

from gangsaw.fit import fit as fitting
from gangsaw.fit.fit import fit, setup_of, training_rows

SOURCES = ("korthikanti", "zerobubble2", "simumax-b200")


@pytest.fixture(scope="module")
def rows():
    every = training_rows()
    return {name: every[name] for name in SOURCES}


def slowed(rows, name, factor):
    changed = [dataclasses.replace(o, step_s=o.step_s * factor) for o in rows[name]]
    return {**rows, name: changed}


def moved(before, after, family):
    """Change of the logarithm of the rate of matrix products of a device family."""
    change = np.array([after.table()[k] - before.table()[k] for k in ("gemm", f"gemm.{family}")])
    return float(change.sum())


def test_a_slow_machine_moves_its_family_less_than_it_would_alone(rows, monkeypatch):
    """With room for offsets of set-ups; the shipped deviation is small."""
    slow = slowed(rows, "zerobubble2", 1.15)
    monkeypatch.setattr(fitting, "SETUP_SD", 0.1)
    shared = moved(fit(rows), fit(slow), "a100")
    monkeypatch.setattr(fitting, "SETUP_SD", 1e-4)
    alone = moved(fit(rows), fit(slow), "a100")
    assert alone < 0.0
    assert abs(shared) < 0.8 * abs(alone)


def test_what_all_set_ups_of_a_family_show_is_physics(rows):
    """Both A100 sources slow: the family is slow, whatever their offsets."""
    both = slowed(slowed(rows, "zerobubble2", 1.1), "korthikanti", 1.1)
    one = slowed(rows, "zerobubble2", 1.1)
    base = fit(rows)
    assert moved(base, fit(both), "a100") < 1.3 * moved(base, fit(one), "a100") < 0.0


def test_offsets_are_of_set_ups_and_shipped_for_none(rows):
    names = {setup_of(s, obs) for s, found in rows.items() for obs in found}
    assert len(names) >= 3
    fitted = fit(rows)
    assert not names & set(fitted.table())
    assert all(math.isfinite(v) for v in fitted.values)
    assert len(fitted.values) == len(fitted.doubts) == len(fitted.parameters)
