"""The columns of a timeline as other programs read them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from gangsaw.simulate.timeline import ROW_KINDS, STREAM_NAMES
from gangsaw.spec.base import Document, NonNegative
from gangsaw.spec.result import CAUSES


def _one_of(names: tuple[str, ...]) -> object:
    return Field(json_schema_extra={"enum": list(dict.fromkeys(names))})


Stream = Annotated[str, _one_of(STREAM_NAMES)]
Kind = Annotated[str, _one_of(ROW_KINDS)]
Cause = Annotated[str, _one_of(CAUSES)]


class Repair(Document):
    """A part of a record at its ideal: the step then, and the share of the lost time it brings."""

    what: str = Field(description="stage:N, worker:DP,STAGE, operation:NAME; several by +")
    step_s: NonNegative
    brought_back_frac: float


class ReplayResult(Document):
    """Mean seconds of a recorded step: as it ran, without launch delays, with all at its ideal."""

    steps: int
    workers: int
    recorded_s: NonNegative
    no_delay_s: NonNegative
    ideal_s: NonNegative
    slowdown_by_delay: NonNegative = Field(description="recorded over no delay")
    slowdown: NonNegative = Field(description="no delay over ideal")
    shown_step: int = Field(description="the step of the columns")
    repairs: tuple[Repair, ...] = Field(description="most time brought back first")


class Compared(Document):
    """One of two pipelines drawn under each other, and the step that it is part of."""

    name: str
    stages: tuple[int, ...] = Field(description="transformer layers of each stage")
    step_time_s: NonNegative = Field(description="of the whole step, as estimate has it")
    pipeline_s: NonNegative
    idle_frac: float = Field(description="idle share of the ranks' time in the pipeline")
    more_devices: float = Field(
        description="that would be needed on top for the rate of the fastest"
    )


def _with_replay(schema: dict[str, Any]) -> None:
    """`replay` and `compared` are there for a record or --against alone, so not required."""
    found = ReplayResult.model_json_schema(mode="serialization")
    found.pop("$defs")
    found["properties"]["repairs"]["items"] = Repair.model_json_schema(mode="serialization")
    schema["properties"]["replay"] = found
    item = Compared.model_json_schema(mode="serialization")
    schema["properties"]["compared"] = {"type": "array", "items": item}


class TimelineColumns(Document):
    """Columns of equal length, one row an interval; seconds from the start of the step."""

    model_config = ConfigDict(json_schema_extra=_with_replay)

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
        lengths = {name: len(column) for name, column in self if name not in ("replay", "compared")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of unequal length: {lengths}")
        return self


class ReplayedTimeline(TimelineColumns):
    """A step of a record, and what the whole record says when parts of it are repaired."""

    replay: ReplayResult


class ComparedTimeline(TimelineColumns):
    """The columns of the first of two pipelines, and the steps of both."""

    compared: tuple[Compared, ...]
