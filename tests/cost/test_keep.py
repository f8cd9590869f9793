"""Keep, recompute, host or NVMe: against hand-made cases, a linear bound, and brute force."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.keep import (
    LayerChoice,
    Links,
    best_mix,
    mix_of,
    single_costs_s,
    useful_nvme_bytes_per_s,
)
from gangsaw.errors import InputError

LAYER = LayerChoice(1e9, 1e8, 0.010, 0.020, 0.011)
FAST = Links(45e9, 12e9)


def test_room_enough_keeps_all():
    mix = best_mix(LAYER, 10, 4.0, 1e12, FAST)
    assert (mix.keep, mix.added_s) == (10, 0.0)
    assert mix.device_bytes == 10 * 4 * 1e9


def test_host_link_hides_what_compute_covers():
    # 10 layers of 10 ms forward: 0.1 s carry 4.5 GB, five layers of 0.9 GB, for nothing.
    room = mix_of(LAYER, 10, (0, 5, 0), 4.0, FAST).device_bytes
    mix = best_mix(LAYER, 10, 4.0, room, FAST)
    assert (mix.host, mix.recompute, mix.added_s) == (5, 0, 0.0)
    # A sixth costs 18 ms of link in the forward: recomputing it at 11 ms is cheaper.
    room = mix_of(LAYER, 10, (0, 6, 0), 4.0, FAST).device_bytes
    mix = best_mix(LAYER, 10, 4.0, room, FAST)
    assert (mix.host, mix.recompute) == (5, 1)
    assert mix.added_s == pytest.approx(0.011)


def test_host_memory_full_leaves_nvme_or_recompute():
    room = mix_of(LAYER, 10, (0, 1, 0), 4.0, FAST).device_bytes
    mix = best_mix(LAYER, 10, 4.0, room, FAST, host_room_bytes=0.0)
    assert (mix.nvme, mix.host, mix.added_s) == (1, 0, 0.0)  # 75 ms of drive under 100 ms
    slow = best_mix(LAYER, 10, 4.0, room, FAST._replace(nvme_bytes_per_s=1e9), host_room_bytes=0.0)
    assert (slow.nvme, slow.recompute) == (0, 1)


def test_too_little_room_is_said():
    with pytest.raises(InputError, match=r"hold .* bytes at least"):
        best_mix(LAYER, 10, 4.0, 1e8, FAST)
    with pytest.raises(InputError, match="rates above 0"):
        best_mix(LAYER, 10, 4.0, 1e12, Links(0.0, 1.0))


layers = st.builds(
    LayerChoice, st.floats(1e8, 1e10), st.floats(1e6, 9e7), st.floats(1e-3, 0.1),
    st.floats(1e-3, 0.2), st.floats(1e-3, 0.1),
)  # fmt: skip
links = st.builds(Links, st.floats(1e9, 1e11), st.floats(1e8, 3e10))


@settings(max_examples=40, deadline=None)
@given(layers, links, st.integers(1, 9), st.floats(0.2, 1.0))
def test_no_other_mix_is_faster(layer, link, count, share):
    full = mix_of(layer, count, (0, 0, 0), 3.0, link).device_bytes
    least = mix_of(layer, count, (count, 0, 0), 3.0, link).device_bytes
    room = max(full * share, least)
    best = best_mix(layer, count, 3.0, room, link)
    assert best.device_bytes <= room
    for counts in itertools.product(range(count + 1), repeat=3):
        if sum(counts) <= count:
            other = mix_of(layer, count, counts, 3.0, link)
            if other.device_bytes <= room:
                assert best.added_s <= other.added_s + 1e-12


@settings(max_examples=40, deadline=None)
@given(layers, st.integers(1, 60))
def test_below_the_useful_rate_recompute_wins(layer, count):
    rate = useful_nvme_bytes_per_s(layer, count)
    for factor in (0.8, 1.25):
        link = Links(1e15, rate * factor)
        cost = single_costs_s(layer, count, link)
        assert (cost["nvme"] < cost["recompute"]) == (factor > 1)
