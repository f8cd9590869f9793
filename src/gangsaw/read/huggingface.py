"""Hugging Face `config.json` -> ModelSpec, counted from shapes and never from a name.

How missing and unknown keys are treated is said in `read.hf_keys`. A family is an entry of
`read.hf_families.FAMILIES`; vision-language configs nest one of them under `text_config` (or, in
older files, keep its keys at the top).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from gangsaw.errors import InputError
from gangsaw.read import hf_vision
from gangsaw.read.hf_families import FAMILIES
from gangsaw.read.hf_keys import Keys
from gangsaw.read.hf_layers import decoder
from gangsaw.read.hf_rotary import rotary_of
from gangsaw.read.toml import read_json, shown
from gangsaw.spec.model import ModelSpec, VisionSpec

MAX_BYTES = 4 * 1024 * 1024
"""A config is a few kilobytes; anything larger is some other file."""

ALIASES = {"kimi_k2": "deepseek_v3", "minicpm": "llama"}
"""Model types of published code that build a family's layers under another name."""


class Wrapper(NamedTuple):
    """A vision-language config: default types of its two parts, and what reads the tower."""

    text: str
    vision: str
    tower: Callable[[Keys, Keys, int], VisionSpec]


WRAPPERS = {
    "llava": Wrapper("llama", "clip_vision_model", hf_vision.llava),
    "gemma3": Wrapper("gemma3_text", "siglip_vision_model", hf_vision.gemma3),
    "llama4": Wrapper("llama4_text", "llama4_vision_model", hf_vision.llama4),
    "qwen2_vl": Wrapper("qwen2_vl_text", "qwen2_vl_vision", hf_vision.qwen2_vl),
    "qwen2_5_vl": Wrapper("qwen2_5_vl_text", "qwen2_5_vl_vision", hf_vision.qwen2_5_vl),
}


def read_config(path: Path, name: str = "") -> ModelSpec:
    """The model of a `config.json`; InputError in one line where it is none."""
    return model_of(read_json(path, MAX_BYTES), shown(path), name or _name_of(path))


def _name_of(path: Path) -> str:
    """A file `x.config.json` is model x; a bare `config.json` is named after its directory."""
    stem = path.name.removesuffix(".json").removesuffix(".config")
    return path.resolve().parent.name if stem == "config" else stem


def model_of(values: dict[str, Any], where: str, name: str) -> ModelSpec:
    """The model of a parsed config. `where` begins every message."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"{where}: missing keys model_type; legal here: {_types()}")
    try:
        if model_type in WRAPPERS:
            return _wrapped(values, where, model_type, name)
        if model_type in FAMILIES:
            return _plain(Keys(values, where, _defaults(model_type)), model_type, name)
    except ValidationError as fault:
        first = fault.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: {key}={first['input']!r:.60}: {first['msg']}") from None
    near = difflib.get_close_matches(model_type, [*FAMILIES, *WRAPPERS], 3)
    hint = f"nearest: {', '.join(near)}" if near else f"legal here: {_types()}"
    raise InputError(f"{where}: model_type={model_type!r:.60} has no reader; {hint}")


def _types() -> str:
    return ", ".join(sorted([*FAMILIES, *WRAPPERS]))


def _defaults(model_type: str) -> str:
    return ALIASES.get(model_type, model_type)


def _plain(keys: Keys, model_type: str, name: str) -> ModelSpec:
    """A language model."""
    model = decoder(keys, FAMILIES[model_type], model_type, name)
    rotary, note = rotary_of(keys.values)
    notes = (*keys.finish(), *([note] if note else []))
    return model.model_copy(update={"notes": notes, "rotary": rotary})


def _wrapped(values: dict[str, Any], where: str, model_type: str, name: str) -> ModelSpec:
    """A vision-language model: the text part, the tower in front of it, one tie flag on top."""
    wrapper = WRAPPERS[model_type]
    top = Keys(values, where, model_type)
    vision = top.nest("vision_config", wrapper.vision)
    if isinstance(values.get("text_config"), dict):
        stated = values["text_config"].get("model_type", wrapper.text)
        text_type = wrapper.text if stated == model_type else stated
        if text_type not in FAMILIES:
            raise InputError(
                f"{where}: text_config: model_type={text_type!r:.60} has no reader;"
                f" legal here: {_types()}"
            )
        if text_type != wrapper.text:
            vision = top.nest("vision_config", wrapper.vision)
        text = top.nest("text_config", _defaults(text_type))
    else:
        text_type = wrapper.text
        text = Keys(values, where, text_type)
    if "model_type" in vision.values and model_type in ("llava", "gemma3"):
        vision = top.nest("vision_config", vision.text("model_type"))
    flat = text.values == values
    if flat:
        text.values = {k: v for k, v in values.items() if k != "vision_config"}
    model = decoder(text, FAMILIES[text_type], model_type, name)
    tower = wrapper.tower(top, vision, model.hidden)
    notes = [*text.finish(), *vision.finish()]
    if not flat:
        top.know(text.defaults)  # older files repeat vocab_size and hidden_size on top
        notes += top.finish()
    rotary, note = rotary_of(text.values)
    changes = {
        "vision": tower, "tied": _tied(top, text, model_type), "rotary": rotary,
        "notes": (*notes, *([note] if note else [])),
    }  # fmt: skip
    return model.model_copy(update=changes)


def _tied(top: Keys, text: Keys, model_type: str) -> bool:
    """Whether head and embedding are one: the outer config decides, Llama 4's inner model."""
    if model_type == "llama4" and "tie_word_embeddings" in text.values:
        return text.flag("tie_word_embeddings")
    return top.flag("tie_word_embeddings")
