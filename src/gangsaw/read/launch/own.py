"""gangsaw's own flags and plan files, as exports for torchrun, Slurm and Kubernetes hold them."""

from __future__ import annotations

from gangsaw.read.launch.document import Stated, Value
from gangsaw.read.launch.facts import Facts, catalog_name

_KEYS = {
    "tp": "tp", "cp": "cp", "pp": "pp", "vpp": "vpp", "dp": "dp", "ep": "ep", "etp": "etp",
    "mbs": "mbs", "schedule": "schedule", "recompute": "recompute", "zero": "zero",
    "shard_group": "shard_group", "sequence_parallel": "sp", "stages": "stages",
    "rank_order": "rank_order", "seq_len": "seq", "global_batch": "gbs",
    "num_microbatches": "num_microbatches", "precision": "precision", "task": "task",
    "lora_rank": "lora_rank", "tokens": "tokens", "offload_optimizer": "offload_optimizer",
    "offload_activations": "offload_activations", "recompute_layers": "recompute_layers",
}  # fmt: skip
_WITHOUT = {
    "plan", "stack", "steps", "out", "seed", "json", "site", "record", "resume", "data", "lr",
    "warmup", "tokenizer", "checkpoint_every", "trace_steps", "restarts", "sample", "model",
}  # fmt: skip


def take(facts: Facts) -> str:
    """Translate gangsaw's flags; the catalog's name of the model, "" when none is stated."""
    settings = facts.settings
    words: list[str] = []
    for item in settings:
        key = item.key.replace("-", "_")
        where = settings.at(item.line)
        if key.startswith("argument"):
            words.append(str(item.value))
            continue
        value: Value = item.value
        name = _KEYS.get(key, "")
        if key.startswith("no_") and key[3:] in _KEYS:
            name, value = _KEYS[key[3:]], False
        elif key == "offload":
            _offload(facts, item.value, where)
        elif not name and key not in _WITHOUT:
            settings.skip(item.line, f"--{item.key}")
        if name == "stages":
            value = _numbers(value)
        if name:
            facts.state(name, value, where)
        facts.stated.append(Stated(key=item.key, value=item.value, where=where, fact=name))
    _recompute(facts)
    words = [word for word in words if word != "train" and not word.endswith((".toml", ".json"))]
    if len(words) >= 2:
        _cluster(facts, words[1])
    model = settings.get("model")
    if isinstance(model, str):
        words.insert(0, model)
    return (catalog_name(words[0]) or words[0]) if words else ""


def _cluster(facts: Facts, text: str) -> None:
    name, _, count = text.rpartition(":")
    if count.isdigit() and len(count) < 9:
        facts.state("world", int(count), facts.settings.where)
        facts.state("cluster", name, facts.settings.where)


def _numbers(value: Value) -> Value:
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return [int(part) for part in parts if part.isdigit()]
    return [value] if isinstance(value, int) else value


def _offload(facts: Facts, value: Value, where: str) -> None:
    """`--offload optimizer=0.5,activations=0.25`; a name alone is all of it."""
    for part in str(value).split(","):
        name, _, share = part.replace("=", ":").partition(":")
        if name in ("optimizer", "activations"):
            try:
                facts.state(f"offload_{name}", float(share or 1.0), where)
            except ValueError:
                facts.settings.skip(0, f"--offload {part}")


def _recompute(facts: Facts) -> None:
    """`full:4` is full recompute of four layers a chunk."""
    text = str(facts.get("recompute") or "none")
    mode, _, count = text.partition(":")
    if count.isdigit():
        facts.state("recompute_layers", int(count), facts.held["recompute"].where)
    if facts.is_stated("recompute"):
        facts.state("recompute", mode, facts.held["recompute"].where)


def finish(facts: Facts) -> None:
    """gangsaw's own defaults for what the flags leave out."""
    source = "gangsaw's default"
    for name, value in (("tp", 1), ("cp", 1), ("pp", 1), ("vpp", 1), ("ep", 1), ("etp", 1),
                        ("mbs", 1), ("recompute", "none"), ("zero", 1), ("sp", True),
                        ("precision", "bf16")):  # fmt: skip
        facts.assume(name, value, source)
    facts.assume("schedule", "interleaved" if (facts.whole("vpp") or 1) > 1 else "1f1b", source)
