"""Rotary positions against transformers' own, plain and with each way of stretching them."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gangsaw.read.hf_rotary import rotary_of as rotary_in
from gangsaw.read.models import load_model
from gangsaw.run.model import BuildOptions, frequencies, rotary_of, rotary_table

HEAD = 64
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0},
    {**YARN, "beta_fast": 32.0, "beta_slow": 1.0},
    {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
    {**YARN, "beta_fast": 1.0, "beta_slow": 1.0},
]


def _config(base, scaling):
    stated = {"rope_theta": base} | (scaling or {"rope_type": "default"})
    return LlamaConfig(
        hidden_size=HEAD * 2, num_attention_heads=2, head_dim=HEAD,
        max_position_embeddings=131072, rope_parameters=stated,
    )  # fmt: skip


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 150_000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(base, scaling):
    config = _config(base, scaling)
    if scaling is None:
        want, factor = LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        want, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    spec, note = rotary_in({"rope_theta": base, "rope_scaling": scaling})
    assert not note
    found, mine = frequencies(HEAD, spec, torch.device("cpu"))
    assert mine == pytest.approx(factor, rel=1e-6)
    torch.testing.assert_close(found, want, rtol=2e-6, atol=0.0)
    # Both ways in which configs are written say the same.
    again, _ = rotary_in({"rope_parameters": {"rope_theta": base} | (scaling or {})})
    assert again == spec


def test_the_table_is_that_of_transformers():
    model = load_model("llama-3.1-8b")
    opt = BuildOptions(seq_len=300, rotary=rotary_of(model))
    ours = rotary_table(HEAD, opt)
    embedding = LlamaRotaryEmbedding(_config(500_000.0, LLAMA3))
    cos, sin = embedding(torch.zeros(1, 300, HEAD), torch.arange(300)[None])
    torch.testing.assert_close(ours, torch.stack((cos[0], sin[0])), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, ""),
        ({"rope_theta": None}, ""),
        ({"rope_theta": "wide"}, ""),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}}, "yarn"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [1]}}, ""),
        ({"rope_theta": 1e4, "rope_scaling": []}, ""),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, ""),
    ],
)
def test_what_is_not_stated_or_not_carried(values, said):
    spec, note = rotary_in(values)
    assert said in note and bool(said) == bool(note)
    assert spec is None or spec.scaling is None
