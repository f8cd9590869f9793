"""Which plan wins where over two parameters."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.search.line import MANY, At, line_of
from gangsaw.search.parameters import Case, Objective, Parameter
from gangsaw.search.threshold import winner_of
from gangsaw.spec.base import Document

SLOW = "sequence-length"
"""The parameter that changes every number of a job: the outer loop of a map."""


class PhaseResult(Document):
    """Which plan wins where over two parameters. Rows are values of y, columns of x."""

    x: str
    y: str
    x_unit: str
    y_unit: str
    objective: str
    plans: tuple[str, ...]
    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    winner: tuple[tuple[int, ...], ...] = Field(
        description="index of the plan; -1: none is legal and fits"
    )
    lead: tuple[tuple[float, ...], ...] = Field(description="second best over best, less one")
    share: tuple[float, ...] = Field(description="of the map, won by each plan")


def phase(
    cases: Sequence[Case],
    x: Parameter,
    y: Parameter,
    objective: Objective,
    x_values: Sequence[float],
    y_values: Sequence[float],
) -> PhaseResult:
    """Which of `cases` wins at each pair of values, among those that are legal and fit there.

    Plans that surely fit go before those that only may. Raises InputError for fewer than two
    cases.
    """
    if len(cases) < 2:
        raise InputError("a map of winners needs two plans or more")
    if x.name == y.name:
        raise InputError(f"both axes are {x.name}: two different parameters are needed")
    fast = len(cases) * len(x_values) * len(y_values) >= MANY
    if x.name == SLOW:
        turned = [_rows(c, y, y_values, (x, x_values), objective, fast) for c in cases]
        tables = [list(zip(*rows, strict=True)) for rows in turned]
    else:
        tables = [
            [tuple(r) for r in _rows(c, x, x_values, (y, y_values), objective, fast)] for c in cases
        ]
    cells = [
        [winner_of(column) for column in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]
    winner = tuple(tuple(w for w, _ in row) for row in cells)
    count = len(x_values) * len(y_values)
    return PhaseResult(
        x=x.name,
        y=y.name,
        x_unit=x.unit,
        y_unit=y.unit,
        objective=objective,
        plans=tuple(c.name for c in cases),
        x_values=tuple(x_values),
        y_values=tuple(y_values),
        winner=winner,
        lead=tuple(tuple(lead for _, lead in row) for row in cells),
        share=tuple(sum(r.count(i) for r in winner) / count for i in range(len(cases))),
    )


def _rows(
    case: Case,
    inner: Parameter,
    values: Sequence[float],
    outer: tuple[Parameter, Sequence[float]],
    objective: Objective,
    fast: bool,
) -> list[list[At | None]]:
    """One plan: a row along `inner` for each value of the outer parameter."""
    over, outer_values = outer
    out: list[list[At | None]] = []
    for value in outer_values:
        try:
            moved = over.at(case, value)
        except InputError:
            out.append([None] * len(values))
            continue
        out.append(line_of(moved, inner, values, objective, fast))
    return out
