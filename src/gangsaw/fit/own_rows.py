"""What a user's own rows buy, on held-out set-ups: more rows, chosen rows, and wrong ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gangsaw.cost.doubt import Site, Widths
from gangsaw.fit.choose import greedy
from gangsaw.fit.widths import HeldOut, by_group

LEAST_ROWS = 14
"""Rows of a set-up from which on ten can be its own and some are left to be judged."""
MOST_OWN = 10
MOST_LEFT = 40
COUNTS = (0, 1, 3, 5, 10)
RANDOM, DRAWS = 5, 20
BAD = 0.5


class More(NamedTuple):
    """Mean error of the same remaining rows of a set-up after each of COUNTS own rows.

    `random`: after RANDOM rows drawn at random, mean of DRAWS draws.
    """

    group: str
    rows: int
    errors: tuple[float, ...]
    random: float


class Wrong(NamedTuple):
    """One of `own` rows is `factor` times too long, each in turn, over all set-ups."""

    own: int
    factor: float
    tried: int
    named_frac: float
    error_clean: float
    error_spoiled: float


def _site(members: Sequence[HeldOut], own: Sequence[int], w: Widths, spoilt: int = -1,
          factor: float = 1.0) -> Site:  # fmt: skip
    residuals = [members[i].residual + (math.log(factor) if i == spoilt else 0.0) for i in own]
    return Site(tuple(members[i].view for i in own), tuple(residuals), (), w)


def _left(members: Sequence[HeldOut], own: Sequence[int]) -> list[int]:
    """Rows that are judged: not own, at most MOST_LEFT, evenly through the table."""
    rest = [i for i in range(len(members)) if i not in own]
    at = np.linspace(0, len(rest) - 1, min(MOST_LEFT, len(rest)))
    return [rest[int(i)] for i in at]


def _error(members: Sequence[HeldOut], rest: Sequence[int], site: Site) -> float:
    """Mean absolute error of some rows on a site."""
    shift, _ = site.predict([members[i].view for i in rest])
    miss = shift - np.array([members[i].residual for i in rest])
    return float(np.abs(np.expm1(miss)).mean())


def _setups(rows: Sequence[HeldOut]) -> list[tuple[str, list[HeldOut]]]:
    found = sorted(by_group(rows).items())
    return [(name, members) for name, members in found if len(members) >= LEAST_ROWS]


def more_rows(rows: Sequence[HeldOut], widths: Mapping[str, Widths]) -> list[More]:
    """Errors of each large set-up by number of own rows, always on the rows that are never own."""
    out = []
    rng = np.random.default_rng(0)
    for name, members in _setups(rows):
        w, views = widths[members[0].source], [h.view for h in members]
        order = greedy(views, views, MOST_OWN, w)
        rest = _left(members, order)
        errors = [_error(members, rest, _site(members, order[:k], w)) for k in COUNTS]
        drawn = []
        for _ in range(DRAWS):
            own = [int(i) for i in rng.choice(len(members), RANDOM, replace=False)]
            left = [i for i in rest if i not in own]
            drawn.append(_error(members, left or rest, _site(members, own, w)))
        out.append(More(name, len(members), tuple(errors), float(np.mean(drawn))))
    return out


def wrong_rows(
    rows: Sequence[HeldOut],
    widths: Mapping[str, Widths],
    factors: Sequence[float] = (1.3, 1.6, 3.0, 30.0),
) -> list[Wrong]:
    """How often a spoilt row is named, and what it does to the rows that are left."""
    out = []
    for own in (3, 5, 10):
        for factor in factors:
            named, clean, spoiled = [], [], []
            for _, members in _setups(rows):
                w, views = widths[members[0].source], [h.view for h in members]
                order = greedy(views, views, own, w)
                rest = _left(members, order)
                before = _error(members, rest, _site(members, order, w))
                for at, place in enumerate(order):
                    site = _site(members, order, w, place, factor)
                    named.append(site.bad_probability()[at] > BAD)
                    clean.append(before)
                    spoiled.append(_error(members, rest, site))
            out.append(
                Wrong(own, factor, len(named), float(np.mean(named)), float(np.mean(clean)),
                      float(np.mean(spoiled)))
            )  # fmt: skip
    return out


def accused_frac(rows: Sequence[HeldOut], widths: Mapping[str, Widths], own: int = 10) -> float:
    """Share of own rows, none of them spoilt, that are called wrong."""
    found: list[bool] = []
    for _, members in _setups(rows):
        w, views = widths[members[0].source], [h.view for h in members]
        site = _site(members, greedy(views, views, own, w), w)
        found += [p > BAD for p in site.bad_probability()]
    return float(np.mean(found))


def lines_of(rows: Sequence[HeldOut], widths: Mapping[str, Widths]) -> list[str]:
    """The section of the accuracy page, as paragraphs and tables."""
    more, wrong = more_rows(rows, widths), wrong_rows(rows, widths)
    heads = " | ".join(f"{k} own" for k in COUNTS)
    table = [
        f"| set-up | rows | {heads} | {RANDOM} at random |",
        "|---|--:|" + "--:|" * (len(COUNTS) + 1),
    ]
    for m in more:
        cells = " | ".join(_percent(e) for e in m.errors)
        name = m.group.replace("|", ", ")
        table.append(f"| {name} | {m.rows} | {cells} | {_percent(m.random)} |")
    means = [float(np.mean([m.errors[i] for m in more])) for i in range(len(COUNTS))]
    cells = " | ".join(f"**{_percent(e)}**" for e in means)
    at_random = float(np.mean([m.random for m in more]))
    table.append(f"| **mean** | | {cells} | **{_percent(at_random)}** |")
    worse = [m.group.replace("|", ", ") for m in more if m.errors[-1] > m.errors[0]]
    said = "No set-up is predicted worse with ten own rows than with none."
    if worse:
        said = f"With ten own rows worse than with none: {'; '.join(worse)}."
    better = sum(m.errors[COUNTS.index(3)] <= m.random for m in more)
    said += (
        f" Three chosen rows are worth {RANDOM} drawn at random or more on {better} of"
        f" {len(more)} set-ups."
    )
    spoilt = [
        "| own rows | one of them too long by | tried | named | error without it | with it |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    spoilt += [
        f"| {v.own} | x {v.factor:g} | {v.tried} | {_percent(v.named_frac)} |"
        f" {_percent(v.error_clean)} | {_percent(v.error_spoiled)} |"
        for v in wrong
    ]
    return [
        "Own rows are chosen by their plans alone; errors are of the rows that are own in no"
        f" column. {said}",
        "\n".join(table),
        "A wrong row (a checkpoint in the step, another column): each own row in turn, over these"
        f" set-ups. Of rows that are as measured {_percent(accused_frac(rows, widths))} are called"
        " wrong.",
        "\n".join(spoilt),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
