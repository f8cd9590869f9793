"""The best plan of each kind, chosen by the search that `plan` uses.

Kinds are told apart by the axes that cut the model: tensor, context and pipeline parallelism, and
gradients or weights sharded over data-parallel ranks (ZeRO 2 and 3). A pure plan uses one of them,
a hybrid at least two. Replicas of the whole and an optimizer sharded over them (ZeRO 1) go with
any kind; plain data parallelism with ZeRO 1 counts as sharded, since nothing else cuts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.legal import divisors, legal_tp
from gangsaw.search.estimate import Evaluated
from gangsaw.search.inner import decode
from gangsaw.search.ranking import distinct, finish, fitting
from gangsaw.search.search import breadth_of, laid_out
from gangsaw.search.space import (
    MAX_CP,
    MAX_TP,
    Breadth,
    Limits,
    Searched,
    capacity_bytes,
    search_all,
)
from gangsaw.spec.job import Job
from gangsaw.units import GIB

Family = Literal["pipeline", "tensor", "sharded", "hybrid"]
FAMILIES: tuple[Family, ...] = ("pipeline", "tensor", "sharded", "hybrid")
CONTEXT, COPIES = "context", "copies"
"""What is none of the four: context parallelism alone, and copies of the whole model."""
ZERO_AT: Final = 4
"""Place of the ZeRO stage in a decoded plan."""
Fixed = dict[str, object]
Cut = tuple[Fixed, tuple[int, ...]]
"""Degrees that are fixed in one search, and the ZeRO stages that it goes through."""


@dataclass(frozen=True)
class Best:
    """The fastest plan of a kind. None: none is legal, or none fits, and `note` says which."""

    found: Evaluated | None
    tried: int
    note: str = ""


@dataclass(frozen=True)
class Survey:
    """The whole search of a job, its fastest plans of different choices, and the best by kind."""

    whole: Searched
    listed: tuple[Evaluated, ...]
    best: dict[Family, Best]


def kind_of(tp: int, cp: int, pp: int, dp: int, zero: int) -> str:
    """Kind of a plan by its degrees: a family, CONTEXT or COPIES."""
    sharded = zero >= 2 and dp * cp > 1
    if (tp > 1) + (cp > 1) + (pp > 1) + sharded > 1:
        return "hybrid"
    if tp > 1:
        return "tensor"
    if pp > 1:
        return "pipeline"
    if cp > 1:
        return CONTEXT
    return "sharded" if dp > 1 and zero >= 1 else COPIES


def kinds_at(searched: Searched) -> NDArray[np.str_]:
    """Kind of the plan at each place of a search."""
    found = searched.found
    degrees = searched.blocks[found.owner][:, :4].astype(int)
    names = []
    for (tp, cp, pp, dp), code in zip(degrees.tolist(), found.codes.tolist(), strict=True):
        names.append(kind_of(tp, cp, pp, dp, decode(code)[ZERO_AT]))
    return np.array(names, dtype="<U8")


def cuts_of(job: Job, family: Family, breadth: Breadth) -> Iterator[Cut]:
    """Searches that together hold every plan of a kind."""
    n = job.cluster.devices
    tps = [t for t in legal_tp(job.model, MAX_TP) if t > 1 and n % t == 0]
    pps = [p for p in divisors(n) if p > 1]
    cps = [c for c in divisors(n, MAX_CP) if c > 1 and job.recipe.seq_len % (2 * c) == 0]
    alone = tuple(z for z in breadth.zeros if z <= 1)
    shards = tuple(z for z in breadth.zeros if z >= 2)
    if family == "pipeline":
        rows = [((1, 1, p), alone) for p in pps]
    elif family == "tensor":
        rows = [((t, 1, 1), alone) for t in tps]
    elif family == "sharded":
        # Weights sharded whole are what the kind is known for, whatever the stack does itself.
        rows = [((1, 1, 1), tuple(sorted({*breadth.zeros, 3} - {0})))]
    else:
        rows = [((t, 0, p), breadth.zeros) for t in tps for p in pps]
        rows += [((t, c, 1), breadth.zeros) for t in tps for c in cps]
        rows += [((1, c, p), breadth.zeros) for p in pps for c in cps]
        one = [(t, 1, 1) for t in tps] + [(1, 1, p) for p in pps] + [(1, c, 1) for c in cps]
        rows += [(degrees, shards) for degrees in one]
    for degrees, zeros in rows:
        # Zero leaves a degree open.
        yield {a: n for a, n in zip(("tp", "cp", "pp"), degrees, strict=True) if n}, zeros


def first_of(searched: Searched, mask: NDArray[np.bool_]) -> Evaluated | None:
    """The fastest plan of a mask, the simplest of those that cannot be told from it."""
    places = distinct(searched, mask, 1)
    return finish(searched, places[0]) if places else None


def shown(searched: Searched, ev: Evaluated) -> Evaluated:
    """The plan with its stages as `plan` lists it: those of its fastest simulated step."""
    return laid_out(searched, ev)[0]


def _step_s(ev: Evaluated) -> float:
    return float(ev.cost.step)


def survey(job: Job, count: int = 5) -> Survey:
    """Search a job once, and where a kind lies too far behind the fastest, that kind alone."""
    breadth = breadth_of(job, Limits())
    whole = search_all(job, {}, breadth)
    sure, maybe = fitting(whole, capacity_bytes(job))
    mask = sure if sure.any() else maybe
    places = distinct(whole, mask, count)
    listed = sorted((shown(whole, finish(whole, i)) for i in places), key=_step_s)
    near = np.zeros(len(mask), dtype=bool)
    if sure.any():
        # Up to here the search holds every plan there is.
        near = sure & (whole.found.step_s <= breadth.slack * whole.found.step_s[sure].min())
    kinds = kinds_at(whole)
    best: dict[Family, Best] = {}
    for family in FAMILIES:
        found = first_of(whole, near & (kinds == family))
        best[family] = (
            Best(shown(whole, found), whole.evaluated)
            if found
            else best_of_family(job, family, breadth)
        )
    return Survey(whole, tuple(listed), best)


def best_of_family(job: Job, family: Family, breadth: Breadth) -> Best:
    """The fastest plan of one kind: of those that surely fit, else of those that may."""
    rows: dict[bool, list[tuple[Evaluated, Searched]]] = {True: [], False: []}
    tried, least = 0, math.inf
    for fixed, zeros in cuts_of(job, family, breadth):
        if not zeros:
            continue
        part = search_all(job, fixed, replace(breadth, zeros=zeros))
        tried += part.evaluated
        mine = kinds_at(part) == family
        least = min(least, float(part.found.peak[mine].min(initial=math.inf)))
        sure, maybe = fitting(part, capacity_bytes(job))
        found = first_of(part, (sure if (sure & mine).any() else maybe) & mine)
        if found is not None:
            rows[bool((sure & mine).any())].append((found, part))
    for certain in (True, False):
        if rows[certain]:
            first, part = min(rows[certain], key=lambda row: row[0].cost.step)
            chosen = shown(part, first)
            return Best(chosen, tried, _note(chosen, breadth, certain))
    if math.isinf(least):
        return Best(None, tried, _illegal(job, family))
    return Best(None, tried, f"none fits: the least needs {least / GIB:.0f} GiB a device")


def _illegal(job: Job, family: Family) -> str:
    """Why no plan of a kind is legal, as far as one rule says it."""
    said = "no plan of this kind is legal"
    devices, batch = job.cluster.devices, job.recipe.global_batch
    if family == "sharded" and devices > 1:
        said += f": dp = {devices:,} does not divide the global batch of {batch:,} sequences"
    return said


def _note(chosen: Evaluated, breadth: Breadth, certain: bool) -> str:
    """What a reader of the chosen plan must know."""
    said = [] if certain else ["its memory only may fit"]
    if chosen.plan.zero not in breadth.zeros:
        stack = chosen.job.stack.name
        said.append(f"ZeRO {chosen.plan.zero} is not among what {stack} is searched with")
    return "; ".join(said)
