"""What a machine says about its own network: `nvidia-smi topo -m` and Slurm's `topology.conf`.

Both state who stands near whom and neither states a rate, so a reading lists what it takes from
the text and what it assumes from the catalog.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from gangsaw.errors import InputError
from gangsaw.read.clusters import cluster_of, placed
from gangsaw.spec.cluster import ClusterSpec, TierSpec

NVLINK_BYTES_PER_S = {5: 50e9, 4: 25e9}
"""One NVLink, one direction: of the fifth generation, and of the second to fourth (data sheets)."""
FIFTH_BYTES_PER_S = 900e9
"""All NVLinks of a device of the fifth generation: by this the generation is told."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LINKS = re.compile(r"(X|SYS|NODE|PHB|PXB|PIX|NV[0-9]+)$")
_NIC = re.compile(r"(NIC[0-9]+|mlx[0-9]+_[0-9]+|bnxt_re[0-9]+|efa[_0-9]*|rdmap\w+)$")
_MAX_NAMES = 10**6
_MAX_LEVELS = 16


@dataclass(frozen=True)
class Reading:
    """A cluster made from a text, with what the text stated and what was assumed."""

    cluster: ClusterSpec
    stated: tuple[str, ...]
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class TopoMatrix:
    """`nvidia-smi topo -m`: NVLinks between devices, and NICs that share a PCIe switch."""

    devices: int
    links: tuple[tuple[int, ...], ...]
    nics: int
    near_nics: int


def parse_topo(text: str, where: str = "nvidia-smi topo -m") -> TopoMatrix:
    """The matrix of devices and NICs. InputError when there is none or a row is short."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    head = next((words for words in lines if words[:1] == ["GPU0"] and "X" not in words), None)
    if head is None:
        raise InputError(f"{where}: no header line with GPU0, GPU1, ...; is it the whole output?")
    columns = [w for w in head if re.fullmatch(r"GPU[0-9]+", w) or _NIC.match(w)]
    gpus = [i for i, w in enumerate(columns) if w.startswith("GPU")]
    nics = [i for i in range(len(columns)) if i not in gpus]
    rows = {w[0]: w[1 : 1 + len(columns)] for w in lines if w and w[0] in columns and w != head}
    links, near = [], set()
    for place in gpus:
        name = columns[place]
        row = rows.get(name, [])
        if len(row) < len(columns) or not all(_LINKS.match(cell) for cell in row):
            raise InputError(
                f"{where}: row {name} needs {len(columns)} cells: X, NV#, PIX, PXB, PHB, NODE, SYS"
            )
        links.append(tuple(int(row[i][2:]) if row[i].startswith("NV") else 0 for i in gpus))
        near |= {i for i in nics if row[i] in ("PIX", "PXB")}
    return TopoMatrix(len(gpus), tuple(links), len(nics), len(near))


def read_topo(text: str, device: str, devices: int) -> Reading:
    """Cluster of `devices` devices on nodes as `nvidia-smi topo -m` shows them.

    NVLink domains, links between peers, devices and NICs a node come from the text; rates,
    latencies, host and network from the catalog node that `device` names. Raises InputError.
    """
    matrix = parse_topo(text)
    base = cluster_of(device, devices)
    host, inner = base.host, base.tiers[0]
    stated = [f"{matrix.devices} devices a node"]
    assumed = [f"host, rates of links and latencies: catalog node {base.name}"]
    domain = _domain(matrix.links)
    tiers: list[TierSpec] = []
    if domain > 1:
        tier, how = _nvlink_tier(matrix, domain, inner)
        tiers.append(tier)
        stated.append(how)
    if domain < matrix.devices:
        tiers.append(_pcie_tier(matrix.devices, base))
        assumed.append("rate between NVLink domains of a node: host link of the device")
    nics = matrix.near_nics or matrix.nics
    outer = [t for t in _catalog_tiers(device) if t.devices > max(matrix.devices, host.devices)]
    usual = host.nics / host.devices
    factor = nics / matrix.devices / usual if nics and usual else 1.0
    if nics:
        stated.append(f"{nics} NICs a node" + (" near devices" if matrix.near_nics else ""))
        assumed.append("rate of a NIC: that of the catalog node")
    else:
        assumed.append("NICs: as many a device as the catalog node has")
    tiers += [t.model_copy(update={"bytes_per_s": t.bytes_per_s * factor}) for t in outer]
    cluster = base.model_copy(
        update={
            "tiers": placed(tiers, devices, matrix.devices),
            "host": host.model_copy(
                update={"devices": matrix.devices, "nics": float(nics) or host.nics}
            ),
        }
    )
    return Reading(ClusterSpec.model_validate(cluster.model_dump()), tuple(stated), tuple(assumed))


def _catalog_tiers(device: str) -> tuple[TierSpec, ...]:
    """All tiers of a catalog node, none left out for a small cluster."""
    return cluster_of(device, 10**6).tiers


def _domain(links: Sequence[Sequence[int]]) -> int:
    """Devices of an NVLink domain: size of the connected parts, or their common divisor."""
    left, sizes = set(range(len(links))), []
    while left:
        part, stack = set(), [left.pop()]
        while stack:
            one = stack.pop()
            part.add(one)
            new = {j for j in left if links[one][j] or links[j][one]}
            left -= new
            stack += new
        sizes.append(len(part))
    return gcd(*sizes)


def _nvlink_tier(matrix: TopoMatrix, domain: int, inner: TierSpec) -> tuple[TierSpec, str]:
    """The NVLink tier: through a switch each pair shows all links, in a mesh its own."""
    row = matrix.links[0]
    pair = max(row)
    rate = NVLINK_BYTES_PER_S[5 if inner.bytes_per_s >= FIFTH_BYTES_PER_S else 4]
    mesh = domain > 2 and sum(row) * rate <= 1.01 * inner.bytes_per_s
    total = sum(row) if mesh else pair
    tier = inner.model_copy(
        update={
            "name": "nvlink",
            "devices": domain,
            "bytes_per_s": total * rate,
            "mesh": mesh,
            "in_network_reduction": inner.in_network_reduction and not mesh,
            "source": f"nvidia-smi topo -m: NV{pair}, {rate / 1e9:.0f} GB/s a link",
        }
    )
    how = "to each peer" if mesh else "a device"
    return tier, f"NVLink domain of {domain} devices, {pair} links {how}"


def _pcie_tier(devices: int, base: ClusterSpec) -> TierSpec:
    """Devices of a node that only PCIe connects."""
    return TierSpec(
        name="node",
        devices=devices,
        bytes_per_s=base.device.pcie_bytes_per_s,
        latency_s=4e-6,
        efficiency=0.75,
        source="nvidia-smi topo -m shows no NVLink here; host link of the device assumed",
    )


@dataclass(frozen=True)
class SlurmTopology:
    """`topology.conf`: levels of switches or blocks, innermost first, as nodes in a domain."""

    nodes: int
    levels: tuple[tuple[str, int], ...]
    blocks: bool


def parse_slurm(text: str, where: str = "topology.conf") -> SlurmTopology:
    """Levels of a tree (SwitchName) or of blocks (BlockName). InputError when it has neither."""
    switches: dict[str, tuple[list[str], list[str]]] = {}
    blocks: dict[str, list[str]] = {}
    sizes: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [w.partition("=") for w in line.split("#")[0].split()]
        keys = {key.casefold(): value for key, _, value in words}
        nodes = _names(keys.get("nodes", ""), where, number)
        if "switchname" in keys:
            below = _names(keys.get("switches", ""), where, number)
            switches[keys["switchname"]] = (nodes, below)
        elif "blockname" in keys:
            blocks[keys["blockname"]] = nodes
        elif "blocksizes" in keys:
            sizes = [int(s) for s in keys["blocksizes"].split(",") if s.isdigit() and int(s)]
    if blocks:
        return _block_levels(blocks, sizes)
    if not switches:
        raise InputError(f"{where}: no line with SwitchName= or BlockName=")
    return _tree_levels(switches, where)


def _block_levels(blocks: dict[str, list[str]], sizes: list[int]) -> SlurmTopology:
    """Blocks are domains of their own; larger BlockSizes are groups of blocks."""
    total = sum(len(nodes) for nodes in blocks.values())
    size = sizes[0] if sizes else Counter(len(n) for n in blocks.values()).most_common(1)[0][0]
    levels = [("block", size)] + [("blocks", s) for s in sizes[1:] if s > size]
    return SlurmTopology(total, tuple(levels), blocks=True)


def _tree_levels(switches: dict[str, tuple[list[str], list[str]]], where: str) -> SlurmTopology:
    """Height of each switch and the usual number of nodes below one of that height."""
    below: dict[str, tuple[int, int]] = {}

    def visit(name: str, path: tuple[str, ...]) -> tuple[int, int]:
        if name in path:
            raise InputError(f"{where}: switch {name!r} lies below itself")
        if len(path) > _MAX_LEVELS:
            raise InputError(f"{where}: more than {_MAX_LEVELS} levels of switches")
        if name not in switches:
            raise InputError(f"{where}: switch {name!r} is named but not described")
        if name not in below:
            nodes, children = switches[name]
            parts = [visit(child, (*path, name)) for child in children]
            height = 1 + max((h for h, _ in parts), default=0)
            below[name] = (height, len(nodes) + sum(n for _, n in parts))
        return below[name]

    if len(switches) > _MAX_NAMES:
        raise InputError(f"{where}: {len(switches):,} switches; at most {_MAX_NAMES:,}")
    by_height: dict[int, list[int]] = defaultdict(list)
    for name in switches:
        height, nodes = visit(name, ())
        by_height[height].append(nodes)
    names = ("leaf", "spine", "core")
    levels: list[tuple[str, int]] = []
    for height in sorted(by_height):
        usual = Counter(by_height[height]).most_common(1)[0][0]
        if usual > 0 and (not levels or usual > levels[-1][1]):
            levels.append((names[min(height, 3) - 1] if height <= 3 else f"level{height}", usual))
    total = max(max(v) for v in by_height.values())
    if not total:
        raise InputError(f"{where}: no switch has Nodes=")
    return SlurmTopology(total, tuple(levels), blocks=False)


def read_slurm(text: str, device: str, devices: int) -> Reading:
    """Cluster whose network tiers are the switch levels of a Slurm `topology.conf`.

    The number of nodes in each domain comes from the text; devices a node, rates and latencies
    from the catalog node that `device` names. A block of several hosts counts as one fast domain
    where the catalog node's innermost tier is larger than its host. Raises InputError.
    """
    topology = parse_slurm(text)
    base = cluster_of(device, devices)
    per_node = base.host.devices
    if devices > topology.nodes * per_node:
        raise InputError(
            f"topology.conf has {topology.nodes} nodes of {per_node} devices"
            f" = {topology.nodes * per_node}; {devices} were asked for"
        )
    full = _catalog_tiers(device)
    inner = [t for t in full if t.devices <= max(per_node, full[0].devices)]
    fabric = next(t for t in full if t not in inner)
    levels = list(topology.levels)
    stated = [f"{name}: {nodes} nodes" for name, nodes in levels]
    if topology.blocks and full[0].devices > per_node:
        name, nodes = levels.pop(0)
        inner = [full[0].model_copy(update={"devices": nodes * per_node})]
    tiers = list(inner)
    for name, nodes in levels:
        size = nodes * per_node
        if size > tiers[-1].devices:
            source = "nodes from topology.conf; rate and latency from the catalog"
            tiers.append(
                fabric.model_copy(update={"name": name, "devices": size, "source": source})
            )
    if tiers[-1].devices < devices:
        tiers.append(full[-1])
    cluster = base.model_copy(update={"tiers": placed(tiers, devices, per_node)})
    assumed = (
        f"{per_node} devices a node, rates and latencies: catalog node {base.name}",
        "no oversubscription: topology.conf states none, and LinkSpeed has no unit",
    )
    return Reading(ClusterSpec.model_validate(cluster.model_dump()), tuple(stated), assumed)


def _names(text: str, where: str, line: int) -> list[str]:
    """Names of a Slurm host list: `tux[0-3,12],node7` -> tux0 ... tux3, tux12, node7."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        for name in _expanded(part, where, line):
            names.append(name)
            if len(names) > _MAX_NAMES:
                raise InputError(f"{where} line {line}: more than {_MAX_NAMES:,} names")
    return names


def _expanded(part: str, where: str, line: int) -> Iterator[str]:
    """All names of one element with any number of brackets."""
    match = re.search(r"\[([^\]]*)\]", part)
    if match is None:
        yield part
        return
    head, tail = part[: match.start()], part[match.end() :]
    for piece in match.group(1).split(","):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        if ends is None:
            raise InputError(f"{where} line {line}: {piece!r} is no number or range a-b")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last - first > _MAX_NAMES:
            raise InputError(f"{where} line {line}: range {piece!r} is too long")
        for number in range(first, last + 1):
            for rest in _expanded(tail, where, line):
                yield f"{head}{number:0{len(ends[1])}d}{rest}"
