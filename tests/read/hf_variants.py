"""Small configs of every family with its options turned both ways; shapes are kept unequal."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 1001, "hidden_size": 96, "intermediate_size": 176, "num_hidden_layers": 5,
    "num_attention_heads": 12, "num_key_value_heads": 4, "pad_token_id": 0,
}  # fmt: skip
GPT = {"vocab_size": 1001, "n_embd": 96, "n_layer": 3, "n_head": 12, "n_positions": 77}
DEEPSEEK = {
    **BASE, "num_key_value_heads": 12, "moe_intermediate_size": 40, "n_routed_experts": 16,
    "n_shared_experts": 3, "num_experts_per_tok": 4, "first_k_dense_replace": 2,
    "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "n_group": 4, "topk_group": 2, "topk_method": "greedy",
}  # fmt: skip
GLM_MOE = {
    **BASE, "moe_intermediate_size": 40, "n_routed_experts": 16, "n_shared_experts": 2,
    "num_experts_per_tok": 4, "first_k_dense_replace": 1,
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 112,
    "num_hidden_layers": 3, "num_attention_heads": 6, "image_size": 56, "patch_size": 14,
}  # fmt: skip
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA4_TEXT = {
    **BASE, "model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 208,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
LLAMA4_VISION = {
    **CLIP, "model_type": "llama4_vision_model", "projector_input_dim": 72,
    "projector_output_dim": 72, "vision_output_dim": 72, "intermediate_size": 192,
}  # fmt: skip
QWEN_VISION = {
    "depth": 4, "hidden_size": 64, "intermediate_size": 100, "num_heads": 4, "out_hidden_size": 96,
    "fullatt_block_indexes": [1, 3],
}  # fmt: skip


def _all(model_type: str, base: dict[str, Any], *changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"model_type": model_type, **base, **change} for change in changes]


def _without(base: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in base.items() if k not in keys}


VARIANTS: list[dict[str, Any]] = [
    *_all("llama", BASE, {}, {"head_dim": 20}, {"attention_bias": True, "mlp_bias": True},
          {"tie_word_embeddings": True}, {"num_key_value_heads": None}, {"mlp_bias": True}),
    *_all("mistral", BASE, {}, {"head_dim": 24}, {"sliding_window": None}, {"tie_word_embeddings": True}),
    *_all("ministral", BASE, {"head_dim": 24}),
    *_all("mixtral", {**BASE, "num_local_experts": 6, "num_experts_per_tok": 2}, {}, {"head_dim": 24}),
    *_all("qwen2", BASE, {}, {"use_sliding_window": True, "max_window_layers": 2}, {"tie_word_embeddings": True}),
    *_all("qwen2_moe", {**BASE, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                        "shared_expert_intermediate_size": 56},
          {}, {"qkv_bias": False}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3]}),
    *_all("qwen3", BASE, {}, {"head_dim": 8, "attention_bias": True}, {"tie_word_embeddings": True}),
    *_all("qwen3_moe", {**BASE, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16},
          {}, {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {"attention_bias": True}, {"mlp_only_layers": [0, 4]}),
    *_all("gemma", BASE, {}, {"head_dim": 16}, {"attention_bias": True, "tie_word_embeddings": False}),
    *_all("gemma2", BASE, {}, {"head_dim": 16, "attention_bias": True}),
    *_all("gemma3_text", BASE, {}, {"head_dim": 16, "attention_bias": True}, {"tie_word_embeddings": False}),
    *_all("phi", BASE, {}, {"qk_layernorm": True}, {"tie_word_embeddings": True}),
    *_all("phi3", BASE, {}, {"num_key_value_heads": None, "tie_word_embeddings": True}),
    *_all("phimoe", {**BASE, "num_local_experts": 6, "num_experts_per_tok": 2}, {}, {"attention_bias": True, "lm_head_bias": True}),
    *_all("deepseek_v2", DEEPSEEK, {}, {"q_lora_rank": None}, {"attention_bias": True, "mlp_bias": True},
          {"first_k_dense_replace": 0, "n_shared_experts": 1}),
    *_all("deepseek_v3", DEEPSEEK, {}, {"q_lora_rank": None, "attention_bias": True}, {"attention_bias": True}, {"first_k_dense_replace": 5}),
    *_all("glm", BASE, {"head_dim": 16}, {"attention_bias": False, "head_dim": 8}),
    *_all("glm4", BASE, {"head_dim": 16}, {"attention_bias": False, "head_dim": 8}),
    *_all("glm4_moe", GLM_MOE, {}, {"use_qk_norm": True, "head_dim": 24}, {"attention_bias": True, "first_k_dense_replace": 0}),
    *_all("dots1", GLM_MOE, {}, {"attention_bias": True}),
    *_all("gpt2", GPT, {}, {"n_inner": 200}, {"tie_word_embeddings": False}),
    *_all("gpt_bigcode", GPT, {}, {"multi_query": False, "n_inner": 200}),
    *_all("gptj", {**GPT, "rotary_dim": 4}, {}, {"n_inner": 200}, {"tie_word_embeddings": True}),
    *_all("gpt_neo", {"vocab_size": 1001, "hidden_size": 96, "num_layers": 4, "num_heads": 12, "max_position_embeddings": 70},
          {"attention_types": [[["global", "local"], 2]]},
          {"attention_types": [[["global"], 1], [["local"], 3]], "intermediate_size": 200, "tie_word_embeddings": False}),
    *_all("gpt_neox", _without(BASE, "num_key_value_heads"), {}, {"attention_bias": False, "use_parallel_residual": False}, {"tie_word_embeddings": True}),
    *_all("falcon", _without(BASE, "num_key_value_heads", "intermediate_size"),
          {}, {"multi_query": False}, {"bias": True, "parallel_attn": False, "alibi": True},
          {"new_decoder_architecture": True, "num_kv_heads": 4}, {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
          {"ffn_hidden_size": 200, "tie_word_embeddings": False}, {"num_ln_in_parallel_attn": 2}),
    *_all("bloom", {"vocab_size": 1001, "hidden_size": 96, "n_layer": 3, "n_head": 12}, {}, {"tie_word_embeddings": False}),
    *_all("opt", {"vocab_size": 1001, "hidden_size": 96, "ffn_dim": 176, "num_hidden_layers": 3, "num_attention_heads": 12, "max_position_embeddings": 70},
          {}, {"word_embed_proj_dim": 48, "do_layer_norm_before": False}, {"enable_bias": False}, {"layer_norm_elementwise_affine": False},
          {"_remove_final_layer_norm": True}, {"word_embed_proj_dim": 48, "tie_word_embeddings": False}),
    *_all("mpt", {"vocab_size": 1001, "d_model": 96, "n_layers": 3, "n_heads": 12}, {}),
    *_all("olmo", BASE, {}, {"attention_bias": True, "tie_word_embeddings": True}),
    *_all("olmo2", BASE, {}, {"attention_bias": True, "num_key_value_heads": None}),
    *_all("olmo3", BASE, {}, {"attention_bias": True}),
    *_all("olmoe", {**BASE, "num_experts": 6, "num_experts_per_tok": 2}, {}, {"attention_bias": True}),
    *_all("cohere", BASE, {}, {"use_qk_norm": True, "attention_bias": True}),
    *_all("cohere2", BASE, {}, {"attention_bias": True}),
    *_all("dbrx", {"vocab_size": 1001, "d_model": 96, "n_layers": 3, "n_heads": 12},
          {"attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 56, "moe_num_experts": 6, "moe_top_k": 2}}),
    *_all("nemotron", BASE, {}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 16}),
    *_all("gpt_oss", {**BASE, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2}, {}, {"attention_bias": False}),
    *_all("starcoder2", BASE, {}, {"use_bias": False, "tie_word_embeddings": False}),
    *_all("stablelm", BASE, {}, {"use_qkv_bias": True, "qk_layernorm": True}, {"use_parallel_residual": True}),
    *_all("granite", BASE, {}, {"attention_bias": True, "mlp_bias": True}),
    *_all("granitemoe", {**BASE, "num_local_experts": 6, "num_experts_per_tok": 2}, {}, {"attention_bias": True}),
    *_all("smollm3", BASE, {}, {"attention_bias": True, "tie_word_embeddings": False}),
    *_all("seed_oss", BASE, {}, {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 16}),
    *_all("arcee", BASE, {}, {"mlp_bias": True}),
    *_all("ernie4_5", BASE, {}, {"use_bias": True, "tie_word_embeddings": False}),
    *_all("exaone4", BASE, {}),
    *_all("helium", BASE, {"head_dim": 8}, {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    *_all("hunyuan_v1_dense", BASE, {"head_dim": 8}, {"attention_bias": True, "head_dim": 16}),
    *_all("llama4_text", _without(LLAMA4_TEXT, "model_type"), {}, {"interleave_moe_layer_step": 2}, {"moe_layers": [0, 3], "attention_bias": True}),
    *_all("llava", {"text_config": {**BASE, "model_type": "llama"}, "vision_config": CLIP},
          {}, {"multimodal_projector_bias": False}, {"vision_feature_layer": [-2, -1]}, {"vision_config": SIGLIP},
          {"text_config": {**BASE, "model_type": "mistral", "head_dim": 24}}),
    *_all("gemma3", {"text_config": {**BASE, "model_type": "gemma3_text", "head_dim": 16}, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
          {}, {"vision_config": {**SIGLIP, "vision_use_head": True}}),
    *_all("llama4", {"text_config": LLAMA4_TEXT, "vision_config": LLAMA4_VISION}, {}, {"text_config": {**LLAMA4_TEXT, "interleave_moe_layer_step": 2}}),
    *_all("qwen2_5_vl", {"text_config": {**BASE, "model_type": "qwen2_5_vl_text"}, "vision_config": QWEN_VISION}, {}, {"tie_word_embeddings": True}),
    {"model_type": "qwen2_5_vl", **BASE, "vision_config": QWEN_VISION},
    *_all("qwen2_vl", {"text_config": {**BASE, "model_type": "qwen2_vl_text"},
                       "vision_config": {"depth": 4, "embed_dim": 64, "hidden_size": 96, "num_heads": 4, "mlp_ratio": 3}}, {}),
]  # fmt: skip
