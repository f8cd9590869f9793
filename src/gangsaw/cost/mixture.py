"""What a software stack may be that nobody named: catalog profiles with weights.

The weights are judgement, not fitted: what is met most with published runs of unnamed stacks on
that generation of devices, and a share for every other profile, so that none is ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gangsaw.cost.fitted import device_family
from gangsaw.cost.types import Array

EARLIER = (
    ("unknown", 0.35),
    ("nanotron", 0.2),
    ("megatron-core-te", 0.2),
    ("megatron-lm-2022-sp", 0.15),
    ("megatron-deepspeed-bf16", 0.1),
)
"""What an unnamed stack on A100 and older may be, by weight: its time is a mixture of these."""
LATER = (
    ("unknown", 0.25),
    ("nanotron", 0.15),
    ("megatron-core-te", 0.35),
    ("torchtitan-compiled", 0.25),
)
"""The same for Hopper and later devices."""
OTHERS = 0.2
"""Share of all other profiles of the catalog together."""
ONLY_FP8 = "-fp8"


def named_members(device: str) -> tuple[tuple[str, float], ...]:
    """The likeliest profiles on a device, with weights that sum to 1."""
    return EARLIER if device_family(device) in ("a100", "v100") else LATER


def members(device: str, fp8: bool, known: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """All profiles of `known` that can be meant, with weights that sum to 1.

    Profiles for fp8 are meant where the recipe is, in the place of their 16-bit siblings.
    """
    siblings = {n.removesuffix(ONLY_FP8): n for n in known if n.endswith(ONLY_FP8)}
    usable = [n for n in known if not n.endswith(ONLY_FP8)]
    likely = dict(named_members(device))
    rest = [n for n in usable if n not in likely]
    out = {n: (1.0 - OTHERS) * w for n, w in likely.items()}
    out |= dict.fromkeys(rest, OTHERS / len(rest))
    named = siblings if fp8 else {}
    return tuple((named.get(n, n), w) for n, w in out.items())


def below(z: Array) -> Array:
    """The normal law's distribution function, element by element."""
    return np.array([0.5 * math.erfc(-float(v) / math.sqrt(2.0)) for v in z])


def quantile(prob: float, centres: Array, weights: Array, sd: float) -> float:
    """Quantile of a mixture of normal laws of one deviation; bisected to 1e-9 deviations."""
    low, high = float(centres.min()) - 8.0 * sd, float(centres.max()) + 8.0 * sd
    while high - low > 1e-9 * sd:
        middle = 0.5 * (low + high)
        short = float(weights @ below((middle - centres) / sd)) < prob
        low, high = (middle, high) if short else (low, middle)
    return 0.5 * (low + high)


def faster_prob(mine: Array, other: Array, weights: Array, sd: float) -> float:
    """Probability that the first of two plans is the faster; `sd` of the difference of logs.

    `mine`, `other`: log step times under each member.
    """
    return float(weights @ below((other - mine) / max(sd, 1e-6)))


def draw(centres: Array, weights: Array, cov: Array, draws: int, seed: int) -> Array:
    """Joint sample (draws, N) of log step times: one member for all plans, then their shared doubt.

    `centres` (N, K): log step time of each plan under each member. Members are drawn in fixed
    shares (systematic sampling), so that the sample has their weights to one part in `draws`.
    """
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    doubt = rng.standard_normal((draws, len(centres))) @ root.T
    at = (np.arange(draws) + 0.5) / draws
    member = np.minimum(np.searchsorted(np.cumsum(weights), at), len(weights) - 1)
    sample: Array = centres.T[member] + doubt
    return sample


def spread(centres: Array, weights: Array) -> float:
    """Deviation between members."""
    mean = float(weights @ centres)
    return math.sqrt(float(weights @ (centres - mean) ** 2))
