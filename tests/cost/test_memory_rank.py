"""Rank memory: published state formulas, phases, sharding, limits and properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import GIB, cut, ends, gpt, llama, load, moe, stack, state

from gangsaw.cost.memory import (
    LAYER_FIELDS,
    PHASES,
    candidate_ranks,
    end_memory,
    layer_memory,
    layer_table,
    memory_table,
    plan_memory,
    rank_memory,
)
from gangsaw.cost.types import EndMem, LayerMem, Loads, RankMem, State
from gangsaw.jit import compiled
from gangsaw.spec.plan import SCHEDULES

NO_ENDS = EndMem(*([0.0] * len(EndMem._fields)))
BARE = {"workspace_bytes": 0.0, "wgrad_dummy": 0.0, "gathered_param_bytes": 1e-9}


def only_params(dense: float, expert: float = 0.0) -> LayerMem:
    """A layer that keeps nothing."""
    values = dict.fromkeys(LayerMem._fields, 0.0)
    values.update(dense_params=dense, expert_params=expert)
    return LayerMem(**values)


def state_of_rank(params: float, expert: float, st_: State, **mem: float) -> RankMem:
    table = layer_table((only_params(params, expert),))
    bare = stack("megatron-core-te", **{**BARE, **mem})
    return rank_memory(load(0, 1, [1.0]), table, NO_ENDS, st_, bare)


@pytest.mark.parametrize(("zero", "gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_paper_table(zero: int, gb: float) -> None:
    # arXiv:1910.02054, figure 1: 7.5e9 parameters, K = 12, 64 ranks, 16-bit gradients
    found = state_of_rank(
        7.5e9, 0.0, state(zero=float(zero), shard=64.0), grad_bytes=2.0, gathered_grad_bytes=0.0
    )
    states = found.params + found.grads + found.optimizer
    assert states / 1e9 == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize("d", [1, 8, 64])
def test_megatron_distributed_optimizer(d: int) -> None:
    # Megatron Core documentation, table of the distributed optimizer: bf16 6 + 12/d a parameter
    found = state_of_rank(1e9, 0.0, state(shard=float(d)))
    assert found.params + found.grads + found.optimizer == pytest.approx(1e9 * (6 + 12 / d))
    whole = state_of_rank(1e9, 0.0, state(zero=0.0, shard=float(d)))
    assert whole.params + whole.grads + whole.optimizer == pytest.approx(18e9)


def test_experts_shard_over_their_own_group() -> None:
    found = state_of_rank(1e9, 4e9, state(shard=32.0, expert_shard=4.0))
    assert found.optimizer == pytest.approx(12 * (1e9 / 32 + 4e9 / 4))


def test_lora_and_qlora_hold_frozen_weights_and_adapters_only() -> None:
    layer = only_params(1e9)._replace(frozen_dense=1e9, adapter_params=1e7)
    table = layer_table((layer,))
    mem = stack("megatron-core-te", **BARE)
    heads = NO_ENDS._replace(embedding_params=1e8, embedding_backward=1e9)
    frozen = state(train_ends=0.0)
    found = rank_memory(load(0, 2, [1.0]), table, heads, frozen, mem)
    assert found.params == pytest.approx(2 * (1e9 + 1e8 + 1e7))
    assert found.grads == pytest.approx(4e7)
    assert found.optimizer == pytest.approx(12e7)
    assert PHASES[int(found.phase)] != "embedding backward"
    four_bit = rank_memory(
        load(0, 2, [1.0]), table, heads, frozen._replace(frozen_bytes=0.516), mem
    )
    assert found.params - four_bit.params == pytest.approx((2 - 0.516) * 1e9)


def test_offload_moves_bytes_to_the_host() -> None:
    mem = stack("megatron-core-te")
    table = layer_table((layer_memory(llama(4096.0, 32.0, 8.0, 14336.0), cut(), mem),))
    here = rank_memory(load(0, 4, [8.0]), table, NO_ENDS, state(pp=4.0), mem)
    off = rank_memory(
        load(0, 4, [8.0]), table, NO_ENDS,
        state(pp=4.0, offload_optimizer=1.0, offload_activations=0.5), mem,
    )  # fmt: skip
    assert off.optimizer == 0
    assert off.activations == pytest.approx(here.activations / 2)
    assert off.host == pytest.approx(here.optimizer + here.activations / 2)


@pytest.mark.parametrize(
    ("vocab", "mbs", "step_bytes", "phase"),
    [
        (1000.0, 1.0, 0.0, "backward"),
        (256000.0, 4.0, 0.0, "loss"),
        (256000.0, 1.0, 200.0, "optimizer step"),
    ],
)
def test_the_largest_phase_wins(vocab: float, mbs: float, step_bytes: float, phase: str) -> None:
    mem = stack("torchtitan", optimizer_step_bytes=step_bytes)
    c = cut(mbs, 2048.0)
    table = layer_table((layer_memory(llama(2048.0, 16.0, 16.0, 5632.0), c, mem),))
    found = rank_memory(
        load(0, 1, [2.0]), table, end_memory(ends(2048.0, vocab), c, 1.0, mem), state(), mem
    )
    assert PHASES[int(found.phase)] == phase
    assert (found.activations == 0) == (phase == "optimizer step")


def test_head_gradient_and_embedding_gradient_phases() -> None:
    # few tokens and a large vocabulary: the 16-bit gradient of the matrix outweighs the logits
    mem = stack("megatron-core-te")
    c = cut(1.0, 256.0)
    table = layer_table((layer_memory(llama(4096.0, 32.0, 8.0, 14336.0), c, mem),))
    both = end_memory(ends(4096.0, 256000.0), c, 2.0, mem)
    first = rank_memory(load(0, 2, [1.0]), table, both, state(pp=2.0), mem)
    last = rank_memory(load(1, 2, [1.0]), table, both, state(pp=2.0), mem)
    assert PHASES[int(first.phase)] == "embedding backward"
    assert PHASES[int(last.phase)] == "head backward"
    assert last.logits == pytest.approx(2 * 256 * 256000 + 2 * 256000 * 4096 + 2 * 256 * 4096)


def test_first_layers_recompute_lies_between_none_and_all() -> None:
    mem = stack("megatron-core-te")
    table = layer_table((layer_memory(gpt(4096.0, 32.0), cut(), mem),))
    n = [12.0]

    def held(recompute: float, first: float) -> float:
        st_ = state(pp=4.0, recompute=recompute, recompute_layers=first)
        found = rank_memory(load(1, 4, n), table, NO_ENDS, st_, mem)
        return found.allocated

    amounts = [held(0.0, 0.0)] + [held(2.0, k) for k in (3.0, 6.0, 9.0, 12.0)]
    assert amounts[-1] == pytest.approx(held(2.0, 0.0))
    assert all(a > b for a, b in pairwise(amounts))
    per_layer = layer_memory(gpt(4096.0, 32.0), cut(), mem)
    assert amounts[1] - amounts[2] == pytest.approx(
        3 * 3 * (per_layer.kept_none - per_layer.kept_full)
    )


def test_fsdp_with_a_pipeline_stands_whole() -> None:
    # 16-bit parameters and fp32 gradients of the stage, unsharded (torchtitan, 405B: 36 GiB)
    mem = stack("torchtitan")
    c = cut(1.0, 8192.0, tp=8.0, sp=1.0)
    kind = llama(16384.0, 128.0, 8.0, 53248.0)
    table = layer_table((layer_memory(kind, c, mem),))
    st_ = state(pp=8.0, zero=3.0, shard=8.0, recompute=2.0)
    found = rank_memory(load(1, 8, [16.0]), table, NO_ENDS, st_, mem)
    stage = 16 * layer_memory(kind, c, mem).dense_params
    assert found.buffers >= 6 * stage
    assert 6 * stage / GIB == pytest.approx(36, abs=1.0)


SHAPES = st.sampled_from([
    (gpt(2048.0, 16.0), None),
    (llama(4096.0, 32.0, 8.0, 14336.0), None),
    (llama(2048.0, 16.0, 16.0, 10944.0), moe(2048.0, 16.0, 64.0, 6.0, 1408.0)),
])  # fmt: skip
STACKS = st.sampled_from([
    "megatron-core-te", "megatron-lm-2021", "megatron-deepspeed-bf16", "torchtitan", "zero-bubble",
    "hf-eager", "unknown",
])  # fmt: skip


@st.composite
def ranks(draw: st.DrawFn):
    """A pipeline of (first, equal middles, last) layers under a random plan."""
    first, second = draw(SHAPES)
    kinds = (first,) if second is None else (first, second)
    p = draw(st.integers(1, 9))
    name = draw(st.sampled_from([
        "1f1b", "gpipe", "interleaved", "bfs", "izb", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
    ]))  # fmt: skip
    v = 2 if name in ("interleaved", "bfs", "zb-v", "v-half", "v-min") else 1
    tp = draw(st.sampled_from([1.0, 2.0, 8.0]))
    st_ = state(
        pp=float(p), vpp=float(v), m=float(draw(st.integers(1, 64))),
        schedule=float(SCHEDULES.index(name)), recompute=draw(st.sampled_from([0.0, 1.0, 2.0])),
        zero=draw(st.sampled_from([0.0, 1.0, 2.0, 3.0])),
        shard=draw(st.sampled_from([1.0, 8.0, 64.0])),
    )  # fmt: skip
    mem = stack(draw(STACKS))
    c = cut(draw(st.sampled_from([1.0, 4.0])), 2048.0, tp=tp, sp=float(tp > 1))
    counts = [[float(draw(st.integers(0, 6))) for _ in kinds] for _ in range(3)]
    layers = [counts[0]] + [counts[1]] * (p - 2) + [counts[2]]
    vocab = draw(st.sampled_from([1024.0, 50304.0, 256000.0]))
    both = end_memory(ends(kinds[0].hidden, vocab), c, float(p), mem)
    return [load(r, p, layers[r]) for r in range(p)], memory_table(kinds, c, mem), both, st_, mem


@settings(max_examples=300, deadline=None)
@given(ranks())
def test_parts_sum_and_three_ranks_stand_for_all(case) -> None:
    loads, table, both, st_, mem = case
    found = [rank_memory(each, table, both, st_, mem) for each in loads]
    for f in found:
        parts = f.params + f.grads + f.optimizer + f.activations + f.logits + f.buffers
        assert parts == pytest.approx(f.allocated)
        assert min(f[:8]) >= 0
        assert f.allocated <= f.reserved <= f.device
        assert 0 <= f.in_flight <= st_.m + 1e-9
    worst = max(f.device for f in found)
    assert max(found[r].device for r in candidate_ranks(len(loads))) == pytest.approx(worst)


@settings(max_examples=100, deadline=None)
@given(ranks(), st.sampled_from([0.0, 1.0, 2.0]))
def test_more_sharding_never_takes_more_state(case, zero: float) -> None:
    loads, table, both, st_, mem = case
    less = rank_memory(loads[0], table, both, st_._replace(zero=zero), mem)
    more = rank_memory(loads[0], table, both, st_._replace(zero=zero + 1), mem)
    assert more.params + more.grads + more.optimizer <= (
        less.params + less.grads + less.optimizer
    ) * (1 + 1e-12)


def test_compiled_equals_interpreted() -> None:
    mem = stack("torchtitan")
    kinds = (llama(2048.0, 16.0, 16.0, 10944.0), moe(2048.0, 16.0, 64.0, 6.0, 1408.0))
    c = cut(2.0, 4096.0, tp=2.0, sp=1.0, ep=4.0)
    table = memory_table(kinds, c, mem)
    assert table.shape == (2, LAYER_FIELDS) == (2, len(LayerMem._fields))
    np.testing.assert_allclose(compiled(memory_table)(kinds, c, mem), table, rtol=1e-12)
    both = end_memory(ends(2048.0, 102400.0), c, 4.0, mem)
    np.testing.assert_allclose(
        compiled(end_memory)(ends(2048.0, 102400.0), c, 4.0, mem), both, rtol=1e-12
    )
    loads = Loads(
        layers=np.array([[1.0, 3.0], [0.0, 4.0], [0.0, 3.0]]), chunk=np.array([4.0, 4.0, 3.0]),
        embedding=np.array([1.0, 0.0, 0.0]), heads=np.array([0.0, 0.0, 1.0]),
        ranks=np.array([1.0, 2.0, 1.0]), first=np.array([0.0, 1.0, 3.0]),
        last=np.array([0.0, 2.0, 3.0]),
    )  # fmt: skip
    for schedule in range(len(SCHEDULES)):
        for recompute in (0.0, 1.0, 2.0):
            st_ = state(4.0, 2.0, 6.0, float(schedule), recompute, 1.0, 8.0)
            plain = plan_memory(loads, table, both, st_, mem)
            fast = compiled(plan_memory)(loads, table, both, st_, mem)
            assert fast[0] == plain[0]
            np.testing.assert_allclose(fast[1], plain[1], rtol=1e-12)


def test_worst_rank_of_a_plan_is_found() -> None:
    # the first stage holds fewer layers: the second is the worst
    mem = stack("zero-bubble")
    table = memory_table((gpt(4096.0, 32.0),), cut(6.0, 1024.0), mem)
    both = end_memory(ends(4096.0, 50304.0), cut(6.0, 1024.0), 8.0, mem)
    loads = Loads(
        layers=np.array([[3.0], [4.0], [3.0]]), chunk=np.array([3.0, 4.0, 3.0]),
        embedding=np.array([1.0, 0.0, 0.0]), heads=np.array([0.0, 0.0, 1.0]),
        ranks=np.array([1.0, 6.0, 1.0]), first=np.array([0.0, 1.0, 7.0]),
        last=np.array([0.0, 6.0, 7.0]),
    )  # fmt: skip
    rank, found = plan_memory(loads, table, both, state(pp=8.0, m=24.0), mem)
    assert rank == 1
    assert found.in_flight == 7
