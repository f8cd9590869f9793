"""For each layer the cheaper of keeping its activations, recomputing, host memory, or NVMe.

A rank runs `layers` equal layers a microbatch. One that keeps nothing but its input runs its
forward again in the backward. One that is offloaded sends its bytes over the host link in the
forward and fetches them back in the backward; the link works beside the compute of the whole
rank, so only what it needs longer than that is exposed (the overlap of arXiv:2101.06840). NVMe
is reached over the same link and is slower, so it is the link at the drive's rate.
"""

from __future__ import annotations

from typing import NamedTuple

from gangsaw.errors import InputError

HOST_LINK_SHARE = 0.8


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


def exposed_s(
    layer: LayerChoice, layers: int, host: int, nvme: int, recompute: int, links: Links
) -> float:
    """Seconds a microbatch that offloading adds to a rank, forward and backward together.

    The host link carries both; the drives' part takes at least what the drives need.
    """
    moved = layer.kept_bytes - layer.input_bytes
    drive_s = nvme * moved / links.nvme_bytes_per_s if nvme else 0.0
    link_s = max((host + nvme) * moved / links.host_bytes_per_s, drive_s)
    forward = layers * layer.forward_s
    backward = layers * layer.backward_s + recompute * layer.recompute_s
    return max(0.0, link_s - forward) + max(0.0, link_s - backward)


def mix_of(
    layer: LayerChoice, layers: int, counts: tuple[int, int, int], in_flight: float, links: Links
) -> Mix:
    """What `counts` of (recompute, host, nvme) layers hold and add; the rest is kept."""
    recompute, host, nvme = counts
    keep = layers - recompute - host - nvme
    away = layers - keep
    held = in_flight * (keep * layer.kept_bytes + away * layer.input_bytes)
    # One layer at a time is back on the device while its backward runs.
    held += layer.kept_bytes - layer.input_bytes if away else 0.0
    added = recompute * layer.recompute_s
    added += exposed_s(layer, layers, host, nvme, recompute, links)
    return Mix(keep, recompute, host, nvme, held, added)


def best_mix(
    layer: LayerChoice,
    layers: int,
    in_flight: float,
    room_bytes: float,
    links: Links,
    host_room_bytes: float = float("inf"),
) -> Mix:
    """The mix that fits `room_bytes` of the device and adds the least time.

    Every split of the layers is tried where there are at most 40; more are tried in steps. Equal
    times prefer what moves less. Raises InputError where even the least does not fit.
    """
    if layers < 1 or min(links) <= 0.0:
        raise InputError(
            f"layers={layers}, links={tuple(links)}: at least one layer, rates above 0"
        )
    step = max(1, layers // 40)
    grid = sorted({*range(0, layers + 1, step), layers})
    per_layer = in_flight * (layer.kept_bytes - layer.input_bytes)
    best: tuple[float, int, int, Mix] | None = None
    least = float("inf")
    for recompute in grid:
        for host in grid:
            if recompute + host > layers or host * per_layer > host_room_bytes:
                break
            for nvme in grid:
                if recompute + host + nvme > layers:
                    break
                mix = mix_of(layer, layers, (recompute, host, nvme), in_flight, links)
                least = min(least, mix.device_bytes)
                if mix.device_bytes > room_bytes:
                    continue
                found = (mix.added_s, host + 2 * nvme, recompute, mix)
                if best is None or found[:3] < best[:3]:
                    best = found
    if best is None:
        raise InputError(
            f"{layers} layers with {in_flight:.3g} microbatches in flight hold {least:.4g} bytes at"
            f" least; {room_bytes:.4g} are free"
        )
    return best[3]


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
