"""Tokens from files: text as bytes (or by a tokenizer file), or ready token arrays.

Which sequence stands where in which step depends on the seed alone and never on the plan, so
every plan of a job learns from the same batches in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gangsaw.errors import InputError

Tokens = NDArray[np.int64]


def load_tokens(
    files: Sequence[str], tokenizer: str = "bytes", token_bytes: int = 2, vocab: int = 256
) -> Tokens:
    """All tokens of `files` in order; InputError for missing files or tokens outside `vocab`."""
    encode = _encoder(tokenizer)
    parts: list[Tokens] = []
    for name in files:
        path = Path(name)
        if not path.is_file():
            raise InputError(f"data file {name!r} does not exist or is no file")
        parts.append(_read(path, encode, token_bytes))
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if tokens.size and (tokens.max() >= vocab or tokens.min() < 0):
        raise InputError(
            f"the data holds token {int(tokens.max())}, the model's vocabulary is {vocab}."
            " Legal here: tokens 0.." + str(vocab - 1)
        )
    return tokens


def _read(path: Path, encode: Callable[[bytes], Tokens], token_bytes: int) -> Tokens:
    if path.suffix == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path}: not a numpy array: {error}") from error
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"{path}: {array.dtype} {array.shape}; one row of integers is needed")
        return np.asarray(array, dtype=np.int64)
    if path.suffix == ".bin":
        raw = np.fromfile(path, dtype=np.uint16 if token_bytes == 2 else np.uint32)
        return raw.astype(np.int64)
    return encode(path.read_bytes())


def _bytes(text: bytes) -> Tokens:
    return np.frombuffer(text, dtype=np.uint8).astype(np.int64)


def _encoder(tokenizer: str) -> Callable[[bytes], Tokens]:
    if tokenizer == "bytes":
        return _bytes
    if not Path(tokenizer).is_file():
        raise InputError(f"tokenizer={tokenizer!r}: `bytes`, or the path of a tokenizer.json")
    try:
        import tokenizers
    except ImportError as error:
        raise InputError("a tokenizer file needs the package: pip install tokenizers") from error
    try:
        model = tokenizers.Tokenizer.from_file(tokenizer)
    except Exception as error:  # the library raises its bare Exception on a file it cannot read
        raise InputError(f"{tokenizer}: not a tokenizer file: {error}") from error

    def encode(text: bytes) -> Tokens:
        return np.asarray(model.encode(text.decode(errors="replace")).ids, dtype=np.int64)

    return encode


class Batches:
    """Sequences of `seq_len` inputs and their next tokens, shuffled anew in every epoch."""

    def __init__(self, tokens: Tokens, seq_len: int, global_batch: int, seed: int) -> None:
        self.tokens, self.seq_len, self.global_batch, self.seed = (
            tokens, seq_len, global_batch, seed,
        )  # fmt: skip
        self.count = (len(tokens) - 1) // seq_len
        if self.count < 1:
            raise InputError(
                f"the data holds {len(tokens)} tokens; seq_len={seq_len} needs at least"
                f" {seq_len + 1}"
            )
        self._epoch = -1
        self._order = np.zeros(0, dtype=np.int64)

    def _sequence(self, number: int) -> int:
        epoch, place = divmod(number, self.count)
        if epoch != self._epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._epoch, self._order = epoch, rng.permutation(self.count)
        return int(self._order[place])

    def rows(self, step: int, first: int, count: int) -> tuple[Tokens, Tokens]:
        """Inputs and targets [count, seq_len]: sequences `first`.. of the batch of `step`."""
        at = [self._sequence(step * self.global_batch + first + i) for i in range(count)]
        span = np.arange(self.seq_len + 1)
        block = self.tokens[np.asarray(at)[:, None] * self.seq_len + span]
        return block[:, :-1].copy(), block[:, 1:].copy()
