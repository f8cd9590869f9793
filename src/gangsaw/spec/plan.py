"""Plan: one complete choice of how the job is cut. The product rule lives here, and only here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gangsaw.errors import InputError
from gangsaw.spec.base import Count, CountOrZero, Document, Frac

AXES = ("tp", "cp", "ep", "dp", "pp")
SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2", "izb", "zb-v", "v-half", "v-min",
    "dualpipe", "dualpipe-v", "auto",
)  # fmt: skip
OWN_FILES = ("file:", "file-v:")
"""What the name of a schedule file of the user's own begins with; of one folded as a V."""
Recompute = Literal["none", "selective", "full"]


class Plan(Document):
    """Degrees, microbatch, schedule, stage map, recompute, sharding, offload, rank order."""

    tp: Count = 1
    cp: Count = 1
    pp: Count = 1
    vpp: Count = 1
    dp: Count = 1
    ep: Count = 1
    etp: Count = 1
    mbs: Count = 1
    num_microbatches: Count = 1
    schedule: str = "1f1b"
    recompute: Recompute = "none"
    recompute_layers: CountOrZero = Field(
        0, description="full recompute of the first N layers of each chunk; 0 is all of them"
    )
    zero: Literal[0, 1, 2, 3] = 1
    shard_group: CountOrZero = Field(
        0, description="ranks over which ZeRO shards; 0 is all of dp x cp (hybrid sharding: less)"
    )
    sequence_parallel: bool = True
    offload_optimizer: Frac = 0.0
    offload_activations: Frac = 0.0
    stages: tuple[CountOrZero, ...] | None = Field(
        None, description="transformer layers of each of the pp x vpp chunks, in stage order"
    )
    rank_order: str = "tp-cp-ep-dp-pp"

    @model_validator(mode="after")
    def _check(self) -> Self:
        order = tuple(self.rank_order.split("-"))
        if sorted(order) != sorted(AXES):
            raise ValueError(
                f"rank_order={self.rank_order!r}: the axes {', '.join(AXES)} in some order,"
                " joined by '-', innermost first"
            )
        if self.stages is not None and len(self.stages) != self.pp * self.vpp:
            raise ValueError(
                f"stages has {len(self.stages)} entries; pp x vpp = {self.pp} x {self.vpp}"
                f" = {self.pp * self.vpp} are needed"
            )
        return self

    @property
    def devices(self) -> int:
        """Devices of the plan: the product of the degrees that place ranks."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same expert shard."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def check_product(self, devices: int, global_batch: int) -> None:
        """Raise InputError unless the degrees multiply to `devices` and the batch divides.

        The rules: tp x cp x pp x dp = devices; ep x etp divides tp x cp x dp (experts are placed
        inside a pipeline stage); dp x mbs x num_microbatches = global batch.
        """
        if self.devices != devices:
            raise InputError(
                f"tp x cp x pp x dp = {self.tp} x {self.cp} x {self.pp} x {self.dp}"
                f" = {self.devices}, but the cluster has {devices} devices"
            )
        inside = self.tp * self.cp * self.dp
        if inside % (self.ep * self.etp):
            raise InputError(
                f"ep x etp = {self.ep} x {self.etp} = {self.ep * self.etp} does not divide"
                f" tp x cp x dp = {self.tp} x {self.cp} x {self.dp} = {inside}"
            )
        if self.dp * self.mbs * self.num_microbatches != global_batch:
            raise InputError(
                f"dp x mbs x num_microbatches = {self.dp} x {self.mbs} x {self.num_microbatches}"
                f" = {self.dp * self.mbs * self.num_microbatches}, but the global batch is"
                f" {global_batch}"
            )
