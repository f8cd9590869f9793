"""The program: finds the verb, runs it, and turns every failure into one line and a code.

The help of the whole program is made from the table of verbs alone; a verb's module, and typer,
are imported only when that verb is called.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TextIO, cast

from gangsaw.cli import output as screen
from gangsaw.cli.verbs import NAMES, VERBS, usage
from gangsaw.errors import GangsawError, InputError, OutputError

OK, FAILED, WRONG_INPUT, NO_PLAN = 0, 1, 2, 3
INTERRUPTED = 130


class Outcome(NamedTuple):
    """What one call of the program did."""

    code: int
    out: str
    err: str


class Parsed(Protocol):
    """A verb as the object that parses its arguments and runs it."""

    def main(self, *, args: list[str], prog_name: str, standalone_mode: bool) -> object:
        """Parse and run."""
        ...


def main() -> None:
    """Entry point of the `gangsaw` program."""
    # One short run that keeps nearly all it makes: rare collections save a tenth of its time.
    gc.set_threshold(200_000, 50, 50)
    # A program that starts with a closed standard error has none; what it says then is lost.
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        _tell("standard output is closed")
        sys.exit(FAILED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks is escaped; the answer is not lost by it.
            stream.reconfigure(errors="backslashreplace")
    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_left()
    except OSError as fault:
        _tell(str(OutputError(fault)))
        code = _reader_left()
    try:
        sys.stderr.flush()
    except OSError:
        # Else the interpreter would fail on it at its end, with an exit code of its own.
        _abandon(sys.stderr)
    sys.exit(code)


def run(argv: Sequence[str]) -> Outcome:
    """Run the program inside this process and return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = execute(argv)
    return Outcome(code, out.getvalue(), err.getvalue())


def execute(argv: Sequence[str]) -> int:
    """Run one verb and return the exit code; failures are told on standard error."""
    screen.forget_notes()
    try:
        code = _dispatch([str(word) for word in argv])
        screen.tell_notes()
        return code
    except InputError as fault:
        # Notes on what was assumed say nothing about what is not computed.
        _tell(str(fault))
        return fault.exit_code
    except OutputError as fault:
        _tell(str(fault))
        return _reader_left()
    except GangsawError as fault:
        screen.tell_notes()
        _tell(str(fault))
        return fault.exit_code
    except BrokenPipeError:
        return _reader_left()
    except KeyboardInterrupt:
        _tell("interrupted")
        return INTERRUPTED
    except OSError as fault:
        return _system_fault(fault)
    except Exception as fault:
        return _usage_fault(fault)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("--help", "-h", "help"):
        screen.emit(usage())
        return OK
    if argv[0] in ("--version", "-V"):
        from gangsaw import __version__

        screen.emit(f"gangsaw {__version__}\n")
        return OK
    name, *rest = argv
    if name not in NAMES:
        from gangsaw.cli.values import choice

        choice("verb", name, NAMES)
        name = name.strip().lower()
    return invoke(name, rest)


def invoke(name: str, args: list[str]) -> int:
    """Run the verb `name` with its arguments."""
    verb, said = click_command(name), io.StringIO()
    # The parser writes a verb's help itself; held here, so that a full disk is told as such.
    held = contextlib.redirect_stdout(said) if "--help" in args else contextlib.nullcontext()
    with held:
        result = verb.main(args=args, prog_name=f"gangsaw {name}", standalone_mode=False)
    screen.emit(said.getvalue())
    return result if isinstance(result, int) else OK


def click_command(name: str) -> Parsed:
    """The verb `name` as the command object that parses its arguments."""
    import importlib

    import typer.main

    from gangsaw.cli.command import PlainCommand

    module = next(verb.module for verb in VERBS if verb.name == name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=PlainCommand)(importlib.import_module(module).command)
    return cast(Parsed, typer.main.get_command(app))


def _tell(text: str) -> None:
    line = " ".join(text.split())
    with contextlib.suppress(OSError):
        sys.stderr.write(f"gangsaw: {line}\n")


def _usage_fault(fault: Exception) -> int:
    """A fault of the command line itself, or one that nobody foresaw."""
    import typer

    if isinstance(fault, typer.Exit):
        return int(fault.exit_code)
    if isinstance(fault, typer.Abort):
        _tell("interrupted")
        return INTERRUPTED
    if isinstance(fault, typer.TyperException) and hasattr(fault, "format_message"):
        from gangsaw.cli.command import usage_line

        _tell(usage_line(fault))
        return WRONG_INPUT
    if _debugged(fault):
        return FAILED
    _tell(f"internal error: {type(fault).__name__}: {fault} (GANGSAW_DEBUG=1 shows where)")
    return FAILED


def _debugged(fault: Exception) -> bool:
    """Show where `fault` arose, if that was asked for."""
    if not os.environ.get("GANGSAW_DEBUG"):
        return False
    import traceback

    traceback.print_exception(fault)
    return True


def _system_fault(fault: OSError) -> int:
    """The operating system refused a file or a device."""
    if not _debugged(fault):
        what = fault.filename if isinstance(fault.filename, str) else "a file or device"
        known = isinstance(fault, (PermissionError, FileNotFoundError, IsADirectoryError))
        hint = "" if known or fault.errno == errno.ENOSPC else " (GANGSAW_DEBUG=1 shows where)"
        _tell(f"{what}: {fault.strerror or fault}{hint}")
    return FAILED


def _reader_left() -> int:
    """Standard output was closed by its reader: end silently, and keep the exit quiet too."""
    _abandon(sys.stdout)
    return FAILED


def _abandon(stream: TextIO) -> None:
    """Let what is still to be written to `stream` go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
