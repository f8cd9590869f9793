"""What tensor and expert tensor parallelism do and hold, part by part, written out by hand."""

from __future__ import annotations

import pytest

from gangsaw.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
)
from gangsaw.cost.ends import end_time
from gangsaw.cost.gemm import gemm_s
from gangsaw.cost.layer import attention_linear_s, ep_exchange_s, ep_exposed_s, once_a_node
from gangsaw.cost.lower import cut_of, lower, strides_of
from gangsaw.cost.memory import layer_memory
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe


def parts(model, devices, **plan):
    job = Job(
        model=load_model(model), recipe=Recipe(seq_len=4096, global_batch=64),
        cluster=load_cluster(f"h100-sxm:{devices}"), stack=load_stack("megatron-core-te"),
    )  # fmt: skip
    chosen = Plan(**plan)
    return job, lower(job), cut_of(chosen, job.recipe), strides_of(chosen)


def test_each_end_exchanges_once_without_sequence_parallelism():
    _, low, cut, strides = parts("llama-3.1-8b", 8, tp=8, sequence_parallel=False)
    found = end_time(low.ends, cut, low.device, low.net, strides, low.stack)
    one = all_reduce_s(low.net, 4096 * 4096 * 2, 8.0, 1.0, low.stack.collective_overhead_s)
    # The embedding sums its rows forward and nothing backward, the head the other way round.
    assert 2 * found.embedding_tp == pytest.approx(one)
    assert 2 * found.head_tp == pytest.approx(one)
    _, low, cut, strides = parts("llama-3.1-8b", 8, tp=8)
    found = end_time(low.ends, cut, low.device, low.net, strides, low.stack)
    args = (low.net, 4096 * 4096 * 2, 8.0, 1.0, low.stack.collective_overhead_s)
    assert 2 * found.head_tp == pytest.approx(all_gather_s(*args) + reduce_scatter_s(*args))


def test_latent_projections_under_tensor_parallelism():
    # DeepSeek-V3: h 7168, latents 1536 and 512 + 64, 128 heads of 128 + 64 and 128.
    job, low, cut, _ = parts("deepseek-v3", 8, tp=8)
    kind, tokens = low.kinds[0], 4096.0
    shapes = [
        (tokens / 8, 512 + 64, 7168), (tokens / 8, 1536, 7168), (tokens, 16 * 192, 1536),
        (tokens, 16 * (128 + 128), 512), (tokens, 7168, 16 * 128),
    ]  # fmt: skip
    expected = sum(gemm_s(m, n, k, True, low.device) for m, n, k in shapes)
    assert attention_linear_s(kind, cut, tokens, low.device, 0) == pytest.approx(expected)
    down = 7168 * (1536 + 512 + 64) + 1536 + 512
    up = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert job.model.kinds[0].attention_params() == down + up
    held = layer_memory(kind, cut, low.memory)
    assert held.largest_matrix == down + up / 8
    assert held.dense_params == down + up / 8 + 3 * 7168 * 18432 / 8 + 2 * 7168


def test_expert_tensor_ranks_gather_every_row_that_was_routed_to_them():
    _, low, cut, strides = parts("mixtral-8x7b", 64, tp=2, dp=32, ep=8, etp=2)
    kind, over = low.kinds[0], low.stack.collective_overhead_s
    rows = 4096 / 2 * 2  # tokens of a rank, two experts each
    size = rows * 4096 * 2
    # 16 neighbours are two nodes of 8; four of the eight expert ranks stand in each.
    sent = size * once_a_node(2.0, 8.0, 4.0)
    expected = 2 * all_to_all_s(low.net, sent, 8.0, 2.0, over)
    expected += all_gather_s(low.net, 2 * size, 2.0, 1.0, over)
    expected += reduce_scatter_s(low.net, 2 * size, 2.0, 1.0, over)
    once = low.stack._replace(ep_once=1.0)
    found = ep_exchange_s(kind, cut, low.net, strides, once)
    assert sent < size
    assert found == pytest.approx(expected)
    every = low.stack._replace(ep_once=0.0)
    expected += 2 * all_to_all_s(low.net, size, 8.0, 2.0, over)
    expected -= 2 * all_to_all_s(low.net, sent, 8.0, 2.0, over)
    assert ep_exchange_s(kind, cut, low.net, strides, every) == pytest.approx(expected)


def test_paired_exchange_hides_under_compute_and_no_further():
    _, low, _, _ = parts("mixtral-8x7b", 64, tp=2, dp=32, ep=8, etp=2)
    alone = low.stack._replace(ep_paired=0.0, ep_exposed=0.25)
    paired = alone._replace(ep_paired=1.0)
    # Two exchanges of 4 in a layer; what its compute of 6, 20 or none leaves over, halved.
    assert ep_exposed_s(4.0, 6.0, alone) == 1.0
    assert ep_exposed_s(4.0, 20.0, paired) == 1.0
    assert ep_exposed_s(4.0, 4.0, paired) == 2.0
    assert ep_exposed_s(4.0, 0.0, paired) == 4.0


def test_prediction_layer_pays_for_joining_state_and_embedding():
    _, low, cut, strides = parts("deepseek-v3", 8, tp=2, dp=4, ep=8)
    assert low.ends.mtp_layers == 1.0
    args = (cut, low.device, low.net, strides, low.stack)
    found = end_time(low.ends, *args)
    without = end_time(low.ends._replace(mtp_layers=0.0), *args)
    # Two heads on the last rank, one of them behind a product of 2 x 7168 by 7168, half a rank.
    d, n, h = low.device, 4096.0, 7168.0
    products = [
        gemm_s(n, h / 2, 2 * h, True, d),
        gemm_s(n, 2 * h, h / 2, True, d),
        gemm_s(h / 2, 2 * h, n, True, d),
    ]
    for name, joined in zip(("head_fwd", "head_bwd", "head_wgrad"), products, strict=True):
        added = 2 * (getattr(found, name) - getattr(without, name))
        assert added == pytest.approx(joined, rel=1e-9), name
