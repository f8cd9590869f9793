"""What an export gives: files, the plan as it was expressed, and what could not be."""

from __future__ import annotations

import hashlib
import json

from pydantic import Field

from gangsaw import __version__
from gangsaw.cost.layout import default_counts
from gangsaw.spec import Job, Plan
from gangsaw.spec.base import Document


class ExportFile(Document):
    """One file; `main` is the one that `import` reads back."""

    name: str
    text: str
    main: bool = False


class Export(Document):
    """What `export --json` prints."""

    target: str
    files: tuple[ExportFile, ...]
    plan: Plan = Field(description="the plan as the files state it")
    plan_hash: str
    differences: tuple[str, ...] = Field(
        (), description="what the framework cannot express, and what was taken instead"
    )
    step_time_change_frac: float | None = Field(
        None, description="predicted cost of the differences in step time"
    )
    peak_change_bytes: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> ExportFile:
        """The file that holds the plan."""
        return next(file for file in self.files if file.main)


def canonical(job: Job, plan: Plan) -> Plan:
    """The plan without choices that have no effect: one form for equal plans.

    With one tensor rank sequence parallelism is nothing, without experts their degrees are
    nothing, a shard group of all ranks is no group and one of a single rank no sharding, even
    stages need not be listed, one stage has no schedule, and layers to recompute count only with
    full recompute.
    """
    change: dict[str, object] = {}
    if plan.tp == 1:
        change["sequence_parallel"] = True
    if all(kind.moe is None for kind in job.model.kinds):
        change.update({"ep": 1, "etp": 1})
    if plan.shard_group == plan.dp * plan.cp or plan.zero == 0:
        change["shard_group"] = 0
    if plan.shard_group == 1:
        change.update({"zero": 0, "shard_group": 0})
    if plan.recompute != "full":
        change["recompute_layers"] = 0
    chunks = plan.pp * plan.vpp
    counts = plan.stages or default_counts(job.model.layers, chunks)
    even = job.model.layers % chunks == 0 and len(set(counts)) == 1
    change["stages"] = None if even else tuple(counts)
    if plan.pp == 1:
        change.update({"schedule": "1f1b", "vpp": 1, "stages": None})
    return Plan.model_validate({**plan.model_dump(), **change})


def plan_hash(plan: Plan) -> str:
    """First 16 digits of the SHA-256 of the plan's fields in order."""
    text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def header(job: Job, plan: Plan, mark: str = "#") -> str:
    """Comment lines: tool and version, hash of the plan, and what it is for."""
    recipe = job.recipe
    rows = [
        f"gangsaw {__version__}, plan {plan_hash(plan)}",
        f"{job.model.name} on {job.cluster.name}: tp={plan.tp} cp={plan.cp} pp={plan.pp}"
        f" vpp={plan.vpp} dp={plan.dp} ep={plan.ep} etp={plan.etp} mbs={plan.mbs}"
        f" microbatches={plan.num_microbatches}",
        f"sequence length {recipe.seq_len}, global batch {recipe.global_batch},"
        f" {recipe.precision}, {recipe.task}",
    ]
    return "".join(f"{mark} {row}\n" for row in rows)


def nodes_of(job: Job, plan: Plan) -> tuple[int, int]:
    """Nodes and devices a node of the launch."""
    world = plan.devices
    per_node = min(job.cluster.host.devices, world)
    while world % per_node:
        per_node -= 1
    return world // per_node, per_node
