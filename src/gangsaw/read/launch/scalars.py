"""Text to values, and nested mappings to dotted keys, with bounded work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gangsaw.errors import InputError
from gangsaw.read.launch.document import Settings, Value

MAX_KEYS = 50_000
MAX_DEPTH = 40

_INT = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,17}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?")
_WORDS: dict[str, Value] = {
    "true": True, "false": False, "none": None, "null": None, "yes": True, "no": False,
    "on": True, "off": False,
}  # fmt: skip


def scalar(text: str) -> Value:
    """`"8"` -> 8, `"1e-4"` -> 0.0001, `"True"` -> True, `"null"` -> None, else the text."""
    stripped = text.strip()
    if _INT.fullmatch(stripped):
        return int(stripped)
    if _FLOAT.fullmatch(stripped):
        return float(stripped)
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    return stripped


def plain(value: object) -> Value:
    """A value of JSON, TOML or YAML as one of ours; other types by their text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def flatten(data: Mapping[str, object], settings: Settings, lines: Mapping[str, int]) -> None:
    """Put every leaf of nested mappings into `settings` under its dotted key.

    `lines` gives the line of a dotted key or of its last part. Raises InputError when the data is
    nested deeper than MAX_DEPTH or holds more than MAX_KEYS leaves.
    """
    stack: list[tuple[str, object, int]] = [("", data, 0)]
    count = 0
    while stack:
        prefix, value, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{settings.where}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            children = [
                (f"{prefix}.{key}" if prefix else str(key), child, depth + 1)
                for key, child in value.items()
            ]
            stack.extend(reversed(children))
            continue
        count += 1
        if count > MAX_KEYS:
            raise InputError(f"{settings.where}: more than {MAX_KEYS:,} values; that is the limit")
        line = lines.get(prefix, lines.get(prefix.rsplit(".", 1)[-1], 0))
        settings.put(prefix, plain(value), line)


_KEY_LINE = re.compile(r"""^\s*["']?([A-Za-z_][\w\-.]{0,100})["']?\s*[:=]""")
_TABLE_LINE = re.compile(r"^\s*\[\s*([\w\-.]{1,100})\s*\]")


def key_lines(text: str) -> dict[str, int]:
    """Line of each key of a JSON or TOML text; the first one when a bare key stands twice."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        short = line[:300]
        header = _TABLE_LINE.match(short)
        if header:
            table = header.group(1)
            continue
        found = _KEY_LINE.match(short)
        if found:
            key = found.group(1)
            lines.setdefault(key, number)
            if table:
                lines.setdefault(f"{table}.{key}", number)
    return lines
