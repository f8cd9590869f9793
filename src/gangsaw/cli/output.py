"""Standard output and error: one JSON document, or plain or coloured text; never both."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from gangsaw.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

WIDTH = 100


_held: list[str] = []


def note(text: str) -> None:
    """A line of explanation on standard error, told when the answer is there.

    Until then it is held: beside the one line that says what is wrong it would only distract.
    """
    _held.append(text)


def progress(text: str) -> None:
    """A line on standard error that says at once what takes so long."""
    # A full or closed standard error is no reason to give no answer.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def emit(text: str) -> None:
    """Write to standard output; OutputError where that fails for another reason than its reader."""
    with _output_faults():
        sys.stdout.write(text)


@contextlib.contextmanager
def _output_faults() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as fault:
        raise OutputError(fault) from None


def tell_notes() -> None:
    """Write the lines that were held."""
    while _held:
        progress(_held.pop(0))


def forget_notes() -> None:
    """Drop the lines that were held."""
    _held.clear()


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
    tell_notes()
    screen = console()
    with _output_faults():
        if not is_plain():
            render(screen)
            return
        with screen.capture() as capture:
            render(screen)
    emit("\n".join(line.rstrip() for line in capture.get().split("\n")))


def write_json(document: object) -> None:
    """One JSON document: a pydantic document, or plain values."""
    tell_notes()
    if hasattr(document, "model_dump_json"):
        text = document.model_dump_json(indent=2)
        if not _encodable(text):
            text = json.dumps(json.loads(text), indent=2)
        emit(text + "\n")
        return
    emit(json.dumps(document, indent=2, default=_jsonable, allow_nan=False) + "\n")


def _encodable(text: str) -> bool:
    """Whether standard output can write it; JSON has an escape of its own for what it cannot."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _jsonable(value: object) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
