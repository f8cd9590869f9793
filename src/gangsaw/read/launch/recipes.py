"""What a followed recipe says: its fields as settings, and the function that it starts from."""

from __future__ import annotations

from gangsaw.read.launch.document import Settings, Value
from gangsaw.read.launch.python import MAX_DEPTH, MAX_LEAVES, Held, Module, Opaque, Recipe, Record

_MAKERS = ("recipe", "config", "pretrain", "finetune")
"""Parts of names of functions that make a recipe."""


def base_of(module: Module, recipe: Recipe) -> tuple[str, int]:
    """The function of another file whose result a recipe starts from, and the line; or ""."""
    root = recipe.root
    held = [root] if recipe.name else []
    if not recipe.name and isinstance(root, Record):
        held = [value for value, _ in root.fields.values()]
    for _ in range(len(held) + 8):
        if not held:
            break
        value = held.pop(0)
        if not isinstance(value, Record):
            continue
        if _is_base(module, value.maker, bool(recipe.name)):
            return value.maker, value.line
        held.extend(arg for arg in value.args if isinstance(arg, Record))
    return "", 0


def _is_base(module: Module, maker: str, returned: bool) -> bool:
    """Imported, no class by its name, and no copy or common start without degrees."""
    first, last = maker.split(".")[0], maker.rsplit(".", 1)[-1]
    if first.removesuffix("()") not in module.imported or not last[:1].isalpha():
        # `_pretrain_common()` and its like are known: Megatron-Bridge's common.py.
        return False
    if not last[0].islower() or last in ("replace", "deepcopy", "copy"):
        return False
    return returned or any(word in last for word in _MAKERS)


def flatten_recipe(recipe: Recipe, settings: Settings) -> None:
    """All fields of a recipe as dotted settings; opaque values are listed as unread."""
    stack: list[tuple[str, Held, int, int]] = [("", recipe.root, recipe.line, 0)]
    leaves = 0
    seen: set[int] = set()
    while stack and leaves < MAX_LEAVES:
        key, value, line, depth = stack.pop()
        if isinstance(value, Record):
            if depth > MAX_DEPTH or id(value) in seen:
                continue
            seen.add(id(value))
            _name(value, settings)
            for name, (child, at) in reversed(value.fields.items()):
                stack.append((f"{key}.{name}" if key else name, child, at, depth + 1))
            for index, arg in enumerate(value.args):
                inner = f"{key}.{index}" if key else str(index)
                if isinstance(arg, (Record, list)):
                    stack.append((inner, arg, value.line, depth + 1))
            continue
        leaves += 1
        if isinstance(value, list):
            if any(isinstance(item, Record) for item in value):
                for index, item in enumerate(value):
                    stack.append((f"{key}.{index}", item, line, depth + 1))
            else:
                settings.put(key, _simple(value), line)
        elif isinstance(value, Opaque):
            short = value.text.rsplit(".", 1)[-1]
            if value.text.startswith("torch.") or value.text.startswith("F."):
                settings.put(key, short, line)
            else:
                settings.skip(line, f"{key} = {value.text}")
        else:
            settings.put(key, value, line)


def _simple(value: list[Held]) -> Value:
    out: list[Value] = []
    for item in value:
        if isinstance(item, list):
            out.append(_simple(item))
        elif isinstance(item, (Opaque, Record)):
            out.append(item.text if isinstance(item, Opaque) else item.maker)
        else:
            out.append(item)
    return out


def _name(record: Record, settings: Settings) -> None:
    """Remember what may name the model: the maker and its text arguments."""
    if record.maker and record.maker != "dict":
        settings.names.append(record.maker)
    settings.names.extend(arg for arg in record.args if isinstance(arg, str))
    # `run.Config(llm.Llama4Experts128Config)`: a class names the model before any tokenizer does.
    settings.names[:0] = [
        arg.text for arg in record.args
        if isinstance(arg, Opaque) and arg.text.endswith(("Config", "Model"))
    ]  # fmt: skip
    for key, (value, _) in record.fields.items():
        if isinstance(value, str) and any(w in key for w in ("model", "path", "name", "hf_")):
            settings.names.append(value)
