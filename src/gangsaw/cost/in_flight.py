"""How many microbatches a pipeline rank holds at its peak, for every schedule in closed form.

Counted in microbatches of the whole rank: the activations of all chunks that lie on it. A rank of
an interleaved schedule that holds k chunk-microbatches out of v chunks holds k / v.

Sources: GPipe arXiv:1811.06965; 1F1B and interleaving arXiv:2104.04473 and Megatron Core's
warm-up count; breadth-first arXiv:2211.05953; ZB-H1, ZB-H2 arXiv:2401.10241; ZB-V, V-Half, V-Min
arXiv:2405.15362; DualPipe and DualPipeV: table of deepseek-ai/DualPipe.
"""

from __future__ import annotations

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
def in_flight(schedule: float, pp: float, vpp: float, m: float, rank: float) -> float:
    """Microbatches of which rank `rank` (from 0) of `pp` holds all activations at the peak.

    gpipe, bfs: m. 1f1b, zb-h1: min(m, p - i). interleaved: warm-up 2(p - i - 1) + (v - 1)p chunk
    passes and one more, over v. izb: the same with a warm-up of p - i - 1. zb-h2: 2(p - i) - 1.
    zb-v: p. v-half and v-min: about p/2 and p/3. dualpipe: p + 1 microbatches of half a rank,
    dualpipe-v the same with 2p stages. Never more than m.
    """
    if schedule in (GPIPE, BFS):
        return m
    if schedule in (ONE_F_ONE_B, ZB_H1):
        return min(m, pp - rank)
    if schedule == INTERLEAVED:
        passes = 2.0 * (pp - rank - 1.0) + (vpp - 1.0) * pp + 1.0
        return min(m * vpp, passes) / vpp if vpp > 1.0 else min(m, pp - rank)
    if schedule == IZB:
        return min(m * vpp, (vpp - 1.0) * pp + pp - rank) / vpp
    if schedule == ZB_H2:
        return min(m, 2.0 * (pp - rank) - 1.0)
    if schedule == V_HALF:
        return min(m, pp / 2.0 + 1.0)
    if schedule == V_MIN:
        return min(m, pp / 3.0 + 4.0 / 3.0)
    if schedule == DUALPIPE:
        return min(m, (pp + 1.0) / 2.0)
    if schedule == DUALPIPE_V:
        return min(m, pp + 0.5)
    return min(m, pp)  # zb-v; auto under the memory limit of 1f1b


@kernel
def weights_pending(schedule: float, pp: float, vpp: float, m: float, rank: float) -> float:
    """Microbatches, beyond `in_flight`, that wait for their weight gradients at the peak.

    Later ranks defer as many weight gradients as earlier ranks hold whole microbatches more, so
    that zb-h1 and izb hold p of both together on every rank, and zb-h2 2p - 1.
    """
    if schedule == ZB_H1:
        return min(m, pp) - min(m, pp - rank)
    if schedule == IZB:
        whole = min(m * vpp, vpp * pp - rank)
        return (min(m * vpp, vpp * pp) - whole) / vpp
    if schedule == ZB_H2:
        return min(m, 2.0 * pp - 1.0) - min(m, 2.0 * (pp - rank) - 1.0)
    return 0.0
