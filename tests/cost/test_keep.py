"""Keep, recompute, host or NVMe: against hand-made cases, a linear bound, and brute force."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.keep import (
    SHARES,
    LayerChoice,
    Links,
    Rank,
    Room,
    StateChoice,
    best_mix,
    best_placement,
    mix_of,
    nvme_pays_from,
    single_costs_s,
    state_s,
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


def test_step_of_an_optimizer_off_the_device():
    state = StateChoice(state_bytes=24e9, device_s=0.010, host_s=2.0)
    assert state_s(state, 0.0, 0.0, FAST) == 0.010
    assert state_s(state, 0.5, 0.0, FAST) == pytest.approx(0.005 + 1.0)
    # 24 GB read and written at 12 GB/s take 4 s, longer than the CPU; at 48 GB/s the CPU's 2 s do.
    assert state_s(state, 0.0, 1.0, FAST) == pytest.approx(4.0)
    assert state_s(state, 0.0, 1.0, Links(48e9, 48e9)) == pytest.approx(2.0)


def test_few_microbatches_move_the_optimizer_and_many_recompute():
    """Recompute is paid each microbatch, the optimizer once a step."""
    state = StateChoice(state_bytes=10e9, device_s=0.010, host_s=0.5)
    slow = Links(45e9, 1e9)
    layer = LAYER._replace(kept_bytes=1.1e9)
    for microbatches, moved in ((8, False), (400, True)):
        rank = Rank(layer._replace(forward_s=1e-4, backward_s=2e-4), 10, microbatches, 4.0)
        best = best_placement(rank, state, Room(35e9), slow)
        assert (best.optimizer_host_frac > 0.0) == moved
        assert best.added_s == pytest.approx(
            microbatches * best.mix.added_s + best.optimizer_added_s
        )


@settings(max_examples=25, deadline=None)
@given(layers, links, st.integers(1, 6), st.integers(1, 200), st.floats(0.1, 1.0))
def test_no_other_placement_is_faster(layer, link, count, microbatches, share):
    state = StateChoice(layer.kept_bytes * 4, 0.01, 1.0)
    least = mix_of(layer, count, (count, 0, 0), 3.0, link).device_bytes
    full = mix_of(layer, count, (0, 0, 0), 3.0, link).device_bytes
    rank, room = Rank(layer, count, microbatches, 3.0), Room(max(least, full * share))
    best = best_placement(rank, state, room, link)
    for counts in itertools.product(range(count + 1), repeat=3):
        if sum(counts) > count:
            continue
        mix = mix_of(layer, count, counts, 3.0, link)
        for part in SHARES:
            for host, nvme in ((part, 0.0), (0.0, part)):
                if mix.device_bytes > room.device_bytes + part * state.state_bytes:
                    continue
                added = state_s(state, host, nvme, link) - state.device_s
                assert best.added_s <= added + microbatches * mix.added_s + 1e-9


@settings(max_examples=15, deadline=None)
@given(layers, st.integers(2, 8), st.floats(0.2, 0.9))
def test_below_the_rate_from_which_nvme_pays_it_is_not_used(layer, count, share):
    state = StateChoice(layer.kept_bytes * 2, 0.01, 3.0)
    least = mix_of(layer, count, (count, 0, 0), 3.0, FAST).device_bytes
    full = mix_of(layer, count, (0, 0, 0), 3.0, FAST).device_bytes
    room = Room(max(least, full * share), 0.0)
    rank = Rank(layer, count, 16, 3.0)
    without = best_placement(rank, state, room, FAST, nvme=False)
    assert (without.mix.nvme, without.optimizer_nvme_frac) == (0, 0.0)
    rate = nvme_pays_from(rank, state, room, FAST, without)
    if rate == float("inf"):
        assert best_placement(rank, state, room, Links(45e9, 45e9)).added_s == pytest.approx(
            without.added_s
        )
        return
    below = best_placement(rank, state, room, FAST._replace(nvme_bytes_per_s=rate / 3))
    above = best_placement(rank, state, room, FAST._replace(nvme_bytes_per_s=rate * 1.001))
    assert above.added_s < without.added_s and above.added_s <= below.added_s
    if rate / 3 > 45e9 * 1e-4:
        assert below.added_s == pytest.approx(without.added_s)


def test_nothing_fits():
    state = StateChoice(1e9, 0.01, 1.0)
    with pytest.raises(InputError, match="bytes at least"):
        best_placement(Rank(LAYER, 10, 4, 4.0), state, Room(1e7), FAST)
