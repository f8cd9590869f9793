"""With which probability each listed plan is the fastest, from the doubt that plans do not share.

Doubt in the device, the network and the stack moves all plans together and decides nothing; what
decides is how far their causes differ. Each cause's doubt is drawn once and scales that cause in
every plan, and each plan has a remainder of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gangsaw.search.estimate import Evaluated, causes_of

CAUSE_DOUBT = {
    "compute": 0.05, "recompute": 0.05, "bubble": 0.15, "tp_comm": 0.25, "cp_comm": 0.35,
    "ep_comm": 0.35, "pp_comm": 0.3, "dp_comm": 0.4, "optimizer": 0.3, "host": 0.4, "offload": 0.3,
}  # fmt: skip
"""One standard deviation, log space: spread of these effects between published sources."""
OWN_DOUBT = 0.03
"""Remainder of a plan against its neighbours within one source."""
DRAWS = 4000


def best_probabilities(plans: Sequence[Evaluated], seed: int = 0) -> list[float]:
    """Share of joint draws in which each plan has the smallest step time."""
    if not plans:
        return []
    rng = np.random.default_rng(seed)
    names = list(CAUSE_DOUBT)
    seconds = np.array([[causes_of(p.cost)[n] for n in names] for p in plans])
    scale = np.exp(rng.normal(size=(DRAWS, len(names))) * np.array(list(CAUSE_DOUBT.values())))
    own = np.exp(OWN_DOUBT * rng.normal(size=(DRAWS, len(plans))))
    # The same plan listed for two merits must not compete with itself.
    keys = [(p.plan, p.counts) for p in plans]
    for i, key in enumerate(keys):
        own[:, i] = own[:, keys.index(key)]
    draws = (scale @ seconds.T) * own
    best = np.argmin(draws, axis=1)
    share = np.bincount(best, minlength=len(plans)) / DRAWS
    return [float(share[keys.index(k)]) for k in keys]
