"""Keep, recompute, host memory or NVMe for the ranks of a plan, the optimizer's state included."""

from __future__ import annotations

import math
from typing import NamedTuple

from gangsaw.cost.checkpoint import HOST_LINK_SHARE, PER_MONTH_S
from gangsaw.cost.data_parallel import offload_optimizer_s, optimizer_s
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.keep import (
    LayerChoice,
    Links,
    Placement,
    Rank,
    Room,
    StateChoice,
    best_placement,
    nvme_pays_from,
    single_costs_s,
    state_s,
    useful_nvme_bytes_per_s,
)
from gangsaw.cost.lower import cut_of, strides_of
from gangsaw.cost.memory import memory_table
from gangsaw.cost.memory_doc import capacity_of, memory_state, rank_memories
from gangsaw.cost.step import (
    BWD,
    CP_B,
    CP_F,
    EP_B,
    EP_F,
    FWD,
    HOST_B,
    HOST_F,
    R_FULL,
    T_DENSE,
    T_EXPERT,
    TP_B,
    TP_F,
    TP_R,
    WGRAD,
)
from gangsaw.cost.types import RankMem
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated
from gangsaw.search.rank_rows import rank_rows
from gangsaw.search.tail_docs import KeepRow
from gangsaw.spec.reliability import StorageTier

KEPT_NONE, KEPT_FULL = 0, 2
HOST_ROOM_SHARE = 0.8
"""Of host memory, what offloading may take; the rest is the system's and the data loader's."""


class _Case(NamedTuple):
    """One rank as it stands with everything on the device."""

    stage: int
    rank: Rank
    state: StateChoice
    room: Room
    links: Links


def layer_choice(ev: Evaluated, kind: int) -> LayerChoice:
    """One layer of a kind as `cost.keep` sees it, communication that is exposed included."""
    low, plan = ev.low, ev.plan
    cut = cut_of(plan, ev.job.recipe)
    t = time_table(low.kinds, cut, low.device, low.net, strides_of(plan), low.stack)[kind]
    held = memory_table(low.kinds, cut, low.memory)[kind]
    return LayerChoice(
        kept_bytes=float(held[KEPT_NONE]),
        input_bytes=float(held[KEPT_FULL]),
        forward_s=float(t[FWD] + t[TP_F] + t[CP_F] + t[EP_F] + t[HOST_F]),
        backward_s=float(t[BWD] + t[WGRAD] + t[TP_B] + t[CP_B] + t[EP_B] + t[HOST_B]),
        recompute_s=float(t[R_FULL] + t[TP_R] + t[CP_F] + t[EP_F]),
    )


def links_of(ev: Evaluated) -> Links:
    """Host link of a device, and its share of the host's drives."""
    host = ev.job.cluster.host
    link = HOST_LINK_SHARE * ev.low.device.pcie
    drives = host.nvme_bytes_per_s / host.devices
    return Links(link, min(link, drives) if drives > 0.0 else 1.0)


def _cases(ev: Evaluated) -> list[_Case]:
    """The first and the last pipeline rank, the plan's own offloading undone."""
    low, host = ev.low, ev.job.cluster.host
    plan = ev.plan.model_copy(update={"offload_optimizer": 0.0, "offload_activations": 0.0})
    memories = rank_memories(ev.job, plan, ev.counts, low)
    mems = memory_table(low.kinds, cut_of(plan, ev.job.recipe), low.memory)
    loads, rows = rank_rows(ev, mems)
    state = memory_state(plan, ev.job.recipe)
    kind = int(loads.layers[:, : len(ev.job.model.kinds)].sum(axis=0).argmax())
    layer, links = layer_choice(ev, kind), links_of(ev)
    out = []
    for stage in sorted({0, plan.pp - 1}):
        load, found = memories[stage]
        row = rows[0] if stage == 0 else rows[int(loads.last.argmax())]
        dense, expert = float(row[T_DENSE]), float(row[T_EXPERT])
        away = state._replace(offload_optimizer=1.0)
        choice = StateChoice(
            found.optimizer,
            optimizer_s(dense, expert, state, low.device, low.stack),
            offload_optimizer_s(dense, expert, away, low.device, low.stack),
        )
        layers = max(1, round(float(load.layers.sum())))
        rank = Rank(layer, layers, plan.num_microbatches, max(1.0, found.in_flight))
        room = Room(_free_bytes(ev, found), HOST_ROOM_SHARE * host.memory_bytes / host.devices)
        out.append(_Case(stage, rank, choice, room, links))
    return out


def _free_bytes(ev: Evaluated, found: RankMem) -> float:
    """What the device has beside state, logits and buffers."""
    mem = ev.low.memory
    whole = capacity_of(ev.job.cluster) - mem.workspace_bytes - mem.context_bytes
    fixed = found.params + found.grads + found.optimizer + found.logits + found.buffers
    return whole / mem.reserved_factor - fixed


def _written_bytes(case: _Case, best: Placement) -> float:
    """Bytes that one device writes to NVMe in a step."""
    layer = case.rank.layer
    moved = layer.kept_bytes - layer.input_bytes
    state = best.optimizer_nvme_frac * case.state.state_bytes
    return best.mix.nvme * moved * case.rank.microbatches + state


def _row(ev: Evaluated, case: _Case, tier: StorageTier | None) -> KeepRow:
    rank, state, links = case.rank, case.state, case.links
    useful = useful_nvme_bytes_per_s(rank.layer, rank.layers)
    note = "" if links.nvme_bytes_per_s >= useful else "NVMe is slower than recomputing"
    pays: float | None = None
    best: Placement | None = None
    try:
        best = best_placement(rank, state, case.room, links)
    except InputError:
        note = "no mix fits: parameters and gradients alone are too large"
    if best is not None:
        try:
            without = best_placement(rank, state, case.room, links, nvme=False)
            found = nvme_pays_from(rank, state, case.room, links, without)
            pays = found if math.isfinite(found) else None
        except InputError:
            pays, note = 0.0, "nothing fits without NVMe"
    host = ev.job.cluster.host
    added = best.added_s if best else 0.0
    written = _written_bytes(case, best) if best else 0.0
    life, wear = None, 0.0
    if written > 0.0 and tier is not None and tier.endurance_bytes > 0.0:
        steps = tier.endurance_bytes / (written * host.devices)
        life = steps * (ev.cost.step + added) / PER_MONTH_S
        wear = tier.drive_usd / steps * ev.plan.devices / host.devices
    hour = ev.plan.devices * ev.job.cluster.usd_per_device_hour
    mix = best.mix if best else None
    return KeepRow(
        stage=case.stage,
        layers=rank.layers,
        keep=mix.keep if mix else 0,
        recompute=mix.recompute if mix else 0,
        host=mix.host if mix else 0,
        nvme=mix.nvme if mix else 0,
        optimizer_host_frac=best.optimizer_host_frac if best else 0.0,
        optimizer_nvme_frac=best.optimizer_nvme_frac if best else 0.0,
        optimizer_added_s=best.optimizer_added_s if best else 0.0,
        added_s=added,
        added_usd=hour * added / 3600.0 + wear,
        cost_s=single_costs_s(rank.layer, rank.layers, links),
        optimizer_s={
            "device": state.device_s,
            "host": state_s(state, 1.0, 0.0, links),
            "nvme": state_s(state, 0.0, 1.0, links),
        },
        useful_nvme_bytes_per_s=useful,
        nvme_pays_from_bytes_per_s=pays,
        nvme_bytes_per_s=links.nvme_bytes_per_s,
        nvme_life_months=life,
        note=note,
    )


def keep_rows(ev: Evaluated, tier: StorageTier | None = None) -> tuple[KeepRow, ...]:
    """For the first and last pipeline rank: what to keep, recompute or send away, and the price.

    Layers of the most frequent kind stand for all of a rank. `tier`: the drives' endurance and
    price, for their wear.
    """
    return tuple(_row(ev, case, tier) for case in _cases(ev))
