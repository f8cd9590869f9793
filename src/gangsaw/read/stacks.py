"""Stack profiles: the catalog's software generations, or a TOML file of one's own."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from gangsaw.errors import InputError
from gangsaw.read.toml import parse_toml, read_toml, shown, validate
from gangsaw.spec.stack import StackProfile


def list_stacks() -> tuple[str, ...]:
    """Names of the catalog's stack profiles, sorted."""
    folder = resources.files("gangsaw.catalog").joinpath("stacks")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def load_stack(name: str) -> StackProfile:
    """Stack profile of the catalog by name, or from the path of a TOML file.

    Raises InputError with the nearest names when there is none, or when the file does not
    describe a stack. A profile's `name` is the file's unless it states one.
    """
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
        return validate(StackProfile, {"name": path.stem, **read_toml(path)}, shown(path))
    known = list_stacks()
    key = name.strip().casefold()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=4, cutoff=0.4)
        what = "nearest" if near else "known"
        raise InputError(f"unknown stack {shown(name)!r}; {what}: {', '.join(near or known)}")
    file = resources.files("gangsaw.catalog").joinpath("stacks", f"{key}.toml")
    data = parse_toml(file.read_text("utf-8"), f"stack {key}")
    return validate(StackProfile, {"name": key, **data}, f"stack {key}")
