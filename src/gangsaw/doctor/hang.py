"""Collectives that timed out: how long they should have taken, beside how long they waited."""

from __future__ import annotations

import re

from pydantic import Field

from gangsaw.spec import ClusterSpec
from gangsaw.spec.base import Document
from gangsaw.units import GB, format_s

_WATCHDOG = re.compile(
    r"OpType=(?P<op>\w{3,40}),\s*(?:TensorShape=\[[^\]]{0,200}\],\s*)?NumelIn=(?P<inn>\d{1,15}),"
    r"\s*NumelOut=(?P<out>\d{1,15}),\s*Timeout\(ms\)=(?P<ms>\d{1,12})"
)
_SLOW_BYTES_PER_S = 100e9 / 8
"""A single 100 Gb/s link: what almost every cluster has at least."""


class Hang(Document):
    """A collective that waited for its timeout."""

    operation: str
    elements_in: int
    elements_out: int
    timeout_s: float
    group: int | None = Field(None, description="ranks, where the sizes tell it")
    expected_s: float = Field(description="at the slowest link of the cluster")
    bandwidth_bytes_per_s: float
    explanation: str


def parse_hang(
    text: str, cluster: ClusterSpec | None = None, element_bytes: float = 2.0
) -> Hang | None:
    """The last watchdog message of NCCL in `text`, or None.

    The expected time is that of a ring over the slowest tier of the cluster (100 Gb/s where none
    is given): 2 x bytes / bandwidth for an all-reduce, bytes / bandwidth otherwise.
    """
    found = list(_WATCHDOG.finditer(text[-2_000_000:]))
    if not found:
        return None
    match = found[-1]
    inn, out, timeout = int(match["inn"]), int(match["out"]), int(match["ms"]) / 1e3
    operation = match["op"].lower().strip("_")
    group = None
    if inn and out != inn:
        large, small = max(inn, out), min(inn, out)
        group = large // small if small and large % small == 0 else None
    speed = _SLOW_BYTES_PER_S
    if cluster is not None:
        tier = min(cluster.tiers, key=lambda t: t.bytes_per_s / t.oversubscription)
        speed = tier.bytes_per_s / tier.oversubscription * tier.efficiency
    factor = 2.0 if "allreduce" in operation else 1.0
    expected = factor * max(inn, out) * element_bytes / speed
    return Hang(
        operation=operation, elements_in=inn, elements_out=out, timeout_s=timeout, group=group,
        expected_s=expected, bandwidth_bytes_per_s=speed,
        explanation=_explain(operation, inn, expected, timeout, group, speed),
    )  # fmt: skip


def _explain(
    operation: str, elements: int, expected: float, timeout: float, group: int | None, speed: float
) -> str:
    ranks = f" over {group} ranks" if group else ""
    took = format_s(max(expected, 1e-5))
    if elements <= 16:
        return (
            f"{operation} of {elements} element{'' if elements == 1 else 's'}{ranks} takes no time:"
            f" after {format_s(timeout)}"
            " some rank has not come. It is stuck, dead, in a step with another number of"
            " collectives, or still writing a checkpoint: raise the timeout above the time of a"
            " save"
        )
    if expected > 0.2 * timeout:
        return (
            f"{operation}{ranks} itself needs about {took} at {speed / GB:.0f} GB/s: the timeout of"
            f" {format_s(timeout)} is too short or the link too slow"
        )
    return (
        f"{operation}{ranks} takes about {took} at {speed / GB:.0f} GB/s, not {format_s(timeout)}:"
        " a rank is missing (straggler, uneven data, crash), bandwidth is not the cause"
    )
