"""Measured steps of a site -> a site document; which plans to measure next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from gangsaw.cost.doubt import MEANING, Site, View, load_widths, predict_interval, swept
from gangsaw.cost.lower_cluster import device_of
from gangsaw.errors import InputError
from gangsaw.fit.choose import greedy
from gangsaw.fit.layer_stack import LayerStack
from gangsaw.fit.memory_rows import learn_offset, measured_bytes
from gangsaw.fit.rows import Row
from gangsaw.fit.sweep import fit_sweep, read_sweep
from gangsaw.fit.validate import Judged, judge, site_of
from gangsaw.read.clusters import cluster_of
from gangsaw.read.toml import read_toml, shown, validate
from gangsaw.spec.base import Document
from gangsaw.spec.job import Job
from gangsaw.spec.site import SiteDoc, SiteEffect, SiteGemm, SiteRow

BAD = 0.5
SPEAKS = 0.5
"""Prior deviations from which on an effect is worth a sentence."""


class Suggestion(Document):
    """A plan worth measuring, and what it buys."""

    id: str
    width_before_frac: float
    width_after_frac: float


class WrongRow(Document):
    """A measurement that the others contradict, and what it may be."""

    id: str
    measured_s: float
    expected_s: float = Field(description="by the other rows; of a lone row the plain prediction")
    said: str


class CalibrateResult(Document):
    """What `calibrate --json` prints."""

    site: SiteDoc | None = None
    bad: tuple[str, ...] = ()
    wrong: tuple[WrongRow, ...] = Field((), description="the same rows, with what is odd")
    said: tuple[str, ...] = ()
    suggested: tuple[Suggestion, ...] = ()
    skipped: tuple[str, ...] = ()
    layer: LayerStack | None = Field(None, description="with --layer-trace: the stack profile")
    written: str = ""


def usable(items: Sequence[Judged]) -> list[Judged]:
    """Rows with a time and a prediction."""
    return [item for item in items if item.times and item.view is not None]


def effects(site: Site) -> tuple[SiteEffect, ...]:
    """What the runs say about each cause, the clearest first."""
    return tuple(
        SiteEffect(effect=name, meaning=MEANING[name], change_frac=math.expm1(u), deviations=over)
        for name, u, over in site.learned()
    )


def sentences(found: Sequence[SiteEffect]) -> tuple[str, ...]:
    """The clearest of it in words."""
    said = []
    for e in found[:4]:
        if abs(e.deviations) >= SPEAKS:
            way = "more" if e.change_frac > 0.0 else "less"
            said.append(
                f"{e.meaning}: {abs(100 * e.change_frac):.0f} % {way} time than the general fit"
                f" ({abs(e.deviations):.1f} deviations)"
            )
    return tuple(said) or ("your runs agree with the general fit",)


def width(views: Sequence[View], site: Site) -> float:
    """Mean full width of the 80 % intervals of plans, as a share of the prediction."""
    return float(np.mean([(i.hi_s - i.lo_s) / i.step_s for i in predict_interval(views, site)]))


def site_rows(site: Site, items: Sequence[Judged]) -> tuple[SiteRow, ...]:
    """The measured rows as the document keeps them."""
    out = []
    for item, bad in zip(items, site.bad_probability(), strict=True):
        view, obs = item.view, item.obs
        if view is None or obs is None or obs.step_s is None:
            continue
        out.append(
            SiteRow(
                id=obs.id,
                measured_s=obs.step_s,
                predicted_s=math.exp(view.log_s),
                shares=tuple(round(float(v), 6) for v in view.phi),
                place=tuple(round(float(v), 6) for v in view.z),
                routed=view.moe,
                extra_sd=round(view.extra_sd, 6),
                bad_prob=round(min(1.0, max(0.0, bad)), 4),
            )
        )
    return tuple(out)


def calibrate(rows: Sequence[Row], gemm: SiteGemm | None = None) -> CalibrateResult:
    """Learn a site from measured rows. InputError where none of them can be used.

    With the machine's own products the rows are predicted by these, and teach what is left.
    """
    items = judge(rows, gemm=gemm)
    own = usable(items)
    skipped = tuple(
        f"{i.row.get('id')}: {i.skipped or 'no measured step time'}" for i in items if i not in own
    )
    if not own:
        why = skipped[0] if skipped else "no rows"
        raise InputError(
            f"no row can be used to calibrate ({why}). Legal: rows"
            " with model, hardware, plan and measured.step_time_s"
        )
    site = replace(site_of(own), widths=swept(load_widths(), gemm))
    views = [item.view for item in own if item.view is not None]
    learned = effects(site)
    peaks = [(i.memory, measured_bytes(i.row), i.oom) for i in items if i.memory]
    peaks = [p for p in peaks if p[1] is not None or p[2] is not None]
    offset = learn_offset(peaks)
    kept = site_rows(site, own)
    bad = tuple(r.id for r in kept if r.bad_prob > BAD)
    stacks = Counter(i.obs.reading.stack for i in own if i.obs)
    devices = Counter(str(i.row["hardware"].get("device")) for i in own)
    notes = [] if len(stacks) == 1 else ["rows of several stacks: calibrate each apart"]
    if len(own) == 1 and abs(site.residuals[0]) > 0.15:
        notes.append("one row far from the prediction: measure a second before trusting it")
    far = sum(abs(r) > math.log(SWAPPED) for r in site.residuals)
    if far > 1 and 2 * far > len(own):
        notes.append(
            f"{far} of {len(own)} steps are more than {SWAPPED:g} times off:"
            " is measured.step_time_s in seconds?"
        )
    doc = SiteDoc(
        device=devices.most_common(1)[0][0],
        stack=stacks.most_common(1)[0][0],
        rows=kept,
        learned=learned,
        memory_offset=offset.mean,
        memory_sd=offset.sd if peaks else UNTOLD_SD,
        gemm=gemm,
        interval_before_frac=width(views, Site()),
        interval_after_frac=width(views, site),
        notes=tuple(notes),
    )
    odd = tuple(wrong_row(own, i) for i, r in enumerate(kept) if r.bad_prob > BAD)
    return CalibrateResult(site=doc, bad=bad, wrong=odd, said=sentences(learned), skipped=skipped)


UNTOLD_SD = 1.0
"""Doubt of an offset of memory that no row tells: the stack's own doubt is less and stays."""


def calibrate_products(gemm: SiteGemm, device: str) -> CalibrateResult:
    """A site of the machine's own matrix products alone."""
    doc = SiteDoc(device=device, gemm=gemm, memory_sd=UNTOLD_SD)
    return CalibrateResult(site=doc)


def wrong_row(own: Sequence[Judged], at: int) -> WrongRow:
    """What is odd about row `at`, against what the others say of its plan."""
    item, rest = own[at], [i for k, i in enumerate(own) if k != at]
    if item.view is None or item.obs is None or item.obs.step_s is None:
        raise ValueError("a row without a time cannot be wrong")
    shift, _ = site_of(rest).predict([item.view])
    expected = math.exp(item.view.log_s + float(shift[0]))
    return WrongRow(
        id=item.obs.id,
        measured_s=item.obs.step_s,
        expected_s=expected,
        said=what_is_odd(item.row, item.obs.step_s, item.obs.step_s / expected),
    )


SWAPPED = 3.0
"""A step so many times as long as expected is hardly a step with a checkpoint in it."""


def what_is_odd(row: Row, measured_s: float, ratio: float) -> str:
    """A guess in a few words: another column of the row, another unit, work beside the step."""
    for part in ("measured", "plan", "model", "hardware"):
        table = row.get(part)
        for key, value in table.items() if isinstance(table, dict) else ():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and key != "step_time_s" and math.isclose(value, measured_s, rel_tol=1e-6):
                return f"it is the row's {part}.{key}: a swapped column?"
    if math.isclose(ratio, 1e3, rel_tol=0.5):
        return "a thousand times too long: in milliseconds?"
    if ratio >= SWAPPED or ratio <= 1.0 / SWAPPED:
        return "no step of that plan: another column or another unit?"
    if ratio > 1.0:
        return "a checkpoint, an evaluation or the first steps in it?"
    return "too fast for that plan: another plan, or fewer microbatches?"


def suggest(rows: Sequence[Row], count: int) -> CalibrateResult:
    """The plans to measure for the sake of all of `rows`; no measurement is looked at.

    Rows with a time beside rows without one are measured already: they are not named again.
    """
    items = [i for i in judge(rows) if i.view is not None]
    views = [i.view for i in items if i.view is not None]
    if not views:
        raise InputError("no row states a plan that can be predicted")
    open_rows = [i for i, item in enumerate(items) if not item.times]
    if not open_rows or len(open_rows) == len(items):
        open_rows, known = list(range(len(items))), []
    else:
        known = [views[i] for i, item in enumerate(items) if item.times]
    chosen = [
        open_rows[i] for i in greedy([views[i] for i in open_rows], views, count, known=known)
    ]
    out, seen = [], list(known)
    before = _spread(views, seen)
    for index in chosen:
        seen.append(views[index])
        after = _spread(views, seen)
        name = str(items[index].row.get("id"))
        out.append(Suggestion(id=name, width_before_frac=before, width_after_frac=after))
        before = after
    return CalibrateResult(suggested=tuple(out))


def _spread(views: Sequence[View], seen: Sequence[View]) -> float:
    """Mean width of the intervals of plans once some are measured, whatever they show."""
    return width(views, Site(tuple(seen), (0.0,) * len(seen), (), load_widths(), False))


def gemm_of(path: Path, device: str) -> SiteGemm:
    """The machine's products from a pasted sweep, for a device of the catalog."""
    return fit_sweep(read_sweep(path), device_of(cluster_of(device, 1), "bf16"))


def toml_of_site(doc: SiteDoc) -> str:
    """The site as TOML text; format in docs/calibration.md."""
    lines = [
        "# Measured steps of a site, read by `--site`. Made by `gangsaw calibrate`.",
        f'device = "{doc.device}"',
        f'stack = "{doc.stack}"',
        f"memory_offset = {doc.memory_offset:.5f}",
        f"memory_sd = {doc.memory_sd:.5f}",
    ]
    for key in ("interval_before_frac", "interval_after_frac"):
        value = getattr(doc, key)
        if value is not None:
            lines.append(f"{key} = {value:.4f}")
    lines.append(f"notes = {_list(doc.notes)}")
    if doc.gemm:
        lines += ["", "[gemm]"]
        lines += [f"{k} = {v!r}" for k, v in doc.gemm.model_dump().items()]
    for r in doc.rows:
        lines += ["", "[[rows]]", f"id = {_text(r.id)}"]
        lines += [f"measured_s = {r.measured_s!r}", f"predicted_s = {r.predicted_s!r}"]
        lines += [f"shares = {list(r.shares)}", f"place = {list(r.place)}"]
        lines += [f"routed = {str(r.routed).lower()}", f"extra_sd = {r.extra_sd!r}"]
        lines.append(f"bad_prob = {r.bad_prob:.4f}")
    for e in doc.learned:
        lines += ["", "[[learned]]", f'effect = "{e.effect}"', f'meaning = "{e.meaning}"']
        lines += [f"change_frac = {e.change_frac:.5f}", f"deviations = {e.deviations:.4f}"]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(_text(v) for v in values) + "]"


def read_site(path: Path) -> SiteDoc:
    """A site file; InputError names the key that is wrong."""
    return validate(SiteDoc, read_toml(path), shown(path))


def with_site(job: Job, doc: SiteDoc) -> Job:
    """The job on this site: its measured steps, matrix products and memory offset apply."""
    Site.of(doc)  # a file of another version is refused here
    memory = job.stack.memory
    factor = memory.reserved_factor * math.exp(doc.memory_offset)
    doubt = min(job.stack.memory_doubt_frac, math.sqrt(doc.memory_sd**2 + 0.02**2))
    stack = job.stack.model_copy(
        update={
            "memory": memory.model_copy(update={"reserved_factor": factor}),
            "memory_doubt_frac": doubt,
        }
    )
    return job.model_copy(update={"site": doc, "stack": stack})
