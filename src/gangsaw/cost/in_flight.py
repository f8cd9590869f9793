"""How many microbatches a pipeline rank holds at its peak, for every schedule in closed form.

Counted in microbatches of the whole rank: the activations of all chunks that lie on it. A rank of
an interleaved schedule that holds k chunk-microbatches out of v chunks holds k / v.

Sources: GPipe arXiv:1811.06965; 1F1B and interleaving arXiv:2104.04473 and Megatron Core's
warm-up count; breadth-first arXiv:2211.05953; ZB-H1, ZB-H2 arXiv:2401.10241; ZB-V, V-Half, V-Min
arXiv:2405.15362; DualPipe and DualPipeV: table of deepseek-ai/DualPipe.
"""

from __future__ import annotations

import math

from gangsaw.cost.types import (
    BFS,
    DUALPIPE,
    DUALPIPE_V,
    GPIPE,
    INTERLEAVED,
    IZB,
    ONE_F_ONE_B,
    V_HALF,
    V_MIN,
    ZB_H1,
    ZB_H2,
)
from gangsaw.jit import kernel


@kernel
def round_size(pp: float, m: float) -> float:
    """Microbatches that an interleaved rank runs through a chunk before the next: p, as a rule.

    Fewer than p make one round; a number that p does not divide is spread over floor(m/p) rounds
    (as torch's Interleaved1F1B and InterleavedZeroBubble do).
    """
    size: float = math.ceil(m / max(1.0, math.floor(m / pp)))
    return size


@kernel
def in_flight(schedule: float, pp: float, vpp: float, m: float, rank: float) -> float:
    """Microbatches of which rank `rank` (from 0) of `pp` holds all activations at the peak.

    gpipe, bfs: m. 1f1b, zb-h1: min(m, p - i). interleaved: warm-up of 2(p - i - 1) + (v - 1)g
    chunk passes and one more, over v, g the round size. izb: the same with p - i - 1. zb-h2:
    2(p - i) - 1. zb-v: p. v-half: (p + 1)/2. v-min: ceil((p + 2)/3), one less for p = 2, 5, 8...
    dualpipe: p + 1 microbatches of half a rank; dualpipe-v the same with 2p stages. Exact for
    m >= 2p against the generators of `schedule` and torch's; an upper bound below.
    """
    if schedule in (GPIPE, BFS):
        return m
    if schedule in (ONE_F_ONE_B, ZB_H1):
        return min(m, pp - rank)
    if schedule == INTERLEAVED:
        passes = 2.0 * (pp - rank - 1.0) + (vpp - 1.0) * round_size(pp, m) + 1.0
        return min(m * vpp, passes) / vpp if vpp > 1.0 else min(m, pp - rank)
    if schedule == IZB:
        return min(m * vpp, (vpp - 1.0) * round_size(pp, m) + pp - rank) / vpp
    if schedule == ZB_H2:
        return min(m, 2.0 * (pp - rank) - 1.0)
    if schedule == V_HALF:
        return min(m, (pp + 1.0) / 2.0)
    if schedule == V_MIN:
        return min(m, math.ceil((pp + 2.0) / 3.0) - (1.0 if pp % 3.0 == 2.0 else 0.0))
    if schedule == DUALPIPE:
        return min(m, (pp + 1.0) / 2.0)
    if schedule == DUALPIPE_V:
        return min(m, pp + 0.5)
    return min(m, pp)  # zb-v; auto under the memory limit of 1f1b


@kernel
def weights_pending(schedule: float, pp: float, vpp: float, m: float, rank: float) -> float:
    """Microbatches, beyond `in_flight`, that wait for their weight gradients at the peak.

    Later ranks defer as many weight gradients as earlier ranks hold whole microbatches more, so
    that zb-h1 holds p of both together on every rank, zb-h2 2p - 1 and izb ((v - 1)g + p)/v.
    V schedules whose building block closes with a gap (even p for v-half, p = 2, 5, 8... for
    v-min) have up to one waiting.
    """
    whole = in_flight(schedule, pp, vpp, m, rank)
    if schedule == ZB_H1:
        return min(m, pp) - whole
    if schedule == IZB:
        return min(m * vpp, (vpp - 1.0) * round_size(pp, m) + pp) / vpp - whole
    if schedule == ZB_H2:
        return min(m, 2.0 * pp - 1.0) - whole
    if schedule == V_HALF:
        return min(m - whole, 1.0 if pp % 2.0 == 0.0 else 0.0)
    if schedule == V_MIN:
        return min(m - whole, 1.0 if pp % 3.0 == 2.0 else 0.0)
    return 0.0
