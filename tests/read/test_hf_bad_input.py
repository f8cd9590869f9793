"""Wrong configs: one line that names the value, the rule and what is legal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.huggingface import model_of
from gangsaw.read.models import load_model

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def refused(config, said):
    with pytest.raises(InputError, match=said) as caught:
        model_of(config, "config.json", "x")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


QWEN_MOE = {
    "model_type": "qwen3_moe", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4,
    "moe_intermediate_size": 32, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mlp_only_layers": [99]}, "mlp_only_layers lists 99, .* legal here: 0 to 3"),
        ({"mlp_only_layers": [0, -1]}, "mlp_only_layers lists -1"),
        ({"mlp_only_layers": ["1"]}, 'mlp_only_layers lists "1"'),
        ({"num_experts": 10**7}, "num_experts=10000000 is not a whole number from 0 to 100,000"),
    ],
)
def test_wrong_experts(change, said):
    assert model_of({**QWEN_MOE, "mlp_only_layers": [3]}, "config.json", "x").layers == 4
    refused({**QWEN_MOE, **change}, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 0}, r"hidden_size=0 is not a whole number from 1 to 1,000,000"),
        ({"hidden_size": -4096}, "hidden_size=-4096"),
        ({"hidden_size": 4096.0}, r"hidden_size=4096\.0 is not a whole number"),
        ({"hidden_size": "4096"}, 'hidden_size="4096"'),
        ({"hidden_size": True}, "hidden_size=true"),
        ({"hidden_size": [4096]}, "hidden_size="),
        ({"hidden_size": 10**12}, "hidden_size=1000000000000"),
        ({"hidden_size": float("nan")}, "hidden_size=NaN"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000 is not .* to 10,000"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33},
         r"num_attention_heads=33 does not divide hidden_size=4096.*legal here: 1, 2, 4"),
        ({"num_key_value_heads": 5}, r"num_key_value_heads=5 does not divide .*=32; legal here: 1, 2, 4, 8, 16, 32"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0"),
        ({"head_dim": -1}, "head_dim=-1"),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings="yes" is not true or false'),
        ({"hidden_act": 7}, "hidden_act=7 is not a string"),
        ({"model_type": "lama"}, "model_type='lama' has no reader; nearest: llama"),
        ({"model_type": "x1"}, "model_type='x1' has no reader; legal here: arcee"),
        ({"model_type": None}, "missing keys model_type"),
        ({"model_type": ["llama"]}, "missing keys model_type"),
        ({"hidden_size": None}, "missing keys hidden_size"),
    ],
)  # fmt: skip
def test_wrong_values(change, said):
    refused({**LLAMA, **change}, said)


def test_all_missing_keys_are_listed():
    refused(
        {"model_type": "llama", "vocab_size": 32000},
        "missing keys hidden_size, num_hidden_layers, num_attention_heads, intermediate_size",
    )
    refused(
        {**LLAMA, "model_type": "mixtral"}, "missing keys num_local_experts, num_experts_per_tok"
    )
    refused({**LLAMA, "model_type": "deepseek_v3"}, "missing keys n_routed_experts.*kv_lora_rank")


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"],
)
def test_each_missing_key_is_named(key):
    refused({k: v for k, v in LLAMA.items() if k != key}, f"missing keys {key};")


def test_experts_beyond_their_number():
    refused(
        {**MIXTRAL, "num_experts_per_tok": 9},
        "num_experts_per_tok=9 is more than the 8 experts; legal here: 1 to 8",
    )
    refused({**MIXTRAL, "num_local_experts": 0}, "num_local_experts=0")


def test_unknown_keys_that_may_be_shapes_are_refused_together():
    with pytest.raises(UnknownKeysError) as caught:
        model_of({**LLAMA, "num_memory_slots": 64, "block_plan": [1, 2]}, "config.json", "x")
    assert caught.value.keys == ("block_plan", "num_memory_slots")
    with pytest.raises(UnknownKeysError):
        # A key of another family is unknown to this one.
        model_of({**LLAMA, "n_shared_experts": 2}, "config.json", "x")


def test_unknown_switches_and_words_are_noted():
    model = model_of({**LLAMA, "use_magic": True, "flavour": "plain"}, "config.json", "x")
    assert model.notes == ("config.json: keys not read: flavour, use_magic",)


def test_usual_keys_of_published_files_are_silent():
    usual = {
        "_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0", "bos_token_id": 128000, "eos_token_id": [128001, 128008],
        "rope_scaling": {"factor": 8.0}, "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "initializer_range": 0.02, "rms_norm_eps": 1e-5, "use_cache": True, "pretraining_tp": 1,
        "attention_dropout": 0.0, "quantization_config": {"bits": 8}, "auto_map": {"a": "b"},
    }  # fmt: skip
    assert model_of({**LLAMA, **usual}, "config.json", "x").notes == ()


def test_nested_configs_take_defaults_and_say_so():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    vision = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
              "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": False}  # fmt: skip
    model = model_of(
        {"model_type": "gemma3", "text_config": text, "vision_config": vision}, "config.json", "x"
    )
    assert model.params() == load_model("gemma-3-4b").params()
    assert "vocab_size=262208" in model.notes[0]
    assert "num_attention_heads=8" in model.notes[0]


def test_bad_vision_configs():
    base = json.loads(
        (
            Path(__file__).parents[2] / "src/gangsaw/catalog/models/llava-1.5-7b.config.json"
        ).read_text()
    )
    refused(
        {**base, "vision_config": {**base["vision_config"], "patch_size": 999}},
        "patch_size=999 is larger than image_size=336",
    )
    refused(
        {**base, "vision_config": {**base["vision_config"], "num_attention_heads": 7}},
        "num_attention_heads=7 does not divide the width 1024",
    )
    refused(
        {**base, "vision_config": {**base["vision_config"], "model_type": "sam"}},
        "'sam' is not a known vision tower",
    )
    refused({**base, "vision_config": 7}, "vision_config=7 is not a table")
    refused(
        {**base, "text_config": {**base["text_config"], "model_type": "nope"}},
        "text_config: model_type='nope' has no reader",
    )


def test_layer_lists_that_are_too_short_or_unknown():
    gemma = {**LLAMA, "model_type": "gemma2"}
    refused(
        {**gemma, "layer_types": ["full_attention"] * 3},
        "layer_types lists 3 layers, num_hidden_layers=32",
    )
    refused(
        {**gemma, "layer_types": ["linear_attention"] * 32},
        "layer_types has 'linear_attention'; legal here: full_attention",
    )
    refused({**gemma, "layer_types": "all"}, "is not a list")


def _file(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


@pytest.mark.parametrize(
    "data",
    ["", "{", json.dumps(LLAMA)[:-9], "[1, 2]", "null", '{"hidden_size": NaN}', '{"a": 1, "a": 2}',
     b"\x00\x01\x02\xff", b"\xff\xfe{}", b"\x80abc", "[" * 100_000, '{"model_type": "llama", "hidden_size": 1e999}'],
)  # fmt: skip
def test_broken_files(tmp_path, data):
    with pytest.raises(InputError) as caught:
        load_model(_file(tmp_path, data))
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value)


def test_directories_missing_files_and_odd_names(tmp_path):
    for ref in (
        str(tmp_path),
        str(tmp_path / "no.json"),
        str(tmp_path / "ünï\nçøde.json"),
        "",
        " ",
        "a\0b",
        "x" * 5000,
    ):
        with pytest.raises(InputError) as caught:
            load_model(ref)
        assert "\n" not in str(caught.value)


def test_a_two_gigabyte_file_is_refused_by_size(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2 * 10**9)  # sparse: takes no space and is never read
    with pytest.raises(InputError, match="2,000,000,000 bytes"):
        load_model(str(path))


def test_unicode_paths_are_read(tmp_path):
    folder = tmp_path / "модель"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert load_model(str(path)).params() == load_model("llama-3.1-8b").params()
    assert load_model(str(path)).name == "модель"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = sorted({*LLAMA, *MIXTRAL, "head_dim", "layer_types", "sliding_window", "moe_layers",
               "text_config", "vision_config", "attn_config", "ffn_config", "attention_types",
               "kv_lora_rank", "mlp_only_layers", "n_routed_experts", "no_rope_layers"} - {"model_type"})  # fmt: skip
TYPES = ["llama", "mixtral", "qwen3_moe", "gemma3", "llava", "dbrx", "deepseek_v3", "falcon",
         "llama4", "gpt_neo", "qwen2_5_vl", "smollm3", "phi3"]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_no_config_ends_in_anything_but_a_model_or_one_line(model_type, change):
    small = {**MIXTRAL, "num_hidden_layers": 2, "kv_lora_rank": 8, "n_routed_experts": 4,
             "moe_intermediate_size": 8, "num_experts": 4, "qk_nope_head_dim": 8,
             "qk_rope_head_dim": 8, "v_head_dim": 8, "num_layers": 2, "num_heads": 4}  # fmt: skip
    try:
        model = model_of({**small, **change, "model_type": model_type}, "config.json", "x")
    except InputError as fault:
        assert "\n" not in str(fault)
    else:
        assert model.params() > 0
