"""How many devices a launch uses, and the degrees that follow."""

from __future__ import annotations

import re

from gangsaw.read.launch.document import Settings
from gangsaw.read.launch.facts import Facts

_SBATCH = re.compile(r"^#SBATCH[ \t]+(.{1,300})$", re.MULTILINE)
_SLURM = {
    "nodes": "nodes", "N": "nodes", "ntasks": "tasks", "n": "tasks",
    "ntasks-per-node": "tasks_per_node", "gpus-per-node": "per_node", "gres": "per_node",
    "gpus": "world", "G": "world", "gpus-per-task": "gpus_per_task",
}  # fmt: skip


def slurm_headers(text: str, settings: Settings) -> dict[str, tuple[int, int]]:
    """`#SBATCH` lines: nodes, devices a node, tasks, each with its line. Others are left alone."""
    found: dict[str, tuple[int, int]] = {}
    for match in _SBATCH.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        words = match.group(1).split("#")[0].split()
        for key, value in pairs(words):
            name = _SLURM.get(key)
            if name is None:
                continue
            size = slurm_number(value, key)
            if size is None:
                settings.skip(line, f"#SBATCH --{key} {value}")
            else:
                found[name] = (size, line)
                for part in value.split(","):
                    kind = part.split(":")[-2] if ":" in part else ""
                    if kind and kind != "gpu" and kind not in settings.devices:
                        settings.devices.append(kind)
    return found


def slurm_number(value: str, key: str) -> int | None:
    """`4`, `4-8` (the larger is not promised: the smaller), `gpu:h100:8`, `h100:8`."""
    if key == "gres" and "gpu" not in value:
        return None
    tail = value.split(",")[0].rsplit(":", 1)[-1].split("(")[0].split("-")[0]
    return int(tail) if tail.isdigit() and len(tail) < 8 else None


def pairs(words: list[str]) -> list[tuple[str, str]]:
    """`--key=value`, `--key value`, `-N 4`, `-N4` as pairs; a bare flag has an empty value."""
    out: list[tuple[str, str]] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or len(word) < 2 or word[1].isdigit():
            continue
        key, sign, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(key) > 1 and not sign and key[1:].isdigit():
            key, value = key[0], key[1:]
        elif not sign and index < len(words) and not words[index].startswith("-"):
            value = words[index]
            index += 1
        out.append((key, value))
    return out


def size(facts: Facts) -> int | None:
    """World size from nodes, devices a node, tasks or the recipe's name; None where none says."""
    nodes, per_node = facts.whole("nodes"), facts.whole("per_node")
    world = facts.whole("world")
    if world is None and nodes and per_node:
        world = nodes * per_node
        facts.derive("world", world)
    if world is None and facts.whole("tasks") and (facts.whole("tasks") or 0) > (nodes or 0):
        world = facts.whole("tasks")
        facts.derive("world", world)
    if world and nodes and not per_node and world % nodes == 0:
        facts.derive("per_node", world // nodes)
    if world is None and facts.whole("named_world"):
        world = facts.whole("named_world")
        facts.assume("world", world, "the recipe's name")
    return world


def complete(facts: Facts, batch: bool = True) -> None:
    """World size, data parallel degree, microbatches and shard groups from what is known."""
    world = size(facts)
    inner = 1
    for name in ("tp", "cp", "pp"):
        inner *= max(1, facts.whole(name) or 1)
    if world and facts.whole("dp") is None and world % inner == 0:
        facts.derive("dp", world // inner)
    dp, mbs = facts.whole("dp"), facts.whole("mbs")
    if world is None and dp:
        facts.derive("world", inner * dp)
    if not batch:
        return
    gbs, count = facts.whole("gbs"), facts.whole("num_microbatches")
    if count is None and gbs and dp and mbs and gbs % (dp * mbs) == 0:
        facts.derive("num_microbatches", gbs // (dp * mbs))
    elif gbs is None and dp and mbs:
        facts.derive("gbs", dp * mbs * (count or 1))
        if count is None:
            facts.derive("num_microbatches", 1)
    copies = facts.whole("shard_instances")
    width = (dp or 0) * (facts.whole("cp") or 1)
    if copies and copies > 1 and width and width % copies == 0:
        facts.derive("shard_group", width // copies)
