"""The columns of a timeline as other programs read them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from gangsaw.simulate.timeline import ROW_KINDS, STREAM_NAMES
from gangsaw.spec.base import Document, NonNegative
from gangsaw.spec.result import CAUSES


def _one_of(names: tuple[str, ...]) -> object:
    return Field(json_schema_extra={"enum": list(dict.fromkeys(names))})


Stream = Annotated[str, _one_of(STREAM_NAMES)]
Kind = Annotated[str, _one_of(ROW_KINDS)]
Cause = Annotated[str, _one_of(CAUSES)]


class TimelineColumns(Document):
    """Columns of equal length, one row an interval; seconds from the start of the step."""

    rank: tuple[int, ...]
    stream: tuple[Stream, ...]
    kind: tuple[Kind, ...]
    stage: tuple[int, ...] = Field(description="-1: none")
    microbatch: tuple[int, ...] = Field(description="-1: none")
    start_s: tuple[NonNegative, ...]
    end_s: tuple[NonNegative, ...]
    cause: tuple[Cause, ...]
    bytes: tuple[NonNegative, ...] = Field(description="moved")
    peer: tuple[int, ...] = Field(description="rank that a transfer goes to; -1: none")

    @model_validator(mode="after")
    def _check(self) -> Self:
        lengths = {name: len(column) for name, column in self}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of unequal length: {lengths}")
        return self
