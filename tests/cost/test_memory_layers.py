"""Layer bytes in their exact limits: published formulas, derived independently of the code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import cut, ends, gpt, llama, moe, stack

from gangsaw.cost.memory import end_memory, layer_memory

S, B, H, A = 2048.0, 4.0, 12288.0, 96.0
GPT3 = gpt(H, A)
UNFUSED = stack("megatron-lm-2021")
SBH = S * B * H


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_korthikanti_without_sequence_parallelism(tp: int) -> None:
    # arXiv:2205.05198, table 2: sbh (10 + 24/t + 5 a s / (h t))
    kept = layer_memory(GPT3, cut(B, S, tp=tp), UNFUSED)
    assert kept.kept_none == pytest.approx(SBH * (10 + 24 / tp + 5 * A * S / (H * tp)), rel=1e-12)


@pytest.mark.parametrize("tp", [2, 8])
def test_korthikanti_with_sequence_parallelism_and_recompute(tp: int) -> None:
    # arXiv:2205.05198, table 2: sbh/t (34 + 5 a s / h); selective sbh 34/t; full 2 sbh
    kept = layer_memory(GPT3, cut(B, S, tp=tp, sp=1.0), UNFUSED)
    assert kept.kept_none == pytest.approx(SBH / tp * (34 + 5 * A * S / H), rel=1e-12)
    assert kept.kept_selective == pytest.approx(SBH / tp * 34, rel=1e-12)
    assert kept.kept_full == pytest.approx(2 * SBH / tp, rel=1e-12)
    whole = layer_memory(GPT3, cut(B, S, tp=tp), UNFUSED)
    assert whole.kept_full == pytest.approx(2 * SBH, rel=1e-12)
    assert kept.inner == kept.kept_none


def test_fused_attention_keeps_statistics_instead_of_scores() -> None:
    fused = UNFUSED._replace(unfused_score_bytes=0.0)
    kept = layer_memory(GPT3, cut(B, S), fused)
    assert kept.kept_none == pytest.approx(34 * SBH + 4 * A * S * B, rel=1e-12)
    assert kept.kept_selective == pytest.approx(34 * SBH, rel=1e-12)


def test_llama_layer_fused_by_hand() -> None:
    # two norms with outputs 8h, q k v and output 2(2q + 2k), statistics 4 a, SwiGLU 6 f a token
    h, a, kv, f = 8192.0, 64.0, 8.0, 28672.0
    q, k = h, kv * 128
    kept = layer_memory(llama(h, a, kv, f), cut(1.0, 4096.0), stack("megatron-core-te"))
    assert kept.kept_none == pytest.approx(4096 * (8 * h + 4 * q + 4 * k + 4 * a + 6 * f))
    assert kept.temp == pytest.approx(4096 * (4 * f + 2 * h))


def test_fewer_key_value_heads_than_ranks_are_copied() -> None:
    # 64 query heads and 8 key-value heads of 128 over 16 ranks: 4 queries and a whole key-value
    # head each, so two ranks hold the same one.
    h, f, tokens = 8192.0, 28672.0, 2048.0
    found = layer_memory(llama(h, 64.0, 8.0, f), cut(tp=16.0, sp=1.0), stack("megatron-core-te"))
    projections = h * (4 + 1 + 1) * 128 + 4 * 128 * h
    assert found.dense_params == projections + 3 * h * f / 16 + 2 * h
    eight = layer_memory(llama(h, 64.0, 8.0, f), cut(tp=8.0, sp=1.0), stack("megatron-core-te"))
    assert eight.dense_params == h * (8 + 1 + 1) * 128 + 8 * 128 * h + 3 * h * f / 8 + 2 * h
    # Kept: two norms with outputs 8 h/t, q k v out of 16 bits, statistics, and 6 f/t of the MLP.
    kept = 8 * h / 16 + 2 * (4 + 1 + 1 + 4) * 128 + 4 * 4 + 6 * f / 16
    assert found.kept_none == pytest.approx(tokens * kept)


def test_context_parallelism_divides_tokens_and_adds_an_output() -> None:
    mem = stack("megatron-core-te")
    one = layer_memory(llama(8192.0, 64.0, 8.0, 28672.0), cut(1.0, 4096.0), mem)
    two = layer_memory(llama(8192.0, 64.0, 8.0, 28672.0), cut(1.0, 8192.0, cp=2.0), mem)
    assert two.kept_none == pytest.approx(one.kept_none + 4096 * 2 * 8192)


def test_mla_by_hand() -> None:
    # latent tensors: q 1536 down and normed, kv 512 + 64 down, 512 normed; q and k of 192, v 128
    kind = llama(5120.0, 128.0, 128.0, 12288.0)._replace(
        head_dim=192.0, v_head_dim=128.0, q_lora=1536.0, kv_lora=512.0, rope_dim=64.0
    )
    kept = layer_memory(kind, cut(1.0, 4096.0), stack("megatron-core-te")).kept_none
    latent = 2 * (2 * 1536 + 576 + 512)
    heads = 128 * (2 * 192 + 2 * 192 + 2 * 128 + 2 * 128 + 4)
    assert kept == pytest.approx(4096 * (8 * 5120 + latent + heads + 6 * 12288))


@pytest.mark.parametrize(("imbalance", "etp"), [(1.0, 1.0), (1.5, 1.0), (1.0, 2.0)])
def test_routed_tokens(imbalance: float, etp: float) -> None:
    # topk copies a token, in and out 4h, SwiGLU 6 moe_f / etp; sequence parallel spreads tokens
    kind = moe(4096.0, 32.0, 8.0, 2.0, 14336.0)
    c = cut(1.0, 4096.0, tp=2.0, sp=1.0, ep=4.0, etp=etp, imbalance=imbalance)
    kept = layer_memory(kind, c, stack("megatron-core-te")).kept_none
    routed = 4096 * 2 / 2 * etp * imbalance
    attention = 4096 * (8 * 4096 / 2 + (8 * 4096 + 4 * 32) / 2)
    expected = attention + routed * (4 * 4096 + 6 * 14336 / etp) + 8 * 8 * 4096 / 2
    assert kept == pytest.approx(expected)


def test_fp8_halves_inputs_of_linear_layers() -> None:
    c = cut(1.0, 4096.0)
    kind = llama(8192.0, 64.0, 8.0, 28672.0)
    mem = stack("megatron-core-te-fp8")
    plain, small = layer_memory(kind, c, mem), layer_memory(kind, c._replace(fp8=1.0), mem)
    # two normed inputs and the SwiGLU product lose a byte, the attention output gains a copy
    saved = 4096 * (2 * 8192 + 28672 - 8192)
    assert plain.kept_none - small.kept_none == pytest.approx(saved)


def test_operation_level_recompute_keeps_every_second_product() -> None:
    h, k, f = 4096.0, 1024.0, 14336.0
    kind = llama(h, 32.0, 8.0, f)
    eager = layer_memory(kind, cut(1.0, 8192.0), stack("torchtitan")).kept_selective
    # layer input, q, v, attention output and statistics, gate, down
    assert eager == pytest.approx(8192 * (2 * h + 2 * h + 2 * k + 2 * h + 4 * 32 + 2 * f + 2 * h))
    lean = layer_memory(kind, cut(1.0, 8192.0), stack("torchtitan-compiled")).kept_selective
    assert eager - lean == pytest.approx(8192 * 2 * h)


def test_gathered_inputs_under_dtensor_sequence_parallelism() -> None:
    kind = llama(4096.0, 32.0, 8.0, 14336.0)
    c = cut(1.0, 8192.0, tp=4.0, sp=1.0)
    mem = stack("torchtitan")
    more = layer_memory(kind, c, mem).kept_none
    less = layer_memory(kind, c, mem._replace(tp_keeps_gathered_input=0.0)).kept_none
    assert more - less == pytest.approx(8192 * 4096 * 2 * 2 * 0.75)


def test_logits_by_stack() -> None:
    c = cut(1.0, 4096.0, tp=4.0, sp=1.0)
    e = ends(4096.0, 128000.0)
    tokens = 4096.0
    assert end_memory(e, c, 1.0, stack("megatron-core-te")).loss_peak == 2 * tokens * 32000
    assert end_memory(e, c, 1.0, stack("hf-eager")).loss_peak == 14 * tokens * 128000
    assert end_memory(e, c, 1.0, stack("torchtitan")).loss_peak == 16 * tokens * 32000
    alone = end_memory(e, cut(1.0, 4096.0), 1.0, stack("torchtitan"))
    assert alone.loss_peak == 12 * tokens * 128000


def test_vocabulary_is_padded_as_megatron_does() -> None:
    e = ends(1024.0, 50257.0)
    padded = end_memory(e, cut(tp=2.0), 2.0, stack("megatron-core-te"))
    assert padded.embedding_params == 50432 * 1024 / 2  # 50257 to a multiple of 256
    plain = end_memory(e, cut(tp=2.0), 2.0, stack("torchtitan"))
    assert plain.embedding_params == 50257 * 1024 / 2


def test_tied_head_costs_parameters_only_on_another_stage() -> None:
    e = ends(1024.0, 51200.0, tied=1.0)
    mem = stack("megatron-core-te")
    assert end_memory(e, cut(), 1.0, mem).head_params == 1024
    assert end_memory(e, cut(), 2.0, mem).head_params == 51200 * 1024 + 1024


@given(
    mbs=st.integers(1, 8), seq=st.sampled_from([512, 2048, 8192]), tp=st.sampled_from([1, 2, 4, 8]),
    name=st.sampled_from(["megatron-core-te", "megatron-lm-2021", "torchtitan", "hf-eager"]),
)  # fmt: skip
def test_recompute_orders_and_microbatch_scales(mbs: int, seq: int, tp: int, name: str) -> None:
    mem = stack(name)
    for kind in (gpt(4096.0, 32.0), llama(4096.0, 32.0, 8.0, 14336.0)):
        one = layer_memory(kind, cut(1.0, seq, tp=tp, sp=float(tp > 1)), mem)
        many = layer_memory(kind, cut(float(mbs), seq, tp=tp, sp=float(tp > 1)), mem)
        assert one.kept_full <= one.kept_selective <= one.kept_none
        assert one.kept_weight <= one.kept_none
        assert many.kept_none == pytest.approx(mbs * one.kept_none)
        assert many.dense_params == one.dense_params
