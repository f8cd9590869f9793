"""FLOPs against published formulas and against torch's own count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.flops import (
    core_flops,
    forward_flops_per_token,
    layer_flops,
    layer_flops_per_token,
    model_flops_per_token,
    mtp_flops_per_token,
    vision_flops_per_image,
)
from gangsaw.cost.lower_model import ends_of, kinds_of
from gangsaw.jit import compiled
from gangsaw.read.huggingface import model_of
from gangsaw.read.models import list_models, load_model
from gangsaw.spec.recipe import Recipe


@pytest.mark.parametrize(
    ("name", "layers", "hidden"),
    [("gpt-22b", 48, 6144), ("gpt3-175b", 96, 12288), ("gpt-530b", 105, 20480), ("gpt-1t", 128, 25600), ("gpt-1.7b", 24, 2304)],
)  # fmt: skip
def test_gpt_follows_the_closed_form_of_megatron(name, layers, hidden):
    # Narayanan et al. 2021, arXiv:2104.04473: 96 B s l h^2 (1 + s/6h + V/16lh) with one forward of
    # recompute; without it 72 B s l h^2 (1 + s/6h + V/12lh). Both count the full square.
    s, v = 2048, 51200
    per_token = 72 * layers * hidden**2 * (1 + s / (6 * hidden) + v / (12 * layers * hidden))
    assert model_flops_per_token(load_model(name), s, causal=False) == pytest.approx(
        per_token, rel=1e-12
    )


def test_six_n_is_the_limit_of_short_sequences():
    for name in (
        "llama-3.1-405b",
        "llama-3.1-8b",
        "mixtral-8x7b",
        "qwen3-235b-a22b",
        "nemotron-4-340b",
    ):
        model = load_model(name)
        matrices = model.active_params() - model.embedding_params() - model.other_params()
        matrices -= sum(model.kinds[k].norm_weights() for k in model.order)
        if model.kinds[0].attention.qk_norm == "head":
            matrices -= model.layers * 2 * model.kinds[0].attention.head_dim
        flops = model_flops_per_token(model, 1, causal=False)
        core = 3 * sum(2 * model.kinds[k].attention.q_width * 2 for k in model.order)
        assert flops - core == pytest.approx(6 * matrices, rel=1e-12), name


def test_llama_405b_as_its_authors_state():
    # Llama 3 report (arXiv:2407.21783, section 3.2): 3.8e25 FLOPs on 15.6T tokens, which is 6 N D.
    flops = model_flops_per_token(load_model("llama-3.1-405b"), 8192) * 15.6e12
    assert flops == pytest.approx(3.8e25, rel=0.05)


def test_deepseek_v3_by_hand():
    model = load_model("deepseek-v3")
    h, heads, s = 7168, 128, 4096
    attention = h * 1536 + 1536 * heads * 192 + h * 576 + 512 * heads * 256 + heads * 128 * h
    dense, expert, router = 3 * h * 18432, 3 * h * 2048, 256 * h
    matrices = 61 * attention + 3 * dense + 58 * (9 * expert + router) + h * 129280
    core = 61 * 2 * heads * (192 + 128) * s / 2
    assert forward_flops_per_token(model, s) == 2 * matrices + core
    mtp = 2 * (attention + 9 * expert + router + 2 * h * h + h * 129280) + core / 61
    assert mtp_flops_per_token(model, s) == mtp
    assert model_flops_per_token(model, s) == 3 * (2 * matrices + core + mtp)


SMALL = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
COUNTED = [
    {"model_type": "llama", **SMALL},
    {"model_type": "llama", **SMALL, "head_dim": 24, "tie_word_embeddings": True},
    {"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 128},
    {"model_type": "gpt_neox", **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}},
    {"model_type": "opt", "vocab_size": 512, "hidden_size": 64, "ffn_dim": 160, "num_hidden_layers": 3,
     "num_attention_heads": 8, "max_position_embeddings": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    {"model_type": "qwen2", **SMALL},
    {"model_type": "falcon", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8},
    {"model_type": "cohere", **SMALL},
    {"model_type": "nemotron", **SMALL},
    {"model_type": "deepseek_v3", **SMALL, "num_key_value_heads": 8, "moe_intermediate_size": 24,
     "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 3,
     "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
     "n_group": 1, "topk_group": 1},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", COUNTED, ids=lambda c: c["model_type"])
def test_torch_counts_the_same(config):
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    values = {k: v for k, v in config.items() if k != "model_type"}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **values)
    parsed._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(parsed, attn_implementation="eager")
    tokens = torch.zeros(2, 96, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens, use_cache=False)
    counted = counter.get_total_flops()
    # Rotary tables are products of positions and frequencies that torch counts: width x tokens.
    ours = forward_flops_per_token(model_of(config, "config.json", "x"), 96, causal=False) * 2 * 96
    assert counted == pytest.approx(ours, rel=2e-3)
    assert counted >= ours


def test_routed_layers_count_topk_shared_and_router():
    config = {"model_type": "qwen2_moe", **SMALL, "num_experts": 8, "num_experts_per_tok": 3,
              "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}  # fmt: skip
    kind = model_of(config, "c", "x").kinds[0]
    with_experts = layer_flops_per_token(kind, 64)
    assert kind.moe is not None
    fewer = kind.model_copy(update={"moe": kind.moe.model_copy(update={"topk": 2})})
    assert with_experts - layer_flops_per_token(fewer, 64) == 2 * 3 * 64 * 20
    bare = kind.model_copy(update={"moe": kind.moe.model_copy(update={"shared": None})})
    assert with_experts - layer_flops_per_token(bare, 64) == 2 * 3 * 64 * 28


def _seen_by_counting(s, window, causal):
    return sum(min(i + 1 if causal else s, window or s) for i in range(s)) / s


@settings(deadline=None, max_examples=60)
@given(st.integers(64, 3000), st.integers(0, 4000))
def test_causal_windows_against_counting_the_keys(s, window):
    kind = load_model("mistral-7b-v0.1").kinds[0]
    kind = kind.model_copy(
        update={"attention": kind.attention.model_copy(update={"window": window})}
    )
    low = kinds_of(load_model("mistral-7b-v0.1"), Recipe(seq_len=s, global_batch=1))[0]
    flops = core_flops(low._replace(window=float(window)), float(s), True)
    exact = 2 * 32 * 256 * _seen_by_counting(s, window, True)
    # The closed form rounds (s + 1) / 2 keys to s / 2: half a key a query.
    assert math.isclose(flops, exact, abs_tol=2 * 32 * 256 * 0.51)


def test_vision_tower_by_hand():
    # CLIP L/14 at 336: 577 tokens, 24 layers of width 1024, MLP 4096; projector 1024-4096-4096.
    model = load_model("llava-1.5-7b")
    matrices = 4 * 1024**2 + 2 * 1024 * 4096
    core = 2 * 2 * 1024 * 577
    projector = 2 * 576 * (1024 * 4096 + 4096 * 4096 + 2 * 4096)
    assert vision_flops_per_image(model) == 577 * 24 * (2 * matrices + core) + projector
    with_image = model_flops_per_token(model, 2048, images_per_sequence=1)
    without = model_flops_per_token(model, 2048)
    assert with_image - without == pytest.approx(3 * vision_flops_per_image(model) / 2048)


def test_interpreted_and_compiled_agree():
    fast = compiled(layer_flops)
    for name in ("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b"):
        for kind in kinds_of(load_model(name), Recipe(seq_len=4096, global_batch=1)):
            assert fast(kind, 4096.0, True) == layer_flops(kind, 4096.0, True)


def test_lowered_parameters_sum_to_the_model():
    recipe = Recipe(seq_len=4096, global_batch=1)
    for name in list_models():
        model = load_model(name)
        kinds, ends = kinds_of(model, recipe), ends_of(model, recipe)
        total = ends.embedding_params + ends.final_norm_params
        total += 0.0 if ends.tied else ends.head_params
        total += ends.vision_embedding_params + ends.projector_params
        counts = [model.order.count(k) for k in range(len(model.kinds))]
        if model.mtp:
            counts.append(0)
        if model.vision:
            counts.append(model.vision.layers)
        for kind, count in zip(kinds, counts, strict=True):
            layer = kind.attention_params + kind.mlp_params
            total += count * (layer + kind.replicated_params + kind.expert_params)
        assert total == model.params(), name


def test_lora_adapters_of_llama_8b():
    # Rank 16 on q, k, v, o, gate, up, down of Llama 3.1 8B: 41,943,040 trainable parameters, the
    # number that common fine-tuning tools print for it.
    recipe = Recipe(seq_len=4096, global_batch=1, task="lora", lora_rank=16)
    model = load_model("llama-3.1-8b")
    (kind,) = kinds_of(model, recipe)
    assert kind.trainable_frac == 0.0
    assert 32 * kind.adapter_params == 41_943_040
