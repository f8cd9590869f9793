"""Why a run was out of memory, and the cheapest changes that fit."""

from __future__ import annotations

from contextlib import suppress

from pydantic import Field, ValidationError

from gangsaw.doctor.check import on_cluster
from gangsaw.doctor.hang import parse_hang
from gangsaw.doctor.oom_message import OomMessage, parse_message
from gangsaw.doctor.predict import changed, full_estimate, job_of
from gangsaw.doctor.tensors import Tensor, bucket_tensors, padded_vocab, tensors, tokens_of
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch.document import LaunchFile
from gangsaw.spec import ClusterSpec, Job, Plan, Recipe, StackProfile
from gangsaw.spec.base import Document
from gangsaw.spec.result import EstimateResult
from gangsaw.units import GIB, MIB, format_gib

MATCH_FRAC = 0.01
"""Up to this relative error a tensor is named; beyond it, it is only the nearest."""
ROUND_BYTES = 2 * MIB
"""PyTorch rounds large requests up to 2 MiB (c10/cuda/CUDACachingAllocator.h, kRoundLarge)."""
CONTEXT_BYTES = 1.5e9


class Match(Document):
    """A tensor whose size is, or is near to, what was requested."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    bytes: float
    error_frac: float


class Repair(Document):
    """A change of the plan, its predicted peak and what it costs in step time."""

    change: str
    peak_bytes: float
    step_time_change_frac: float
    fits: str = Field(description="yes or risky")


class OomResult(Document):
    """What `oom --json` prints."""

    kind: str
    requested_bytes: float | None
    named: bool = Field(description="whether a tensor's size agrees to 1 %")
    matches: tuple[Match, ...] = ()
    cause: str = Field(description="fragmentation, shortage, host, too large, or hang")
    explanation: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    predicted_peak_bytes: float | None = None
    measured_need_bytes: float | None = None
    cluster: str = ""
    notes: tuple[str, ...] = ()


def explain_oom(
    message: str,
    launch: LaunchFile,
    cluster: ClusterSpec | None = None,
    stack: StackProfile | None = None,
) -> OomResult:
    """Name the tensor that did not fit, tell fragmentation from shortage, list what would fit.

    Raises InputError when `message` holds no out-of-memory message. Without a cluster one is
    taken whose device has the capacity that the message states.
    """
    hang = parse_hang(message, cluster)
    if hang is not None and "ut of memory" not in message:
        return OomResult(
            kind="timeout", requested_bytes=None, named=False, cause="hang",
            explanation=(hang.explanation,), cluster=cluster.name if cluster else "",
        )  # fmt: skip
    said = parse_message(message)
    launch = on_cluster(launch, cluster)
    notes: list[str] = []
    if cluster is None:
        cluster = _by_capacity(said, launch, notes)
    found = _matches(said, launch)
    named = bool(found) and found[0].error_frac <= MATCH_FRAC
    lines = [*_cause_lines(said), *_inverted(said, launch, named)]
    if found and not named and said.requested_bytes:
        lines.append(
            f"no tensor of this plan has {format_gib(said.requested_bytes)}; the nearest are listed"
        )
    job = job_of(launch, cluster, stack)
    base = full_estimate(job, launch.plan)
    if base is None:
        notes.append("no repairs: " + ("; ".join(launch.missing) or "the plan is not legal"))
    need = _need(said)
    repairs = _repairs(job, launch.plan, base, need, said)
    if base is not None and not repairs and said.kind == "device":
        notes.append(
            "no change or pair of changes brings the prediction below the device's memory; gangsaw"
            " plan looks at all plans"
        )
    return OomResult(
        kind=said.kind, requested_bytes=said.requested_bytes, named=named,
        matches=found, cause=_cause(said), explanation=tuple(lines), repairs=repairs,
        predicted_peak_bytes=base.memory.peak_bytes if base else None, measured_need_bytes=need,
        cluster=cluster.name if cluster else "", notes=tuple(notes),
    )  # fmt: skip


# -- the tensor ---------------------------------------------------------------------------------


def _matches(said: OomMessage, launch: LaunchFile) -> tuple[Match, ...]:
    """Tensors of the requested size, nearest first; at least three nearest where none agrees."""
    recipe, plan = _shape_of(launch)
    if said.requested_bytes is None or launch.model is None or recipe is None or plan is None:
        return ()
    wanted = said.requested_bytes
    # What rounding of the message and of the allocator may hide does not count as error.
    slack = said.step_bytes + (ROUND_BYTES if wanted > 10 * MIB else 0.0)

    def error(item: Tensor) -> float:
        return max(0.0, abs(item.bytes - wanted) - slack) / wanted

    ranked = sorted(
        [*tensors(launch.model, recipe, plan), *_buckets(launch)],
        key=lambda item: (round(error(item), 3), item.prior, abs(item.bytes - wanted)),
    )
    close = [item for item in ranked if error(item) <= MATCH_FRAC][:5] or ranked[:3]
    return tuple(
        Match(
            tensor=item.name, shape=item.shape, dtype=item.dtype, bytes=item.bytes,
            error_frac=abs(item.bytes - wanted) / wanted,
        )
        for item in close
    )  # fmt: skip


def _buckets(launch: LaunchFile) -> list[Tensor]:
    return bucket_tensors(launch.facts) if launch.facts.get("zero") else []


def _shape_of(launch: LaunchFile) -> tuple[Recipe | None, Plan | None]:
    """Recipe and plan; where the number of devices is not stated, those of a single replica.

    Tensors of activations do not depend on it, sharded state does and is then named unsharded.
    """
    recipe, plan = launch.recipe, launch.plan
    seq, mbs = launch.facts.get("seq"), launch.facts.get("mbs")
    if recipe is None and isinstance(seq, int) and isinstance(mbs, int):
        with suppress(ValidationError):  # sizes that no recipe may have name no tensor
            recipe = Recipe(seq_len=seq, global_batch=mbs)
    if plan is None and isinstance(mbs, int):
        keys = ("tp", "cp", "pp", "vpp", "ep", "etp", "mbs")
        data: dict[str, object] = {key: launch.facts[key] for key in keys if launch.facts.get(key)}
        data.update({"dp": 1, "num_microbatches": 1})
        plan = changed(Plan(), data)
    return recipe, plan


def _inverted(said: OomMessage, launch: LaunchFile, named: bool) -> list[str]:
    """How many tokens a request would be, were it the logits: packed batches show this way."""
    model = launch.model
    recipe, plan = _shape_of(launch)
    if said.requested_bytes is None or model is None or recipe is None or plan is None or named:
        return []
    width = padded_vocab(model, plan) // plan.tp
    lines = []
    for vocab in dict.fromkeys((width, model.vocab // plan.tp)):
        count = said.requested_bytes / (4.0 * vocab)
        stated = tokens_of(recipe, plan)
        if count > 1.5 * stated and said.step_bytes / (4.0 * vocab) < 0.02 * count:
            lines.append(
                f"as fp32 logits it would be about {round(count, -2):,.0f} tokens x {vocab:,}"
                f" vocabulary entries: {count / stated:.1f} times the {stated:,} tokens of a"
                " microbatch (a packed batch over its limit)"
            )
            break
    return lines


# -- the cause ----------------------------------------------------------------------------------


def _cause(said: OomMessage) -> str:
    if said.kind == "host":
        return "host"
    wanted = said.requested_bytes or 0.0
    if said.total_bytes is not None and wanted > said.total_bytes:
        return "too large"
    unused, free = said.unused_bytes, said.free_bytes or 0.0
    if unused is not None and unused >= wanted > 0:
        return "fragmentation"
    if unused is not None and unused + free >= wanted > 0 and unused > 0.5 * wanted:
        return "fragmentation"
    return "shortage"


def _cause_lines(said: OomMessage) -> list[str]:
    cause, unused = _cause(said), said.unused_bytes
    if cause == "host":
        return [
            "host memory ran out, not the device: count data loader workers x ranks a node, pinned"
            " buffers and offloaded state (12 to 16 bytes a parameter)"
        ]
    if cause == "fragmentation" and unused is not None:
        return [
            f"fragmentation: {format_gib(unused)} are reserved and unused, the request is"
            f" {format_gib(said.requested_bytes or 0.0)}; PYTORCH_CUDA_ALLOC_CONF="
            "expandable_segments:True lets them be used, at no cost in step time"
        ]
    if said.outside:
        return [
            "a library outside of PyTorch's allocator (NCCL, cuBLAS, the driver) found no memory:"
            " the allocator held it. Leave it 2 to 4 GiB (a smaller share for PyTorch, fewer"
            " communicators, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or make the step"
            " smaller"
        ]
    if said.requested_bytes is None:
        return ["the message states no size: shortage of device memory, tensor not named"]
    if cause == "too large":
        return ["one tensor is larger than the device: it has to be split, not squeezed"]
    detail = ""
    if unused is not None:
        detail = f": only {format_gib(unused)} are reserved and unused"
    return [f"shortage, not fragmentation{detail}"]


def _need(said: OomMessage) -> float | None:
    """Device memory that the process would have needed at the failed request."""
    if said.requested_bytes is None or said.kind == "host":
        return None
    if said.allocated_bytes is not None:
        return said.allocated_bytes + said.requested_bytes + CONTEXT_BYTES
    if said.in_use_bytes is not None:
        return said.in_use_bytes + said.requested_bytes
    return None


_BY_CAPACITY = (
    (24.5, "rtx-4090"), (33.0, "v100-sxm-32g"), (41.0, "a100-sxm-40g"), (66.0, "a100-sxm-40g"),
    (81.0, "h100-sxm"), (97.0, "h100-sxm-96g"), (142.0, "h200-sxm"), (186.0, "b200"),
    (200.0, "mi300x"), (260.0, "mi325x"), (290.0, "b300"),
)  # fmt: skip


def _by_capacity(said: OomMessage, launch: LaunchFile, notes: list[str]) -> ClusterSpec | None:
    """A cluster of the stated capacity, for repairs; noted as assumed."""
    world = launch.facts.get("world")
    if said.total_bytes is None or not isinstance(world, int):
        return None
    for limit, name in _BY_CAPACITY:
        if said.total_bytes / GIB <= limit:
            notes.append(f"device not stated: {name} assumed from a capacity of"
                         f" {format_gib(said.total_bytes)}")  # fmt: skip
            found = load_cluster(f"{name}:{world}")
            device = found.device.model_copy(update={"memory_bytes": said.total_bytes})
            return found.model_copy(update={"device": device})
    return None


# -- repairs ------------------------------------------------------------------------------------


def _repairs(
    job: Job | None,
    plan: Plan | None,
    base: EstimateResult | None,
    need: float | None,
    said: OomMessage,
) -> tuple[Repair, ...]:
    """Changes whose predicted peak fits, the cheapest in step time first.

    Where the message shows more memory in use than predicted, the difference is added to every
    prediction: it is there, whatever it is.
    """
    if job is None or plan is None or base is None or said.kind == "host":
        return ()
    more = max(0.0, need - base.memory.peak_bytes) if need is not None else 0.0
    capacity = base.memory.capacity_bytes
    found: dict[str, Repair] = {}
    for text, change in changes(plan, job):
        other = full_estimate(job, changed(plan, change))
        if other is None:
            continue
        peak = other.memory.peak_bytes + more
        if peak > 0.97 * capacity or peak >= base.memory.peak_bytes + more:
            continue
        found[text] = Repair(
            change=text, peak_bytes=peak, fits="yes" if peak <= 0.92 * capacity else "risky",
            step_time_change_frac=other.step_time_s / base.step_time_s - 1.0,
        )  # fmt: skip
    ranked = sorted(found.values(), key=lambda item: (item.step_time_change_frac, item.peak_bytes))
    return tuple(ranked[:8])


def changes(plan: Plan, job: Job) -> list[tuple[str, dict[str, object]]]:
    """Single changes and a few pairs of them, as text and as fields of the plan."""
    single = _activations(plan) + _sharding(plan, job)
    pairs = []
    for first in single:
        for second in single:
            if first[0] < second[0] and not set(first[1]) & set(second[1]):
                pairs.append((f"{first[0]}, {second[0]}", {**first[1], **second[1]}))
    return single + pairs[:60]


def _activations(plan: Plan) -> list[tuple[str, dict[str, object]]]:
    out: list[tuple[str, dict[str, object]]] = []
    if plan.mbs > 1 and plan.mbs % 2 == 0:
        half: dict[str, object] = {
            "mbs": plan.mbs // 2, "num_microbatches": plan.num_microbatches * 2,
        }  # fmt: skip
        out.append((f"mbs {plan.mbs} -> {plan.mbs // 2}", half))
    if plan.recompute == "none":
        out.append(("selective recompute", {"recompute": "selective"}))
    if plan.recompute != "full":
        out.append(("full recompute", {"recompute": "full", "recompute_layers": 0}))
    elif plan.recompute_layers:
        out.append(("full recompute of all layers", {"recompute_layers": 0}))
    if plan.tp > 1 and not plan.sequence_parallel:
        out.append(("sequence parallelism", {"sequence_parallel": True}))
    return out


def _sharding(plan: Plan, job: Job) -> list[tuple[str, dict[str, object]]]:
    out: list[tuple[str, dict[str, object]]] = []
    for stage in range(plan.zero + 1, 4):
        if plan.dp * plan.cp > 1 and (stage < 2 or plan.pp == 1):
            out.append((f"ZeRO stage {plan.zero} -> {stage}", {"zero": stage}))
    if plan.offload_optimizer < 1.0:
        out.append(("optimizer offload to the host", {"offload_optimizer": 1.0}))
    if plan.dp % 2 == 0:
        more = {"dp": plan.dp // 2, "num_microbatches": plan.num_microbatches * 2}
        for axis in ("tp", "pp", "cp"):
            size = int(getattr(plan, axis))
            if axis == "tp" and 2 * size > job.cluster.host.devices:
                continue
            fields: dict[str, object] = {**more, axis: 2 * size}
            if axis == "tp":
                fields["sequence_parallel"] = True
            out.append((f"{axis} {size} -> {2 * size} (dp {plan.dp} -> {plan.dp // 2})", fields))
    moe = next((k.moe for k in job.model.kinds if k.moe is not None), None)
    if moe is not None and moe.experts % (2 * plan.ep) == 0:
        out.append((f"ep {plan.ep} -> {2 * plan.ep}", {"ep": 2 * plan.ep}))
    return out
