"""One layer: its work against an independent count, its exchanges, its floors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_cases import MODELS, cases, job_of

from gangsaw.cost.bound import attention_flops, layer_bound_s, linear_flops
from gangsaw.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from gangsaw.cost.data_parallel import gather_s, gradient_s, optimizer_s
from gangsaw.cost.ends import end_time
from gangsaw.cost.flops import layer_flops
from gangsaw.cost.layer import ep_exchange_s, layer_time, once_a_node, tp_collective_s
from gangsaw.cost.lower import cut_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.moe import dispatch_bytes, experts_s, routed_rows
from gangsaw.spec.plan import Plan

SOME = settings(
    max_examples=80, deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip


def numbers(case):
    low = lower(case.job)
    return low, cut_of(case.plan, case.job.recipe), strides_of(case.plan)


@pytest.mark.parametrize("name", MODELS)
def test_linear_flops_of_the_bound_are_those_of_the_shapes(name):
    """Twice the parameters that a token meets, against matrices written out by shape."""
    job = job_of(name, 8)
    cut = cut_of(Plan(), job.recipe)
    tokens = cut.mbs * cut.seq_len
    for kind, spec in zip(lower(job).kinds, job.model.kinds, strict=False):
        count = layer_flops(kind, cut.seq_len, True)
        ours = (linear_flops(kind, cut) + attention_flops(kind, cut)) / tokens
        # The router is in the count of shapes only, biases and norms in that of parameters.
        assert ours == pytest.approx(count, rel=0.01), spec.name


@SOME
@given(cases())
def test_every_part_of_a_layer_is_above_its_bound_and_none_negative(case):
    low, cut, strides = numbers(case)
    for kind in low.kinds:
        t = layer_time(kind, cut, low.device, low.net, strides, low.stack)
        assert min(t) >= 0.0
        assert t.fwd + t.bwd + t.wgrad > layer_bound_s(kind, cut, low.device)
        assert t.recompute_selective <= t.recompute_full == t.fwd
        if kind.trainable_frac <= 0.0:
            assert t.wgrad == 0.0


@SOME
@given(cases())
def test_what_is_not_split_is_not_exchanged(case):
    low, cut, strides = numbers(case)
    for kind in low.kinds:
        t = layer_time(kind, cut, low.device, low.net, strides, low.stack)
        assert (t.tp_fwd > 0.0) == (cut.tp > 1 and low.stack.tp_exposed_fwd > 0.0)
        assert (t.cp_fwd > 0.0) == (cut.cp > 1 and low.stack.cp_exposed > 0.0)
        routed = kind.experts > 0 and (cut.ep > 1 or cut.etp > 1)
        assert (t.ep_fwd > 0.0) == (routed and low.stack.ep_exposed > 0.0)


@pytest.mark.parametrize("sp", [True, False])
def test_tensor_parallel_exchange_is_megatrons(sp):
    # Without sequence parallelism one all-reduce of T h activations in each direction; with it an
    # all-gather and a reduce-scatter, and one more gather in backward (arXiv:2205.05198).
    job = job_of("gpt3-175b", 8)
    low = lower(job)
    plan = Plan(tp=8, sequence_parallel=sp)
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    kind = low.kinds[0]
    size = 2048 * 12288 * 2.0
    stack = low.stack._replace(tp_exposed_fwd=1.0, tp_exposed_bwd=1.0, sp_regather_exposed=1.0)
    over = stack.collective_overhead_s
    gather = all_gather_s(low.net, size, 8.0, 1.0, over)
    scatter = reduce_scatter_s(low.net, size, 8.0, 1.0, over)
    one, back = (
        tp_collective_s(kind, cut, low.net, strides, stack, backward) for backward in (False, True)
    )
    if sp:
        assert one == pytest.approx(gather + scatter)
        assert back == pytest.approx(2 * gather + scatter)
    else:
        assert one == back == pytest.approx(all_reduce_s(low.net, size, 8.0, 1.0, over))
    t = layer_time(kind, cut, low.device, low.net, strides, stack)
    assert (t.tp_fwd, t.tp_bwd) == pytest.approx((2 * one, 2 * back))


def test_experts_rows_and_bytes_are_counted_from_the_routing():
    job = job_of("deepseek-v3", 64, seq_len=4096)
    low = lower(job)
    kind = next(k for k in low.kinds if k.experts)
    cut = cut_of(Plan(dp=64, ep=64), job.recipe)
    # Balanced: each rank computes as many rows as it sends, tokens times eight experts.
    assert routed_rows(kind, cut) == 4096 * 8
    assert dispatch_bytes(kind, cut) == 4096 * 8 * 7168 * 2
    skewed = cut._replace(imbalance=1.5)
    assert routed_rows(kind, skewed) == 1.5 * routed_rows(kind, cut)
    assert experts_s(kind, skewed, low.device, 0) > experts_s(kind, cut, low.device, 0)
    flops = 2 * 4096 * 8 * 3 * 7168 * 2048
    assert experts_s(kind, cut, low.device, 0) > flops / low.device.peak


@pytest.mark.parametrize("nodes", [1, 2, 8, 32])
@pytest.mark.parametrize("topk", [1, 2, 8])
def test_nodes_that_a_token_meets_against_a_draw(nodes, topk):
    rng = np.random.default_rng(7)
    drawn = rng.integers(0, nodes, size=(20000, topk))
    met = np.mean([len(set(row)) for row in drawn]) / topk
    want = 1.0 if nodes == 1 else met
    assert once_a_node(float(topk), 8.0 * nodes, 8.0) == pytest.approx(want, rel=0.02)


@SOME
@given(cases(models=("gpt-oss-20b", "deepseek-v3")))
def test_routed_exchange_grows_with_the_message(case):
    low, cut, strides = numbers(case)
    for kind in low.kinds:
        few = ep_exchange_s(kind, cut, low.net, strides, low.stack)
        many = ep_exchange_s(kind, cut._replace(mbs=2 * cut.mbs), low.net, strides, low.stack)
        assert few <= many <= 2 * few * (1 + 1e-9)


@SOME
@given(cases(), st.sampled_from((0.001, 0.01)))
def test_the_launch_floor_is_a_floor(case, floor_s):
    low, cut, strides = numbers(case)
    stack = low.stack._replace(launch_floor_layer_s=floor_s, moe_layer_floor_s=0.0)
    for kind in low.kinds:
        t = layer_time(kind, cut, low.device, low.net, strides, stack)
        forward = t.fwd + t.tp_fwd + t.cp_fwd + t.ep_fwd
        assert forward + t.host_fwd == pytest.approx(max(forward, floor_s), rel=1e-9)
        backward = t.bwd + t.wgrad + t.tp_bwd + t.cp_bwd + t.ep_bwd
        assert backward + t.host_bwd == pytest.approx(max(backward, 2 * floor_s), rel=1e-9)


def test_loss_head_is_a_product_and_its_logits():
    job = job_of("llama-3.1-8b", 8, seq_len=8192)
    low = lower(job)
    t = end_time(
        low.ends, cut_of(Plan(), job.recipe), low.device, low.net, strides_of(Plan()), low.stack
    )
    flops = 2 * 8192 * 128256 * 4096
    for part in (t.head_fwd, t.head_bwd, t.head_wgrad):
        assert 1.0 < part * low.device.peak / flops < 2.5
    logits = 8192 * 128256 * low.stack.loss_traffic / low.device.hbm
    assert t.head_fwd + t.head_bwd > 4 * flops / 2 / low.device.peak + logits
    assert t.embedding_tp == t.head_tp == 0.0


def test_data_parallel_bytes_are_those_of_zero():
    """On links without latency and ramp: 2(n-1)/n of the bytes to reduce, (n-1)/n to gather."""
    job = job_of("llama-3.1-8b", 64)
    low = lower(job)
    zeros = np.zeros_like(low.net.latency_s)
    net = low.net._replace(latency_s=zeros, ramp_s=zeros, reduction=zeros)
    stack = low.stack._replace(
        collective_overhead_s=0.0, dp_traffic=1.0, grad_bytes=4.0, param_bytes=2.0
    )
    seconds = {}
    for zero in (0, 1):
        plan = Plan(dp=64, zero=zero)
        cut, state, strides = (
            cut_of(plan, job.recipe),
            memory_state(plan, job.recipe),
            strides_of(plan),
        )
        seconds[zero] = (
            gradient_s(1e9, 0.0, cut, state, net, strides, stack),
            gather_s(1e9, 0.0, cut, state, net, strides, stack),
        )
    slowest = min(net.bytes_per_s * net.efficiency)
    assert seconds[0][1] == 0.0
    assert seconds[1][0] == pytest.approx(seconds[0][0] / 2, rel=0.1)
    assert seconds[1][1] == pytest.approx(seconds[1][0] / 2, rel=0.1)
    # Eight devices of a node share what leaves it: a ring's bytes pass each link once.
    assert seconds[0][0] >= 2 * 4e9 / 8 / slowest * 0.5


def test_optimizer_steps_its_shard():
    job = job_of("llama-3.1-8b", 64)
    low = lower(job)
    whole, shard = (
        optimizer_s(8e9, 0.0, memory_state(Plan(dp=64, zero=z), job.recipe), low.device, low.stack)
        for z in (0, 1)
    )
    assert whole == pytest.approx(64 * shard)
    assert whole > 8e9 * low.stack.optimizer_traffic / low.device.hbm
