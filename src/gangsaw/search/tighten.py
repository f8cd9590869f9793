"""Stage layouts under each stage's own memory limit.

The search lays layers out for the fastest step. Where that layout does not surely fit, early
stages, which hold most microbatches in flight, can give layers to later ones: an exact partition
that minimises the slowest stage among those that fit (`search.partition`). It is tried for plans
that would be faster than all that surely fit.
"""

from __future__ import annotations

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.lower import cut_of, strides_of
from gangsaw.cost.memory import memory_table, rank_memory
from gangsaw.cost.memory_doc import memory_state, rank_loads
from gangsaw.cost.memory_layers import end_memory
from gangsaw.cost.types import Array, RankLoad
from gangsaw.search.blocks import Tables, end_seconds, layer_seconds
from gangsaw.search.estimate import Evaluated, evaluate
from gangsaw.search.partition import partition
from gangsaw.search.space import Searched


def layer_limits(ev: Evaluated, room_bytes: float) -> Array:
    """Most layers that each stage can hold within `room_bytes`, (pp,) of a plan of one chunk.

    Layers of a stage are scaled together, so for unequal kinds the result is checked afterwards.
    """
    plan, low, recipe = ev.plan, ev.low, ev.job.recipe
    cut = cut_of(plan, recipe)
    table = memory_table(low.kinds, cut, low.memory)
    ends = end_memory(low.ends, cut, float(plan.pp), low.memory)
    state = memory_state(plan, recipe)

    def held(load: RankLoad, layers: float) -> float:
        scale = layers / max(1.0, float(load.layers.sum()))
        trial = load._replace(layers=load.layers * scale, largest_chunk=load.largest_chunk * scale)
        return rank_memory(trial, table, ends, state, low.memory).device

    limits = np.zeros(plan.pp)
    for rank, load in enumerate(rank_loads(ev.job.model, plan, ev.counts)):
        layers = float(ev.job.model.layers)
        if held(load, layers) > room_bytes:
            low_n, high_n = 0.0, layers
            while high_n - low_n > 1.0:
                middle = np.floor(0.5 * (low_n + high_n))
                if held(load, middle) <= room_bytes:
                    low_n = middle
                else:
                    high_n = middle
            layers = low_n
        limits[rank] = layers
    return limits


def tightened(searched: Searched, ev: Evaluated, room_bytes: float) -> Evaluated | None:
    """The plan with the fastest stages that fit into `room_bytes`; None where there are none."""
    plan, low = ev.plan, ev.low
    if plan.pp == 1 or plan.vpp > 1 or plan.schedule not in ("1f1b", "gpipe"):
        return None
    limits = layer_limits(ev, room_bytes)
    if limits.sum() < ev.job.model.layers:
        return None
    cut, strides = cut_of(plan, ev.job.recipe), strides_of(plan)
    tables = Tables(
        time_table(low.kinds, cut, low.device, low.net, strides, low.stack),
        memory_table(low.kinds, cut, low.memory),
        end_time(low.ends, cut, low.device, low.net, strides, low.stack),
        end_memory(low.ends, cut, float(plan.pp), low.memory),
    )
    full = plan.recompute == "full"
    seconds = np.array([layer_seconds(tables.layers[k], full) for k in ev.job.model.order])
    first, last = end_seconds(searched.space, tables, full)
    counts = partition(seconds, np.ones(len(seconds)), plan.pp, first, last, limits)
    stages = tuple(int(n) for n in counts)
    if sum(stages) != ev.job.model.layers or stages == ev.counts:
        return None
    return evaluate(ev.job, plan.model_copy(update={"stages": stages}), low)
