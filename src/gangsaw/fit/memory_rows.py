"""Peak memory of measured rows: of the kind that the row measured, on the ranks it looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gangsaw.cost.memory_doc import fits_of, memory_doc
from gangsaw.fit.observe import UNLIKELY, measured_of, weights_of
from gangsaw.fit.rows import Reading, Row
from gangsaw.spec.result import Fits, MemoryDoc, StageMemoryDoc

GIB = 2.0**30
OFFSET_SD = 0.08
"""How far, in log space, a set-up's peaks are from its profile's; prior of a site's own factor."""


def measured_bytes(row: Row) -> float | None:
    """The measured peak in bytes: GiB where the row's unit says so, else units of 1e9."""
    value = measured_of(row).get("peak_mem_gb")
    if not isinstance(value, int | float) or not value > 0.0:
        return None
    unit = GIB if "GiB" in str(measured_of(row).get("mem_unit") or "") else 1e9
    return float(value) * unit


def stages_seen(row: Row, doc: MemoryDoc) -> Sequence[StageMemoryDoc]:
    """The stages whose memory a row reports: all, unless its notes say which."""
    notes = str(row.get("notes") or "").lower()
    if "first/last stage" in notes or "first and last stage" in notes:
        return (doc.per_stage[0], doc.per_stage[-1])
    if "last rank" in notes:
        return (doc.per_stage[-1],)
    return doc.per_stage


def peak_of(row: Row, doc: MemoryDoc) -> float:
    """The predicted peak of the kind that the row measured; allocated where it does not say."""
    kind = str(measured_of(row).get("peak_kind") or "allocated").lower()
    name = "peak_allocated_bytes"
    if "reserved" in kind:
        name = "peak_reserved_bytes"
    elif "device" in kind or "nvidia" in kind:
        name = "peak_device_bytes"
    return max(float(getattr(stage, name)) for stage in stages_seen(row, doc))


@dataclass(frozen=True)
class RowMemory:
    """Peak of the measured kind, device-visible peak over capacity (log), and the doubt."""

    peak_bytes: float
    log_fill: float
    doubt: float
    capacity_bytes: float

    def fits(self, offset: float = 0.0, doubt: float | None = None) -> Fits:
        """Whether the plan fits, after a site's own offset of log peaks."""
        sd = self.doubt if doubt is None else doubt
        peak = self.capacity_bytes * math.exp(self.log_fill + offset)
        return fits_of(peak, self.capacity_bytes, sd)


def row_memory(reading: Reading) -> RowMemory:
    """Memory of a row's likeliest plan, the mean of the logarithms over the stacks it may be."""
    weights = np.array(weights_of(reading))
    likely = reading.candidates[int(weights.argmax())].plan
    weights *= [c.plan == likely for c in reading.candidates]
    least = UNLIKELY * float(weights.max())
    docs = [
        memory_doc(c.job, c.plan, c.plan.stages or ()) if w >= least else None
        for c, w in zip(reading.candidates, weights, strict=True)
    ]
    kept = np.array([d is not None for d in docs])
    weights = weights[kept] / weights[kept].sum()
    found = [d for d in docs if d is not None]
    peaks = np.log([peak_of(reading.row, d) for d in found])
    fills = np.log([d.peak_bytes / d.capacity_bytes for d in found])
    doubts = np.array([c.job.stack.memory_doubt_frac for c in reading.candidates])[kept]
    fill = float(weights @ fills)
    spread = float(weights @ (fills - fill) ** 2)
    doubt = math.sqrt(float(weights @ doubts**2) + spread)
    return RowMemory(math.exp(float(weights @ peaks)), fill, doubt, found[0].capacity_bytes)


@dataclass(frozen=True)
class Offset:
    """A site's own factor on peaks (log), and what remains of the doubt in it."""

    mean: float
    sd: float


def learn_offset(
    rows: Sequence[tuple[RowMemory, float | None, bool | None]], prior_sd: float = OFFSET_SD
) -> Offset:
    """Posterior of a site's offset of log peaks from measured peaks and from runs that failed.

    `rows`: memory, measured bytes of the row's kind, whether it ran out. A grid over +-4 prior
    deviations; measured peaks with a deviation of 4 % of their own, fates by the normal
    distribution of 3 %.
    """
    grid = np.linspace(-4.0 * prior_sd, 4.0 * prior_sd, 321)
    logp = -0.5 * (grid / prior_sd) ** 2
    for memory, measured, oom in rows:
        if measured is not None and not oom:
            off = math.log(measured / memory.peak_bytes)
            logp += np.log(np.exp(-0.5 * ((off - grid) / 0.04) ** 2) + 1e-3)
        elif oom is not None:
            z = (memory.log_fill + grid) / 0.03
            right = np.array([0.5 * math.erfc(-(v if oom else -v) / math.sqrt(2.0)) for v in z])
            logp += np.log(0.02 + 0.98 * right)
    p = np.exp(logp - logp.max())
    p /= p.sum()
    mean = float(p @ grid)
    return Offset(mean, float(math.sqrt(p @ (grid - mean) ** 2)))
