"""Tokens to a target against global batch: a bigger batch hides the bubble and needs more tokens.

Training to a loss with batch B takes S = S_min (1 + B_c / B) steps and E = E_min (1 + B / B_c)
tokens (McCandlish et al., arXiv:1812.06162, equation 2.11). The critical batch B_c grows with
the tokens seen and hardly with the model (Bergsma et al., arXiv:2505.13738: exponent 0.462;
Zhang et al., arXiv:2410.21676: 0.47). Its size is known to a factor of a few: optimizer, data
and stage of training move it, so every answer comes for a low, middle and high B_c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec.base import Document
from gangsaw.spec.price import PriceBook


class CriticalBatch(Document):
    """Critical batch in tokens: low, middle, high."""

    low_tokens: float
    tokens: float
    high_tokens: float
    source: str = ""

    def each(self) -> tuple[float, float, float]:
        """Low, middle, high."""
        return self.low_tokens, self.tokens, self.high_tokens


def critical_batch(book: PriceBook, run_tokens: float) -> CriticalBatch:
    """Critical batch of a run of `run_tokens` tokens: c D^a sequences of the fit's length."""
    if not (math.isfinite(run_tokens) and run_tokens > 0):
        raise InputError(f"run of {run_tokens!r} tokens: a positive number")
    scale = book.get("tokens.critical.coefficient", "sequences")
    power = book.value("tokens.critical.exponent", "exponent")
    length = book.value("tokens.critical.sequence", "count")
    grown = math.pow(run_tokens, power) * length
    low, high = scale.span
    return CriticalBatch(
        low_tokens=low * grown,
        tokens=scale.value * grown,
        high_tokens=high * grown,
        source=scale.source,
    )


def tokens_to_target(
    reference_tokens: float, reference_batch: float, batch: float, critical: float
) -> float:
    """Tokens to the loss that `reference_tokens` reach at `reference_batch`, with `batch`.

    All batches in tokens. E(B) / E(B0) = (1 + B / B_c) / (1 + B0 / B_c).
    """
    return reference_tokens * (1 + batch / critical) / (1 + reference_batch / critical)


class BatchPoint(Document):
    """One batch of the sweep: a step of it, and the whole way to the target."""

    batch_tokens: float
    step_time_s: float
    usd_per_step: float
    tokens: tuple[float, float, float] = Field(description="to the target: low, middle, high B_c")
    run_s: tuple[float, float, float]
    usd: tuple[float, float, float]


class BatchSweep(Document):
    """The sweep, judged by money to the target."""

    points: tuple[BatchPoint, ...]
    critical: CriticalBatch
    best: tuple[int, int, int] = Field(description="cheapest point for low, middle, high B_c")
    fastest_step_usd: int = Field(description="point with the cheapest token, target forgotten")


def sweep_to_target(
    steps: Sequence[tuple[float, float, float]],
    reference_tokens: float,
    reference_batch: float,
    critical: CriticalBatch,
) -> BatchSweep:
    """Judge (batch tokens, step seconds, step money) points by the whole way to the target.

    Raises InputError for an empty sweep or non-positive batches.
    """
    if not steps or min(s[0] for s in steps) <= 0:
        raise InputError("a sweep needs at least one batch, each of a positive number of tokens")
    points = []
    for batch, seconds, usd in steps:
        tokens = [
            tokens_to_target(reference_tokens, reference_batch, batch, c) for c in critical.each()
        ]
        count = [t / batch for t in tokens]
        points.append(
            BatchPoint(
                batch_tokens=batch,
                step_time_s=seconds,
                usd_per_step=usd,
                tokens=(tokens[0], tokens[1], tokens[2]),
                run_s=(count[0] * seconds, count[1] * seconds, count[2] * seconds),
                usd=(count[0] * usd, count[1] * usd, count[2] * usd),
            )
        )
    indices = range(len(points))
    low, mid, high = (min(indices, key=lambda i, k=k: points[i].usd[k]) for k in range(3))  # type: ignore[misc]
    return BatchSweep(
        points=tuple(points),
        critical=critical,
        best=(low, mid, high),
        fastest_step_usd=min(
            indices, key=lambda i: points[i].usd_per_step / points[i].batch_tokens
        ),
    )
