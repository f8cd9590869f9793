"""How far money moves within the ranges that figures state: each alone, and all together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec.base import Document
from gangsaw.spec.price import PriceBook


class FigureSpan(Document):
    """A figure with a range, and the money at its two ends with all others as they are."""

    key: str
    unit: str
    low: float
    value: float
    high: float
    usd_at_low: float | None = Field(description="None: the run never ends there")
    usd_at_high: float | None = Field(description="None: the run never ends there")

    @property
    def moved_usd(self) -> float:
        """Money between the two ends."""
        ends = [math.inf if x is None else x for x in (self.usd_at_low, self.usd_at_high)]
        return 0.0 if ends[0] == ends[1] else abs(ends[1] - ends[0])


class MoneySpan(Document):
    """Money within the stated ranges."""

    usd: float
    usd_low: float = Field(description="every figure at the end where it costs less")
    usd_high: float | None = Field(
        description="every figure at the end where it costs more; None: the run never ends there"
    )
    figures: tuple[FigureSpan, ...] = Field(description="widest first")

    def book_at(self, book: PriceBook, *, dear: bool) -> PriceBook:
        """The book with every figure at the end where it costs more, or less."""
        ends = {}
        for f in self.figures:
            low, high = (math.inf if x is None else x for x in (f.usd_at_low, f.usd_at_high))
            ends[f.key] = f.high if (low <= high) == dear else f.low
        return book_at(book, ends)


def book_at(book: PriceBook, ends: dict[str, float]) -> PriceBook:
    """The book with some figures at other values within their range; whose they are stays."""
    moved = {k: book.figures[k].model_copy(update={"value": v}) for k, v in ends.items()}
    return book.model_copy(update={"figures": {**book.figures, **moved}})


def money_span(
    keys: Iterable[str], book: PriceBook, total_usd: Callable[[PriceBook], float]
) -> MoneySpan | None:
    """The span of `total_usd` over the ranges of `keys`; None where none of them has a range.

    Ends are combined by what each does alone: money that is monotone in every figure, as sums and
    products of prices are, lies within. They are bounds, no interval of a probability: nothing is
    known of how likely all sources are wrong at once.
    """

    def money(at: PriceBook) -> float | None:
        try:
            return total_usd(at)
        except InputError:  # failures leave no progress
            return None

    usd, found = total_usd(book), []
    for key in sorted({k for k in keys if book.has(k)}):
        figure = book.figures[key]
        low, high = figure.span
        if low == high:
            continue
        at_low, at_high = (money(book_at(book, {key: v})) for v in (low, high))
        found.append(
            FigureSpan(
                key=key, unit=figure.unit, low=low, value=figure.value, high=high,
                usd_at_low=at_low, usd_at_high=at_high,
            )
        )  # fmt: skip
    if not found:
        return None
    found.sort(key=lambda f: -f.moved_usd)
    span = MoneySpan(usd=usd, usd_low=usd, usd_high=usd, figures=tuple(found))
    return span.model_copy(
        update={
            "usd_low": total_usd(span.book_at(book, dear=False)),
            "usd_high": money(span.book_at(book, dear=True)),
        }
    )
