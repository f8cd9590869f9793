"""Cutting a stage: tensor and sequence parallel by DTensor styles, data parallel by fully_shard.

One mesh of four dimensions carries everything: `pp` (stages), `rep` (data-parallel replicas that
only reduce gradients), `shard` (ranks over which ZeRO shards), `tp`. ZeRO 0 puts all of dp on
`rep`; a shard group smaller than dp is hybrid sharding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from gangsaw.cost.layout import default_counts
from gangsaw.errors import InputError
from gangsaw.run.carried import check_plan as check_plan
from gangsaw.run.model import BuildOptions, Stage, build_stage
from gangsaw.run.moe import RoutedMlp
from gangsaw.spec.model import LayerKind, ModelSpec
from gangsaw.spec.plan import Plan

DIMS = ("pp", "rep", "shard", "tp")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def stage_layers(plan: Plan, layers: int) -> tuple[int, ...]:
    """Layers of each chunk in stage order: as stated, else as even as they go."""
    if plan.stages is not None:
        return plan.stages
    return default_counts(layers, plan.pp * plan.vpp)


@dataclass(frozen=True)
class Place:
    """The mesh of a plan and where this rank stands in it."""

    mesh: DeviceMesh
    plan: Plan
    device: torch.device

    @property
    def pp_rank(self) -> int:
        """Position in the pipeline."""
        return self.mesh.get_local_rank("pp")

    @property
    def dp_rank(self) -> int:
        """Position among data-parallel ranks, replicas outermost."""
        shard = self.mesh["shard"].size()
        return self.mesh.get_local_rank("rep") * shard + self.mesh.get_local_rank("shard")

    @property
    def tp(self) -> DeviceMesh | None:
        """Mesh of the tensor-parallel group; None at degree 1."""
        return self.mesh["tp"] if self.plan.tp > 1 else None

    @property
    def data(self) -> DeviceMesh:
        """What fully_shard is given: one dimension, or (replicas, shards)."""
        if self.mesh["rep"].size() > 1:
            return self.mesh["rep", "shard"]
        return self.mesh["shard"]

    def group(self, dim: str) -> dist.ProcessGroup:
        """Process group of this rank along one dimension."""
        return self.mesh.get_group(dim)


def rank_grid(plan: Plan) -> torch.Tensor:
    """Rank numbers as [pp, rep, shard, tp], placed by the plan's rank order."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": 1, "dp": plan.dp, "pp": plan.pp}
    order = list(reversed(plan.rank_order.split("-")))
    grid = torch.arange(plan.devices).reshape([sizes[a] for a in order])
    grid = grid.permute([order.index(a) for a in ("pp", "dp", "cp", "ep", "tp")])
    shard = 1 if plan.zero == 0 else (plan.shard_group or plan.dp)
    return grid.reshape(plan.pp, plan.dp // shard, shard, plan.tp).contiguous()


def make_place(plan: Plan, device: torch.device) -> Place:
    """Build the mesh over the running process group; InputError if its size is another."""
    world = dist.get_world_size()
    if world != plan.devices:
        raise InputError(
            f"the plan needs tp x cp x pp x dp = {plan.devices} processes, {world} are running"
        )
    mesh = DeviceMesh(device.type, rank_grid(plan), mesh_dim_names=DIMS)
    return Place(mesh, plan, device)


def block_styles(kind: LayerKind, sequence: bool) -> dict[str, Any]:
    """torch's parallel styles for the parts of one block."""
    where = Shard(1) if sequence else Replicate()
    gather = PrepareModuleInput(input_layouts=(where,), desired_input_layouts=(Replicate(),))
    styles: dict[str, Any] = {"attention": gather}
    styles |= {f"attention.{n}": ColwiseParallel() for n in ("wq", "wk", "wv")}
    styles["attention.wo"] = RowwiseParallel(output_layouts=where)
    if kind.attention.qk_norm == "head":
        # Each rank norms its own heads, so the weights' gradients are partial sums over heads.
        for name in ("q_norm", "k_norm"):
            styles[f"attention.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    dense = [] if kind.moe else ["mlp"]
    if kind.moe and kind.moe.shared:
        dense = ["shared"]
    for part in dense:
        spec = kind.mlp or (kind.moe.shared if kind.moe else None)
        styles[part] = gather
        styles[f"{part}.w_in"] = ColwiseParallel()
        if spec is not None and spec.gated:
            styles[f"{part}.w_gate"] = ColwiseParallel()
        styles[f"{part}.w_out"] = RowwiseParallel(output_layouts=where)
    if sequence:
        styles |= {n: SequenceParallel(use_local_output=True) for n in _NORMS}
    return styles


_NORMS = ("attention_norm", "mlp_norm")


def _cut_experts(routed: RoutedMlp, tp: DeviceMesh, sequence: bool) -> None:
    """Slice the inner width of every expert over the TP group."""
    rank, size = tp.get_local_rank(), tp.size()
    for name, dim in (("w_in", 2), ("w_gate", 2), ("w_out", 1)):
        param = getattr(routed, name, None)
        if param is not None:
            local = param.detach().chunk(size, dim)[rank].contiguous()
            cut = DTensor.from_local(local, tp, [Shard(dim)], run_check=False)
            setattr(routed, name, nn.Parameter(cut))
    routed.mesh, routed.sequence_parallel = tp, sequence


def _policy(precision: str) -> MixedPrecisionPolicy:
    if precision == "fp32":
        return MixedPrecisionPolicy()
    dtype = DTYPES[precision]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def cut_stage(
    spec: ModelSpec,
    index: int,
    place: Place,
    opt: BuildOptions,
    precision: str,
    keep_gathered: bool = False,
) -> Stage:
    """Stage `index` of the plan, filled, cut by TP and sharded over data-parallel ranks.

    ZeRO 3 drops a block's parameters behind its forward, except where `keep_gathered`: needed
    when the schedule splits the backward, as torch's weight-gradient pass finds its parameters by
    identity when the input pass starts and would miss those that are still dropped then.
    """
    plan = place.plan
    counts = stage_layers(plan, spec.layers)
    start = sum(counts[:index])
    tp, sequence = place.tp, plan.sequence_parallel
    sharded = plan.dp > 1 or precision != "fp32"
    keep: dict[str, Any] = {
        "mesh": place.data,
        "mp_policy": _policy(precision),
        "reshard_after_forward": plan.zero == 3 and not keep_gathered,
    }

    def on_block(block: nn.Module, kind: LayerKind) -> None:
        if tp is not None:
            parallelize_module(block, tp, block_styles(kind, sequence), src_data_rank=None)
            if isinstance(getattr(block, "mlp", None), RoutedMlp):
                _cut_experts(block.mlp, tp, sequence)  # type: ignore[arg-type]
        if sharded:
            fully_shard(block, **keep)

    ends = (index == 0, index == len(counts) - 1)
    stage = build_stage(spec, range(start, start + counts[index]), ends, opt, on_block)
    if tp is not None:
        _cut_ends(stage, tp, sequence)
    both = spec.tied and stage.first and stage.last
    if both:
        stage.output.weight = stage.tok_embeddings.weight  # type: ignore[union-attr]
    if sharded and any(True for _ in stage.parameters()):
        if not both:
            _shard_ends(stage, keep)
        fully_shard(stage, **keep)
    return stage


def _shard_ends(stage: Stage, keep: dict[str, Any]) -> None:
    """Embedding and head as groups of their own, as torchtitan groups them.

    The head's weights stay gathered behind the forward: the backward begins with them. (A tied
    head on the same stage shares the embedding's parameter, so both belong to one group.)
    """
    if stage.tok_embeddings is not None:
        fully_shard(stage.tok_embeddings, **keep)
    if stage.norm is not None and stage.output is not None:
        fully_shard([stage.norm, stage.output], **{**keep, "reshard_after_forward": False})


def _cut_ends(stage: Stage, tp: DeviceMesh, sequence: bool) -> None:
    """Embedding and head over the vocabulary; logits stay cut, see `loss`."""
    where = Shard(1) if sequence else Replicate()
    styles: dict[str, Any] = {}
    if stage.first:
        styles["tok_embeddings"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=where)
    if stage.last:
        styles["output"] = ColwiseParallel(input_layouts=where, output_layouts=Shard(-1))
        if sequence:
            styles["norm"] = SequenceParallel(use_local_output=True)
    if styles:
        parallelize_module(stage, tp, styles, src_data_rank=None)
