"""Predicted memory and time of a launch file's plan and of its repairs, where they can be had."""

from __future__ import annotations

from typing import NamedTuple

from gangsaw.errors import GangsawError
from gangsaw.fit.row_recipe import with_facts
from gangsaw.read.launch.document import LaunchFile
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import ClusterSpec, Job, Plan, StackProfile, blocking
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
    """A plan's device-visible peak, its step time and the tokens of a step."""

    peak_bytes: float
    step_s: float
    tokens: float


def stack_for(launch: LaunchFile, stack: StackProfile | None) -> StackProfile:
    """The stack chosen, else the usual one of the file's framework; both as the file sets them."""
    if stack is not None:
        return as_set(stack, launch)
    name = STACKS.get(launch.framework, "unknown")
    if name == "torchtitan" and launch.facts.get("compile") is True:
        name = "torchtitan-compiled"
    if name == "megatron-core-te" and launch.facts.get("precision") == "fp8":
        name = "megatron-core-te-fp8"
    return as_set(load_stack(name if name in list_stacks() else "unknown"), launch)


_UNFUSED_SCORE_BYTES = 5.0
"""Korthikanti et al., arXiv:2205.05198, section 4: 5 a s^2 b bytes of scores, softmax and mask."""


def as_set(stack: StackProfile, launch: LaunchFile) -> StackProfile:
    """The stack as the file's own switches make it: overlap, attention kernel, dropout, loss."""
    memory: dict[str, object] = {}
    time: dict[str, object] = {}
    facts = launch.facts
    megatron = launch.framework in ("megatron-lm", "megatron-bridge", "nemo")
    if str(facts.get("grads_dtype")) in ("bf16", "bfloat16") and stack.rules.startswith("mega"):
        memory["grad_bytes"] = 2.0
    if megatron and facts.get("overlap_grad") is False and not facts.get("torch_fsdp"):
        time["dp_overlap_backward_frac"] = 0.0
    if megatron and facts.get("overlap_param") is False and not facts.get("torch_fsdp"):
        time["dp_overlap_forward_frac"] = 0.0
    if facts.get("overlap_comm") is False and "overlap_comm" in launch.wheres:
        time |= {"dp_overlap_backward_frac": 0.0, "zero3_overlap_frac": 0.0}
    if megatron and str(facts.get("attention_backend")).lower().endswith("unfused"):
        memory["unfused_score_bytes"] = _UNFUSED_SCORE_BYTES
        time["attention_kernel"] = "unfused"
    if launch.framework == "megatron-lm" and facts.get("hidden_dropout") not in (None, 0, 0.0):
        memory["dropout"] = True
    if facts.get("no_loss_parallel") is True:
        memory["logits_vocab_parallel"] = False
    blocked = facts.get("launch_blocking", launch.env.get("CUDA_LAUNCH_BLOCKING") == "1")
    timed = with_facts(stack.time.model_copy(update=time), _routing(launch))
    if not memory and timed == stack.time and not blocked:
        return stack
    return stack.model_copy(update={
        "memory": stack.memory.model_copy(update=memory),
        "time": blocking(timed) if blocked else timed,
    })  # fmt: skip


def _routing(launch: LaunchFile) -> dict[str, object]:
    """Dispatcher, CUDA graphs and overlap of routed layers as Megatron's flags state them."""
    flags, found = launch.flags, dict[str, object]()
    dispatcher = str(launch.facts.get("dispatcher"))
    if dispatcher == "flex":
        backend = str(flags.get("moe_flex_dispatcher_backend") or "deepep")
        found["dispatcher"] = backend
    elif dispatcher == "alltoall":
        found["dispatcher"] = dispatcher
    if flags.get("overlap_moe_expert_parallel_comm") is True:
        found["ep_overlap"] = True
    scope = str(flags.get("cuda_graph_scope") or "")
    if flags.get("cuda_graph_impl") == "transformer_engine" and "moe_router" in scope:
        found["graphs"] = "parts"
    elif flags.get("cuda_graph_impl") == "local" and "full_iteration" in scope:
        found["graphs"] = "full"
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
    if found is None or job is None:
        return None
    return Predicted(found.memory.peak_bytes, found.step_time_s, job.recipe.tokens_per_step)


def why_not(job: Job | None, plan: Plan | None) -> str:
    """Why a plan cannot be predicted, in one line; "" where it can."""
    if job is None or plan is None:
        return "model, recipe or plan are not stated in full"
    try:
        estimate(job, plan)
    except GangsawError as error:
        return str(error)
    return ""


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
