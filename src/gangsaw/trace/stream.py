"""Reading trace files of any size: events come in blocks, memory stays bounded.

A Chrome trace is one JSON object whose `traceEvents` array can hold gigabytes (or the bare
array). The text is cut between events by counting braces outside strings, on whole blocks of
bytes at once, and only the fields that are used are decoded.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from gangsaw.errors import InputError

BLOCK_BYTES = 4 * 2**20
HEAD_LIMIT_BYTES = 32 * 2**20
"""Longest text in front of the events, and longest single event."""


class Args(msgspec.Struct):
    """What is used of an event's `args`; values keep the type that the file gives them."""

    stream: Any = None
    device: Any = None
    correlation: Any = None
    bytes: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_text: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    input_dims: Any = msgspec.field(name="Input Dims", default=None)
    input_type: Any = msgspec.field(name="Input type", default=None)
    addr: Any = msgspec.field(name="Addr", default=None)
    size: Any = msgspec.field(name="Bytes", default=None)


class Event(msgspec.Struct):
    """One event of a trace; times in microseconds as the file has them."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Any = None
    tid: Any = None
    args: Args = msgspec.field(default_factory=Args)


_DECODER = msgspec.json.Decoder(list[Event], strict=False)


class EventStream:
    """The events of one file, block by block; `head` holds all other keys once it is read through.

    `ended_early` tells that the file stops inside the events (a killed profiler).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.ended_early = False
        self._done = 0
        self._file: IO[bytes]

    def __iter__(self) -> Iterator[list[Event]]:
        """Blocks of events in file order. Raises InputError for what is no trace."""
        try:
            with _open(self.path) as file:
                self._file = file
                yield from self._blocks()
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path}: cannot be read ({_why(error)})") from None

    def _read(self) -> bytes:
        block = self._file.read(BLOCK_BYTES)
        self._done += len(block)
        return block

    def _blocks(self) -> Iterator[list[Event]]:
        front, rest = self._front()
        while True:
            cut, closed = _last_event(rest)
            if cut:
                yield self._decode(rest[:cut])
                rest = rest[cut:]
            if closed:
                self._head(front, rest.lstrip(b", \n\r\t")[1:] + self._tail())
                return
            block = self._read()
            if not block:
                self.ended_early = True
                self._head(front, b"}" if front else b"")
                return
            rest += block
            if len(rest) > HEAD_LIMIT_BYTES + BLOCK_BYTES:
                raise InputError(f"{self.path}: one event is longer than {HEAD_LIMIT_BYTES} bytes")

    def _front(self) -> tuple[bytes, bytes]:
        """The text up to the array of events, and what was read behind its bracket."""
        text = self._read()
        start = text.lstrip()
        if start.startswith(b"["):
            return b"", start[1:]
        if not start.startswith(b"{"):
            raise InputError(f"{self.path}: no trace; a JSON object or array of events is needed")
        while (at := text.find(b'"traceEvents"')) < 0 or b"[" not in text[at:]:
            block = self._read()
            text += block
            if not block or len(text) > HEAD_LIMIT_BYTES:
                raise InputError(f"{self.path}: no trace; it has no key traceEvents")
        bracket = text.index(b"[", at)
        return text[:at], text[bracket + 1 :]

    def _tail(self) -> bytes:
        parts, size = [], 0
        while block := self._read():
            size += len(block)
            if size > HEAD_LIMIT_BYTES:
                raise InputError(f"{self.path}: more than {HEAD_LIMIT_BYTES} bytes behind events")
            parts.append(block)
        return b"".join(parts)

    def _head(self, front: bytes, tail: bytes) -> None:
        if not front:
            return
        text = front + b'"traceEvents": []' + (tail if tail.strip() else b"}")
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise InputError(f"{self.path}: not valid JSON around its events: {error}") from None
        self.head = found if isinstance(found, dict) else {}

    def _decode(self, text: bytes) -> list[Event]:
        body = b"[" + text.strip(b", \n\r\t") + b"]"
        try:
            return _DECODER.decode(body)
        except msgspec.ValidationError:
            return _one_by_one(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"{self.path}: not valid JSON before byte {self._done}: {error}"
            ) from None


def _one_by_one(body: bytes) -> list[Event]:
    """The events of a block in which some have fields of another type; those are left out."""
    kept = []
    for item in msgspec.json.decode(body):
        try:
            kept.append(msgspec.convert(item, Event, strict=False))
        except msgspec.ValidationError:
            continue
    return kept


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(2)
    return gzip.open(path, "rb") if magic == b"\x1f\x8b" else path.open("rb")  # type: ignore[return-value]


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _last_event(text: bytes) -> tuple[int, bool]:
    """Length of the whole events in `text`, and whether the array is closed behind them."""
    if not text:
        return 0, False
    plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    codes = np.frombuffer(plain, dtype=np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    inside = np.zeros(len(codes), dtype=bool)
    if len(quotes):
        marks = np.zeros(len(codes), dtype=np.int8)
        marks[quotes] = 1
        inside = np.cumsum(marks, dtype=np.int32) % 2 == 1
    step = np.zeros(len(codes), dtype=np.int8)
    step[(codes == ord("{")) | (codes == ord("["))] = 1
    step[(codes == ord("}")) | (codes == ord("]"))] = -1
    step[inside] = 0
    depth = np.cumsum(step, dtype=np.int32)
    closing = np.flatnonzero(depth < 0)
    end = int(closing[0]) if len(closing) else len(codes)
    whole = np.flatnonzero((depth[:end] == 0) & (step[:end] == -1))
    cut = int(whole[-1]) + 1 if len(whole) else 0
    return cut, bool(len(closing))
