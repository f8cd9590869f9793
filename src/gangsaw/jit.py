"""One function body, interpreted for one plan and compiled for a million.

A cost formula is a plain Python function on floats and NamedTuples of floats, marked with
`@kernel`. Calling it runs it interpreted, which answers at once. `compiled(fn)` gives the same
body compiled by numba, with every kernel that it calls compiled too. The machine code is kept in
the user's cache folder under a hash of all the code that it was made from, so a changed formula
never meets old code; kept code that was damaged is compiled again (see `jit_cache`).
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__gangsaw_kernel__"
_INLINED = "__gangsaw_inlined__"
_KEPT_AS = "sealed 1"
"""How code is kept on disk; part of the hash, so that other forms are never read."""
_compiled: dict[tuple[Callable[..., Any], bool], Callable[..., Any]] = {}


def kernel(fn: F) -> F:
    """Mark `fn` as a formula that may be compiled. The function itself is unchanged."""
    setattr(fn, _MARK, True)
    return fn


def inlined(fn: F) -> F:
    """A kernel whose machine code stands where it is called: short, or called for every plan.

    Calls hand over every number of every tuple; where that takes as long as the work, this helps.
    """
    setattr(fn, _INLINED, True)
    return kernel(fn)


def cache_dir() -> Path:
    """Where compiled formulas are kept: `$GANGSAW_CACHE`, else the user's cache folder."""
    root = os.environ.get("GANGSAW_CACHE")
    if root:
        return Path(root)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gangsaw"


def code_hash(fn: Callable[..., Any]) -> str:
    """Hash of a kernel's code, of all kernels that it calls, and of the constants they use."""
    digest = hashlib.sha256(f"{_KEPT_AS}{sys.version}{platform.machine()}".encode())
    seen: set[Callable[..., Any]] = set()

    def add(one: Callable[..., Any]) -> None:
        if one in seen:
            return
        seen.add(one)
        code = one.__code__
        digest.update(code.co_code)
        if getattr(one, _INLINED, False):
            digest.update(b"inlined")
        digest.update(repr((code.co_names, code.co_varnames, one.__defaults__)).encode())
        for const in code.co_consts:
            if not isinstance(const, types.CodeType):
                digest.update(repr(const).encode())
        for name in sorted(_referenced(code)):
            value = one.__globals__.get(name)
            if getattr(value, _MARK, False) and inspect.isfunction(value):
                add(value)
            elif isinstance(value, int | float | tuple):
                digest.update(f"{name}={value!r}".encode())
            elif isinstance(value, type) and issubclass(value, tuple):
                fields = getattr(value, "_fields", ())
                defaults = getattr(value, "_field_defaults", {})
                digest.update(f"{name}:{fields}{defaults}".encode())

    add(fn)
    return digest.hexdigest()[:16]


@contextmanager
def told_of_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once if machine code must be made inside the block (and not if it is cached)."""
    from numba.core import event

    class First(event.Listener):
        def __init__(self) -> None:
            self.told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                self.told = True
                tell()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", First()):
        yield


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` compiled by numba, with all kernels that it calls; cached in memory and on disk."""
    return _compile(fn, inner=False)


def at_hand(fn: Callable[..., Any]) -> bool:
    """Whether this process has asked for `fn` compiled before, so that starting up is paid."""
    return (fn, False) in _compiled


def _compile(fn: Callable[..., Any], inner: bool) -> Callable[..., Any]:
    """Compile; an `inner` function is called by compiled code alone and needs no way in."""
    key = (fn, inner)
    if key in _compiled:
        return _compiled[key]
    import numba

    from gangsaw.jit_cache import keep

    closed = _closed(fn)
    folder = cache_dir() / f"jit-{code_hash(fn)}"
    settings: Any = numba.config
    settings.CACHE_DIR = str(folder)
    if inner:
        # Its own name on disk: the two forms must not meet in the cache.
        closed.__qualname__ = f"{fn.__qualname__}_inner"
    options: dict[str, Any] = {
        "error_model": "numpy",
        "nogil": True,
        "no_cpython_wrapper": inner,
        "no_cfunc_wrapper": True,
        "forceinline": inner and getattr(fn, _INLINED, False),
    }
    result: Callable[..., Any] = numba.njit(**options)(closed)
    keep(result, folder)
    _compiled[key] = result
    return result


def _closed(fn: Callable[..., Any]) -> types.FunctionType:
    """A copy of `fn` whose global names refer to compiled kernels instead of plain ones."""
    code = fn.__code__
    names: dict[str, Any] = dict(fn.__globals__)
    for name in _referenced(code):
        value = names.get(name)
        if getattr(value, _MARK, False) and inspect.isfunction(value):
            names[name] = _compile(value, inner=True)
    copy = types.FunctionType(code, names, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__qualname__ = fn.__qualname__
    copy.__module__ = fn.__module__
    return copy


def _referenced(code: types.CodeType) -> set[str]:
    """Global names used by `code` and by the code objects nested in it."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _referenced(const)
    return names
