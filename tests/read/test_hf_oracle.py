"""Counts against transformers' own classes, built without memory, on many small configs."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from gangsaw.read.huggingface import WRAPPERS, model_of

sys.path.insert(0, str(Path(__file__).parent))
from hf_variants import VARIANTS

ROOT = Path(__file__).parent.parent.parent


def build(config):
    """The transformers model of a config on the meta device."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    values = copy.deepcopy(config)
    model_type = values.pop("model_type")
    parsed = transformers.AutoConfig.for_model(model_type, **values)
    auto = (
        transformers.AutoModelForImageTextToText
        if model_type in WRAPPERS
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = auto.from_config(parsed)
    model.tie_weights()
    return model


def count(model, inside=""):
    """Distinct parameters below a module name."""
    found = {id(p): p.numel() for n, p in model.named_parameters() if inside in n}
    return sum(found.values())


def _ids():
    return [f"{i}-{v['model_type']}" for i, v in enumerate(VARIANTS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", VARIANTS, ids=_ids())
def test_counts_as_transformers_builds_it(config):
    oracle = build(config)
    ours = model_of(copy.deepcopy(config), "config.json", "variant")
    assert ours.params() == count(oracle)
    assert ours.notes == () or config["model_type"] in WRAPPERS
    if ours.vision:
        text = count(oracle, "language_model") + count(oracle, "lm_head")
        tied_head = ours.tied and count(oracle, "lm_head")
        assert ours.params() - ours.vision.params() - ours.vision.projector_params == (
            text - tied_head if tied_head else text - _double(oracle)
        )
    else:
        by_layer = [
            sum(p.numel() for p in layer.parameters()) for layer in _layers(oracle, ours.layers)
        ]
        assert [ours.kinds[k].params() for k in ours.order] == by_layer


def _double(oracle):
    """Head parameters whose name holds both parts (counted twice above)."""
    return sum(
        p.numel() for n, p in oracle.named_parameters() if "language_model" in n and "lm_head" in n
    )


def _layers(oracle, number):
    """The list of decoder layers, whatever its name."""
    import torch

    lists = [m for m in oracle.modules() if isinstance(m, torch.nn.ModuleList)]
    return next(m for m in lists if len(m) == number)


@pytest.mark.filterwarnings("ignore")
def test_windows_as_transformers_lists_them():
    import transformers

    for config in VARIANTS:
        values = copy.deepcopy(config)
        model_type = values.pop("model_type")
        if model_type in WRAPPERS:
            continue
        parsed = transformers.AutoConfig.for_model(model_type, **values)
        listed = getattr(parsed, "layer_types", None)
        if listed is None:
            continue
        ours = model_of(copy.deepcopy(config), "config.json", "variant")
        windowed = [bool(ours.kinds[k].attention.window) for k in ours.order]
        width = getattr(parsed, "sliding_window", None) or getattr(
            parsed, "attention_chunk_size", 0
        )
        assert windowed == [bool(width) and t != "full_attention" for t in listed], config


@pytest.mark.filterwarnings("ignore")
def test_defaults_table_is_that_of_the_installed_transformers():
    import transformers

    spec = importlib.util.spec_from_file_location("maker", ROOT / "tools/make_hf_defaults.py")
    assert spec and spec.loader
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    kept = json.loads((ROOT / "src/gangsaw/catalog/hf_defaults.json").read_text())
    if transformers.__version__ in kept["about"]:
        assert json.loads(json.dumps(maker.table())) == kept
    else:  # another version may add keys; none that a shape hangs on may change its value
        for model_type, entry in maker.table()["types"].items():
            for key, value in kept["types"][model_type]["defaults"].items():
                assert entry["defaults"].get(key, value) == value, (model_type, key)
