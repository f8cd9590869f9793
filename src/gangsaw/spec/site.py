"""Site: what measured steps of one set-up taught, as a document that `--site` reads.

The rows themselves are kept (their shares, their place in plan space, their residual), not altered
parameters: every later prediction conditions on them in closed form (`cost.doubt`).
"""

from __future__ import annotations

from pydantic import Field

from gangsaw.spec.base import Count, Document, Frac, NonNegative, Positive


class SiteRow(Document):
    """One measured step of the site beside its prediction before calibration."""

    id: str
    measured_s: Positive
    predicted_s: Positive
    shares: tuple[float, ...] = Field(description="of the step by effect, d ln(step) / d u")
    place: tuple[float, ...] = Field(description="in plan space, see docs/calibration.md")
    routed: bool = Field(False, description="a mixture of experts")
    extra_sd: NonNegative = Field(0.0, description="of what the row leaves unstated, log space")
    bad_prob: Frac = Field(0.0, description="probability that this measurement is wrong")


class SiteEffect(Document):
    """What the runs say about one cause."""

    effect: str
    meaning: str
    change_frac: float = Field(description="of the time of this cause, against the general fit")
    deviations: float = Field(description="the same in prior deviations")


class SiteGemm(Document):
    """The machine's own matrix products: asymptote and inner dimension at half rate."""

    gemm_frac: Positive = Field(description="asymptote, share of the dense peak")
    gemm_k0: NonNegative
    points: Count
    error_frac: NonNegative = Field(description="mean absolute error of the curve")


class SiteDoc(Document):
    """A site: device and stack, measured rows, what they taught, memory and matrix products."""

    device: str = ""
    stack: str = ""
    rows: tuple[SiteRow, ...] = ()
    learned: tuple[SiteEffect, ...] = ()
    memory_offset: float = Field(0.0, description="logarithm of peaks over predicted ones")
    memory_sd: NonNegative = 0.08
    gemm: SiteGemm | None = None
    interval_before_frac: float | None = Field(None, description="mean full width, 80 %")
    interval_after_frac: float | None = None
    notes: tuple[str, ...] = ()
