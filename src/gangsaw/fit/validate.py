"""Predictions beside measured rows, with a chosen few of them taken as the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import numpy as np

from gangsaw.cost.doubt import Interval, Site, View, predict_interval
from gangsaw.cost.fitted import load_fitted
from gangsaw.errors import InputError
from gangsaw.fit.choose import greedy, with_memory
from gangsaw.fit.memory_rows import Offset, RowMemory, learn_offset, measured_bytes, row_memory
from gangsaw.fit.observe import Observation, measured_of, observe
from gangsaw.fit.outcome import SourceSummary, ValidateResult, ValidateRow
from gangsaw.fit.release import view_of_row
from gangsaw.fit.rows import Reading, Row, read_row, source_of
from gangsaw.spec.site import SiteDoc, SiteGemm

UNREADABLE = (InputError, ValueError, TypeError, LookupError, ArithmeticError)
"""What a row with absurd numbers runs into: it is skipped with the reason."""


@dataclass
class Judged:
    """A row on its way to the answer."""

    row: Row
    obs: Observation | None = None
    view: View | None = None
    memory: RowMemory | None = None
    skipped: str | None = None
    calibration: bool = False
    interval: Interval | None = None
    offset: Offset | None = None

    @property
    def oom(self) -> bool | None:
        """Whether the run ran out of memory, as measured."""
        value = measured_of(self.row).get("oom")
        return value if isinstance(value, bool) else None

    @property
    def times(self) -> bool:
        """Whether the row has a time to compare with."""
        return self.obs is not None and self.obs.step_s is not None and not self.oom


def on_machine(reading: Reading, gemm: SiteGemm | None) -> Reading:
    """The reading on a machine whose own matrix products are known."""
    if gemm is None:
        return reading
    site = SiteDoc(gemm=gemm)
    return replace(
        reading,
        candidates=tuple(
            replace(c, job=c.job.model_copy(update={"site": site})) for c in reading.candidates
        ),
    )


def judge(
    rows: Sequence[Row], values: Mapping[str, float] | None = None, gemm: SiteGemm | None = None
) -> list[Judged]:
    """Rows with their physical prediction and memory; unreadable ones say why."""
    values = load_fitted() if values is None else values
    out = []
    for row in rows:
        item = Judged(row)
        reading = read_row(row)
        item.skipped = reading.skipped
        if reading.skipped is None:
            try:
                item.obs = observe(on_machine(reading, gemm))
                item.view = view_of_row(item.obs, values, len(rows))
                item.memory = row_memory(reading)
                if not math.isfinite(item.view.log_s):
                    raise InputError("the plan leaves no work to time")
            except UNREADABLE as error:
                item.obs = item.view = item.memory = None
                item.skipped = " ".join(str(error).split())[:200] or type(error).__name__
        out.append(item)
    return out


def groups(items: Sequence[Judged]) -> dict[tuple[str, str], list[Judged]]:
    """Readable rows by source and device."""
    out: dict[tuple[str, str], list[Judged]] = {}
    for item in items:
        if item.view is not None:
            key = (source_of(item.row), str(item.row["hardware"].get("device")))
            out.setdefault(key, []).append(item)
    return out


def calibrate_group(items: Sequence[Judged], count: int) -> Site:
    """Choose `count` rows of one set-up by their plans, mark them, and learn from them."""
    timed = [i for i, item in enumerate(items) if item.times]
    views = [item.view for item in items if item.view is not None]
    order = [timed[i] for i in greedy([views[i] for i in timed], views, count)]
    margin = np.array([abs(item.memory.log_fill) if item.memory else 9.0 for item in items])
    fates = [i for i, item in enumerate(items) if item.oom is not None]
    mixed = len(fates) - len(timed) > 0.1 * len(fates)
    chosen = with_memory(order, margin, fates, count) if mixed else order
    for i in chosen:
        items[i].calibration = True
    own = [items[i] for i in chosen if items[i].times]
    offset = learn_offset(
        [(m.memory, measured_bytes(m.row), m.oom) for m in (items[i] for i in chosen) if m.memory]
    )
    for item in items:
        item.offset = offset
    return site_of(own)


def site_of(items: Sequence[Judged]) -> Site:
    """The site that measured rows make."""
    views, residuals, labels = [], [], []
    for item in items:
        if item.view is not None and item.obs is not None and item.obs.step_s is not None:
            views.append(item.view)
            residuals.append(math.log(item.obs.step_s) - item.view.log_s)
            labels.append(item.obs.id)
    return Site(tuple(views), tuple(residuals), tuple(labels))


def document_row(item: Judged) -> ValidateRow:
    """The row of the answer."""
    row, obs, found = item.row, item.obs, item.interval
    times = item.times and obs is not None
    return ValidateRow(
        id=str(row.get("id")),
        source=source_of(row),
        stack=obs.reading.stack if obs else "",
        calibration=item.calibration,
        measured_step_time_s=obs.step_s if obs and times else None,
        predicted_step_time_s=found.step_s if found else None,
        predicted_lo_s=found.lo_s if found else None,
        predicted_hi_s=found.hi_s if found else None,
        measured_peak_bytes=measured_bytes(row),
        predicted_peak_bytes=_peak(item),
        measured_oom=item.oom,
        predicted_fits=_fits(item),
        assumed=obs.reading.assumed if obs else (),
        skipped=item.skipped,
    )


def _peak(item: Judged) -> float | None:
    if item.memory is None:
        return None
    return item.memory.peak_bytes * math.exp(item.offset.mean if item.offset else 0.0)


def _fits(item: Judged) -> Any:  # noqa: ANN401
    if item.memory is None:
        return None
    if item.offset is None:
        return item.memory.fits()
    # What the site's own runs leave of the doubt in the profile.
    own = math.sqrt(item.offset.sd**2 + 0.02**2)
    return item.memory.fits(item.offset.mean, min(item.memory.doubt, own))


def summary_of(rows: Sequence[ValidateRow]) -> SourceSummary:
    """Errors over the rows of one source."""
    used = [r for r in rows if not r.skipped and not r.calibration]
    errors, inside, widths = [], [], []
    for r in used:
        m, p = r.measured_step_time_s, r.predicted_step_time_s
        if m and p and r.predicted_lo_s and r.predicted_hi_s:
            errors.append(p / m - 1.0)
            inside.append(r.predicted_lo_s <= m <= r.predicted_hi_s)
            widths.append((r.predicted_hi_s - r.predicted_lo_s) / p)
    memory = [
        r.predicted_peak_bytes / r.measured_peak_bytes - 1.0
        for r in used
        if r.predicted_peak_bytes and r.measured_peak_bytes
    ]
    fates = [r for r in used if r.measured_oom is not None and r.predicted_fits]
    right = [
        r.predicted_fits == "risky" or (r.predicted_fits == "no") == r.measured_oom for r in fates
    ]
    size = [abs(e) for e in errors]
    return SourceSummary(
        rows=len(rows),
        skipped=sum(r.skipped is not None for r in rows),
        calibration=sum(r.calibration for r in rows),
        time_rows=len(errors),
        time_mean_abs_frac=mean(size) if size else None,
        time_median_abs_frac=median(size) if size else None,
        time_p90_abs_frac=float(np.quantile(size, 0.9)) if size else None,
        time_bias_frac=mean(errors) if errors else None,
        covered_frac=mean(inside) if inside else None,
        width_frac=median(widths) if widths else None,
        memory_rows=len(memory),
        memory_mean_abs_frac=mean(abs(e) for e in memory) if memory else None,
        memory_bias_frac=mean(memory) if memory else None,
        oom_rows=len(fates),
        oom_right_frac=mean(right) if right else None,
        risky_frac=mean(r.predicted_fits == "risky" for r in fates) if fates else None,
        missed_oom_frac=(
            mean(bool(r.measured_oom) and r.predicted_fits == "yes" for r in fates)
            if fates
            else None
        ),
    )


def predict_items(items: Sequence[Judged], calibrate: int = 0) -> None:
    """Fill in the intervals of all readable rows, after `calibrate` rows of each set-up."""
    for members in groups(items).values():
        site = calibrate_group(members, calibrate) if calibrate else Site()
        views = [m.view for m in members if m.view is not None]
        for member, interval in zip(members, predict_interval(views, site), strict=True):
            member.interval = interval


def validate(
    rows: Sequence[Row], calibrate: int = 0, values: Mapping[str, float] | None = None
) -> ValidateResult:
    """Predict measured rows; with `calibrate`, learn from that many of each source and device."""
    items = judge(rows, values)
    predict_items(items, calibrate)
    found = tuple(document_row(item) for item in items)
    by_source: dict[str, list[ValidateRow]] = {}
    for r in found:
        by_source.setdefault(r.source, []).append(r)
    return ValidateResult(
        rows=found, summary={s: summary_of(members) for s, members in by_source.items()}
    )
