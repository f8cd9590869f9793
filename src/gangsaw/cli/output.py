"""Standard output and error: one JSON document, or plain or coloured text; never both."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

WIDTH = 100


def note(text: str) -> None:
    """A line of progress or explanation on standard error."""
    sys.stderr.write(f"{text}\n")


def is_plain() -> bool:
    """Whether text must be plain ASCII: a pipe or file, NO_COLOR, or a dumb terminal."""
    return (
        bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM") == "dumb"
        or not sys.stdout.isatty()
    )


def console() -> Console:
    """A rich console on standard output: at most 100 columns wide, plain where it must be."""
    import shutil

    from rich.console import Console

    plain = is_plain()
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    width = max(40, min(WIDTH, columns))
    return Console(
        file=sys.stdout,
        width=width,
        no_color=plain,
        force_terminal=not plain,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )


def show(render: Callable[[Console], None]) -> None:
    """Print what `render` writes; in plain text without blanks at the ends of lines."""
    screen = console()
    if not is_plain():
        render(screen)
        return
    with screen.capture() as capture:
        render(screen)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().split("\n")))


def write_json(document: object) -> None:
    """One JSON document: a pydantic document, or plain values."""
    if hasattr(document, "model_dump_json"):
        sys.stdout.write(document.model_dump_json(indent=2) + "\n")
        return
    sys.stdout.write(json.dumps(document, indent=2, default=_jsonable, allow_nan=False) + "\n")


def _jsonable(value: object) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
