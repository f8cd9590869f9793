"""Matrix products: never above the peak or the memory, quantised by tiles and waves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import job_of

from gangsaw.cost.gemm import gemm_s, grouped_gemm_s, tile_share
from gangsaw.cost.lower import lower

DEVICE = lower(job_of("llama-3.1-8b", 8)).device
A100 = lower(job_of("llama-3.1-8b", 8, node="a100-sxm-80g")).device
SIZES = st.integers(1, 40000).map(float)


@given(SIZES, SIZES, SIZES)
def test_no_product_beats_peak_or_memory(m, n, k):
    taken_s = gemm_s(m, n, k, False, DEVICE)
    assert taken_s > 2 * m * n * k / DEVICE.peak
    assert taken_s > 2 * (m * k + k * n + m * n) / DEVICE.hbm


@given(SIZES, SIZES, SIZES, st.floats(1.0, 4.0))
def test_more_of_the_inner_dimension_is_never_faster(m, n, k, times):
    assert gemm_s(m, n, k * times, False, DEVICE) >= gemm_s(m, n, k, False, DEVICE) * (1 - 1e-12)


@given(SIZES, SIZES, st.sampled_from((108.0, 132.0, 148.0)))
def test_useful_share_of_tiles_is_a_share(m, n, sm):
    assert 0.0 < tile_share(m, n, sm) <= 1.0


def test_whole_tiles_and_waves_waste_nothing():
    # 132 multiprocessors: 12 x 11 tiles of 128 x 256 are one full wave.
    assert tile_share(12 * 128.0, 11 * 256.0, 132.0) == pytest.approx(1.0)
    # One more row of tiles opens a second wave that is nearly empty; half a wave is paid.
    assert tile_share(12 * 128.0 + 1, 11 * 256.0, 132.0) < 0.75


def test_large_products_reach_the_devices_asymptote():
    for device in (DEVICE, A100):
        n = 128.0 * 256.0
        rate = 2 * n**3 / gemm_s(n, n, n, False, device)
        assert rate == pytest.approx(device.peak * device.gemm_frac * device.sustained, rel=0.02)


def test_launch_is_all_that_an_empty_kernel_costs():
    assert gemm_s(1.0, 1.0, 1.0, False, DEVICE) == pytest.approx(DEVICE.gemm_launch_s, rel=0.1)
    assert gemm_s(0.0, 5.0, 5.0, False, DEVICE) == 0.0


@given(st.integers(1, 256).map(float), st.integers(1, 4096).map(float))
def test_grouped_products_are_above_their_bounds(groups, rows):
    n, k = 4096.0, 2048.0
    taken_s = grouped_gemm_s(groups, rows, n, k, 2.0, DEVICE)
    assert taken_s > 2 * groups * rows * n * k / DEVICE.peak_linear
    # Every expert's weights are read once, however few rows it has.
    assert taken_s > groups * 2.0 * n * k / DEVICE.hbm
