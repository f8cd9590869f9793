"""Machine code on disk that survives damage: sealed files, thrown away when they do not open.

numba keeps compiled functions as pickles and believes what it finds. A file cut short by a full
disk or a killed process would stop every later call, and a changed byte inside machine code would
run. Here each file starts with the SHA-256 of its body; what does not match is removed and
compiled again, and a folder that cannot be written costs a note and nothing else.
"""

# numba has no annotations.
# mypy: disable-error-code="no-untyped-call, misc, no-any-return"

from __future__ import annotations

import contextlib
import hashlib
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)

_SEAL_BYTES = hashlib.sha256().digest_size
_said: set[str] = set()


class SealedFile(IndexDataCacheFile):
    """The index and data files of one function, each behind the hash of its content."""

    def _dump(self, obj: object) -> bytes:
        body: bytes = super()._dump(obj)
        return hashlib.sha256(body).digest() + body

    def _save_index(self, overloads: dict[Any, str]) -> None:
        sealed = self._dump((self._version, self._source_stamp, overloads))
        with self._open_for_write(self._index_path) as file:
            file.write(sealed)

    def _load_index(self) -> dict[Any, str]:
        try:
            version, stamp, overloads = _opened(Path(self._index_path))
        except FileNotFoundError:
            return {}
        fresh = (version, stamp) == (self._version, self._source_stamp)
        return dict(overloads) if fresh else {}

    def _load_data(self, name: str) -> object:
        return _opened(Path(self._data_path(name)))


class _Locator(UserProvidedCacheLocator):
    """The folder that numba is told of, whether or not it can be written."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        return cls(py_func, py_file) if Path(py_file).exists() else None


class _Impl(CompileResultCacheImpl):
    # numba's other places know nothing of the code hash: old code could be met there.
    _locator_classes: ClassVar[list[type[object]]] = [_Locator]


class KeptCode(FunctionCache):
    """The compiled forms of one function in `folder`, which is also numba's cache folder."""

    _impl_class = _Impl

    def __init__(self, py_func: Callable[..., Any], folder: Path) -> None:
        super().__init__(py_func)
        self._folder = folder
        self._cache_file = SealedFile(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def load_overload(self, sig: object, target_context: object) -> object:
        """The kept code for a signature, or None where it must be compiled."""
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None
        except Exception as fault:  # whatever it is, the kept code is of no use
            _say_once("damaged", f"compiled code in {self._folder} is damaged, so made again")
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._folder.exists():
                self.disable()
                _say_once("kept", f"compiled code cannot be kept in {self._folder.parent}: {fault}")
            return None

    def save_overload(self, sig: object, data: object) -> None:
        """Keep code; where that fails it still runs."""
        try:
            super().save_overload(sig, data)
        except OSError as fault:
            self.disable()
            reason = fault.strerror or type(fault).__name__
            _say_once("kept", f"compiled code cannot be kept in {self._folder.parent}: {reason}")


def keep(dispatcher: Any, folder: Path) -> None:  # noqa: ANN401
    """Let numba's `dispatcher` keep its machine code in `folder`, numba's cache folder now."""
    # No place for code without a source file, which is compiled in each process.
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = KeptCode(dispatcher.py_func, folder)


def _opened(path: Path) -> Any:  # noqa: ANN401
    raw = path.read_bytes()
    if hashlib.sha256(raw[_SEAL_BYTES:]).digest() != raw[:_SEAL_BYTES]:
        raise ValueError(f"{path.name} is not what was written")
    return pickle.loads(raw[_SEAL_BYTES:])


def _say_once(kind: str, line: str) -> None:
    """One line on standard error, the first time that a kind of trouble is met."""
    if kind in _said or sys.stderr is None:
        return
    _said.add(kind)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
