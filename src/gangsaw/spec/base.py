"""What every document has in common: frozen, no unknown keys, figures with their source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Frac = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**15)]


class Document(BaseModel):
    """A frozen document; a key that no field reads is an error and never a guess."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def at_most(document: BaseModel, limits: Mapping[str, float]) -> None:
    """Raise ValueError where a field passes its limit: beyond it stands another unit, or a slip."""
    for name, most in limits.items():
        value = getattr(document, name)
        if value is not None and value > most:
            raise ValueError(f"{name}={value!r}: at most {most:g}")


class Sourced(Document):
    """A figure with where it comes from and when it was true."""

    value: float
    unit: str
    source: str
    as_of: str
    note: str = ""
