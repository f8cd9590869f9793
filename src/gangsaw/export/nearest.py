"""What a framework cannot express of a plan, and the nearest that it can."""

from __future__ import annotations

from collections.abc import Callable

from gangsaw.errors import InputError
from gangsaw.export.document import canonical
from gangsaw.spec import Job, Plan

V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipe-v")


class Change:
    """A plan under change, with a line for every difference."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        self.fields = canonical(job, plan).model_dump()
        self.differences: list[str] = []

    def take(self, name: str, value: object, why: str) -> None:
        """Replace a field that cannot be expressed."""
        if self.fields[name] != value:
            self.differences.append(f"{name}={self.fields[name]}: {why}; {value} instead")
            self.fields[name] = value

    def plan(self) -> Plan:
        """The plan that results, in canonical form."""
        return canonical(self.job, Plan.model_validate(self.fields))

    def reschedule(self, legal: dict[str, str], why: str) -> None:
        """Map a schedule that does not exist to its nearest, with chunks that go with it."""
        name = str(self.fields["schedule"])
        if name in legal.values() or self.fields["pp"] == 1:
            return
        near = legal.get(name, "1f1b")
        chunks = {"1f1b": 1, "gpipe": 1}.get(near, max(2, int(str(self.fields["vpp"]))))
        if near in V_SHAPED:
            chunks = 2
        self.take("schedule", near, why)
        if self.fields["vpp"] != chunks:
            self.fields["vpp"] = chunks
            self.fields["stages"] = None


Fit = Callable[[Change], None]


def megatron(change: Change) -> None:
    """Megatron-LM and Megatron-Bridge: 1F1B with or without interleaving, three ways to shard."""
    fields = change.fields
    legal = {
        "gpipe": "1f1b", "bfs": "interleaved", "zb-h1": "1f1b", "zb-h2": "1f1b",
        "izb": "interleaved", "zb-v": "interleaved", "v-half": "interleaved",
        "v-min": "interleaved", "dualpipe": "1f1b", "dualpipe-v": "interleaved", "auto": "1f1b",
        "1f1b": "1f1b", "interleaved": "interleaved",
    }  # fmt: skip
    change.reschedule(legal, "Megatron has 1F1B and interleaved 1F1B")
    if int(str(fields["zero"])) >= 2 and (fields["pp"] != 1 or fields["shard_group"]):
        change.take("zero", 1, "Megatron FSDP takes no pipeline and no shard groups")
    if fields["rank_order"] not in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"):
        change.take("rank_order", "tp-cp-ep-dp-pp", "Megatron orders tp-cp-ep-dp-pp or ...-pp-dp")
    _activation_offload(change)


def _activation_offload(change: Change) -> None:
    """Megatron offloads whole layers, with one stage and no recompute."""
    fields, layers = change.fields, change.job.model.layers
    share = float(str(fields["offload_activations"]))
    if share and (fields["pp"] != 1 or fields["recompute"] != "none"):
        change.take("offload_activations", 0.0, "needs pp=1 and no recompute in Megatron")
        return
    count = min(layers - 1, round(share * layers))
    change.take("offload_activations", count / layers if count else 0.0, "whole layers")


def torchtitan(change: Change) -> None:
    """torchtitan: FSDP2 in place of ZeRO-1, torch's schedules, whole choices."""
    fields = change.fields
    legal = {
        "1f1b": "1f1b", "gpipe": "gpipe", "interleaved": "interleaved", "bfs": "bfs", "izb": "izb",
        "zb-v": "zb-v", "dualpipe-v": "dualpipe-v", "zb-h1": "1f1b", "zb-h2": "1f1b",
        "v-half": "zb-v", "v-min": "zb-v", "dualpipe": "1f1b", "auto": "1f1b",
    }  # fmt: skip
    change.reschedule(legal, "not in torch.distributed.pipelining")
    shards = int(str(fields["dp"])) * int(str(fields["cp"]))
    if fields["zero"] == 0 and int(str(fields["cp"])) > 1:
        change.take("zero", 2, "context parallel ranks always shard in FSDP2")
    if fields["zero"] == 1 and shards > 1:
        change.take("zero", 2, "FSDP2 shards gradients with the optimizer state")
    if shards == 1:
        change.take("zero", 0, "nothing to shard over one rank")
    group, cp = int(str(fields["shard_group"])), int(str(fields["cp"]))
    if group and (group % cp or shards % group):
        change.take("shard_group", 0, "a shard group holds whole context parallel groups")
    change.take("recompute_layers", 0, "full checkpointing covers every layer")
    change.take("offload_activations", 0.0, "not offered")
    share = float(str(fields["offload_optimizer"]))
    change.take("offload_optimizer", 1.0 if share >= 0.5 and fields["zero"] else 0.0, "all or none")
    change.take("rank_order", "tp-cp-ep-dp-pp", "the mesh has one order")
    if int(str(fields["tp"])) > 1:
        change.take("sequence_parallel", True, "tensor parallelism shards the sequence")
    change.take("etp", 1, "experts are not split by tensor ranks")


def deepspeed(change: Change) -> None:
    """DeepSpeed under the Trainer: data, AutoTP and Ulysses ranks, no pipeline, no experts."""
    fields = change.fields
    pp = int(str(fields["pp"]))
    if pp > 1:
        fields["dp"] = int(str(fields["dp"])) * pp
        count = int(str(fields["num_microbatches"]))
        if count % pp:
            raise InputError(
                f"pp={pp} cannot be folded into data parallel ranks: {count} microbatches do not"
                f" divide by {pp}. DeepSpeed under the Trainer has no pipeline; legal: pp=1"
            )
        fields["num_microbatches"] = count // pp
        change.take("pp", 1, "no pipeline under the Trainer, its ranks become data parallel")
        fields.update({"vpp": 1, "stages": None, "schedule": "1f1b"})
    change.take("ep", 1, "no expert parallelism under the Trainer")
    change.take("etp", 1, "no expert parallelism under the Trainer")
    if int(str(fields["tp"])) > 1:
        if fields["zero"] == 3:
            change.take("zero", 2, "AutoTP is validated up to stage 2")
        change.take("sequence_parallel", False, "AutoTP keeps whole sequences")
    if fields["recompute"] == "selective":
        change.take("recompute", "full", "the Trainer checkpoints whole layers")
    change.take("recompute_layers", 0, "the Trainer checkpoints every layer")
    share = float(str(fields["offload_optimizer"]))
    if fields["zero"] == 0:
        change.take("offload_optimizer", 0.0, "needs a ZeRO stage")
    elif fields["zero"] != 3:
        change.take("offload_optimizer", 1.0 if share >= 0.5 else 0.0, "partial only at stage 3")
    keeps = float(str(fields["offload_activations"]))
    whole = 1.0 if keeps >= 0.5 and fields["recompute"] == "full" else 0.0
    change.take("offload_activations", whole, "checkpoints go to the host all or none")
    if fields["shard_group"] and fields["zero"] != 3:
        change.take("shard_group", 0, "MiCS belongs to stage 3")
    change.take("rank_order", "tp-cp-ep-dp-pp", "the mesh has one order")


def own(change: Change) -> None:
    """gangsaw's own launch states every field of a plan."""


FITS: dict[str, Fit] = {
    "megatron-lm": megatron, "megatron-bridge": megatron, "torchtitan": torchtitan,
    "deepspeed": deepspeed, "torchrun": own, "slurm": own, "kubernetes": own,
    "schedule-csv": lambda change: None,
}  # fmt: skip


def nearest(job: Job, plan: Plan, target: str) -> tuple[Plan, tuple[str, ...]]:
    """The nearest plan that `target` can express, and a line for each difference."""
    change = Change(job, plan)
    FITS[target](change)
    return change.plan(), tuple(change.differences)
