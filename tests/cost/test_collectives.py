"""Collective times: against measured points, against their bounds, and how they must change."""

import json
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost import collectives as c
from gangsaw.cost.lower_cluster import (
    attention_asymptotes,
    attention_curve,
    device_of,
    net_of,
    tier_name_for,
)
from gangsaw.cost.types import Net
from gangsaw.errors import InputError
from gangsaw.jit import compiled
from gangsaw.read.clusters import cluster_of, list_nodes

OVERHEAD_S = 2e-5  # host side of one collective, as the default of a stack profile
TIMES = {
    "all_reduce": c.all_reduce_s,
    "all_gather": c.all_gather_s,
    "reduce_scatter": c.reduce_scatter_s,
    "all_to_all": c.all_to_all_s,
}
BOUNDS = {
    "all_reduce": c.all_reduce_bound_s,
    "all_gather": c.all_gather_bound_s,
    "reduce_scatter": c.all_gather_bound_s,
    "all_to_all": c.all_to_all_bound_s,
}
ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "collectives.jsonl").read_text().splitlines()
]


def predicted_s(row):
    net = net_of(cluster_of(row["node"], max(row["ranks"], 8)))
    size, ranks = float(row["bytes"]), float(row["ranks"])
    if row["op"] == "sendrecv":
        return c.p2p_s(net, size, 1.0, OVERHEAD_S)
    return TIMES[row["op"]](net, size, ranks, 1.0, OVERHEAD_S)


def errors(low, high):
    """Relative error by (operation), of points between two message sizes."""
    found = defaultdict(list)
    for row in ROWS:
        if low <= row["bytes"] <= high:
            found[row["op"]].append(predicted_s(row) / row["seconds"] - 1)
    return found


def test_measured_points_between_1_mb_and_1_gb():
    found = errors(1e6, 1.1e9)
    every = [abs(e) for part in found.values() for e in part]
    assert len(every) > 250
    assert statistics.median(every) < 0.10
    assert statistics.median(map(abs, found["all_reduce"])) < 0.10
    assert statistics.median(map(abs, found["all_to_all"])) < 0.12
    assert statistics.median(map(abs, found["all_gather"])) < 0.14
    assert abs(statistics.mean(e for part in found.values() for e in part)) < 0.10


def test_measured_points_above_1_gb():
    every = [abs(e) for part in errors(1.1e9, 1e11).values() for e in part]
    assert len(every) > 50
    assert statistics.median(every) < 0.08


@pytest.mark.parametrize(
    ("node", "limit"),
    [("a100-sxm-80g", 0.10), ("h100-sxm", 0.12), ("h200-sxm", 0.15), ("aws-p5", 0.12),
     ("aws-p4de", 0.20), ("aws-p6-b200", 0.20), ("gb200-nvl72", 0.35)],
)  # fmt: skip
def test_no_machine_is_far_off(node, limit):
    part = [
        abs(predicted_s(r) / r["seconds"] - 1)
        for r in ROWS
        if r["node"] == node and r["op"] != "all_to_all" and 1e6 <= r["bytes"] <= 1.1e9
    ]
    assert part
    assert statistics.median(part) < limit


def test_one_device_one_nic():
    # maintainers of NCCL: an all-to-all over six nodes of 8 x 400 Gb/s runs at 48-49 GB/s a device
    net = net_of(cluster_of("h100-sxm", 48))
    size = 4e9
    seconds = c.all_to_all_s(net, size, 48.0, 1.0, OVERHEAD_S)
    assert 44e9 < size * 40 / 48 / seconds < 50e9


def test_nics_that_a_group_drives():
    net = net_of(cluster_of("h100-sxm", 2048))
    one_a_node = c.all_gather_s(net, 1e9, 8.0, 8.0, 0.0)
    two_a_node = c.all_gather_s(net, 1e9, 8.0, 4.0, 0.0)
    assert one_a_node / two_a_node == pytest.approx(2.0, rel=0.05)
    # all of a node of 8 x 400 Gb/s behind links that do not limit
    net = net_of(cluster_of("b200", 64))
    eight_a_node = c.all_gather_s(net, 8e9, 64.0, 1.0, 0.0)
    assert 8e9 * 63 / 64 / eight_a_node == pytest.approx(8 * 50e9 * 0.94, rel=0.08)


def test_stages_share_the_uplinks_of_a_pod():
    # pods of 3,072 with 1:7 above: of three stages of 1,024 devices one leaves the pod, at 3/7
    net = net_of(cluster_of("h100-roce-llama3", 12288))
    seconds = c.p2p_s(net, 1e9, 1024.0, 0.0, 12.0)
    assert 1e9 / seconds == pytest.approx(50e9 * 3 / 7 * 0.9, rel=0.01)
    # a whole pod a stage: all leave it
    assert 1e9 / c.p2p_s(net, 1e9, 3072.0, 0.0, 4.0) == pytest.approx(50e9 / 7 * 0.9, rel=0.01)


def test_mesh_gives_a_pair_one_link():
    net = net_of(cluster_of("mi300x", 8))
    pair = 4e9 / c.all_reduce_s(net, 4e9, 2.0, 1.0, 0.0)
    eight = 1.75 * 4e9 / c.all_reduce_s(net, 4e9, 8.0, 1.0, 0.0)
    assert pair == pytest.approx(47.7e9, rel=0.15)
    assert eight == pytest.approx(312.9e9, rel=0.15)


@pytest.mark.parametrize(
    ("size", "ranks", "stride", "inside"),
    [
        (8, 8, 1, 8), (8, 4, 1, 4), (8, 16, 1, 8), (8, 16, 2, 4), (8, 2, 8, 1), (8, 64, 8, 1),
        (8, 6, 1, 2), (8, 12, 1, 4), (72, 16, 1, 8), (72, 8, 1, 8), (72, 8, 9, 8), (4, 3, 1, 1),
        (8, 2, 3, 1),
    ],
)  # fmt: skip
def test_members_in_a_domain(size, ranks, stride, inside):
    net = net_of(cluster_of("h100-sxm", 2048))
    net = net._replace(size=np.array([float(size), 1e6]))
    assert c.group_path(net, float(ranks), float(stride), 0) == inside
    # the same by placing every group of a large cluster and looking at its smallest part
    span, parts = ranks * stride, []
    for first in range(0, 8 * 72 * span, span):
        for lane in range(stride):
            members = [(first + lane + i * stride) // size for i in range(ranks)]
            parts.append(min(members.count(d) for d in set(members)))
    assert min(parts) >= inside


def test_names_of_tiers():
    cluster = cluster_of("h100-roce-llama3", 16384)
    assert tier_name_for(cluster, 8, 1) == "node"
    assert tier_name_for(cluster, 16, 1) == "pod"
    assert tier_name_for(cluster, 2, 8192) == "site"
    assert tier_name_for(cluster_of("gb200-nvl72", 288), 8, 9) == "nvl72"


@st.composite
def nets(draw):
    count = draw(st.integers(1, 4))
    sizes, size = [], 1.0
    for _ in range(count):
        size *= draw(st.sampled_from([2.0, 3.0, 4.0, 8.0]))
        sizes.append(size)
    column = lambda values: np.array([draw(values) for _ in range(count)])  # noqa: E731
    return Net(
        size=np.array(sizes),
        bytes_per_s=column(st.sampled_from([1e9, 6e9, 25e9, 50e9, 300e9, 900e9])),
        latency_s=column(st.sampled_from([0.0, 1e-6, 1e-5])),
        efficiency=column(st.sampled_from([0.4, 0.8, 1.0])),
        reduction=column(st.sampled_from([0.0, 1.0])),
        ramp_s=column(st.sampled_from([0.0, 1e-5, 1e-3])),
        oversubscription=column(st.sampled_from([1.0, 2.0, 7.0])),
        mesh=np.array([draw(st.sampled_from([0.0, sizes[0] - 1])), *[0.0] * (count - 1)]),
    )


@st.composite
def groups(draw):
    net = draw(nets())
    total = int(net.size[-1])
    ranks = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    span = total // ranks
    stride = draw(st.sampled_from([s for s in range(1, span + 1) if span % s == 0]))
    return net, float(ranks), float(stride), draw(st.floats(1.0, 1e11))


@pytest.mark.parametrize("op", TIMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_monotone_and_above_the_bound(op, data):
    net, ranks, stride, size = data.draw(groups())
    time, bound = TIMES[op], BOUNDS[op]
    base = time(net, size, ranks, stride, OVERHEAD_S)
    assert base >= bound(net, size, ranks, stride) * (1 - 1e-12)
    assert time(net, size * 1.5, ranks, stride, OVERHEAD_S) >= base
    tier = data.draw(st.integers(0, len(net.size) - 1))
    faster = net.bytes_per_s.copy()
    faster[tier] *= 3.0
    wide = net._replace(bytes_per_s=faster)
    assert time(wide, size, ranks, stride, OVERHEAD_S) <= base * (1 + 1e-12)
    if ranks == 1:
        assert base == 0.0
    else:
        assert base > 0.0


@settings(max_examples=100, deadline=None)
@given(group=groups())
def test_messages_between_neighbours(group):
    net, ranks, stride, size = group
    base = c.p2p_s(net, size, stride, OVERHEAD_S, ranks)
    assert base >= c.p2p_bound_s(net, size, stride, ranks)
    assert c.p2p_s(net, 2 * size, stride, OVERHEAD_S, ranks) >= base
    assert (base == 0.0) == (ranks == 1.0)


@settings(max_examples=60, deadline=None)
@given(group=groups())
def test_all_reduce_is_no_slower_than_its_two_halves(group):
    net, ranks, stride, size = group
    halves = c.reduce_scatter_s(net, size, ranks, stride, OVERHEAD_S)
    halves += c.all_gather_s(net, size, ranks, stride, OVERHEAD_S)
    assert c.all_reduce_s(net, size, ranks, stride, OVERHEAD_S) <= halves * (1 + 1e-12)


def test_compiled_is_the_same():
    net = net_of(cluster_of("h100-roce-llama3", 16384))
    for plain in TIMES.values():
        for size in (1e4, 1e7, 1e10):
            for ranks, stride in ((8.0, 1.0), (128.0, 8.0), (16.0, 1024.0)):
                value = compiled(plain)(net, size, ranks, stride, OVERHEAD_S)
                assert value == pytest.approx(plain(net, size, ranks, stride, OVERHEAD_S))
    assert compiled(c.p2p_s)(net, 1e7, 1024.0, 0.0, 16.0) == pytest.approx(
        c.p2p_s(net, 1e7, 1024.0, 0.0, 16.0)
    )


@pytest.mark.parametrize("node", list_nodes())
def test_every_device_is_lowered(node):
    cluster = cluster_of(node, 16)
    precision = "fp16" if node.startswith("v100") else "bf16"
    device = device_of(cluster, precision)
    assert device.usable_bytes < device.memory_bytes
    for width in (32, 64, 80, 128, 192, 256, 512):
        forward, backward = attention_asymptotes(cluster.device, "flash", width)
        assert 0 < backward <= forward * 1.1 < 1


def test_fp8_has_its_own_rate():
    cluster = cluster_of("h100-sxm", 8)
    bf16, fp8 = device_of(cluster, "bf16"), device_of(cluster, "fp8")
    assert bf16.peak == bf16.peak_linear == fp8.peak
    assert fp8.peak_linear == pytest.approx(2 * bf16.peak_linear, rel=0.01)
    with pytest.raises(InputError, match="has no such rate; has: bf16"):
        device_of(cluster_of("a100-sxm-80g", 8), "fp8")
    with pytest.raises(InputError, match="fp16, fp32"):
        device_of(cluster_of("v100-sxm-32g", 8), "bf16")


@pytest.mark.parametrize(
    ("kernel", "causal", "tflops"),
    [("flash", 0, 370), ("flash", 1, 335), ("flash3", 0, 648), ("flash3", 1, 616),
     ("cudnn-2024", 0, 595), ("cudnn-2024", 1, 539), ("triton", 0, 395), ("triton", 1, 378)],
)  # fmt: skip
def test_attention_curves_against_single_points(kernel, causal, tflops):
    # H100 SXM, head width 128, 16,384 tokens, forward: charts of the FlashAttention-3 paper
    curve = attention_curve(cluster_of("h100-sxm", 8).device, kernel)
    share = curve.a_fwd[128] / ((1 + curve.c0 / 16384) * (1 + causal * curve.c1 / 16384))
    assert share * 989 == pytest.approx(tflops, rel=0.08)


def test_a_kernel_that_a_device_lacks_falls_back_on_its_first():
    assert attention_curve(cluster_of("b200", 8).device, "flash3").kernel == "cudnn"
