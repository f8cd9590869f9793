"""From documents to the numbers that the formulas take (cost.types)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gangsaw.cost.fitted import (
    combined,
    device_family,
    fitted_device,
    fitted_net,
    fitted_stack,
    load_fitted,
)
from gangsaw.cost.loads import LOOP, V_SHAPE, chunk_rank, group_ranks, rank_table
from gangsaw.cost.lower_cluster import device_of, net_of
from gangsaw.cost.lower_model import ends_of, kinds_of
from gangsaw.cost.types import (
    CORE_ATTENTION,
    FULL,
    MODULES,
    NONE,
    OP_LEVEL,
    SELECTIVE,
    Cut,
    Device,
    Ends,
    Kind,
    Loads,
    Net,
    StackMem,
    StackT,
    State,
    Strides,
)
from gangsaw.spec import AttentionCurve, DeviceSpec, ModelSpec, Plan, Recipe, StackProfile
from gangsaw.spec.job import Job
from gangsaw.spec.plan import OWN_FILES, SCHEDULES

RECOMPUTE = {"none": NONE, "selective": SELECTIVE, "full": FULL}
SELECTIVE_CODE = {"core_attention": CORE_ATTENTION, "op": OP_LEVEL, "modules": MODULES}
_FALLBACK = {
    "flash": ("flash", "flash3", "cudnn", "triton"),
    "flash3": ("flash3", "cudnn", "flash"),
    "cudnn": ("cudnn", "flash3", "flash"),
    "triton": ("triton", "flash", "cudnn"),
    "triton-2023": ("triton-2023", "triton", "flash", "cudnn"),
    "unfused": ("flash", "cudnn"),
}


def schedule_code(name: str) -> int:
    """Number of a schedule; a file of the user's own is timed as `auto`."""
    return SCHEDULES.index("auto" if name.startswith(OWN_FILES) else name)


def attention_curve(device: DeviceSpec, kernel: str) -> AttentionCurve | None:
    """The curve of an attention kernel on a device, or of the nearest kernel it has."""
    by_name = {c.kernel: c for c in device.attention}
    for name in _FALLBACK.get(kernel, (kernel, "flash", "cudnn")):
        if name in by_name:
            return by_name[name]
    return device.attention[0] if device.attention else None


def _at_width(table: dict[int, float], width: float) -> float:
    """Linear between the head widths of a table, constant beyond its ends."""
    keys = sorted(table)
    return float(np.interp(width, keys, [table[k] for k in keys]))


def with_attention(kinds: Sequence[Kind], curve: AttentionCurve | None) -> tuple[Kind, ...]:
    """Kinds with the asymptotes of the attention kernel at their head width."""
    out = []
    for kind in kinds:
        a_fwd, a_bwd = 0.45, 0.4
        if curve is not None:
            width = max(kind.head_dim, kind.v_head_dim)
            a_fwd = _at_width(curve.a_fwd, width)
            a_bwd = _at_width(curve.a_bwd, width) if curve.a_bwd else 0.87 * a_fwd
        out.append(kind._replace(attention_a_fwd=a_fwd, attention_a_bwd=a_bwd))
    return tuple(out)


def stack_time_of(stack: StackProfile) -> StackT:
    """The time entries of a stack as numbers."""
    t, m = stack.time, stack.memory
    return StackT(
        gemm_factor=t.gemm_factor,
        fused_attention=0.0 if t.attention_kernel == "unfused" else 1.0,
        attention_factor=t.attention_factor,
        unfused_traffic=t.unfused_traffic_bytes,
        unfused_k0=t.unfused_k0,
        unaligned=t.unaligned_factor,
        traffic=t.traffic_factor,
        launch_floor_layer_s=(1.0 - t.graphed_frac) * t.launch_floor_layer_s,
        launch_blocking=1.0 if t.launch_blocking else 0.0,
        collective_overhead_s=t.collective_overhead_s,
        tp_exposed_fwd=t.tp_exposed_fwd_frac,
        tp_exposed_bwd=t.tp_exposed_bwd_frac,
        tp_copy=t.tp_copy_bytes,
        fp8_gather=t.fp8_gather_bytes,
        cp_exposed=t.cp_exposed_frac,
        ep_exposed=t.ep_exposed_frac,
        ep_paired=1.0 if t.ep_paired else 0.0,
        ep_once=1.0 if t.ep_once_a_node else 0.0,
        dp_overlap_backward=t.dp_overlap_backward_frac,
        dp_overlap_forward=t.dp_overlap_forward_frac,
        zero3_overlap=t.zero3_overlap_frac,
        pp_exposed=t.pp_exposed_frac,
        sp_regather_exposed=t.sp_regather_exposed_frac,
        step_overhead_s=t.step_overhead_s,
        microbatch_overhead_s=t.microbatch_overhead_s,
        optimizer_traffic=t.optimizer_traffic_bytes,
        loss_traffic=t.loss_traffic_bytes,
        fp8_cast=t.fp8_cast_bytes,
        moe_permute=t.moe_permute_factor,
        moe_layer_floor_s=(1.0 - t.graphed_frac) * t.moe_layer_floor_s,
        dropout=1.0 if m.dropout else 0.0,
        selective=float(SELECTIVE_CODE[m.selective]),
        grad_bytes=m.grad_bytes,
        param_bytes=m.gathered_param_bytes,
        dp_traffic=t.dp_traffic_factor,
    )


def stack_memory_of(stack: StackProfile) -> StackMem:
    """The memory entries of a stack as numbers, field by field."""
    m = stack.memory
    values: dict[str, float] = {}
    for name in StackMem._fields:
        raw = getattr(m, name)
        values[name] = float(SELECTIVE_CODE[raw]) if name == "selective" else float(raw)
    return StackMem(**values)


def cut_of(plan: Plan, recipe: Recipe) -> Cut:
    """How a layer is split under the plan."""
    return Cut(
        tp=float(plan.tp),
        cp=float(plan.cp),
        ep=float(plan.ep),
        etp=float(plan.etp),
        edp=float(plan.expert_dp),
        sp=1.0 if plan.sequence_parallel and plan.tp > 1 else 0.0,
        mbs=float(plan.mbs),
        seq_len=float(recipe.seq_len),
        act_bytes=4.0 if recipe.precision == "fp32" else 2.0,
        fp8=1.0 if recipe.precision == "fp8" else 0.0,
        imbalance=recipe.moe_imbalance,
    )


def axis_strides(order: Sequence[str], plan: Mapping[str, int]) -> Strides:
    """Distance between neighbours of each group: the product of the axes inside it.

    `plan` holds tp, cp, dp, pp, ep, etp. Experts are laid out over the tp x cp x dp ranks of a
    stage, expert tensor parallelism innermost; neighbours further apart than the block of ranks
    that lies inside pp are pp times as far in device numbers.
    """
    stride = 1
    at: dict[str, float] = {}
    for axis in order:
        at[axis] = float(stride)
        if axis != "ep":
            stride *= plan[axis]
    apart = {"etp": 1, "ep": plan["etp"], "edp": plan["etp"] * plan["ep"]}
    ranks = plan["tp"] * plan["cp"] * plan["dp"]
    for group, own in apart.items():
        spread = own >= at["pp"] and at["pp"] < ranks
        at[group] = float(own * plan["pp"] if spread else own)
    return Strides(
        tp=at["tp"],
        cp=at["cp"],
        dp=min(at["cp"], at["dp"]) if plan["cp"] > 1 else at["dp"],
        pp=at["pp"],
        ep=at["ep"],
        etp=at["etp"],
        edp=at["edp"],
    )


def strides_of(plan: Plan) -> Strides:
    """Strides of the plan's groups under its rank order."""
    degrees = {a: getattr(plan, a) for a in ("tp", "cp", "dp", "pp", "ep", "etp")}
    return axis_strides(plan.rank_order.split("-"), degrees)


def state_of(plan: Plan) -> State:
    """Sharding, schedule and recompute of the plan as numbers."""
    group = plan.dp * plan.cp
    return State(
        pp=float(plan.pp),
        vpp=float(plan.vpp),
        m=float(plan.num_microbatches),
        schedule=float(schedule_code(plan.schedule)),
        recompute=float(RECOMPUTE[plan.recompute]),
        recompute_layers=float(plan.recompute_layers),
        zero=float(plan.zero),
        shard=float(min(plan.shard_group or group, group)),
        expert_shard=float(plan.expert_dp),
        dp=float(group),
        offload_optimizer=plan.offload_optimizer,
        offload_activations=plan.offload_activations,
    )


def v_shaped(schedule: str) -> bool:
    """Whether the chunks of a rank run down and up again, so that rank 0 has both ends."""
    return schedule in ("zb-v", "v-half", "v-min", "dualpipe-v") or schedule.startswith("file-v:")


def rank_of_chunk(chunk: int, pp: int, schedule: str) -> int:
    """The pipeline rank that holds a chunk (stages in order 0 .. pp*vpp-1)."""
    return chunk_rank(chunk, pp, shape_of(schedule))


def shape_of(schedule: str) -> int:
    """How the chunks of a schedule lie on ranks, as a number."""
    return V_SHAPE if v_shaped(schedule) else LOOP


def layer_order(model: ModelSpec) -> np.ndarray:
    """Kind of each decoder layer, as floats for the kernels."""
    return np.array(model.order, dtype=np.float64)


def end_layers(model: ModelSpec) -> tuple[float, float]:
    """Layers of multi-token prediction and of the vision tower."""
    return (
        float(model.mtp.layers) if model.mtp else 0.0,
        float(model.vision.layers) if model.vision else 0.0,
    )


def kind_count(model: ModelSpec) -> int:
    """Layer kinds with those of multi-token prediction and of the vision tower."""
    return len(model.kinds) + (model.mtp is not None) + (model.vision is not None)


def loads_of(model: ModelSpec, plan: Plan, counts: Sequence[int]) -> Loads:
    """What the pipeline ranks hold, from the transformer layers of each chunk in stage order.

    A vision tower sits on the first chunk, multi-token prediction on the last.
    """
    table = rank_table(
        layer_order(model), kind_count(model), plan.pp, shape_of(plan.schedule),
        np.array(counts, dtype=np.float64), end_layers(model),
    )  # fmt: skip
    return group_ranks(table)


@dataclass(frozen=True)
class Lowered:
    """A job as numbers: everything that does not depend on the plan."""

    kinds: tuple[Kind, ...]
    ends: Ends
    device: Device
    net: Net
    stack: StackT
    memory: StackMem


@lru_cache(maxsize=64)
def _kinds(model: ModelSpec, recipe: Recipe) -> tuple[tuple[Kind, ...], Ends]:
    return kinds_of(model, recipe), ends_of(model, recipe)


def lower_plain(job: Job) -> Lowered:
    """All numbers of a job as the catalog states them, before fitted factors."""
    kinds, ends = _kinds(job.model, job.recipe)
    curve = attention_curve(job.cluster.device, job.stack.time.attention_kernel)
    device = device_of(job.cluster, job.recipe.precision)
    if curve is not None:
        device = device._replace(attention_c0=curve.c0, attention_c1=curve.c1, attention_w=curve.w)
    if job.site is not None and job.site.gemm is not None:
        own = job.site.gemm
        device = device._replace(
            gemm_frac=own.gemm_frac,
            gemm_k0=own.gemm_k0,
            linear_frac=device.linear_frac * own.gemm_frac / device.gemm_frac,
        )
    factor = job.stack.time.gemm_factor
    device = device._replace(
        gemm_frac=device.gemm_frac * factor, linear_frac=device.linear_frac * factor
    )
    return Lowered(
        with_attention(kinds, curve),
        ends,
        device,
        net_of(job.cluster),
        stack_time_of(job.stack),
        stack_memory_of(job.stack),
    )


def lower(job: Job) -> Lowered:
    """All numbers of a job, with the factors fitted to measured runs applied."""
    low = lower_plain(job)
    x = combined(load_fitted(), device_family(job.cluster.device.name), job.stack.rules)
    return dataclasses.replace(
        low,
        device=fitted_device(x, low.device),
        net=fitted_net(x, low.net),
        stack=fitted_stack(x, low.stack),
    )
