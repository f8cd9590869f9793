"""Catalog, names, counts and the TOML form."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from gangsaw.cost.summary import model_summary
from gangsaw.errors import InputError
from gangsaw.read.models import list_models, load_model

ROOT = Path(__file__).parent.parent.parent
COUNTS = json.loads((ROOT / "tests/data/model_counts.json").read_text())["configs"]


@pytest.mark.parametrize("known", COUNTS, ids=[c["name"] for c in COUNTS])
def test_counts_equal_the_classes_own(known):
    model = load_model(known["name"])
    assert model.params() == known["params"]
    assert model.active_params() == known["active_params"]
    assert model.embedding_params() == known["embedding"]
    assert model.head_params() == known["lm_head"]
    layers = [model.kinds[k].params() for k in model.order]
    assert [[len(list(g)), p] for p, g in itertools.groupby(layers)] == known["layers_rle"]
    assert sum(model.kinds[k].expert_params() for k in model.order) == known["routed_expert_params"]
    tower = model.vision.params() + model.vision.projector_params if model.vision else 0
    assert tower == known["vision_and_projector"]


def test_catalog_is_large_and_every_model_has_a_source():
    names = list_models()
    assert len(names) >= 50
    for name in names:
        model = load_model(name)
        assert model.name == name
        assert model.source, name


PUBLISHED = {
    # model: (parameters, relative tolerance), as its authors state them
    "gpt3-175b": (175e9, 0.003), "gpt-22b": (22e9, 0.01), "gpt-1t": (1e12, 0.01),
    "gpt-530b": (530e9, 0.001), "gpt-1.7b": (1.7e9, 0.03), "gpt-39b": (39.1e9, 0.002),
    "gpt-145b": (145.6e9, 0.002), "gpt-310b": (310.1e9, 0.001), "palm-540b": (540.35e9, 0.001),
    "qwen2.5-7b": (7.61e9, 0.002), "qwen2.5-72b": (72.7e9, 0.001), "qwen3-8b": (8.2e9, 0.002),
    "deepseek-v2-lite": (15.7e9, 0.002), "gpt-oss-120b": (116.83e9, 0.0001),
    "llama-3.1-70b": (70.55e9, 0.0005), "mistral-large-123b": (123e9, 0.005),
    "falcon-180b": (179.5e9, 0.001), "glm-4.5-air": (106e9, 0.01), "yi-34b": (34.4e9, 0.001),
    "llama-4-maverick-17b-128e": (400e9, 0.006), "opt-66b": (66e9, 0.01),
    "nemotron-4-15b": (15.6e9, 0.003), "phi-3.5-moe": (41.9e9, 0.001), "phi-4": (14.7e9, 0.003),
    "stablelm-2-12b": (12.14e9, 0.001), "grok-1-314b": (314e9, 0.01),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_catalog_agrees_with_published_sizes(name):
    stated, tolerance = PUBLISHED[name]
    assert load_model(name).params() == pytest.approx(stated, rel=tolerance)


def test_prediction_layer_is_apart_and_of_the_published_size():
    # DeepSeek-V3's model card: 671B of the main model; the prediction layer has 11.5B of its own.
    model = load_model("deepseek-v3")
    assert model.mtp is not None
    assert model.mtp.params() == pytest.approx(11.5e9, rel=0.02)
    layer = model.kinds[model.order[-1]].params()
    assert model.mtp.params() - layer == 7168 * (2 * 7168) + 3 * 7168
    assert model.params() == 671_026_404_352


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("Llama-3.1-405B-Instruct", "llama-3.1-405b"),
        ("LLAMA3_1_405B", "llama-3.1-405b"),
        ("GPT3 175B", "gpt3-175b"),
        ("opt-1.3b", "opt-1.3b"),
        ("OPT_13B", "opt-13b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_names_as_people_write_them(ref, name):
    assert load_model(ref).name == name


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(InputError, match=r"no model 'lama-3\.1-8b'.*llama-3\.1-8b"):
        load_model("lama-3.1-8b")
    with pytest.raises(InputError, match="catalog names such as"):
        load_model("∂∂∂")


def test_a_dot_is_never_lost():
    with pytest.raises(InputError):
        load_model("gemma-2-2.7b")  # not gemma-2-27b


def test_summary_sums_to_the_model():
    for name in ("deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "gpt2", "opt-350m"):
        model = load_model(name)
        summary = model_summary(model, 2048)
        total = summary.embedding_params + summary.head_params + summary.other_params
        for row in summary.layers:
            parts = row.attention_params + row.mlp_params + row.expert_params
            assert row.params == parts + row.router_params + row.norm_params
            total += row.count * row.params
        if summary.vision:
            total += summary.vision.params + summary.vision.projector_params
        assert total == summary.params == model.params()
        assert sum(row.count for row in summary.layers) == summary.num_layers == model.layers


def test_cache_bytes_of_heads_latents_and_windows():
    # Llama 3.1 8B: 32 layers x 8 heads x 128 x 2 (k, v) x 2 bytes.
    assert model_summary(load_model("llama-3.1-8b")).kv_bytes_per_token == 32 * 8 * 128 * 2 * 2
    # DeepSeek-V3: 61 layers x (512 latent + 64 rotary) x 2 bytes (technical report, section 2.1).
    assert model_summary(load_model("deepseek-v3")).kv_bytes_per_token == 61 * 576 * 2
    # Mistral 7B v0.1 keeps at most its window of 4,096 keys.
    short = model_summary(load_model("mistral-7b-v0.1"), 4096)
    long = model_summary(load_model("mistral-7b-v0.1"), 32768)
    assert short.kv_bytes_per_sequence == long.kv_bytes_per_sequence


def _examples() -> list[str]:
    text = (ROOT / "docs/models.md").read_text()
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)


def test_documented_toml_is_read(tmp_path):
    examples = _examples()
    assert len(examples) >= 2
    models = []
    for i, text in enumerate(examples):
        path = tmp_path / f"example{i}.toml"
        path.write_text(text)
        models.append(load_model(str(path)))
    # The first example is Llama 3.1 8B written by hand.
    assert models[0].params() == load_model("llama-3.1-8b").params()
    assert models[0].kinds[0].attention == load_model("llama-3.1-8b").kinds[0].attention
    # The second is DeepSeek-V2-Lite.
    assert models[1].params() == load_model("deepseek-v2-lite").params()
    assert models[1].active_params() == load_model("deepseek-v2-lite").active_params()


def _toml_with(tmp_path, old, new):
    path = tmp_path / "model.toml"
    text = _examples()[0]
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("heads = 32", "heads = 33", "heads=33 does not divide hidden=4096"),
        ("kv_heads = 8", "kv_heads = 5", "kv_heads=5 does not divide heads=32.*1, 2, 4, 8, 16, 32"),
        ("hidden = 4096", "hidden = -4096", "hidden=-4096"),
        ("hidden = 4096", "hidden = nan", "hidden=nan"),
        ("hidden = 4096", "hidden = 4096.5", r"hidden=4096\.5"),
        ("hidden = 4096\n", "", "hidden"),
        ("count = 32", "count = 0", "layers.0.count=0"),
        ("count = 32", "cuont = 32", "cuont"),
        ("vocab = 128256", "vocab = '128k'", "vocab"),
        ("[layers.mlp]", "[layers.mpl]", "mpl"),
        ("[[layers]]", "[layers", "TOML"),
    ],
)
def test_wrong_toml_is_one_line(tmp_path, old, new, said):
    with pytest.raises(InputError, match=said) as caught:
        load_model(_toml_with(tmp_path, old, new))
    assert "\n" not in str(caught.value)
    assert "model.toml" in str(caught.value)


PUBLISHED_FILES = json.loads((ROOT / "tests/data/published_configs.json").read_text())["configs"]


@pytest.mark.parametrize("case", PUBLISHED_FILES, ids=[c["name"] for c in PUBLISHED_FILES])
def test_published_files_are_read_with_all_their_keys(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case["config"]))
    model = load_model(str(path))
    assert model.params() == case["params"]
    # Only shapes that the file leaves to transformers, and ignored switches, are noted.
    for note in model.notes:
        assert re.search("assumed|not read: (n_inner|attention_bias)$", note), note
