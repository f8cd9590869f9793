"""The numbers of a job on a calibrated site: what its measured steps taught about each cause.

The search ranks by these physical effects alone. A reported time carries all that the steps say,
the smooth correction over plan space too (`cost.doubt`), which may not choose between plans: it
knows of those near the measured ones only.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gangsaw.cost.doubt import LOADINGS, NAMES, Site
from gangsaw.cost.fitted import fitted_device, fitted_net, fitted_stack
from gangsaw.cost.lower import Lowered, lower
from gangsaw.cost.types import Array
from gangsaw.spec.job import Job

_plain: dict[int, tuple[Job, Lowered]] = {}
"""Numbers of jobs with a site as the general fit has them, by identity of the job (kept beside)."""
MOST = 16


def plain_low(job: Job) -> Lowered:
    """The job's numbers before its site: what its measured steps are corrections of."""
    key = id(job)
    if key not in _plain:
        if len(_plain) >= MOST:
            _plain.clear()
        _plain[key] = (job, lower(job))
    return _plain[key][1]


def effects_of(site: Site) -> Array:
    """Posterior mean of each effect, (E,): logarithms of the time of a cause over the fit's."""
    means = {name: mean for name, mean, _ in site.learned()}
    return np.array([means.get(name, 0.0) for name in NAMES])


def lower_on_site(job: Job) -> tuple[Lowered, float]:
    """The job's numbers with the site's effects in them, and the factor that all plans share."""
    low = plain_low(job) if job.site is not None else lower(job)
    if job.site is None or not job.site.rows:
        return low, 1.0
    u = effects_of(Site.of(job.site))
    x = LOADINGS @ u
    routed = any(kind.moe for kind in job.model.kinds)
    shared = u[NAMES.index("scalar")] + (u[NAMES.index("moe_rows")] if routed else 0.0)
    changed = dataclasses.replace(
        low,
        device=fitted_device(x, low.device),
        net=fitted_net(x, low.net),
        stack=fitted_stack(x, low.stack),
    )
    return changed, math.exp(float(shared))
