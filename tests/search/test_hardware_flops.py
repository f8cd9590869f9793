"""Model and hardware FLOPs of a step against closed forms and torch's own count."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gangsaw.cost.flops import forward_flops_per_token, frozen_flops_per_token
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import (
    bounds_of,
    estimate,
    evaluate,
    hfu_share,
    model_flops_per_step,
)
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe


def job_of(model, stack="megatron-lm-2022-sp", **recipe):
    return Job(
        model=load_model(model), recipe=Recipe(**{"seq_len": 2048, "global_batch": 8, **recipe}),
        cluster=load_cluster("a100-sxm-80g:8"), stack=load_stack(stack),
    )  # fmt: skip


def shape(layers=48, hidden=6144, s=2048, v=51200):
    # Narayanan et al. 2021: 72 B s l h^2 (1 + s/6h + V/12lh); half the square is s/12h.
    return s / (12 * hidden), v / (12 * layers * hidden)


def test_full_recompute_adds_a_forward_of_the_layers_alone():
    core, logits = shape()
    # The same authors' form with recompute: 96 B s l h^2 (1 + s/6h + V/16lh).
    expected = 96 / 72 * (1 + core + 12 / 16 * logits) / (1 + core + logits)
    share = hfu_share(job_of("gpt-22b"), Plan(tp=8, recompute="full"), (48,))
    assert share == pytest.approx(expected, rel=1e-12)
    assert share < 4 / 3


def test_selective_recompute_adds_the_core_of_attention():
    core, logits = shape()
    share = hfu_share(job_of("gpt-22b"), Plan(tp=8, recompute="selective"), (48,))
    assert share == pytest.approx(1 + core / 3 / (1 + core + logits), rel=1e-12)
    assert hfu_share(job_of("gpt-22b"), Plan(tp=8), (48,)) == 1.0


def test_first_layers_of_each_chunk_are_counted_where_they_are():
    job, full = job_of("gpt-22b"), Plan(tp=2, pp=4, recompute="full")
    whole = hfu_share(job, full, (12, 12, 12, 12)) - 1
    first = full.model_copy(update={"recompute_layers": 10})
    # Chunks of 2, 16, 16 and 14 layers: 2 + 10 + 10 + 10 of 48 run again.
    assert hfu_share(job, first, (2, 16, 16, 14)) - 1 == pytest.approx(whole * 32 / 48, rel=1e-12)


def test_frozen_weights_cost_no_weight_gradients_and_attention_keeps_all_of_its_own():
    # One layer's products in torch: projections frozen, queries, keys and values with gradients.
    b, s, h, heads = 2, 64, 32, 4
    layer = nn.ModuleList([nn.Linear(h, 3 * h), nn.Linear(h, h), nn.Linear(h, 4 * h)])
    down = nn.Linear(4 * h, h)
    for p in (*layer.parameters(), *down.parameters()):
        p.requires_grad_(False)
    x = torch.randn(b, s, h, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        q, k, v = (
            t.reshape(b, s, heads, h // heads).transpose(1, 2) for t in layer[0](x).chunk(3, -1)
        )
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        y = layer[1]((scores @ v).transpose(1, 2).reshape(b, s, h))
        down(layer[2](y).relu()).sum().backward()
    measured = counter.get_total_flops() / (b * s)
    matrices, core = 2 * 12 * h * h, 2 * 2 * h * s
    assert measured == 2 * matrices + 3 * core

    model = load_model("llama-3.1-8b")
    n = 32768
    kind = model.kinds[0]
    core = model.layers * 2 * 32 * 256 * n / 2
    matrices = forward_flops_per_token(model, n) - core
    assert kind.attention.heads == 32
    assert frozen_flops_per_token(model, n) == pytest.approx(2 * matrices + 3 * core, rel=1e-12)
    job = job_of("llama-3.1-8b", seq_len=n, task="lora")
    assert model_flops_per_step(job) == pytest.approx((2 * matrices + 3 * core) * n * 8, rel=1e-12)


def test_bound_of_a_frozen_head_leaves_its_weight_gradient_out():
    plan = Plan(dp=8, zero=3)
    whole = bounds_of(evaluate(job_of("llama-3.2-1b", "torchtitan"), plan))["slowest stage at peak"]
    job = job_of("llama-3.2-1b", "torchtitan", task="lora")
    frozen = bounds_of(evaluate(job, plan))["slowest stage at peak"]
    peak = job.cluster.device.peak_flops_per_s["bf16"]
    kind = job.model.kinds[0]
    matrices = kind.attention_params() + kind.mlp.params(2048)
    saved = 2048 * (2 * 16 * matrices + 2 * 2048 * 128256) / peak
    assert whole - frozen == pytest.approx(saved, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    ["llama-3.2-1b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "qwen2.5-vl-7b", "bloom-7b1"],
)
def test_bounds_count_the_flops_of_mfu(name):
    """One rank, one stage: both bounds are the same FLOPs at the same peak."""
    job = job_of(name, "megatron-core-te")
    plan = Plan(dp=8)
    result = estimate(job, plan)
    assert result.lower_bound_s >= result.waterfall[0].seconds * (1 - 1e-12)
    assert result.lower_bound_s < result.step_time_s
    bounds = result.lower_bounds
    ratio = bounds["slowest stage at peak"] / bounds["all devices at peak"]
    # Projections of prediction layers and of a vision tower belong to no layer.
    assert ratio == pytest.approx(1.0, abs=0.005 if job.model.mtp or job.model.vision else 1e-9)
