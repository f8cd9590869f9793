"""Write catalog/hf_defaults.json: what transformers' config classes assume for missing keys.

Run by hand when a family is added or transformers changes: `python tools/make_hf_defaults.py`.
A test compares the file with the installed transformers.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

TYPES = (  # noqa: SIM905
    "llama mistral ministral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text"
    " gemma3 phi phi3 phimoe deepseek_v2 deepseek_v3 glm glm4 glm4_moe gpt2 gpt_bigcode gptj"
    " gpt_neo gpt_neox falcon bloom opt mpt olmo olmo2 olmo3 olmoe cohere cohere2 dbrx nemotron"
    " gpt_oss llama4_text llama4 llama4_vision_model llava clip_vision_model siglip_vision_model"
    " qwen2_vl qwen2_vl_text qwen2_vl_vision qwen2_5_vl qwen2_5_vl_text qwen2_5_vl_vision"
    " starcoder2 stablelm granite granitemoe smollm3 seed_oss arcee ernie4_5 exaone4 helium"
    " dots1 hunyuan_v1_dense dbrx_attention dbrx_ffn mpt_attention"
).split()


def config_class(model_type: str) -> type:
    """The transformers config class of a model type, nested ones included."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.dbrx import configuration_dbrx as dbrx
    from transformers.models.mpt import configuration_mpt as mpt
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as q25
    from transformers.models.qwen2_vl import configuration_qwen2_vl as q2

    own = {
        "dbrx_attention": dbrx.DbrxAttentionConfig,
        "dbrx_ffn": dbrx.DbrxFFNConfig,
        "mpt_attention": mpt.MptAttentionConfig,
        "qwen2_vl_vision": q2.Qwen2VLVisionConfig,
        "qwen2_5_vl_vision": q25.Qwen2_5_VLVisionConfig,
        "qwen2_vl_text": q2.Qwen2VLTextConfig,
        "qwen2_5_vl_text": q25.Qwen2_5_VLTextConfig,
    }
    return own[model_type] if model_type in own else CONFIG_MAPPING[model_type]


def defaults(model_type: str) -> dict[str, object]:
    """Declared defaults of a config class (before its own post-processing), and its aliases."""
    cls = config_class(model_type)
    out: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        if field.name.startswith("_") or not field.init:
            continue
        value = field.default
        if value is dataclasses.MISSING:
            value = None
        if isinstance(value, (int, float, str, bool, list, tuple)) or value is None:
            out[field.name] = value
    return {"defaults": out, "aliases": dict(getattr(cls, "attribute_map", {}))}


def table() -> dict[str, object]:
    """The whole file."""
    import transformers

    found = {t: defaults(t) for t in TYPES}
    base = {f.name for f in dataclasses.fields(transformers.PretrainedConfig)}
    for entry in found.values():
        entry["defaults"] = {
            k: v
            for k, v in entry["defaults"].items()
            if k not in base or k in KEEP  # type: ignore[union-attr]
        }
    return {
        "about": "Defaults and key aliases of the config classes of transformers"
        f" {transformers.__version__}, made by tools/make_hf_defaults.py",
        "base_keys": sorted(base),
        "types": found,
    }


KEEP = {"tie_word_embeddings"}

if __name__ == "__main__":
    out = Path(__file__).parent.parent / "src/gangsaw/catalog/hf_defaults.json"
    out.write_text(json.dumps(table(), indent=1) + "\n")
