"""What `validate` answers with: rows and a summary by source."""

from __future__ import annotations

from pydantic import Field

from gangsaw.spec.base import Document
from gangsaw.spec.result import Fits


class ValidateRow(Document):
    """A measured row beside its prediction; null where a side has no figure."""

    id: str
    source: str
    stack: str = Field(description="profile that the row's words point to")
    calibration: bool = Field(description="the row was taken as the user's own")
    measured_step_time_s: float | None = None
    predicted_step_time_s: float | None = None
    predicted_lo_s: float | None = None
    predicted_hi_s: float | None = None
    measured_peak_bytes: float | None = None
    predicted_peak_bytes: float | None = Field(None, description="of the kind the row measured")
    measured_oom: bool | None = None
    predicted_fits: Fits | None = None
    assumed: tuple[str, ...] = ()
    skipped: str | None = None


class SourceSummary(Document):
    """Errors of one source; fractions, over rows that are not calibration."""

    rows: int
    skipped: int
    calibration: int
    time_rows: int
    time_mean_abs_frac: float | None = None
    time_median_abs_frac: float | None = None
    time_p90_abs_frac: float | None = None
    time_bias_frac: float | None = None
    covered_frac: float | None = Field(None, description="inside the 80 % interval")
    width_frac: float | None = Field(None, description="median full width of the interval")
    memory_rows: int = 0
    memory_mean_abs_frac: float | None = None
    memory_bias_frac: float | None = None
    oom_rows: int = 0
    oom_right_frac: float | None = Field(None, description="risky counts as right")
    risky_frac: float | None = None
    missed_oom_frac: float | None = None


class ValidateResult(Document):
    """Predictions beside published measured runs."""

    rows: tuple[ValidateRow, ...]
    summary: dict[str, SourceSummary]
