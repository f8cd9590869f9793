"""Attention: keys against a count one by one, rates below the peak, masks and windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import cut, llama
from plan_cases import job_of

from gangsaw.cost.attention import attention_s, fused_share, keys_paid, keys_seen
from gangsaw.cost.bound import attention_flops
from gangsaw.cost.lower import lower

LOW = lower(job_of("llama-3.1-8b", 8))
KIND = llama(4096.0, 32.0, 8.0, 14336.0, attention_a_fwd=0.6, attention_a_bwd=0.55)


def counted(s, window, causal):
    """Mean keys of a query, query by query, the diagonal counted half as FLOP counts do."""
    total = 0.0
    for q in range(s):
        if causal:
            first = max(0, q + 1 - window) if window else 0
            total += q + 1 - first - (0.5 if not window or q < window else 0.0)
        else:
            total += min(s, window) if window else s
    return total / s


@given(st.integers(1, 300), st.integers(0, 400), st.booleans())
def test_keys_as_counted_one_by_one(s, window, causal):
    want = counted(s, window if window < s else 0, causal)
    assert keys_seen(float(s), float(window), float(causal)) == pytest.approx(want, rel=1e-9)


@given(st.integers(1, 65536).map(float), st.integers(0, 65536).map(float), st.booleans())
def test_keys_paid_are_at_least_those_seen(s, window, causal):
    assert keys_paid(s, window, float(causal)) >= keys_seen(s, window, float(causal)) * (1 - 1e-12)


@given(
    st.integers(128, 65536).map(float), st.integers(1, 128).map(float),
    st.integers(1, 16).map(float), st.booleans(),
)  # fmt: skip
def test_the_shape_takes_off_and_never_adds(s, heads, batch, causal):
    share = fused_share(s, heads, batch, float(causal), LOW.device)
    assert 0.0 < share < 1.0
    assert fused_share(2 * s, heads, batch, float(causal), LOW.device) >= share
    assert fused_share(s, 2 * heads, batch, float(causal), LOW.device) >= share


@pytest.mark.parametrize("fused", [0.0, 1.0])
@pytest.mark.parametrize("causal", [0.0, 1.0])
@pytest.mark.parametrize("s", [512.0, 4096.0, 32768.0])
def test_attention_is_slower_than_its_flops_at_peak(fused, causal, s):
    kind = KIND._replace(causal=causal)
    one, stack = cut(seq_len=s), LOW.stack._replace(fused_attention=fused)
    least = attention_flops(kind, one) / LOW.device.peak
    forward = attention_s(kind, one, LOW.device, stack, False)
    backward = attention_s(kind, one, LOW.device, stack, True)
    assert forward > least and backward > 2.0 * least and backward > forward


def test_unfused_attention_pays_the_square_that_the_mask_hides():
    stack = LOW.stack._replace(fused_attention=0.0)
    open_, masked = (
        attention_s(KIND._replace(causal=c), cut(), LOW.device, stack, False) for c in (0.0, 1.0)
    )
    assert open_ == masked


def test_odd_head_widths_miss_the_fast_path():
    stack = LOW.stack._replace(fused_attention=0.0, unfused_traffic=0.0, unaligned=0.35)
    even = KIND._replace(head_dim=80.0, v_head_dim=80.0)
    odd = KIND._replace(head_dim=81.0, v_head_dim=79.0)
    launch = 6.0 * LOW.device.gemm_launch_s
    a, b = (attention_s(k, cut(), LOW.device, stack, False) - launch for k in (even, odd))
    assert b / a == pytest.approx(1 / 0.35, rel=0.02)


def test_a_window_saves_time_and_context_parallelism_divides():
    whole = attention_s(KIND, cut(seq_len=32768.0), LOW.device, LOW.stack, False)
    narrow = attention_s(
        KIND._replace(window=4096.0), cut(seq_len=32768.0), LOW.device, LOW.stack, False
    )
    assert narrow < 0.35 * whole
    split = attention_s(KIND, cut(seq_len=32768.0, cp=4.0), LOW.device, LOW.stack, False)
    assert whole / 4 < split < 1.1 * whole / 4


def test_a_tower_has_sequences_of_its_own():
    # 4 images of 256 patches in a sequence of 2,048 tokens: 4 short squares, not one long one.
    tower = KIND._replace(seq_len=256.0, tokens_frac=0.5, causal=0.0)
    flops = attention_flops(tower, cut())
    assert flops == pytest.approx(2 * 4 * 256 * 256 * 32 * 256)
