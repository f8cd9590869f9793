"""Where a model comes from: the catalog by name, a Hugging Face config.json, a gangsaw TOML."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from importlib import resources
from pathlib import Path

from gangsaw.errors import InputError
from gangsaw.read.huggingface import model_of, read_config
from gangsaw.read.model_toml import read_model_toml
from gangsaw.read.toml import read_json, shown
from gangsaw.spec.model import ModelSpec, RotarySpec

_SUFFIXES = (".config.json", ".toml")


@functools.cache
def _catalog() -> dict[str, Path]:
    """Catalog files by model name."""
    folder = Path(str(resources.files("gangsaw.catalog") / "models"))
    found = {}
    for path in sorted(folder.iterdir()):
        for suffix in _SUFFIXES:
            if path.name.endswith(suffix):
                found[path.name.removesuffix(suffix)] = path
    return found


def list_models() -> tuple[str, ...]:
    """Names of the catalog, sorted."""
    return tuple(sorted(_catalog()))


def _key(name: str) -> str:
    """A name without organisation, case, and the signs that people write differently."""
    return re.sub(r"[\s_-]+", "", name.rsplit("/", 1)[-1].casefold())


def find_name(ref: str) -> str | None:
    """The catalog name that `ref` means, or None.

    Case, `_`, `-` and blanks, an organisation in front and a usual ending (`-hf`, `-instruct`,
    `-base`) make no difference. A dot may be left out or written `_` only where no dot stands in
    `ref` and one name alone fits: opt-1.3b is not opt-13b.
    """
    dotted = {_key(name): name for name in _catalog()}
    plain: dict[str, list[str]] = {}
    for key, name in dotted.items():
        plain.setdefault(key.replace(".", ""), []).append(name)
    key = _key(ref)
    for ending in ("", "hf", "instruct", "base", "it", "pt", "chat"):
        short = key.removesuffix(ending) if ending else key
        if short in dotted:
            return dotted[short]
        if "." not in short and len(plain.get(short, [])) == 1:
            return plain[short][0]
    return None


def load_model(ref: str) -> ModelSpec:
    """The model that `ref` names: a catalog name, a path to a config.json or to a TOML.

    A path is anything that exists or ends in .json or .toml; a catalog name wins over a directory
    of that name. Raises InputError in one line: unknown names with the nearest ones.
    """
    ref = ref.strip()
    if not ref:
        raise InputError("MODEL is empty; a catalog name, a config.json or a TOML is expected")
    if "\0" in ref:
        raise InputError("MODEL holds a zero byte; a name or a path is expected")
    path = Path(ref).expanduser()
    if ref.lower().endswith(".toml"):
        return read_model_toml(path)
    if ref.lower().endswith(".json"):
        return read_config(path)
    name = find_name(ref)
    if name:
        return _from_catalog(name)
    if _exists(path):
        return read_config(path)
    raise InputError(f"no model '{shown(ref)[:80]}'; {_nearest(ref)}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


@functools.cache
def _from_catalog(name: str) -> ModelSpec:
    path = _catalog()[name]
    if path.suffix == ".toml":
        return read_model_toml(path)
    values = read_json(path)
    source = values.pop("_source", "")
    model = model_of(values, f"catalog model {name}", name)
    rotary = model.rotary or _rotary().get(name)
    return model.model_copy(update={"source": source, "rotary": rotary})


@functools.cache
def _rotary() -> dict[str, RotarySpec]:
    """Rotary positions of catalog models whose shapes are kept without them."""
    text = resources.files("gangsaw.catalog").joinpath("rotary.toml").read_text("utf-8")
    return {name: RotarySpec.model_validate(row) for name, row in tomllib.loads(text).items()}


def _nearest(ref: str) -> str:
    """The nearest catalog names, or how to see all."""
    keys = {_key(name): name for name in _catalog()}
    near = [keys[k] for k in difflib.get_close_matches(_key(ref), list(keys), 5, 0.5)]
    total = len(keys)
    if near:
        return f"nearest of {total} in the catalog: {', '.join(near)}; or a path to a config.json"
    some = ", ".join(list_models()[:: max(1, total // 8)][:8])
    return f"legal: a config.json, a TOML, or one of {total} catalog names such as {some}"
