"""For each layer the cheaper of keeping its activations, recomputing, host memory, or NVMe; and
where the optimizer's state is held beside that.

A rank runs `layers` equal layers a microbatch. One that keeps nothing but its input runs its
forward again in the backward. One that is offloaded sends its bytes over the host link in the
forward and fetches them back in the backward; the link works beside the compute of the whole
rank, so only what it needs longer than that is exposed (the overlap of arXiv:2101.06840). NVMe
is reached over the same link and is slower, so it is the link at the drive's rate.

The optimizer's state leaves room for activations where it lies in host memory (its step is then
taken by the CPU, arXiv:2101.06840) or on NVMe, which reads and writes all of it in a step while the
CPU works (the pipeline of arXiv:2104.07857, section 5.2.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError

MOST_TRIED = 40
"""Layers up to which every split is tried; of more, splits in steps."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the optimizer's state that is taken off the device."""


class LayerChoice(NamedTuple):
    """One layer and microbatch: bytes kept, bytes of its input, seconds of its passes.

    `recompute_s` is the forward run once more, its exposed communication included.
    """

    kept_bytes: float
    input_bytes: float
    forward_s: float
    backward_s: float
    recompute_s: float


class Links(NamedTuple):
    """Bytes/s of one device, one direction: to its host, and to its share of the host's NVMe."""

    host_bytes_per_s: float
    nvme_bytes_per_s: float


class Mix(NamedTuple):
    """Layers a rank by what is done with them, bytes left on the device, seconds a microbatch."""

    keep: int
    recompute: int
    host: int
    nvme: int
    device_bytes: float
    added_s: float


class StateChoice(NamedTuple):
    """A rank's optimizer: bytes of its state; seconds of a step of all of it on the device, and by
    the CPU with its transfers."""

    state_bytes: float
    device_s: float
    host_s: float


class Placement(NamedTuple):
    """What is done with a rank's activations and optimizer, and seconds that it adds to a step."""

    mix: Mix
    optimizer_host_frac: float
    optimizer_nvme_frac: float
    optimizer_added_s: float
    added_s: float


class Rank(NamedTuple):
    """One rank: its layers, all alike, microbatches of a step and those in flight."""

    layer: LayerChoice
    layers: int
    microbatches: int
    in_flight: float


class Room(NamedTuple):
    """Bytes free for activations with all state on the device, and free in its share of host
    memory."""

    device_bytes: float
    host_bytes: float = math.inf


Count = Array | float
"""Numbers of layers: of one split, or of many at once."""


def exposed_s(
    layer: LayerChoice, layers: int, host: Count, nvme: Count, recompute: Count, links: Links
) -> Array:
    """Seconds a microbatch that offloading adds to a rank, forward and backward together.

    The host link carries both; the drives' part takes at least what the drives need.
    """
    moved = layer.kept_bytes - layer.input_bytes
    drive_s = nvme * moved / links.nvme_bytes_per_s
    link_s = np.maximum((host + nvme) * moved / links.host_bytes_per_s, drive_s)
    forward = layers * layer.forward_s
    backward = layers * layer.backward_s + recompute * layer.recompute_s
    return np.asarray(np.maximum(0.0, link_s - forward) + np.maximum(0.0, link_s - backward))


def held_bytes(layer: LayerChoice, keep: Count, away: Count, in_flight: float) -> Array:
    """Bytes on the device; one layer at a time is back there while its backward runs."""
    held = in_flight * (keep * layer.kept_bytes + away * layer.input_bytes)
    return np.asarray(
        held + np.where(np.asarray(away) > 0, layer.kept_bytes - layer.input_bytes, 0)
    )


def mix_of(
    layer: LayerChoice, layers: int, counts: tuple[int, int, int], in_flight: float, links: Links
) -> Mix:
    """What `counts` of (recompute, host, nvme) layers hold and add; the rest is kept."""
    recompute, host, nvme = counts
    keep = layers - recompute - host - nvme
    added = recompute * layer.recompute_s
    added += float(exposed_s(layer, layers, host, nvme, recompute, links))
    held = float(held_bytes(layer, keep, layers - keep, in_flight))
    return Mix(keep, recompute, host, nvme, held, added)


def _splits(layers: int) -> NDArray[np.int64]:
    """Splits to try, [3, n]: layers recomputed, in host memory, on NVMe."""
    grid = np.array(sorted({*range(0, layers + 1, max(1, layers // MOST_TRIED)), layers}))
    every = np.stack(np.meshgrid(grid, grid, grid, indexing="ij")).reshape(3, -1)
    return np.ascontiguousarray(every[:, every.sum(axis=0) <= layers])


def best_mix(
    layer: LayerChoice,
    layers: int,
    in_flight: float,
    room_bytes: float,
    links: Links,
    host_room_bytes: float = math.inf,
) -> Mix:
    """The mix that fits `room_bytes` of the device and adds the least time.

    Every split of the layers is tried where there are at most 40; more are tried in steps. Equal
    times prefer what moves less. Raises InputError where even the least does not fit.
    """
    if layers < 1 or min(links) <= 0.0:
        raise InputError(
            f"layers={layers}, links={tuple(links)}: at least one layer, rates above 0"
        )
    recompute, host, nvme = splits = _splits(layers)
    away = splits.sum(axis=0)
    held = held_bytes(layer, layers - away, away, in_flight)
    added = recompute * layer.recompute_s
    added = added + exposed_s(layer, layers, host, nvme, recompute, links)
    moved = in_flight * (layer.kept_bytes - layer.input_bytes)
    fits = np.flatnonzero((held <= room_bytes) & (host * moved <= host_room_bytes))
    if not len(fits):
        raise InputError(
            f"{layers} layers with {in_flight:.3g} microbatches in flight hold"
            f" {float(held.min()):.4g} bytes at least; {room_bytes:.4g} are free"
        )
    order = np.lexsort((recompute[fits], (host + 2 * nvme)[fits], added[fits]))
    best = splits[:, fits[order[0]]]
    return mix_of(layer, layers, (int(best[0]), int(best[1]), int(best[2])), in_flight, links)


def state_s(state: StateChoice, host_frac: float, nvme_frac: float, links: Links) -> float:
    """Seconds of the optimizer's step with these shares of its state off the device.

    NVMe reads and writes its share once, while the CPU works on it.
    """
    cpu = host_frac * state.host_s
    drives = 2.0 * nvme_frac * state.state_bytes / links.nvme_bytes_per_s
    if nvme_frac > 0.0:
        cpu += max(nvme_frac * state.host_s, drives)
    return (1.0 - host_frac - nvme_frac) * state.device_s + cpu


def best_placement(
    rank: Rank, state: StateChoice, room: Room, links: Links, nvme: bool = True
) -> Placement:
    """Activations and optimizer together: what fits and adds the least to a step.

    A quarter, half, three quarters or all of the optimizer's state may lie in host memory or on
    NVMe; for each, the best mix of activations in the room that this leaves. Without `nvme` both
    stay off the drives. Raises InputError where nothing fits.
    """
    best: Placement | None = None
    fault: InputError | None = None
    reached = links if nvme else links._replace(nvme_bytes_per_s=1e-30)
    for share in SHARES:
        for place in ("host", "nvme") if share > 0.0 and nvme else ("host",):
            on_host, on_nvme = (share, 0.0) if place == "host" else (0.0, share)
            taken = on_host * state.state_bytes
            if taken > room.host_bytes:
                continue
            free = room.device_bytes + share * state.state_bytes
            try:
                mix = best_mix(
                    rank.layer, rank.layers, rank.in_flight, free, reached,
                    room.host_bytes - taken,
                )  # fmt: skip
            except InputError as missing:
                fault = missing
                continue
            more = state_s(state, on_host, on_nvme, links) - state.device_s
            added = more + rank.microbatches * mix.added_s
            if best is None or added < best.added_s:
                best = Placement(mix, on_host, on_nvme, more, added)
    if best is None:
        raise fault or InputError("the optimizer's state fits neither the device nor its host")
    return best


def nvme_pays_from(
    rank: Rank, state: StateChoice, room: Room, links: Links, without: Placement
) -> float:
    """Bytes/s of NVMe of one device from which a mix with it adds less than `without` it.

    Below it NVMe is counter-productive. By bisection, since more bandwidth never adds time;
    infinite where not even the host link's rate makes it pay.
    """

    def pays(rate: float) -> bool:
        found = best_placement(rank, state, room, links._replace(nvme_bytes_per_s=rate))
        return found.added_s < without.added_s * (1.0 - 1e-9)

    low, high = links.host_bytes_per_s * 1e-4, links.host_bytes_per_s
    if not pays(high):
        return math.inf
    for _ in range(12):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def single_costs_s(layer: LayerChoice, layers: int, links: Links) -> dict[str, float]:
    """Seconds a layer when all layers of the rank are treated alike."""
    alone = {"recompute": (layers, 0, 0), "host": (0, layers, 0), "nvme": (0, 0, layers)}
    return {
        name: mix_of(layer, layers, counts, 1.0, links).added_s / layers
        for name, counts in alone.items()
    } | {"keep": 0.0}


def useful_nvme_bytes_per_s(layer: LayerChoice, layers: int) -> float:
    """NVMe rate of one device below which recomputing every layer is faster than fetching it.

    Solves exposed forward plus exposed backward = recompute; the link time L of the rank has
    max(0, L - F) + max(0, L - B) = R. 0 where recompute is free.
    """
    moved = layers * (layer.kept_bytes - layer.input_bytes)
    again = layers * layer.recompute_s
    short, long = sorted((layers * layer.forward_s, layers * layer.backward_s))
    link_s = short + again
    if link_s > long:
        link_s = (short + long + again) / 2.0
    return moved / link_s if link_s > 0.0 else 0.0
