"""The exception tree.

GangsawError
    InputError            what the user stated is wrong: exit 2, one line (value, rule, legal)
        UnknownKeysError  keys in a document that nobody reads
    NoPlanFitsError       legal plans exist, none fits or meets the goals: exit 3
    RunFailedError        something outside failed (a process, a file, a machine): exit 1
        OutputError       standard output takes no more
"""

from __future__ import annotations

from collections.abc import Sequence


class GangsawError(Exception):
    """Everything that gangsaw raises on purpose. `exit_code` is what the program ends with."""

    exit_code = 1


class InputError(GangsawError):
    """A wrong input, said in one line: the value, where it stands, the rule, what is legal."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UnknownKeysError(InputError):
    """A document holds keys that nothing reads."""

    def __init__(self, where: str, keys: Sequence[str], legal: Sequence[str] = ()) -> None:
        self.keys = tuple(keys)
        known = f". Legal: {', '.join(legal)}" if legal else ""
        super().__init__(f"{where}: unknown keys {', '.join(sorted(keys))}{known}")


class NoPlanFitsError(GangsawError):
    """No legal plan fits; the nearest misses are in the result that comes with it."""

    exit_code = 3


class RunFailedError(GangsawError):
    """A process, file or machine failed."""

    exit_code = 1


class OutputError(RunFailedError):
    """Standard output cannot be written, as on a full disk."""

    def __init__(self, fault: OSError) -> None:
        super().__init__(f"standard output cannot be written: {fault.strerror or fault}")
