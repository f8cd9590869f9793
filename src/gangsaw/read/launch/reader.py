"""The one way in: a path or a text becomes a LaunchFile."""

from __future__ import annotations

import re
from pathlib import Path

from gangsaw.errors import InputError
from gangsaw.read.launch import detect, frameworks
from gangsaw.read.launch.commands import command_of_pods, settings_of_script
from gangsaw.read.launch.document import Framework, LaunchFile, Settings
from gangsaw.read.launch.python import Module, Recipe
from gangsaw.read.launch.recipes import base_of, flatten_recipe
from gangsaw.read.launch.scalars import flatten, key_lines
from gangsaw.read.launch.yaml import read_yaml
from gangsaw.read.toml import parse_json, parse_toml, read_text, shown

LIMIT_BYTES = 2 * 10**6
"""Largest launch file that is read."""


def read_launch(ref: str | Path) -> LaunchFile:
    """The launch file at `ref`; `recipes.py:name` picks one recipe of a Python file.

    Nothing in the file is executed. Raises InputError, one line, when it is missing, larger than
    LIMIT_BYTES, not text, of no known framework, or nests or grows beyond what is followed.
    """
    text = str(ref)
    select = ""
    head, sign, tail = text.rpartition(":")
    if sign and head.endswith(".py") and re.fullmatch(r"\w+", tail):
        text, select = head, tail
    body = read_text(text, LIMIT_BYTES)
    return read_launch_text(body, Path(text).name, select=select, folder=Path(text).parent)


def read_launch_text(
    text: str,
    name: str,
    framework: Framework | None = None,
    select: str = "",
    folder: Path | None = None,
) -> LaunchFile:
    """A launch file from its text; `name` (the file's name) helps to tell what it is.

    With `folder`, a DeepSpeed configuration that the file names is read from there too.
    """
    where = shown(name)
    if len(text) > LIMIT_BYTES:
        raise InputError(f"{where}: {len(text):,} characters; {LIMIT_BYTES:,} are the limit")
    if not text.strip():
        raise InputError(f"{where} is empty")
    kind = _kind(text, name)
    if kind == "python":
        return _python(text, where, framework, select)
    if kind == "json":
        settings = Settings(where)
        settings.names.append(where)
        flatten(parse_json(text, where), settings, key_lines(text))
        read_as = framework or detect.of_json(set(settings.items))
        if read_as is None:
            raise _no_launch(settings, where)
        _beside(settings, folder)
        return frameworks.launch_file(settings, read_as, where)
    if kind == "toml":
        settings = Settings(where)
        flatten(parse_toml(text, where), settings, key_lines(text))
        found = framework or detect.of_toml(set(settings.items))
        if found is None:
            raise _unknown(where)
        return frameworks.launch_file(settings, found, where)
    if kind == "yaml":
        settings = read_yaml(text, where)
        settings.names.append(where)
        settings.names.extend(
            str(item.value) for item in settings if item.key.split(".")[-1] in ("run", "name")
        )
        pods = command_of_pods(settings)
        if pods is not None:
            return frameworks.launch_file(pods[0], framework or pods[1], where)
        guess = framework or detect.of_yaml(set(settings.items))
        if guess is None:
            raise _unknown(where)
        _beside(settings, folder)
        return frameworks.launch_file(settings, guess, where)
    settings, found_in = settings_of_script(text, where, framework)
    script = text.startswith("#!") or Path(name).suffix.lower() in _SCRIPTS
    if found_in is None or not (settings.items or script):
        # Prose may name a framework; without one setting it launches nothing.
        raise _unknown(where)
    _beside(settings, folder)
    return frameworks.launch_file(settings, found_in, where)


_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".ksh", ".zsh")


def _beside(settings: Settings, folder: Path | None) -> None:
    """Read the DeepSpeed JSON that a file names, where it lies in the file's own folder or below.

    A file elsewhere is left alone; a stage in its name (`zero3_bf16.json`) is taken as a hint.
    """
    named = settings.get("deepspeed") or settings.get("deepspeed_config")
    if not isinstance(named, str) or not named.endswith(".json") or settings.has_deepspeed:
        return
    item = settings.items.get("deepspeed") or settings.items["deepspeed_config"]
    path = None if folder is None else (folder / named)
    inside = path is not None and folder is not None and not Path(named).is_absolute()
    if inside and path is not None and folder is not None and ".." not in Path(named).parts:
        try:
            text = read_text(path, LIMIT_BYTES)
            inner = Settings(shown(named))
            flatten(parse_json(text, shown(named)), inner, key_lines(text))
            settings.add_deepspeed(inner)
            return
        except InputError as error:
            settings.skip(item.line, str(error))
    else:
        settings.skip(item.line, f"{named}: not in this file's folder, not read")
    hint = re.search(r"(?:zero|(?<![a-z])z)[_-]?(?:stage)?[_-]?([0-3])", named.lower())
    if hint and "zero_optimization.stage" not in settings.items:
        settings.put("zero_optimization.stage", int(hint.group(1)), item.line)


def _no_launch(settings: Settings, where: str) -> InputError:
    """Why a JSON file is no launch file: a model's configuration is what people take for one."""
    family = settings.get("model_type")
    if family is None and "architectures" not in settings.items:
        return _unknown(where)
    return InputError(
        f"{where}: the configuration of a model{f' ({family})' if family else ''}, no launch file."
        f" Legal: a script or configuration that starts a training; `gangsaw model {where}` says"
        " what is in this one"
    )


def _unknown(where: str) -> InputError:
    return InputError(
        f"{where}: no framework recognised. Known: Megatron-LM (shell, YAML), Megatron-Bridge and"
        " NeMo (Python), torchtitan (Python, TOML), DeepSpeed (JSON) with Trainer arguments,"
        " nanotron, GPT-NeoX, LLaMA-Factory, axolotl (YAML), verl flags, Slurm headers"
    )


def _kind(text: str, name: str) -> str:
    suffix = Path(name).suffix.lower()
    known = {
        ".py": "python", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml",
        ".sh": "shell", ".bash": "shell", ".sbatch": "shell", ".slurm": "shell",
    }  # fmt: skip
    if suffix in known:
        return known[suffix]
    start = text.lstrip()[:200]
    if start.startswith("{"):
        return "json"
    if re.search(r"^\s*(from|import)\s+\w", text[:5000], re.MULTILINE) and "def " in text:
        return "python"
    if re.search(r"^\[[\w.]+\]\s*$", text[:20000], re.MULTILINE):
        return "toml"
    if start.startswith("#!") or re.search(r"^\s*--?\w|\\\s*$", text[:20000], re.MULTILINE):
        return "shell"
    if re.search(r"^\w[\w.\-]*:\s", text[:20000], re.MULTILINE):
        return "yaml"
    return "shell"


def _python(text: str, where: str, framework: Framework | None, select: str) -> LaunchFile:
    guess = framework or detect.of_python(text)
    if guess is None:
        raise _unknown(where)
    module = Module(text, where)
    recipe = _choose(module, where, select, guess)
    settings = Settings(where)
    settings.names.append(recipe.name)
    flatten_recipe(recipe, settings)
    settings.base, at = base_of(module, recipe)
    if settings.base:
        settings.names.append(settings.base)
        settings.skip(at, f"what {settings.base}() of another file sets")
    size = re.search(r"_(\d{1,6})_?gpus?(_|$)", recipe.name)
    if size:
        settings.put("@named_world", int(size.group(1)), recipe.line)
    for line, what in module.unread:
        settings.skip(line, what)
    settings.names.append(where)
    return frameworks.launch_file(settings, guess, where)


def _choose(module: Module, where: str, select: str, framework: Framework) -> Recipe:
    """The recipe asked for, the only one, or what the module's own lines build."""
    if select:
        if select not in module.functions:
            names = ", ".join(list(module.functions)[:20]) or "none"
            raise InputError(f"{where}:{select}: no such function. Here: {names}")
        return module.recipe(select)
    script = module.script()
    held = Settings(where)
    flatten_recipe(script, held)
    if frameworks.recognised(held, framework) >= 2 or base_of(module, script)[0]:
        return script
    found = []
    for name in list(module.functions)[:200]:
        recipe = module.recipe(name)
        held = Settings(where)
        flatten_recipe(recipe, held)
        if frameworks.recognised(held, framework) >= 2 or base_of(module, recipe)[0]:
            found.append(recipe)
    tops = [recipe for recipe in found if recipe.name not in module.called] or found
    if not tops:
        raise InputError(f"{where}: no recipe found in its functions or lines")
    if len(tops) > 1:
        names = ", ".join(recipe.name for recipe in tops[:12])
        more = f" and {len(tops) - 12} more" if len(tops) > 12 else ""
        raise InputError(f"{where} holds {len(tops)} recipes; say which, as {where}:NAME. Here:"
                         f" {names}{more}")  # fmt: skip
    return tops[0]
