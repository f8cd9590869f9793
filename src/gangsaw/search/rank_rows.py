"""Each kind of pipeline rank of one plan in seconds and parameters, from the step's own sums."""

from __future__ import annotations

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import cut_of, loads_of, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.step import (
    BWD,
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    FWD,
    HOST_B,
    HOST_F,
    HOST_R,
    R_FULL,
    R_SEL,
    RANKS,
    TP_B,
    TP_F,
    TP_R,
    WGRAD,
    rank_profiles,
)
from gangsaw.cost.types import Array, LayerMem, Loads
from gangsaw.search.collectives import collectives_of
from gangsaw.search.estimate import Evaluated


def rank_rows(ev: Evaluated, mems: Array | None = None) -> tuple[Loads, Array]:
    """What each kind of rank holds, and its `Profile`, [kinds of rank, 25].

    `mems`: one layer of each kind as `cost.memory.memory_table` has it; without it the columns of
    parameters and activations are 0 and only the seconds count.
    """
    plan, low = ev.plan, ev.low
    cut, strides = cut_of(plan, ev.job.recipe), strides_of(plan)
    layers = time_table(low.kinds, cut, low.device, low.net, strides, low.stack)
    if mems is None:
        mems = np.zeros((len(layers), len(LayerMem._fields)))
    ends = end_time(low.ends, cut, low.device, low.net, strides, low.stack)
    loads = loads_of(ev.job.model, plan, ev.counts)
    train = memory_state(plan, ev.job.recipe).train_ends
    return loads, rank_profiles(loads, layers, mems, ends, low.ends, cut.tp, train)


def rank_loads(ev: Evaluated) -> tuple[Array, Array]:
    """Seconds of one microbatch on each kind of rank, and how many ranks are of it.

    Without what ZeRO and offloading leave exposed.
    """
    _, rows = rank_rows(ev)
    again = {"none": [], "selective": [R_SEL], "full": [R_FULL, TP_R, HOST_R]}[ev.plan.recompute]
    parts = [FWD, BWD, WGRAD, TP_F, TP_B, CP_F, CP_B, EP_F, EP_B, HOST_F, HOST_B, *again]
    return rows[:, parts].sum(axis=1), rows[:, RANKS]


def fabric_shares(ev: Evaluated) -> tuple[float, float]:
    """Share of a rank's operations that is exposed traffic outside the innermost domain, and 1.0
    where hops between stages go there as well.

    Tensor, context and expert groups that do not lie in one node; what is hidden now counts as
    staying so.
    """
    inner = ev.job.cluster.tiers[0].name
    rows = collectives_of(ev.job, ev.plan, ev.counts, ev.low)
    outside = [r for r in rows if r.tier != inner]
    exposed = sum(r.exposed_s_per_step for r in outside if r.axis in ("tp", "cp", "ep"))
    busy = ev.plan.num_microbatches * float(rank_loads(ev)[0].max())
    hops = float(any(r.axis == "pp" for r in outside))
    return min(1.0, exposed / busy), hops
