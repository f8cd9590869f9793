"""Rules against the frameworks themselves: what a rule refuses, the installed release refuses."""

import warnings

import pytest
import torch

with warnings.catch_warnings():
    # Megatron Core says at import that Transformer Engine is not there.
    warnings.simplefilter("ignore")
    from megatron.core.transformer import transformer_config as config

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BASE = {
    "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "bf16": True,
    "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16,
}  # fmt: skip
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MOE = {"num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall"}
OFFLOAD = {"cpu_offloading": True, "cpu_offloading_num_layers": 2}
PP4 = {"pipeline_model_parallel_size": 4}
LAYOUT = "Et*6|t*6|t*6|t*6L"
SELECTIVE = {"recompute_granularity": "selective"}

# A setting that the rule refuses, and the words of Megatron Core 0.16's own refusal.
REFUSED = {
    "MLM008": (
        {**PP4, "pipeline_model_parallel_layout": LAYOUT, "num_layers_in_first_pipeline_stage": 6},
        "cannot be set with other pipeline layout",
    ),
    "MLM009": ({**PP4, "num_layers_in_first_pipeline_stage": 5}, "must be divisible"),
    "MLM011": (
        {
            **PP4,
            "num_layers_in_first_pipeline_stage": 6,
            "account_for_embedding_in_pipeline_split": True,
        },
        "cannot be",
    ),
    "MLM012": ({**PP4, "account_for_embedding_in_pipeline_split": True}, "must be divisible"),
    "MLM017": ({"tensor_model_parallel_size": 3}, "must be a multiple of tensor_model_parallel"),
    "MLM018": (
        {
            "num_query_groups": 3,
            "tensor_model_parallel_size": 4,
            "num_attention_heads": 12,
            "hidden_size": 1536,
        },
        "multiple or divisor",
    ),
    "MLM030": ({**FULL, "recompute_method": None}, "recompute_method must be"),
    "MLM031": ({**FULL, "recompute_num_layers": None}, "recompute_num_layers must be"),
    "MLM032": ({**SELECTIVE, "recompute_num_layers": 1}, "recompute_num_layers must be None"),
    "MLM033": (
        {
            **FULL,
            "distribute_saved_activations": True,
            "sequence_parallel": True,
            "tensor_model_parallel_size": 2,
        },
        "must be false when sequence parallel",
    ),
    "MLM046": ({**OFFLOAD, "pipeline_model_parallel_size": 2}, "no support for Pipeline"),
    "MLM047": ({**OFFLOAD, **SELECTIVE}, "does not work when activation recomputation"),
    "MLM051": ({"moe_ffn_hidden_size": 1024}, "must be None when num_experts"),
    "MLM052": ({**SELECTIVE, "recompute_modules": ["nope"]}, "Invalid choices"),
    "MLM053": ({**SELECTIVE, "recompute_modules": ["mla_up_proj"]}, "multi_latent_attention"),
    "MLM054": ({**MOE, **SELECTIVE, "recompute_modules": ["moe_act"]}, "moe_grouped_gemm"),
    "MLM055": (
        {
            **MOE,
            "moe_shared_expert_intermediate_size": 1024,
            "moe_shared_expert_overlap": True,
            "moe_token_dispatcher_type": "allgather",
        },
        "alltoall",
    ),
    "MLM056": ({**MOE, "moe_enable_deepep": True}, "flex"),
    "MLM057": ({**MOE, "moe_pad_expert_input_to_capacity": True}, "moe_expert_capacity_factor"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_megatron_core_refuses_what_the_rule_refuses(code):
    settings, words = REFUSED[code]
    with pytest.raises((ValueError, AssertionError), match=words):
        config.TransformerConfig(**{**BASE, **settings})


@pytest.mark.parametrize(
    "settings",
    [{}, PP4, FULL, SELECTIVE, MOE, {"num_query_groups": 2, "tensor_model_parallel_size": 4}],
)
def test_megatron_core_takes_what_no_rule_refuses(settings):
    # Fewer key-value heads than TP ranks is refused up to core_r0.15 only (MLM019).
    config.TransformerConfig(**{**BASE, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, "MiCS"),  # DS021
        ({"elasticity": {"enabled": True}}, "Elastic"),  # DS022
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf"),  # DS003
        ({"zero_optimization": {"stage": 4}}, "stage"),  # DS004
        (  # DS006
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"ratio": 0.5}}},
            "Stage 3",
        ),
        ({"train_batch_size": 7, "gradient_accumulation_steps": 2}, "train_batch_size"),  # DS001
    ],
)
def test_deepspeed_refuses_what_the_rule_refuses(settings, words):
    from deepspeed.runtime import config as deepspeed

    with pytest.raises(Exception, match=words):
        deepspeed.DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **settings})
