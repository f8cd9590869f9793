import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fixtures import estimate_of, plans
from report_sweeps import bandwidth

from gangsaw.report import colours, data
from gangsaw.report.series import PlanCurve, crossings, log_space
from gangsaw.report.svg import linear_ticks, log_ticks


@pytest.mark.parametrize("result", plans(), ids=str)
def test_memory_segments_add_up_to_the_device_peak(result):
    for bar, stage in zip(data.memory_bars(result.memory), result.memory.per_stage, strict=True):
        assert sum(p.amount for p in bar.parts) == pytest.approx(stage.peak_device_bytes, rel=1e-12)
        assert all(p.amount >= 0 for p in bar.parts)


@pytest.mark.parametrize("result", plans(), ids=str)
def test_exactly_one_stage_is_tightest_and_has_the_peak(result):
    bars = data.memory_bars(result.memory)
    (tight,) = [bar for bar in bars if bar.tightest]
    assert tight.peak_bytes == result.memory.peak_bytes


@pytest.mark.parametrize("result", plans(), ids=str)
def test_invoice_keeps_the_bill_and_sets_idle_apart(result):
    rows = data.invoice_rows(result.bill)
    assert sum(r.device_hours for r in rows) * 3600 == pytest.approx(result.bill.device_s)
    assert sum(r.usd for r in rows) == pytest.approx(result.bill.usd)
    assert sum(r.share_frac for r in rows) == pytest.approx(1.0)
    idle = [r.idle for r in rows]
    assert idle == sorted(idle)
    assert sum(r.device_hours for r in rows if r.idle) == pytest.approx(
        result.bill.idle_device_hours
    )
    for group in (False, True):
        hours = [r.device_hours for r in rows if r.idle is group]
        assert hours == sorted(hours, reverse=True)


def test_waterfall_falls_from_peak_to_mfu():
    result = estimate_of(plans()[0])
    bars = data.waterfall(result)
    assert bars[0].before_frac == 1.0
    assert bars[-1].after_frac == pytest.approx(result.mfu_frac)
    for one, other in pairwise(bars):
        assert one.after_frac == other.before_frac
        assert one.after_frac >= other.after_frac


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=12), st.integers(1, 60))
def test_cells_fill_as_much_of_a_bar_as_the_amounts_fill_of_the_whole(amounts, width):
    whole = max(sum(amounts) * 1.3, 1e-9)
    counts = data.cells(tuple(amounts), whole, width)
    assert sum(counts) == min(width, round(sum(amounts) / whole * width))
    for amount, count in zip(amounts, counts, strict=True):
        assert abs(count - amount / whole * width) < 1.0 + 1e-9


def test_crossing_of_two_straight_lines_is_exact():
    xs = log_space(3e9, 400e9, 9)
    first = PlanCurve("a", tuple(8.0 + 30e9 / x for x in xs))
    other = PlanCurve("b", tuple(8.3 + 21e9 / x for x in xs))
    (found,) = crossings(xs, first, other)
    assert found.at == pytest.approx(9e9 / 0.3, rel=1e-12)
    assert found.step_time_s == pytest.approx(8.0 + 30e9 / found.at, rel=1e-12)
    assert (found.faster_below, found.faster_above) == ("b", "a")


def test_parallel_curves_do_not_cross():
    xs = log_space(1.0, 100.0, 5)
    assert crossings(xs, PlanCurve("a", (1.0,) * 5), PlanCurve("b", (2.0,) * 5)) == ()
    assert bandwidth().crossings[0].at == pytest.approx(30e9, rel=1e-9)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_ascending_and_inside(low, span, count):
    ticks = linear_ticks(low, low + span, count)
    slack = 1e-6 * span
    assert 1 <= len(ticks) <= count + 1
    assert all(low - slack <= t <= low + span + slack for t in ticks)
    steps = {round((b - a) / (ticks[1] - ticks[0]), 4) for a, b in pairwise(ticks)}
    assert steps <= {1.0}


def test_log_ticks_are_one_two_five():
    assert log_ticks(3.0, 60.0) == (5.0, 10.0, 20.0, 50.0)


def linear(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB.
DEFICIENCIES = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
               (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
               (0.004733, 0.691367, 0.303900)),
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}  # fmt: skip


def lab(colour, matrix):
    rgb = [max(0.0, sum(m * c for m, c in zip(row, linear(colour), strict=True))) for row in matrix]
    r, g, b = rgb
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz]
    return (116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2]))


@pytest.mark.parametrize("sight", sorted(DEFICIENCIES))
@pytest.mark.parametrize(
    ("table", "apart"), [(colours.MEMORY_COLOURS, 12.0), (colours.CAUSE_COLOURS, 15.0)]
)
def test_colours_can_be_told_apart(table, apart, sight):
    # What is hatched or outlined differs by more than colour.
    solid = [k for k in table if k not in colours.HATCHED | colours.OUTLINED]
    shades = {k: lab(table[k], DEFICIENCIES[sight]) for k in solid}
    for one, other in combinations(solid, 2):
        assert math.dist(shades[one], shades[other]) > apart, (one, other)
