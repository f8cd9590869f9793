"""The step's invoice: exact sums, idle share, money a token and a run, and wrong inputs."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.bill.invoice import close_exactly, step_bill
from gangsaw.errors import InputError
from gangsaw.spec.result import CAUSES, IDLE_CAUSES

cause_maps = st.dictionaries(
    st.sampled_from(CAUSES), st.floats(1e-9, 1e4, allow_nan=False), min_size=1
)


@given(cause_maps, st.integers(1, 200_000), st.floats(0, 1000), st.integers(1, 10**9))
def test_lines_sum_exactly(causes, devices, price, tokens):
    step_s = math.fsum(causes.values())
    bill = step_bill(causes, devices, step_s, price, tokens, None)
    assert bill.device_s == devices * step_s
    # Exact rational arithmetic, plain addition in both orders, and fsum all agree.
    for pick in ("device_s", "usd"):
        values = [getattr(line, pick) for line in bill.lines]
        total = getattr(bill, pick)
        assert sum(map(Fraction, values)) == Fraction(total)
        assert sum(values) == sum(reversed(values)) == math.fsum(values) == total
        assert all(v >= 0 for v in values)
    for line in bill.lines:
        assert line.device_s == pytest.approx(
            devices * causes[line.cause], rel=1e-6, abs=16 * math.ulp(bill.device_s)
        )


@given(cause_maps, st.integers(1, 50_000))
def test_idle_and_useful_make_the_step(causes, devices):
    step_s = math.fsum(causes.values())
    bill = step_bill(causes, devices, step_s, 2.0, 1000, None)
    idle = sum(v for c, v in causes.items() if c in IDLE_CAUSES)
    assert bill.idle_frac == pytest.approx(idle / step_s, rel=1e-6, abs=1e-12)
    assert bill.idle_device_hours == pytest.approx(idle * devices / 3600, rel=1e-6, abs=1e-12)
    assert [line.device_s for line in bill.lines] == sorted(
        (line.device_s for line in bill.lines), reverse=True
    )


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=200), st.floats(-1, 1))
def test_close_exactly_in_rationals(amounts, nudge):
    said = math.fsum(amounts)
    total = said * (1 + nudge * 1e-9)
    closed = close_exactly(amounts, total)
    assert sum(map(Fraction, closed)) == Fraction(total)
    assert all(x >= 0 for x in closed)
    for before, after in zip(amounts, closed, strict=True):
        assert abs(before - after) <= 2e-9 * total + 1e-300


def test_the_worked_example():
    # 32 devices, 39 units of 1 s of which 7 are bubble, $2.35 a device-hour, 1M tokens a step.
    bill = step_bill({"compute": 32.0, "bubble": 7.0}, 32, 39.0, 2.35, 10**6, 1.5e6)
    assert bill.idle_frac == pytest.approx(7 / 39)
    assert bill.usd == pytest.approx(32 * 39 / 3600 * 2.35)
    assert bill.usd_per_million_tokens == pytest.approx(bill.usd)
    assert bill.usd_per_run == pytest.approx(2 * bill.usd)  # 1.5 steps need two whole ones
    assert bill.run_s == 78.0
    assert bill.device_hours_per_run == pytest.approx(2 * 32 * 39 / 3600)


def test_unused_devices_are_on_the_bill():
    bill = step_bill({"compute": 3.0, "unallocated": 1.0}, 8, 4.0, 1.0, 1, None)
    assert {x.cause: x.device_s for x in bill.lines} == {"compute": 24.0, "unallocated": 8.0}


@pytest.mark.parametrize(
    ("causes", "devices", "step", "price", "tokens", "word"),
    [
        ({"coffee": 1.0}, 1, 1.0, 1.0, 1, "coffee"),
        ({"compute": 1.0}, 1, 2.0, 1.0, 1, "must be equal"),
        ({"compute": -1.0, "bubble": 2.0}, 1, 1.0, 1.0, 1, "-1.0"),
        ({"compute": math.nan}, 1, 1.0, 1.0, 1, "nan"),
        ({"compute": 1.0}, 0, 1.0, 1.0, 1, "devices=0"),
        ({"compute": 1.0}, 1, math.inf, 1.0, 1, "inf"),
        ({"compute": 1.0}, 1, 1.0, -2.0, 1, "-2.0 USD"),
        ({"compute": 1.0}, 1, 1.0, math.nan, 1, "nan USD"),
        ({"compute": 1.0}, 1, 1.0, 1.0, 0, "tokens_per_step=0"),
        ({}, 1, 1.0, 1.0, 1, "must be equal"),
    ],
)
def test_wrong_inputs_are_one_line(causes, devices, step, price, tokens, word):
    with pytest.raises(InputError) as error:
        step_bill(causes, devices, step, price, tokens, None)
    assert word in str(error.value)
    assert "\n" not in str(error.value)
