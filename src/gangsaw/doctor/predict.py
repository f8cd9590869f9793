"""Predicted memory and time of a launch file's plan and of its repairs, where they can be had."""

from __future__ import annotations

from typing import NamedTuple

from gangsaw.errors import GangsawError
from gangsaw.read.launch.document import LaunchFile
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import ClusterSpec, Job, Plan, StackProfile
from gangsaw.spec.result import EstimateResult

STACKS = {
    "megatron-lm": "megatron-core-te", "megatron-bridge": "megatron-core-te",
    "nemo": "megatron-core-te", "verl": "megatron-core-te", "ms-swift": "megatron-core-te",
    "torchtitan": "torchtitan",
    "deepspeed": "hf-eager", "llama-factory": "hf-eager", "axolotl": "hf-eager",
    "gpt-neox": "megatron-deepspeed-fp16", "nanotron": "nanotron",
}  # fmt: skip
"""The stack profile that a framework's files are predicted with when none is chosen."""


class Predicted(NamedTuple):
    """A plan's device-visible peak and its step time."""

    peak_bytes: float
    step_s: float


def stack_for(launch: LaunchFile, stack: StackProfile | None) -> StackProfile:
    """The stack chosen, else the usual one of the file's framework."""
    if stack is not None:
        return stack
    name = STACKS.get(launch.framework, "unknown")
    if name == "torchtitan" and launch.facts.get("compile") is True:
        name = "torchtitan-compiled"
    if name == "megatron-core-te" and launch.facts.get("precision") == "fp8":
        name = "megatron-core-te-fp8"
    found = load_stack(name if name in list_stacks() else "unknown")
    if str(launch.facts.get("grads_dtype")) in ("bf16", "bfloat16") and name.startswith("mega"):
        memory = found.memory.model_copy(update={"grad_bytes": 2.0})
        return found.model_copy(update={"memory": memory})
    return found


def job_of(
    launch: LaunchFile, cluster: ClusterSpec | None, stack: StackProfile | None
) -> Job | None:
    """The job of a launch file; None where model, recipe or cluster are not known."""
    if launch.model is None or launch.recipe is None or cluster is None:
        return None
    return Job(
        model=launch.model, recipe=launch.recipe, cluster=cluster, stack=stack_for(launch, stack)
    )


def full_estimate(job: Job | None, plan: Plan | None) -> EstimateResult | None:
    """The estimate of a plan; None where the plan is not known or not legal."""
    if job is None or plan is None:
        return None
    try:
        return estimate(job, plan)
    except GangsawError:
        return None


def predict(job: Job | None, plan: Plan | None) -> Predicted | None:
    """Peak and step time of a plan; None where they cannot be had."""
    found = full_estimate(job, plan)
    return None if found is None else Predicted(found.memory.peak_bytes, found.step_time_s)


def changed(plan: Plan | None, change: dict[str, object]) -> Plan | None:
    """`plan` with fields changed; stage maps that no longer fit are left out. None if illegal."""
    if plan is None:
        return None
    data = plan.model_dump()
    data.update(change)
    if data.get("stages") is not None and len(data["stages"]) != data["pp"] * data["vpp"]:
        data["stages"] = None
    if "schedule" not in change and data["vpp"] == 1 and data["schedule"] == "interleaved":
        data["schedule"] = "1f1b"
    try:
        return Plan.model_validate(data)
    except ValueError:
        return None
