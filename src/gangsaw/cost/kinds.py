"""Layer kinds as rows of one table, so that compiled formulas serve any number of kinds.

A tuple of `Kind` has its length in its type: machine code made for a model of two kinds does not
serve one of three. A search passes the kinds as rows of an array and is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gangsaw.cost.types import Array, Kind
from gangsaw.jit import kernel

Kinds = tuple[Kind, ...] | Array
"""`Kind` by number: a tuple of them, or an array of shape (kinds, 29)."""


def kind_rows(kinds: Sequence[Kind]) -> Array:
    """The kinds as one array of shape (kinds, 29), in the order of `Kind`'s fields."""
    return np.array(kinds, dtype=np.float64).reshape(len(kinds), len(Kind._fields))


@kernel
def kind_at(kinds: Kinds, k: int) -> Kind:
    """Kind number k."""
    x = kinds[k]
    return Kind(
        x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12], x[13],
        x[14], x[15], x[16], x[17], x[18], x[19], x[20], x[21], x[22], x[23], x[24], x[25], x[26],
        x[27], x[28],
    )  # fmt: skip
