"""Clusters: a catalog node and a device count, or a TOML file of one's own.

The catalog holds devices, attention kernels, nodes (host, tiers, price) and one alias table. What
is read here is data; nothing below knows how many devices stand in a node or how fast a link is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gangsaw.errors import InputError
from gangsaw.read.toml import parse_toml, read_toml, shown, validate
from gangsaw.spec.cluster import ClusterSpec, TierSpec

MAX_DEVICES = 1_048_576
"""Largest cluster that the catalog's outermost tiers describe."""

_MAKERS = re.compile(r"^(nvidia|amd|google|intel|aws|habana|cloud)(?=[^a-z]|$)")
_DECORATION = re.compile(
    r"\b(tensor[ -]?core|gpus?|accelerators?|tesla|instinct|hbm[0-9]?e?|nvidia|amd)\b"
)
_NODE_KEYS = ("title", "base", "devices")


@cache
def _table(name: str) -> dict[str, Any]:
    """One TOML file of the catalog."""
    text = resources.files("gangsaw.catalog").joinpath(f"{name}.toml").read_text("utf-8")
    return parse_toml(text, f"catalog {name}.toml")


def list_nodes() -> tuple[str, ...]:
    """Names of the catalog's nodes, in its order."""
    return tuple(_table("nodes"))


def list_devices() -> tuple[str, ...]:
    """Names of the catalog's accelerators, in its order."""
    return tuple(_table("devices"))


def _fold(name: str) -> str:
    """A name without case, spaces, signs, maker and kind of memory: how aliases are compared."""
    text = _DECORATION.sub("", _MAKERS.sub("", name.strip().casefold()))
    return re.sub(r"[^a-z0-9]", "", text)


@cache
def _aliases() -> dict[str, str]:
    """Folded alias -> node name. A node's own name always wins over an alias."""
    found = {_fold(alias): node for node, names in _table("aliases").items() for alias in names}
    return found | {_fold(node): node for node in _table("nodes")}


def node_name(name: str) -> str:
    """Catalog node that `name` means (`NVIDIA H100 80GB HBM3` -> `h100-sxm`).

    Raises InputError with the nearest names when nothing of that name is known.
    """
    node = _aliases().get(_fold(name))
    if node is not None:
        return node
    near = difflib.get_close_matches(_fold(name), list(_aliases()), n=4, cutoff=0.5)
    legal = list(dict.fromkeys(_aliases()[key] for key in near)) or list(list_nodes())
    what = "nearest" if near else "known"
    raise InputError(f"unknown device {shown(name)!r}; {what}: {', '.join(legal)}")


def load_cluster(ref: str) -> ClusterSpec:
    """Cluster from `NODE:DEVICES` (`h100-sxm:2048`) or from the path of a TOML file.

    Raises InputError for an unknown node, a count that is no positive integer within
    MAX_DEVICES, or a file that does not describe a cluster.
    """
    if ref.endswith(".json"):
        raise InputError(f"cluster {shown(ref)!r} is named as JSON. Legal: {_FORMS}")
    if ref.endswith(".toml") or "/" in ref:
        return read_cluster(_file(ref))
    name, colon, count = ref.rpartition(":")
    if not colon:
        if _exists(ref):
            return read_cluster(_file(ref))
        node = node_name(ref)
        raise InputError(f"cluster {shown(ref)!r} has no device count; write {node}:2048")
    return cluster_of(name, _count(count, ref))


_FORMS = "NODE:DEVICES, as h100-sxm:2048, or the path of a TOML file"


def _exists(ref: str) -> bool:
    try:
        return ref != "" and Path(ref).exists()
    except (OSError, ValueError):
        return False


def _file(ref: str) -> Path:
    """The path of a cluster file; InputError when it is a folder."""
    if _exists(ref) and Path(ref).is_dir():
        raise InputError(f"cluster {shown(ref)!r} is a folder. Legal: {_FORMS}")
    return Path(ref)


def _count(text: str, ref: str) -> int:
    """Device count of a reference: digits, in threes between commas or without any."""
    rule = f"cluster {shown(ref)!r}: the device count is a whole number from 1 to {MAX_DEVICES:,}"
    number = text.strip()
    if not re.fullmatch(r"[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)", number, re.ASCII):
        raise InputError(f"{rule}; {shown(text)!r} is none")
    if len(number) > 20:
        raise InputError(f"{rule}; {shown(text)!r} is too large")
    return int(number.replace(",", ""))


def cluster_of(
    device: str,
    devices: int,
    *,
    per_node: int | None = None,
    inter_bytes_per_s: float | None = None,
    intra_bytes_per_s: float | None = None,
    memory_bytes: float | None = None,
) -> ClusterSpec:
    """Cluster of `devices` devices of a kind, as data rows and launch files name it.

    `per_node`: devices a host (and of the innermost tier where that is the host).
    `inter_bytes_per_s`, `intra_bytes_per_s`: of a device in one direction, outside and inside
    the innermost tier. `memory_bytes` replaces the device's own only where they differ by more
    than a tenth, since cards are named by rounded sizes. Raises InputError.
    """
    node = node_name(device)
    data = _node_data(node)
    data["devices"] = _checked(devices, "devices")
    tiers = data["tiers"]
    if per_node is not None:
        per_node = _checked(per_node, "devices per node")
        if tiers[0]["devices"] == data["host"]["devices"]:
            tiers[0]["devices"] = per_node
            data["tiers"] = tiers = tiers[:1] + [t for t in tiers[1:] if t["devices"] > per_node]
        data["host"]["devices"] = per_node
    for value, chosen, what in (
        (intra_bytes_per_s, tiers[:1], "bandwidth inside a node"),
        (inter_bytes_per_s, tiers[1:], "bandwidth between nodes"),
    ):
        if value is not None:
            for tier in chosen:
                tier["bytes_per_s"] = _positive(value, what)
    if memory_bytes is not None:
        memory_bytes = _positive(memory_bytes, "memory of a device")
        if abs(memory_bytes / data["device"]["memory_bytes"] - 1) > 0.1:
            data["device"]["memory_bytes"] = memory_bytes
    return _built(data, f"{node}:{devices}")


def read_cluster(path: Path) -> ClusterSpec:
    """Cluster from a TOML file: `base` names a catalog node, every other key overrides it.

    Tables `device` and `host` are merged key by key; `tiers`, when given, replaces all tiers.
    Without `base`, all of device, host and tiers must stand in the file. See docs/clusters.md.
    """
    where = shown(path)
    stated = read_toml(path)
    base = stated.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"{where}: base={base!r}: the name of a catalog node, as h100-sxm")
    data = _node_data(node_name(base)) if base else {"host": {}, "device": {}}
    if base:
        data.pop("name")
    if isinstance(stated.get("device"), str):
        data["device"] = _device_data(stated.pop("device"))
    for key, value in stated.items():
        if key in ("device", "host") and isinstance(value, dict):
            data[key] = {**data[key], **value}
        else:
            data[key] = value
    if isinstance(data.get("devices"), int):
        data["devices"] = _checked(data["devices"], f"{where}: devices")
    return _built(data, where, default_name=path.stem)


def _node_data(node: str) -> dict[str, Any]:
    """A fresh copy of a catalog node with its device filled in."""
    found = _table("nodes")[node]
    data = {key: value for key, value in found.items() if key not in _NODE_KEYS}
    data["device"] = _device_data(found["device"])
    data["host"] = dict(found["host"])
    data["tiers"] = [dict(tier) for tier in found["tiers"]]
    return data


def _device_data(name: str) -> dict[str, Any]:
    """A fresh copy of a catalog device; nodes' names and aliases are understood as well."""
    devices = _table("devices")
    if name not in devices:
        name = _table("nodes")[node_name(name)]["device"]
    return dict(devices[name])


def _built(data: dict[str, Any], where: str, default_name: str = "") -> ClusterSpec:
    """The validated cluster, with curve names resolved and tiers cut to what is used."""
    data.setdefault("name", default_name)
    device = data.get("device")
    if isinstance(device, dict) and isinstance(device.get("attention"), list):
        device["attention"] = [_curve(item, where) for item in device["attention"]]
    tiers, devices = data.get("tiers"), data.get("devices")
    if isinstance(tiers, list) and isinstance(devices, int):
        data["tiers"] = _used_tiers(tiers, devices, data.get("host"))
    return validate(ClusterSpec, data, where)


def _curve(item: object, where: str) -> object:
    """An attention curve by its catalog name, or as it stands."""
    if not isinstance(item, str):
        return item
    curves = _table("attention")
    if item not in curves:
        raise InputError(f"{where}: attention {item!r}: one of {', '.join(curves)}")
    return curves[item]


def _used_tiers(tiers: list[Any], devices: int, host: object) -> list[Any]:
    """Tiers up to the first that holds all devices; rack-scale domains filled evenly.

    A job of 256 on domains of 72 takes 64 of each: schedulers place equal parts, and a group
    that straddles two domains would pay for it in every step.
    """
    if not tiers or not all(isinstance(t, dict) for t in tiers):
        return tiers
    if not all(isinstance(t.get("devices"), int) and t["devices"] > 0 for t in tiers):
        return tiers
    used: list[Any] = []
    for tier in tiers:
        used.append(tier)
        if tier["devices"] >= devices:
            break
    hosted = host.get("devices") if isinstance(host, Mapping) else None
    inner = used[0]["devices"]
    if isinstance(hosted, int) and 0 < hosted < inner < devices and devices % inner:
        even = [d for d in range(hosted, inner, hosted) if devices % d == 0 and 2 * d > inner]
        if even:
            used[0] = {**used[0], "devices": even[-1]}
    return used


def placed(tiers: Sequence[TierSpec], devices: int, per_host: int) -> tuple[TierSpec, ...]:
    """Tiers that a cluster of `devices` uses, with rack-scale domains filled evenly."""
    used = _used_tiers([tier.model_dump() for tier in tiers], devices, {"devices": per_host})
    return tuple(TierSpec.model_validate(tier) for tier in used)


def _checked(value: object, what: str) -> int:
    """A count of devices."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
        raise InputError(f"{what}={value!r}: a whole number from 1 to {MAX_DEVICES:,}")
    return value


def _positive(value: float, what: str) -> float:
    """A finite positive number."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{what}={value}: a positive number")
    return value


def with_inter_efficiency(cluster: ClusterSpec, efficiency: float, source: str) -> ClusterSpec:
    """The cluster whose collectives reach this measured share of the line rate between hosts."""
    tiers = tuple(
        t.model_copy(update={"efficiency": efficiency, "source": source})
        if t.devices > cluster.host.devices
        else t
        for t in cluster.tiers
    )
    return cluster.model_copy(update={"tiers": tiers})
