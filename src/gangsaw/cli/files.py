"""Files that a user names: rows of JSON lines, and paths that can be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gangsaw.errors import InputError, RunFailedError

ROWS_LIMIT_BYTES = 256 * 10**6


def read_table(name: str) -> dict[str, Any]:
    """A TOML table, or a JSON object where the name ends in .json."""
    from gangsaw.read.toml import read_json, read_toml

    return read_json(name) if name.lower().endswith(".json") else read_toml(name)


def read_stated(name: str, what: str) -> dict[str, Any]:
    """The same, where a file that states nothing cannot be meant. `what`: what it should state."""
    from gangsaw.read.toml import shown

    return stated(read_table(name), shown(name), what)


def stated(table: dict[str, Any], where: str, what: str) -> dict[str, Any]:
    """The table that came from `where`; InputError when it is empty."""
    if not table:
        raise InputError(f"{where} states nothing. Legal: {what}")
    return table


def read_rows(name: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, one a line; blank lines are passed over.

    A row without an id is named by its line, in every answer.
    """
    from gangsaw.read.toml import parse_json, read_text, shown

    rows = [
        {"id": f"line {number}", **parse_json(line, f"{shown(name)} line {number}")}
        for number, line in enumerate(read_text(name, ROWS_LIMIT_BYTES).split("\n"), start=1)
        if line.strip()
    ]
    if not rows:
        raise InputError(f"{shown(name)} has no rows. Legal: one JSON object a line")
    return rows


def writable(flag: str, name: str, endings: tuple[str, ...]) -> Path:
    """A path that can be written: legal ending, in an existing folder, itself no folder."""
    from gangsaw.read.toml import shown

    path, said = Path(name), shown(name)
    if not name.isprintable():
        raise InputError(f"{flag} {said} holds unprintable characters. Legal: a path of text")
    if path.suffix.lower() not in endings:
        raise InputError(f"{flag} {said} has no legal ending. Legal: {', '.join(endings)}")
    try:
        if path.is_dir():
            raise InputError(f"{flag} {said} is a folder. Legal: the path of a file")
        if not path.parent.is_dir():
            raise InputError(
                f"{flag} {said}: folder {shown(path.parent)} does not exist."
                " Legal: a path in an existing folder"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(f"{flag} {said} cannot be written. Legal: a path you may write to")
    except (OSError, ValueError) as fault:
        raise InputError(f"{flag} {said} cannot be a path: {fault}. Legal: a path") from None
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place at the end.

    A reader, or a run that was killed, sees the old file or the new one, never a part. Raises
    RunFailedError where the file system refuses.
    """
    target = path.resolve()
    part = target.with_name(f".{target.stem}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    except OSError as fault:
        raise RunFailedError(f"{path} cannot be written: {fault.strerror or fault}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def put(path: Path, text: str) -> None:
    """Write `text` to `path` as a whole, as `replacing` does."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
