"""How many spares a wanted availability needs, when racks and feeds fail as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.simulate.failures import FailureClass


def hosts_down(classes: Sequence[FailureClass], repair_s: float, most: int) -> Array:
    """P(n hosts are away at once) for n = 0..most: a compound Poisson law, by Panjer's recursion.

    Each kind brings its hosts together, and they are away for `repair_s` (an M/G/infinity queue:
    only the mean time counts). n p(n) = sum over sizes j of lambda_j j p(n - j) (Panjer 1981).
    """
    sizes: dict[int, float] = {}
    for c in classes:
        if c.replace:
            sizes[c.hosts] = sizes.get(c.hosts, 0.0) + c.per_s * repair_s
    p = np.zeros(most + 1)
    p[0] = math.exp(-sum(sizes.values()))
    for n in range(1, most + 1):
        p[n] = sum(lam * j * p[n - j] for j, lam in sizes.items() if j <= n) / n
    return p


def spares_needed(
    classes: Sequence[FailureClass], repair_s: float, availability_frac: float, most: int = 100_000
) -> int:
    """Fewest spares with which all hosts are there for `availability_frac` of the time.

    Raises InputError for a share outside (0, 1).
    """
    if not 0.0 < availability_frac < 1.0:
        raise InputError(f"availability={availability_frac}: a share between 0 and 1, as 0.999")
    width = 64
    while width <= most:
        reached = np.cumsum(hosts_down(classes, repair_s, width))
        if reached[0] == 0.0:
            break
        if reached[-1] >= availability_frac:
            return int(np.argmax(reached >= availability_frac))
        width *= 2
    raise InputError(
        f"no number of spares up to {most} gives availability {availability_frac}: repairs of"
        f" {repair_s:.3g} s are too slow for these rates"
    )


def availability_of(classes: Sequence[FailureClass], repair_s: float, spares: int) -> float:
    """Share of the time in which no more hosts are away than there are spares."""
    return float(hosts_down(classes, repair_s, spares).sum())
