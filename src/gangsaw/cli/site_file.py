"""The file of a user's own measured steps: read, put on a job, and held against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gangsaw.cli import files
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.spec.job import Job
    from gangsaw.spec.site import SiteDoc


def on_site(job: Job, path: str) -> tuple[Job, tuple[str, ...]]:
    """The job with what the measured steps taught, and notes where they are of another set-up."""
    from gangsaw.fit.calibrate import read_site, with_site

    files.read_stated(path, "the site file that gangsaw calibrate --out writes")
    site = read_site(Path(path))
    return with_site(job, site), foreign(job, site)


def foreign(job: Job, site: SiteDoc) -> tuple[str, ...]:
    """A line for each of device and stack in which the measured steps are not of this job."""
    device = job.cluster.device.name
    pairs = (("devices", _device(site.device), device), ("stack", site.stack, job.stack.name))
    return tuple(
        f"--site is of {what} {theirs}, this job has {ours}; what it taught may not hold"
        for what, theirs, ours in pairs
        if theirs and theirs != ours
    )


def _device(name: str) -> str:
    """The catalog's name of the device that rows name in their own words."""
    from gangsaw.read.clusters import cluster_of

    try:
        return cluster_of(name, 1).device.name if name else ""
    except InputError:
        return name
