"""A schedule is a program: one row of actions a rank, in the grammar of torch's pipelining.

`3F12` is the forward of microbatch 12 on stage 3, `I` the gradient of the input, `W` of the
weights, `B` both at once; `3SEND_F12`, `4RECV_F12`, `4SEND_B12`, `3RECV_B12` move activations
and gradients; `3UNSHARD`, `3RESHARD`, `3REDUCE_GRAD` gather, drop and reduce sharded weights;
`(3F12;4B7)OVERLAP_F_B` runs a forward and a backward at the same time. The grammar is that of
torch.distributed.pipelining (docs.pytorch.org/docs/stable/distributed.pipelining.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD = range(11)  # noqa: E741
KIND_NAMES = (
    "F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD",
    "REDUCE_GRAD",
)  # fmt: skip
"""Text of each action kind; the kinds are numbered in this order."""

SINGLE, PAIR_FIRST, PAIR_SECOND = range(3)
NO_MICROBATCH = -1


class Row(NamedTuple):
    """The actions of one rank as arrays of equal length."""

    kind: I8
    stage: I32
    microbatch: I32
    pair: I8

    @classmethod
    def of(
        cls,
        kind: Sequence[int] | NDArray[np.integer],
        stage: Sequence[int] | NDArray[np.integer],
        microbatch: Sequence[int] | NDArray[np.integer],
        pair: Sequence[int] | NDArray[np.integer] | None = None,
    ) -> Row:
        """A row of the given columns; without `pair` no action overlaps another."""
        k = np.asarray(kind, dtype=np.int8)
        joined = np.zeros(len(k), np.int8) if pair is None else np.asarray(pair, dtype=np.int8)
        return cls(k, np.asarray(stage, np.int32), np.asarray(microbatch, np.int32), joined)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Rows of actions, flat: rank r owns actions row[r] to row[r + 1].

    `stages` counts all chunks of all ranks; `pipes` is 2 where two copies of the model run
    through the same ranks in opposite directions (DualPipe): stages 0..s/2-1 are the first
    copy, the rest the second, and each copy sees `microbatches` of its own.
    Arrays: kind int8, stage int32, microbatch int32 (-1: none), pair int8, each [actions];
    row int64 [ranks + 1]; rank_of int32 [stages].
    """

    name: str
    ranks: int
    stages: int
    microbatches: int
    row: I64
    kind: I8
    stage: I32
    microbatch: I32
    pair: I8
    rank_of: I32
    pipes: int = 1

    @property
    def actions(self) -> int:
        """Number of actions; an overlapped pair counts two."""
        return len(self.kind)

    @property
    def chunks(self) -> int:
        """Stages a rank (v)."""
        return self.stages // self.ranks

    @property
    def total_microbatches(self) -> int:
        """Microbatches of a step, over both directions."""
        return self.microbatches * self.pipes

    @property
    def splits_backward(self) -> bool:
        """Whether input and weight gradients are separate actions somewhere."""
        return bool(np.any(self.kind == I))

    @property
    def has_transfers(self) -> bool:
        """Whether sends and receives are written out as actions."""
        return bool(np.any((self.kind >= SEND_F) & (self.kind <= RECV_B)))

    def rank_row(self, rank: int) -> Row:
        """The actions of one rank."""
        span = slice(int(self.row[rank]), int(self.row[rank + 1]))
        return Row(self.kind[span], self.stage[span], self.microbatch[span], self.pair[span])

    def rank_index(self) -> I32:
        """The rank of each action, int32 [actions]."""
        counts = np.diff(self.row)
        return np.repeat(np.arange(self.ranks, dtype=np.int32), counts)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that a rank holds, in order."""
        return tuple(int(s) for s in np.flatnonzero(self.rank_of == rank))

    def compute_only(self) -> Schedule:
        """The same order without sends, receives, gathers and reductions."""
        keep = self.kind <= B
        ranks = self.rank_index()[keep]
        row = np.zeros(self.ranks + 1, np.int64)
        np.cumsum(np.bincount(ranks, minlength=self.ranks), out=row[1:])
        return replace(
            self,
            row=row,
            kind=self.kind[keep],
            stage=self.stage[keep],
            microbatch=self.microbatch[keep],
            pair=self.pair[keep],
        )


def from_rows(
    name: str, rows: Sequence[Row], stages: int, microbatches: int, pipes: int = 1
) -> Schedule:
    """A schedule of the given rows. Legality is checked by `legal.check`, not here."""
    row = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r.kind) for r in rows], out=row[1:])
    kind, stage, microbatch, pair = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    rank_of = np.full(stages, -1, np.int32)
    for rank, each in enumerate(rows):
        rank_of[each.stage] = rank
    return Schedule(
        name, len(rows), stages, microbatches, row, kind, stage, microbatch, pair, rank_of, pipes
    )


def action_text(kind: int, stage: int, microbatch: int) -> str:
    """One action as text: `3F12`, `2UNSHARD`."""
    number = "" if microbatch < 0 else str(microbatch)
    return f"{stage}{KIND_NAMES[kind]}{number}"
