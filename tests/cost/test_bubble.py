"""Closed forms of the pipeline against the published figures."""

import math

from gangsaw.cost import types as t
from gangsaw.cost.bubble import pipeline_s
from gangsaw.jit import compiled


def idle_frac(schedule, p, m, v=1.0, f=1.0, b=1.0, w=1.0):
    total = pipeline_s(schedule, p, v, m, f, b, w, f * p, b * p, 0.0)
    return 1.0 - m * (f + b + w) / total


def test_published_idle_shares():
    # arXiv:2104.04473, equations for 1F1B and interleaved: (p-1)/(vm+p-1).
    assert math.isclose(idle_frac(t.ONE_F_ONE_B, 8, 32), 7 / 39)
    assert math.isclose(idle_frac(t.GPIPE, 8, 32), 7 / 39)
    assert math.isclose(idle_frac(t.INTERLEAVED, 8, 32, 2), 7 / 71)
    assert math.isclose(idle_frac(t.INTERLEAVED, 8, 32, 4), 7 / 135)
    # ZB-H1 has a third of the 1F1B bubble at F=B=W (arXiv:2401.10241, table 1).
    assert math.isclose(idle_frac(t.ZB_H1, 8, 32), 7 / 103)
    assert math.isclose(idle_frac(t.ZB_H2, 8, 32), 0.0)


def test_unequal_ranks():
    # (m - 1) max + sum, forward and whole backward together.
    got = pipeline_s(t.ONE_F_ONE_B, 4, 1, 8, 2.0, 4.0, 0.0, 5.0, 10.0, 0.0)
    assert math.isclose(got, 7 * 6 + 15)


def test_compiled_is_the_same_function():
    fast = compiled(pipeline_s)
    for code in range(12):
        args = (float(code), 8.0, 2.0, 24.0, 1.0, 1.1, 0.9, 8.0, 8.8, 0.05)
        assert fast(*args) == pipeline_s(*args)
