"""Reading what a user wrote: size-limited text, TOML and JSON, and documents out of them.

Every failure is an InputError of one line that names the file, the value and the rule. Nothing
here trusts a path: size and kind are looked at before a byte is read.
"""

from __future__ import annotations

import json
import math
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.spec.base import Document

LIMIT_BYTES = 10 * 10**6
"""Largest document that is read (configurations are kilobytes)."""

D = TypeVar("D", bound=Document)


def read_text(path: Path | str, limit_bytes: int = LIMIT_BYTES) -> str:
    """Text of a regular file in UTF-8, at most `limit_bytes` long.

    Raises InputError if it does not exist, is no regular file, is larger, or is not text.
    """
    path = Path(path)
    where = shown(path)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{where}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot be read ({_reason(error)})") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{where} is a directory; a file is needed")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{where} is not a regular file")
    if status.st_size > limit_bytes:
        raise InputError(
            f"{where} has {status.st_size:,} bytes; a document may have {limit_bytes:,}"
        )
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({_reason(error)})") from None
    if len(raw) > limit_bytes:
        raise InputError(f"{where}: more than {limit_bytes:,} bytes; that is the limit")
    if b"\0" in raw:
        raise InputError(f"{where} is binary (byte {raw.index(0)} is zero); text is needed")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 text: byte 0x{raw[error.start]:02x} at {error.start}"
        ) from None


def read_toml(path: Path | str, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Table of a TOML file; InputError with the line when it cannot be parsed."""
    return parse_toml(read_text(path, limit_bytes), shown(path))


def read_json(path: Path | str, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Object of a JSON file; InputError with the line when it cannot be parsed."""
    return parse_json(read_text(path, limit_bytes), shown(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Table of TOML text that came from `where`."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{where} is not valid TOML: {_reason(error)}") from None


def parse_json(text: str, where: str) -> dict[str, Any]:
    """Object of JSON text that came from `where`; keys given twice and NaN are refused."""
    if not text.strip():
        raise InputError(f"{where} is empty; a JSON object is needed")
    try:
        data = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except json.JSONDecodeError as error:
        cut = " (the text ends too early)" if error.pos >= len(text.rstrip()) else ""
        raise InputError(
            f"{where} is not valid JSON: {error.msg} at line {error.lineno}"
            f" column {error.colno}{cut}"
        ) from None
    except RecursionError:
        raise InputError(f"{where} is not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON: {_reason(error)}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} holds a JSON {type(data).__name__}; an object is needed")
    return data


def validate(document: type[D], data: object, where: str) -> D:
    """`data` as a document; InputError of one line otherwise, UnknownKeysError for extra keys."""
    try:
        made = document.model_validate(data)
        _refuse_coerced(data, made, where)
    except ValidationError as error:
        raise one_line(error, where, document) from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    return made


def _refuse_coerced(stated: object, made: object, where: str, key: str = "") -> None:
    """Refuse a number that was stated as true, false or text: a guess at what was meant."""
    if isinstance(made, (int, float)) and not isinstance(made, bool):
        if isinstance(stated, (bool, str)):
            raise InputError(f"{where}: {key}={_short(stated)} is no number. Legal: a number")
        return
    pairs: list[tuple[object, object, object]] = []
    if isinstance(made, Document) and isinstance(stated, Mapping):
        pairs = [(name, stated[name], getattr(made, name, None)) for name in stated]
    elif isinstance(made, Mapping) and isinstance(stated, Mapping):
        pairs = [(name, stated[name], made.get(name)) for name in stated]
    elif isinstance(made, (list, tuple)) and isinstance(stated, (list, tuple)):
        pairs = [(number, *pair) for number, pair in enumerate(zip(stated, made, strict=False))]
    for name, theirs, ours in pairs:
        _refuse_coerced(
            theirs, ours, where, f"{key}.{shown(str(name))}" if key else shown(str(name))
        )


def one_line(
    error: ValidationError, where: str, document: type[Document] | None = None
) -> InputError:
    """A pydantic error as one line: unknown keys first, else each wrong value with its rule.

    With `document` given, the keys that are legal where an unknown one stands are listed.
    """
    found = error.errors(include_url=False)
    unknown = [e["loc"] for e in found if e["type"] == "extra_forbidden"]
    if unknown:
        return UnknownKeysError(where, [_key(loc) for loc in unknown], _legal(document, unknown[0]))
    found = _causes(found)
    parts = []
    for item in found[:_SHOWN]:
        key = _key(item["loc"])
        text = _SAID.get(item["type"], item["msg"]).removeprefix("Value error, ")
        text = text[:1].lower() + text[1:] if item["type"] != "value_error" else text
        if item["type"] in ("missing", "value_error"):
            parts.append(f"{key}: {text}" if key else text)
        else:
            parts.append(f"{key}={_short(item['input'])}: {text}")
    if len(found) > _SHOWN:
        parts.append(f"and {len(found) - _SHOWN} more")
    return InputError(f"{where}: {'; '.join(parts)}")


def shown(path: Path | str) -> str:
    """A path as messages show it: control characters escaped, very long ones shortened."""
    text = str(path)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else f"{text[:90]}...{text[-90:]}"


_SHOWN = 4
_SAID = {
    "int_parsing_size": "out of range of whole numbers",
    "tuple_type": "input should be a list",
    "list_type": "input should be a list",
}
"""Rules that pydantic words for programmers, in a user's words."""


def _causes(found: list[Any]) -> list[Any]:
    """Without what only follows from a fault deeper down, as a list left empty by its items."""
    places = [tuple(item["loc"]) for item in found]
    return [
        item
        for item in found
        if not any(
            len(other) > len(item["loc"]) and other[: len(item["loc"])] == tuple(item["loc"])
            for other in places
        )
    ]


def _legal(document: type[Document] | None, place: Sequence[int | str]) -> tuple[str, ...]:
    """The keys of the document that holds `place`; none where that cannot be told."""
    found: set[type[Document]] = set() if document is None else {document}
    for part in place[:-1]:
        if isinstance(part, int):
            continue
        inner = [d.model_fields[part].annotation for d in found if part in d.model_fields]
        found = {each for annotation in inner for each in _documents(annotation)}
    return tuple(dict.fromkeys(key for each in found for key in each.model_fields))


def _documents(annotation: object) -> tuple[type[Document], ...]:
    """The document classes inside an annotation such as `tuple[TierSpec, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in _documents(part))


def _key(loc: Sequence[int | str]) -> str:
    """`tiers.0.name` for a place in a document."""
    return ".".join(shown(str(part)) for part in loc if part != "[key]")


def _short(value: object) -> str:
    """A wrong value, short enough for a line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value) if isinstance(value, (str, bytes)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _reason(error: BaseException) -> str:
    """Why something failed, without the path that the message already names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that stands twice is an error, since one of both would be lost."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} stands twice")
    return result


def _constant(name: str) -> float:
    """NaN and infinities are no JSON."""
    raise ValueError(f"{name} is not a number of JSON")
