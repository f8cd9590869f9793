"""Timeline: what every rank did when, and why it waited. Predicted and measured alike.

The rows of stream COMPUTE of a rank tile its time from the start of the step to its end without
gap or overlap: what is not work is an idle row with a cause. Transfers and data-parallel
collectives have streams of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.schedule.actions import I8, I32, KIND_NAMES
from gangsaw.spec.result import CAUSES, IDLE_CAUSES

COMPUTE, P2P, DP = range(3)
STREAM_NAMES = ("compute", "transfers", "data parallel")
IDLE = len(KIND_NAMES)
PAIR = IDLE + 1
"""An overlapped forward and backward; its row names the forward."""
OTHER = IDLE + 2
ROW_KINDS = (*KIND_NAMES, "idle", "F+B", "other")
CAUSE_OF = {cause: number for number, cause in enumerate(CAUSES)}
NO_CAUSE = -1


@dataclass(frozen=True, eq=False)
class Timeline:
    """Columns of equal length, one row an interval.

    rank int32; stream int8 (COMPUTE, P2P, DP); kind int8 (ROW_KINDS); stage, microbatch int32
    (-1: none); start_s, end_s float64 from the start of the step; cause int8 (CAUSES); bytes
    float64 moved; peer int32, the rank that a transfer goes to (-1: none). `memory` has the
    curve of each rank, `critical` the rows of the critical path from first to last.
    """

    ranks: int
    rank: I32
    stream: I8
    kind: I8
    stage: I32
    microbatch: I32
    start_s: Array
    end_s: Array
    cause: I8
    bytes: Array
    peer: I32
    name: str = ""
    measured: bool = False
    memory: MemoryCurve | None = None
    critical: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.rank)

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the step to the end of the last rank."""
        return float(self.end_s.max(initial=0.0))

    def busy(self) -> NDArray[np.bool_]:
        """Rows of the compute stream that are work."""
        chosen: NDArray[np.bool_] = (self.stream == COMPUTE) & (self.kind != IDLE)
        return chosen

    @property
    def period_s(self) -> float:
        """Longest time from the first to the last work of a rank.

        The step time where the next step may start before all ranks have ended.
        """
        own = self.busy() | (self.stream == DP)
        first = np.full(self.ranks, np.inf)
        last = np.full(self.ranks, -np.inf)
        np.minimum.at(first, self.rank[own], self.start_s[own])
        np.maximum.at(last, self.rank[own], self.end_s[own])
        return float(np.max(last - first, initial=0.0))

    def by_cause_s(self) -> dict[str, float]:
        """Rank-seconds by cause over all ranks; they sum to ranks x makespan."""
        own = self.stream == COMPUTE
        spent = np.bincount(
            self.cause[own], weights=(self.end_s - self.start_s)[own], minlength=len(CAUSES)
        )
        return {cause: float(spent[i]) for i, cause in enumerate(CAUSES) if spent[i] > 0.0}

    def idle_s(self) -> Array:
        """Idle seconds of each rank, [ranks]."""
        idle = np.isin(self.cause, [CAUSE_OF[c] for c in IDLE_CAUSES]) & (self.stream == COMPUTE)
        lengths = (self.end_s - self.start_s)[idle]
        spent = np.bincount(self.rank[idle], weights=lengths, minlength=self.ranks)
        return spent.astype(np.float64)

    @property
    def bubble_frac(self) -> float:
        """Idle share of all rank-seconds of the step."""
        total = self.ranks * self.makespan_s
        return float(self.idle_s().sum()) / total if total > 0.0 else 0.0

    def to_table(self) -> dict[str, list[object]]:
        """Columns of plain values with the names of kinds, streams and causes."""
        return {
            "rank": self.rank.tolist(),
            "stream": [STREAM_NAMES[i] for i in self.stream],
            "kind": [ROW_KINDS[i] for i in self.kind],
            "stage": self.stage.tolist(),
            "microbatch": self.microbatch.tolist(),
            "start_s": self.start_s.tolist(),
            "end_s": self.end_s.tolist(),
            "cause": [CAUSES[i] for i in self.cause],
            "bytes": self.bytes.tolist(),
            "peer": self.peer.tolist(),
        }

    @classmethod
    def from_table(
        cls, table: Mapping[str, Sequence[object]], name: str = "", measured: bool = True
    ) -> Timeline:
        """The timeline of such columns; `bytes` and `peer` may be missing."""
        count = len(table["rank"])
        rank = np.asarray(table["rank"], np.int32)
        return cls(
            ranks=int(rank.max(initial=-1)) + 1,
            rank=rank,
            stream=_numbers(table["stream"], STREAM_NAMES),
            kind=_numbers(table["kind"], ROW_KINDS),
            stage=np.asarray(table["stage"], np.int32),
            microbatch=np.asarray(table["microbatch"], np.int32),
            start_s=np.asarray(table["start_s"], np.float64),
            end_s=np.asarray(table["end_s"], np.float64),
            cause=_numbers(table["cause"], CAUSES),
            bytes=np.asarray(table.get("bytes", np.zeros(count)), np.float64),
            peer=np.asarray(table.get("peer", np.full(count, -1)), np.int32),
            name=name,
            measured=measured,
        )

    def only_ranks(self, keep: int) -> Timeline:
        """The first `keep` ranks, for a picture."""
        rows = self.rank < keep
        return Timeline(
            keep, self.rank[rows], self.stream[rows], self.kind[rows], self.stage[rows],
            self.microbatch[rows], self.start_s[rows], self.end_s[rows], self.cause[rows],
            self.bytes[rows], self.peer[rows], self.name, self.measured,
        )  # fmt: skip


def _numbers(values: Sequence[object], names: Sequence[str]) -> I8:
    index = {name: number for number, name in enumerate(names)}
    return np.asarray([index[str(value)] for value in values], np.int8)


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes held on each rank: from time_s[k] on level_bytes[k], rank r in first[r]..first[r+1].

    `peak_bytes` [ranks] is the largest, temporaries of running actions included; `base_bytes`
    [ranks] is what is held before the first action.
    """

    first: NDArray[np.int64]
    time_s: Array
    level_bytes: Array
    peak_bytes: Array
    base_bytes: Array

    def of_rank(self, rank: int) -> tuple[Array, Array]:
        """Times and levels of one rank."""
        span = slice(int(self.first[rank]), int(self.first[rank + 1]))
        return self.time_s[span], self.level_bytes[span]
