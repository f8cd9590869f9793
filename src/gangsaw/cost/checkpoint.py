"""Checkpoints: how many bytes a plan writes, how long saving and loading take, what they cost.

Sizes follow from the state that training keeps: bf16 weights (2 bytes a parameter), an fp32 master
copy (4) and both Adam moments (8), Micikevicius et al. arXiv:1710.03740 and Kingma and Ba
arXiv:1412.6980. Measured: BLOOM-176B 13.1 and MT-NLG 530B 11.9 bytes a parameter.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gangsaw.cost.lower_model import adapter_params
from gangsaw.errors import InputError
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.reliability import StorageTier

Content = Literal["full", "state", "weights"]
Layout = Literal["sharded", "replica", "consolidated", "copies"]
CONTENT_BYTES: dict[Content, float] = {"full": 14.0, "state": 12.0, "weights": 2.0}
"""Bytes a trained parameter: weights and optimizer; master and moments (weights follow from
them by rounding); weights alone, from which training cannot go on exactly."""
FROZEN_BYTES = 2.0
HOST_LINK_SHARE = 0.8
"""Of the host link's rate, what copies reach; as for offloading in `cost.step`."""
PER_MONTH_S = 365.25 * 86400 / 12


class Checkpoint(NamedTuple):
    """Bytes of one save and who writes them.

    `unique` bytes exist once; `written` are what goes to the tier; `writers` devices write at
    once; `per_device` is the most that one device copies to its host; `read` is what a restart
    reads, frozen weights included, one reader a shard with the rest passed on inside the job.
    """

    unique: float
    written: float
    writers: float
    per_device: float
    read: float
    files: float


class SaveTimes(NamedTuple):
    """Seconds: training stands still, until the save is safe, and to load it again."""

    block_s: float
    save_s: float
    load_s: float


def trained_params(job: Job) -> tuple[float, float]:
    """Parameters with and without gradients; of LoRA only the adapters are trained.

    As in memory, multi-token prediction is trained and a tower's matrices have adapters too.
    """
    model = job.model
    total = float(model.params() + (model.mtp.params() if model.mtp else 0))
    if job.recipe.task not in ("lora", "qlora"):
        return total, 0.0
    layers = [model.kinds[k] for k in model.order]
    for part in (model.mtp, model.vision):
        layers += [part.kind] * part.layers if part else []
    return float(sum(adapter_params(kind, job.recipe) for kind in layers)), total


def checkpoint_of(
    job: Job, plan: Plan, content: Content = "full", layout: Layout = "sharded", first: bool = False
) -> Checkpoint:
    """The checkpoint of a plan.

    sharded: every device writes its part of what is unique (torch DCP, Megatron dist-ckpt).
    replica: the devices of one data-parallel replica write it. consolidated: one device gathers
    and writes all. copies: each replica writes everything that it holds, nothing deduplicated; of
    state that ZeRO shards there is one copy anyway. Frozen weights are written with the `first`
    save only: this is what an increment spares. Of dense training Adam changes every parameter
    at every step, so an increment without loss spares nothing.
    """
    trained, frozen = trained_params(job)
    unique = trained * CONTENT_BYTES[content] + (frozen * FROZEN_BYTES if first else 0.0)
    replicas = float(plan.dp * plan.cp)
    writers = {
        "sharded": float(plan.devices),
        "replica": float(plan.tp * plan.pp),
        "consolidated": 1.0,
        "copies": float(plan.devices),
    }[layout]
    written = unique
    if layout == "copies":
        optimizer = 0.0 if content == "weights" else trained * (CONTENT_BYTES[content] - 2.0)
        held_once = optimizer if plan.zero >= 1 else 0.0
        held_once = unique if plan.zero >= 3 else held_once
        written = (unique - held_once) * replicas + held_once
    return Checkpoint(
        unique=unique, written=written, writers=writers, per_device=written / writers,
        read=trained * CONTENT_BYTES[content] + frozen * FROZEN_BYTES, files=writers,
    )  # fmt: skip


def tier_bandwidth(
    tier: StorageTier, cluster: ClusterSpec, devices: float, write: bool, writers: float = 0.0
) -> float:
    """Bytes/s that a job of `devices` gets from a tier, `writers` of them taking part (0: all).

    The tier's own rate less what others take; over the network never more than the writers' share
    of the outermost tier's links.
    """
    writers = writers or devices
    own = tier.write_bytes_per_s if write else tier.read_bytes_per_s
    own *= 1.0 - tier.other_load_frac
    hosts = max(1.0, min(writers, devices / cluster.host.devices))
    scale = {"device": writers, "host": hosts, "job": 1.0}[tier.scope]
    rate = own * scale
    if tier.over_network:
        outer = cluster.tiers[-1]
        rate = min(rate, writers * outer.bytes_per_s / outer.oversubscription * outer.efficiency)
    if rate <= 0.0:
        raise InputError(f"storage tier {tier.title!r}: other_load_frac=1 leaves no bandwidth")
    return rate


def requests_of(tier: StorageTier, size: float, files: float) -> float:
    """Requests that `size` bytes in `files` objects need: one a part, one a file at least."""
    return max(files, size / tier.part_bytes)


def save_times(
    ck: Checkpoint, tier: StorageTier, cluster: ClusterSpec, devices: float, asynchronous: bool
) -> SaveTimes:
    """Seconds of one save and load on a tier.

    Asynchronous: training waits for planning and the copy to host memory only (two stages, as
    MegaScale, arXiv:2402.15627). Synchronous: until all is written. A limit on requests may be
    what counts.
    """
    copy_s = ck.per_device / (HOST_LINK_SHARE * cluster.device.pcie_bytes_per_s)
    write_s = ck.written / tier_bandwidth(tier, cluster, devices, True, ck.writers)
    read_s = ck.read / tier_bandwidth(tier, cluster, devices, False)
    if tier.put_per_s > 0.0:
        puts = requests_of(tier, ck.written, ck.files)
        write_s = max(write_s, puts / (tier.put_per_s * tier.prefixes))
    if tier.get_per_s > 0.0:
        gets = requests_of(tier, ck.read, ck.files)
        read_s = max(read_s, gets / (tier.get_per_s * tier.prefixes))
    blocked_s = tier.plan_s + copy_s
    save_s = blocked_s + write_s
    return SaveTimes(blocked_s if asynchronous else save_s, save_s, read_s + copy_s)


class Prices(NamedTuple):
    """Prices of a tier: GB-month, a thousand requests in and out, a GB across its boundary."""

    gb_month: float
    thousand_puts: float
    thousand_gets: float
    egress_gb: float


class Monthly(NamedTuple):
    """How much is saved, loaded and kept in a month of steady training, and by how many hosts."""

    saves: float
    loads: float
    kept: float
    hosts: float


class MonthlyCost(NamedTuple):
    """Money a month of steady training, by what it is for."""

    kept_usd: float
    requests_usd: float
    egress_usd: float
    wear_usd: float

    @property
    def usd(self) -> float:
        """All of it."""
        return sum(self)


def monthly_cost(ck: Checkpoint, tier: StorageTier, prices: Prices, month: Monthly) -> MonthlyCost:
    """What saving and keeping checkpoints on a tier costs a month.

    Wear is the share of the drives' write endurance that the month uses, at their price.
    """
    puts = month.saves * requests_of(tier, ck.written, ck.files)
    gets = month.loads * requests_of(tier, ck.read, ck.files)
    wear = 0.0
    if tier.endurance_bytes > 0.0:
        each = month.saves * ck.written / month.hosts
        wear = each / tier.endurance_bytes * tier.drive_usd * month.hosts
    return MonthlyCost(
        kept_usd=month.kept * ck.written / 1e9 * prices.gb_month,
        requests_usd=(puts * prices.thousand_puts + gets * prices.thousand_gets) / 1e3,
        egress_usd=month.loads * ck.read / 1e9 * prices.egress_gb,
        wear_usd=wear,
    )
