"""A ClusterSpec as TOML that `read.clusters.load_cluster` reads back to an equal one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from gangsaw.spec.cluster import ClusterSpec


def cluster_toml(cluster: ClusterSpec, comments: Sequence[str] = ()) -> str:
    """The cluster as text, with `comments` as lines in front."""
    head = "".join(f"# {''.join(c for c in line if c.isprintable())}\n" for line in comments)
    return head + dump(cluster.model_dump(mode="json", exclude_defaults=True))


def comments_of(path: Path) -> list[str]:
    """The lines of comment that a cluster file begins with; none where there is no such file."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return [
        line.removeprefix("#").strip() for line in takewhile(lambda x: x.startswith("#"), lines)
    ]


def dump(table: Mapping[str, Any], path: str = "") -> str:
    """A table as TOML: plain values first, then its tables and lists of tables."""
    plain, nested = [], []
    for key, value in table.items():
        name = _key(key)
        full = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            nested.append(f"\n[{full}]\n{dump(value, full)}")
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            nested += [f"\n[[{full}]]\n{dump(item, full)}" for item in value]
        elif value is not None:
            plain.append(f"{name} = {_value(value)}\n")
    return "".join(plain) + "".join(nested)


def _key(key: object) -> str:
    text = str(key)
    bare = text.replace("_", "").replace("-", "")
    return text if bare.isascii() and bare.isalnum() else json.dumps(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    # JSON escapes are TOML escapes, but for DEL, which TOML wants escaped too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
