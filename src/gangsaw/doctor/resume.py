"""Resuming a checkpoint with another layout: whether, by what, and what it needs."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec import ModelSpec, Plan
from gangsaw.spec.base import Document
from gangsaw.units import GB

Format = Literal[
    "torch_dist", "torch", "fsdp_dtensor", "deepspeed", "deepspeed-universal", "dcp", "safetensors"
]
FORMATS: tuple[str, ...] = get_args(Format)
_LAYOUT = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp")


class Rule(NamedTuple):
    """What a format holds and lets change without conversion."""

    bytes_per_param: float
    weights_bytes_per_param: float
    free: frozenset[str]
    source: str


RULES: dict[str, Rule] = {
    "torch_dist": Rule(
        14.0, 2.0, frozenset(_LAYOUT),
        "megatron/core/dist_checkpointing, core_r0.12: shards carry their global shapes",
    ),
    "torch": Rule(
        14.0, 2.0, frozenset(("dp", "cp")),
        "megatron/training/checkpointing.py check_checkpoint_args, core_r0.12: one file a tensor"
        " and pipeline rank, degrees must be equal",
    ),
    "fsdp_dtensor": Rule(
        12.0, 4.0, frozenset(_LAYOUT),
        "Megatron FSDP checkpoints, core_r0.14: DTensors of torch.distributed.checkpoint",
    ),
    "deepspeed": Rule(
        14.0, 2.0, frozenset(("cp",)),
        "deepspeed/runtime/engine.py _load_zero_checkpoint, 0.18: one partition a data parallel"
        " rank",
    ),
    "deepspeed-universal": Rule(
        12.0, 4.0, frozenset(_LAYOUT),
        "deepspeed/checkpoint/ds_to_universal.py, 0.18: one folder a parameter, in fp32",
    ),
    "dcp": Rule(
        12.0, 4.0, frozenset(_LAYOUT),
        "torch.distributed.checkpoint, 2.7: loading plans reshard; torchtitan and gangsaw use it",
    ),
    "safetensors": Rule(
        2.0, 2.0, frozenset(_LAYOUT), "Hugging Face safetensors: whole tensors, weights alone",
    ),
}  # fmt: skip


class Through(NamedTuple):
    """How a group of frameworks writes and reads Hugging Face weights; they share checkpoints."""

    frameworks: tuple[str, ...]
    writes: str
    reads: str


THROUGH = (
    Through(
        ("megatron-lm", "megatron-bridge", "nemo", "verl"),
        "python examples/conversion/convert_checkpoints.py export --hf-model NAME"
        " --megatron-path OLD --hf-path HF  (Megatron-Bridge)",
        "python examples/conversion/convert_checkpoints.py import --hf-model HF"
        " --megatron-path NEW  (Megatron-Bridge)",
    ),
    Through(
        ("torchtitan",),
        "python scripts/checkpoint_conversion/convert_to_hf.py OLD HF  (torchtitan)",
        "checkpoint.initial_load_in_hf with initial_load_path HF  (torchtitan)",
    ),
    Through(
        ("deepspeed", "llama-factory", "axolotl", "ms-swift"),
        "python zero_to_fp32.py OLD HF --safe_serialization  (DeepSpeed)",
        "model_name_or_path HF  (transformers)",
    ),
    Through(
        ("gpt-neox",),
        "python tools/ckpts/convert_neox_to_hf.py --input_dir OLD --output_dir HF  (GPT-NeoX)",
        "python tools/ckpts/convert_hf_to_sequential.py  (GPT-NeoX)",
    ),
    Through(
        ("nanotron",),
        "torchrun --nproc-per-node 1 examples/llama/convert_nanotron_to_hf.py"
        " --checkpoint_path OLD --save_path HF  (nanotron)",
        "torchrun --nproc-per-node 1 examples/llama/convert_hf_to_nanotron.py"
        " --checkpoint_path HF --save_path NEW  (nanotron)",
    ),
)
"""Frameworks name and lay out parameters and optimizer state in their own way; what they have in
common are Hugging Face's names of weights. Scripts as in the frameworks' repositories of 2025."""


class ResumeResult(Document):
    """Whether a checkpoint of one plan can be resumed by another."""

    format: str
    changed: dict[str, tuple[int, int]] = Field(description="degree: saved, wanted")
    direct: bool = Field(description="it loads as it is, optimizer state included")
    weights_only: bool = Field(description="the optimizer state is lost on the way")
    by: str = Field(description="what reshards it")
    command: str = ""
    size_bytes: float
    host_bytes_per_node: float = Field(description="host memory that loading needs on a node")
    load_s: float | None = Field(None, description="at the stated storage bandwidth")
    convert_s: float | None = None
    warnings: tuple[str, ...] = ()
    source: str


def resume_check(
    model: ModelSpec,
    saved: Plan,
    wanted: Plan,
    form: str,
    ranks_per_node: int = 8,
    storage_bytes_per_s: float | None = None,
    *,
    frameworks: tuple[str, str] = ("", ""),
) -> ResumeResult:
    """Can a checkpoint saved under `saved` be resumed under `wanted`, by what, at what cost.

    `storage_bytes_per_s` is the bandwidth of all nodes together; `frameworks` saved it and is to
    resume it. Raises InputError for an unknown
    format.
    """
    if form not in RULES:
        raise InputError(f"checkpoint format {form!r} is unknown. Legal: {', '.join(FORMATS)}")
    crossed = all(frameworks) and _group(frameworks[0]) != _group(frameworks[1])
    if crossed and form != "safetensors":
        return _crossed(model, saved, wanted, form, frameworks, storage_bytes_per_s)
    rule = RULES[form]
    pairs = {key: (int(getattr(saved, key)), int(getattr(wanted, key))) for key in _LAYOUT}
    change = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if saved.stages != wanted.stages:
        change.setdefault("pp", pairs["pp"])
    blocked = set(change) - rule.free
    params = float(model.params())
    size = rule.bytes_per_param * params
    warnings = _warnings(form, change, params, ranks_per_node, saved)
    by, command, lossy = _way(form, bool(blocked), wanted)
    host = _host(form, bool(blocked), params, wanted, ranks_per_node)
    speed = storage_bytes_per_s
    read = rule.weights_bytes_per_param * params if lossy else size
    return ResumeResult(
        format=form, changed=change, direct=not blocked and form != "safetensors",
        weights_only=lossy or form == "safetensors", by=by, command=command, size_bytes=size,
        host_bytes_per_node=host, load_s=read / speed if speed else None,
        convert_s=(size + read) / speed if speed and blocked else None, warnings=warnings,
        source=rule.source,
    )  # fmt: skip


def _group(framework: str) -> int:
    """Which of THROUGH a framework belongs to; a number of its own for what is not there."""
    for at, through in enumerate(THROUGH):
        if framework in through.frameworks:
            return at
    return len(THROUGH) + sum(framework.encode())


def _crossed(
    model: ModelSpec,
    saved: Plan,
    wanted: Plan,
    form: str,
    frameworks: tuple[str, str],
    storage_bytes_per_s: float | None,
) -> ResumeResult:
    """From one framework to another: weights alone, through Hugging Face's names."""
    groups = [_group(name) for name in frameworks]
    ends = [THROUGH[g] if g < len(THROUGH) else None for g in groups]
    writes = ends[0].writes if ends[0] else ""
    reads = ends[1].reads if ends[1] else ""
    unknown = [name for name, end in zip(frameworks, ends, strict=True) if end is None]
    warnings = ["the optimizer state stays behind: warm the learning rate up again"]
    warnings += [f"no converter of {name} is known here" for name in unknown]
    params, speed = float(model.params()), storage_bytes_per_s
    size = RULES[form].bytes_per_param * params
    weights = RULES["safetensors"].bytes_per_param * params
    pairs = {key: (int(getattr(saved, key)), int(getattr(wanted, key))) for key in _LAYOUT}
    return ResumeResult(
        format=form, changed={k: v for k, v in pairs.items() if v[0] != v[1]}, direct=False,
        weights_only=True,
        by=f"Hugging Face safetensors, which {frameworks[0]} writes and {frameworks[1]} reads",
        command=" ; then ".join(part for part in (writes, reads) if part), size_bytes=size,
        host_bytes_per_node=4.0 * params, load_s=weights / speed if speed else None,
        convert_s=(size + weights) / speed if speed else None, warnings=tuple(warnings),
        source="converters in the repositories of the frameworks, 2025",
    )  # fmt: skip


def _way(form: str, blocked: bool, wanted: Plan) -> tuple[str, str, bool]:
    """What reshards, the command, and whether optimizer state is lost."""
    if form == "torch" and blocked:
        command = (
            "python tools/checkpoint/convert.py --model-type GPT --loader mcore --saver mcore"
            f" --target-tensor-parallel-size {wanted.tp}"
            f" --target-pipeline-parallel-size {wanted.pp} --load-dir OLD --save-dir NEW"
        )
        return "Megatron-LM's converter, on one host", command, True
    if form == "deepspeed" and blocked:
        command = (
            "python -m deepspeed.checkpoint.ds_to_universal --input_folder OLD --output_folder NEW"
            ' ; then "checkpoint": {"load_universal": true}'
        )
        return "DeepSpeed's universal checkpoint", command, False
    if form == "torch_dist":
        return "Megatron's distributed checkpointing, while loading", "", False
    if form == "safetensors":
        return "any loader, weights alone", "", True
    if form in ("dcp", "fsdp_dtensor"):
        return "torch.distributed.checkpoint, while loading", "", False
    return "the framework itself, while loading", "", False


def _host(form: str, blocked: bool, params: float, wanted: Plan, ranks: int) -> float:
    """Host memory that a node needs while loading or converting.

    Resharding formats read each rank's own part; DeepSpeed's ranks each read all partitions of
    their model-parallel group; a converter holds the whole model twice on one host.
    """
    if form == "torch" and blocked:
        return 2.0 * 4.0 * params
    split = wanted.tp * wanted.pp
    if form == "deepspeed":
        return 12.0 * params / split * ranks
    if form == "torch":
        return 14.0 * params / split * ranks / max(1, wanted.dp)
    return 14.0 * params * ranks / max(1, wanted.devices)


def _warnings(
    form: str, change: dict[str, tuple[int, int]], params: float, ranks: int, saved: Plan
) -> tuple[str, ...]:
    lines = []
    moved = set(change) & {"tp", "pp", "vpp", "ep", "etp"}
    if form == "torch_dist" and moved and saved.zero >= 1:
        lines.append(
            "since core_r0.14 optimizer state reshards over tp, pp and ep only where it was saved"
            " with --dist-ckpt-optim-fully-reshardable; else resume with --no-load-optim"
        )
    if form == "torch_dist" and moved:
        lines.append("saved with --no-ckpt-fully-parallel-save it cannot change its layout")
    if form == "deepspeed" and saved.zero in (1, 2):
        total = 12.0 * params * ranks / GB
        lines.append(
            f"every data parallel rank reads all optimizer state of its group: up to {total:,.0f}"
            f" GB of host memory on a node of {ranks} ranks"
        )
    if "dp" in change and change["dp"][1] * 2 <= change["dp"][0]:
        lines.append("fewer data parallel ranks hold more optimizer state each: check that it fits")
    return tuple(lines)
