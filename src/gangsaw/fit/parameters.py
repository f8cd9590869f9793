"""The fitted parameters: what each means, and how far it may be from 1 before it is seen.

A parameter is a factor on a physical entry: for all runs, for a family of devices, or for a
software generation. None exists for a row, a file or a table. Prior deviations are of logarithms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gangsaw.cost.fitted import ENTRIES


class Prior(NamedTuple):
    """Prior deviations of an entry's factors (0: no such factor), and what the entry is."""

    general: float
    family: float
    stack: float
    meaning: str


PRIORS: dict[str, Prior] = {
    "gemm": Prior(0.03, 0.06, 0.03, "rate of matrix products in training over the device's curve"),
    "k0": Prior(0.0, 0.4, 0.0, "inner dimension at which a matrix product has half its rate"),
    "fp8": Prior(0.0, 0.12, 0.08, "rate of fp8 matrix products over their own curve"),
    "hbm": Prior(0.0, 0.10, 0.0, "share of memory bandwidth that training kernels reach"),
    "link": Prior(0.0, 0.12, 0.0, "rate of collectives inside the fast domain"),
    "nic": Prior(0.1, 0.0, 0.15, "rate of collectives between nodes"),
    "attention": Prior(0.1, 0.12, 0.15, "rate of fused attention in training over kernel tables"),
    "unfused": Prior(0.15, 0.0, 0.1, "traffic of attention scores without a fused kernel"),
    "unaligned": Prior(0.4, 0.0, 0.0, "rate of products whose head width is no multiple of 8"),
    "traffic": Prior(0.15, 0.0, 0.2, "memory-bound traffic of a layer over that of its operators"),
    "floor": Prior(0.2, 0.0, 0.4, "host time of a layer's launches"),
    "collective": Prior(0.3, 0.0, 0.4, "time that starting a collective takes"),
    "tp": Prior(0.15, 0.0, 0.2, "share of tensor-parallel exchange that is not hidden"),
    "tp_bwd": Prior(0.2, 0.0, 0.15, "the same in backward, over forward"),
    "cp": Prior(0.4, 0.0, 0.0, "share of context-parallel exchange that is not hidden"),
    "ep": Prior(0.3, 0.0, 0.25, "share of expert dispatch that is not hidden"),
    "dp": Prior(0.1, 0.0, 0.25, "time of a step's gradient reduction and parameter gather"),
    "zero3": Prior(0.3, 0.0, 0.3, "share of parameter gathers that cannot be hidden"),
    "pp": Prior(0.3, 0.0, 0.3, "share of stage transfers that is not hidden"),
    "step": Prior(0.3, 0.0, 0.6, "host time of a step"),
    "microbatch": Prior(0.3, 0.0, 0.6, "host time of a microbatch and chunk"),
    "optimizer": Prior(0.25, 0.0, 0.2, "memory traffic of the optimizer step"),
    "loss": Prior(0.25, 0.0, 0.2, "memory traffic of the loss"),
    "fp8_cast": Prior(0.3, 0.0, 0.0, "memory traffic of casts to fp8"),
    "moe_permute": Prior(0.3, 0.0, 0.25, "traffic of sorting tokens to experts over the ideal"),
    "moe_floor": Prior(0.4, 0.0, 0.3, "host time of a routed layer"),
}


class Parameter(NamedTuple):
    """One fitted factor: the entry that it acts on, and for whom."""

    name: str
    entry: int
    family: str
    stack: str
    prior: float

    @property
    def meaning(self) -> str:
        """What the factor multiplies, in words."""
        text = PRIORS[ENTRIES[self.entry]].meaning
        if self.family:
            return f"{text}; {self.family} devices"
        return f"{text}; stack {self.stack}" if self.stack else text

    def acts_on(self, family: str, stack: str) -> bool:
        """Whether the factor applies to runs on these devices with this stack."""
        return self.family in ("", family) and self.stack in ("", stack)


def parameters(families: Iterable[str], stacks: Iterable[str]) -> tuple[Parameter, ...]:
    """All factors for the families and stacks that occur, in a fixed order."""
    families, stacks = sorted(set(families)), sorted(set(stacks))
    out = []
    for index, entry in enumerate(ENTRIES):
        prior = PRIORS[entry]
        if prior.general:
            out.append(Parameter(entry, index, "", "", prior.general))
        if prior.family:
            out += [Parameter(f"{entry}.{f}", index, f, "", prior.family) for f in families]
        if prior.stack:
            out += [Parameter(f"{entry}:{s}", index, "", s, prior.stack) for s in stacks]
    return tuple(out)
