"""Scores of held-out predictions: error, coverage, width, order of sweeps; by source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau, spearmanr

from gangsaw.cost.doubt import Site, Widths, predict_interval
from gangsaw.cost.types import Array
from gangsaw.fit.choose import greedy
from gangsaw.fit.rows import Row
from gangsaw.fit.widths import HeldOut, by_group, fit_widths


class Score(NamedTuple):
    """Errors of one source after k of each of its set-ups' rows; fractions."""

    source: str
    rows: int
    mean_abs: float
    median_abs: float
    bias: float
    covered: float
    width: float


class Judgement(NamedTuple):
    """A held-out row after k rows of its set-up: measured, predicted, interval."""

    row: HeldOut
    predicted_s: float
    lo_s: float
    hi_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.row.step_s - 1.0


def widths_by_source(rows: Sequence[HeldOut]) -> dict[str, Widths]:
    """Widths for judging each source, from the others' rows only."""
    return {s: fit_widths(rows, s) for s in sorted({h.source for h in rows})}


def judged(rows: Sequence[HeldOut], widths: Mapping[str, Widths], k: int) -> list[Judgement]:
    """Predictions of all rows but those chosen; set-ups with fewer than k + 2 rows are left out."""
    out = []
    for members in by_group(rows).values():
        if k and len(members) < k + 2:
            continue
        w = widths[members[0].source]
        views = [h.view for h in members]
        chosen = greedy(views, views, k, w) if k else []
        site = Site(
            tuple(views[i] for i in chosen),
            tuple(members[i].residual for i in chosen),
            tuple(members[i].id for i in chosen),
            w,
        )
        rest = [i for i in range(len(members)) if i not in chosen]
        found = predict_interval([views[i] for i in rest], site)
        out += [
            Judgement(members[i], f.step_s, f.lo_s, f.hi_s)
            for i, f in zip(rest, found, strict=True)
        ]
    return out


def by_source(found: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    """Judged rows by source, sorted."""
    out: dict[str, list[Judgement]] = {}
    for j in sorted(found, key=lambda j: j.row.source):
        out.setdefault(j.row.source, []).append(j)
    return out


def score(source: str, found: Sequence[Judgement]) -> Score:
    """Errors, coverage and width of some judged rows."""
    errors = np.array([j.error for j in found])
    inside = [j.lo_s <= j.row.step_s <= j.hi_s for j in found]
    width = [(j.hi_s - j.lo_s) / j.predicted_s for j in found]
    size = np.abs(errors)
    return Score(
        source, len(found), float(size.mean()), float(np.median(size)), float(errors.mean()),
        float(np.mean(inside)), float(np.median(width)),
    )  # fmt: skip


def scores(found: Sequence[Judgement]) -> list[Score]:
    """One score a source."""
    return [score(s, members) for s, members in by_source(found).items()]


def mean_over(found: Sequence[Score], pick: Callable[[Score], float]) -> float:
    """Mean over sources of a figure."""
    return float(np.mean([pick(s) for s in found]))


class Sweep(NamedTuple):
    """How well plans of one model on one number of devices are ordered."""

    source: str
    name: str
    plans: int
    regret: float  # measured time of the plan predicted best, over the best, less one
    spearman: float
    kendall: float


def distinct(members: Sequence[HeldOut]) -> tuple[Array, Array]:
    """Predicted logarithm and mean measured time of each plan; equal stated plans are one."""
    plans: dict[float, list[float]] = {}
    for h in members:
        plans.setdefault(round(h.view.log_s, 4), []).append(h.step_s)
    return np.array(list(plans)), np.array([float(np.mean(v)) for v in plans.values()])


def sweeps(rows: Sequence[HeldOut], table: Mapping[str, Row], least: int = 5) -> list[Sweep]:
    """Groups of rows that differ in the plan alone, ordered by the physical prediction."""
    groups: dict[tuple[object, ...], list[HeldOut]] = {}
    for h in rows:
        row = table[h.id]
        m, p = row["model"], row["plan"]
        key: tuple[object, ...] = (
            h.source, m.get("name"), m.get("layers"), m.get("hidden"), m.get("seq_len"),
            row["hardware"].get("devices"), p.get("gbs"), p.get("kernel"),
        )  # fmt: skip
        groups.setdefault(key, []).append(h)
    out = []
    for key, members in groups.items():
        predicted, measured = distinct(members)
        if len(predicted) < least:
            continue
        pick = int(predicted.argmin())
        out.append(
            Sweep(
                str(key[0]), f"{key[1]}, {key[5]} devices", len(predicted),
                float(measured[pick] / measured.min() - 1.0),
                float(spearmanr(predicted, measured).statistic),
                float(kendalltau(predicted, measured).statistic),
            )
        )  # fmt: skip
    return out
