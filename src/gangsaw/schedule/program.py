"""Writing a rank's program action by action, with the next microbatch of each kept count of."""

from __future__ import annotations

from collections import deque

from gangsaw.schedule.actions import PAIR_FIRST, PAIR_SECOND, SINGLE, B, F, I, Row, W


class Program:
    """One rank's row in the making; `stages` are the two stages that it works on by turns."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self._stages = stages
        self._forward = [0, 0]
        self._backward = [0, 0]
        self._pending: deque[tuple[int, int]] = deque()
        self._columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])

    def _add(self, kind: int, stage: int, microbatch: int, pair: int = SINGLE) -> None:
        for column, value in zip(self._columns, (kind, stage, microbatch, pair), strict=True):
            column.append(value)

    def forward(self, which: int, pair: int = SINGLE) -> None:
        """The next forward of stage `which` (0 or 1)."""
        self._add(F, self._stages[which], self._forward[which], pair)
        self._forward[which] += 1

    def backward(self, which: int, split: bool = False, pair: int = SINGLE) -> None:
        """The next backward; `split` leaves its weight gradient for later."""
        microbatch = self._backward[which]
        self._add(I if split else B, self._stages[which], microbatch, pair)
        self._backward[which] += 1
        if split:
            self._pending.append((self._stages[which], microbatch))

    def weight(self) -> None:
        """The oldest weight gradient that was left, if any."""
        if self._pending:
            self._add(W, *self._pending.popleft())

    def weights_of(self, which: int) -> None:
        """All weight gradients left of one stage, oldest first."""
        stage = self._stages[which]
        mine = [each for each in self._pending if each[0] == stage]
        self._pending = deque(each for each in self._pending if each[0] != stage)
        for each in mine:
            self._add(W, *each)

    def both(self, forward: int, backward: int) -> None:
        """A forward of one stage and the whole backward of the other at the same time."""
        self.forward(forward, PAIR_FIRST)
        self.backward(backward, pair=PAIR_SECOND)

    @property
    def forwards(self) -> tuple[int, int]:
        """Forwards written so far, by stage."""
        return self._forward[0], self._forward[1]

    def row(self, microbatches: int) -> Row:
        """The row, without microbatches numbered `microbatches` and above."""
        kept = [each for each in zip(*self._columns, strict=True) if each[2] < microbatches]
        return Row.of(*([each[i] for each in kept] for i in range(4)))
