"""Rows of published measured runs -> jobs and plans. Nothing that a row leaves out is hidden.

Row format: `catalog/runs/README.md`. A field that a row does not state comes from the named model,
or is a range: the row then gives several candidates with weights. What was assumed is listed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from gangsaw.cost.layout import default_counts, ends_as_layers
from gangsaw.errors import InputError
from gangsaw.fit.row_faults import fault_of
from gangsaw.fit.row_model import model_of, named, whole
from gangsaw.fit.row_recipe import completed
from gangsaw.fit.row_stack import OLD_KERNELS, is_fp8, stack_name, stacks_of, words
from gangsaw.read.clusters import cluster_of, with_inter_efficiency
from gangsaw.read.toml import read_text, shown
from gangsaw.spec import AttentionCurve, ClusterSpec, Plan, Recipe
from gangsaw.spec.job import Job

Row = Mapping[str, Any]
PARTS = ("model", "hardware", "plan", "measured")


@dataclass(frozen=True)
class Candidate:
    """One reading of a row: a job and a plan, with the weight of that reading."""

    job: Job
    plan: Plan
    weight: float
    spread_head: bool = False  # loss head and embedding split over all pipeline ranks


@dataclass(frozen=True)
class Reading:
    """All readings of a row, or why it cannot be predicted."""

    id: str
    source: str
    stack: str
    candidates: tuple[Candidate, ...] = ()
    assumed: tuple[str, ...] = ()
    skipped: str | None = None
    row: Row = field(default_factory=dict)


def shipped_sources() -> tuple[str, ...]:
    """Names of the shipped tables of measured runs."""
    folder = resources.files("gangsaw.catalog") / "runs"
    return tuple(sorted(p.name[:-6] for p in folder.iterdir() if p.name.endswith(".jsonl")))


def load_shipped(name: str) -> list[dict[str, Any]]:
    """Rows of one shipped table."""
    text = (resources.files("gangsaw.catalog") / "runs" / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def load_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; InputError names the line that cannot be read."""
    rows = []
    for number, line in enumerate(read_text(path, 200_000_000).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{shown(path)}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({' '.join(str(error).split())})") from None
        if not isinstance(row, dict) or "id" not in row:
            raise InputError(f"{where}: a row is a JSON object with id, {', '.join(PARTS)}")
        rows.append(row)
    if not rows:
        raise InputError(f"{shown(path)}: no rows")
    return rows


def source_of(row: Row) -> str:
    """The title of the row's source, else the part of its id before the first slash."""
    source = row.get("source")
    if isinstance(source, dict) and source.get("title"):
        return str(source["title"])
    if isinstance(source, str) and source:
        return source
    return str(row.get("id")).split("/")[0]


def precision_of(row: Row) -> str:
    """bf16, fp16, fp8 or fp32 from the row's text; finer formats count as fp8."""
    text = words(row, "precision") or "bf16"
    if is_fp8(row):
        return "fp8"
    return "fp16" if text.startswith("fp16") else ("fp32" if text in ("fp32", "tf32") else "bf16")


_SCHEDULE = (
    ("zb-1p", "zb-h1"), ("zb1p", "zb-h1"), ("zb-2p", "zb-h2"), ("zb2p", "zb-h2"), ("zbv", "zb-v"),
    ("zb-v", "zb-v"), ("v-half", "v-half"), ("vhalf", "v-half"), ("v-min", "v-min"),
    ("vmin", "v-min"), ("v-zb", "zb-v"), ("zbb", "zb-h1"), ("dualpipev", "dualpipe-v"),
    ("dualpipe", "dualpipe"), ("gpipe", "gpipe"), ("zb-h1", "zb-h1"), ("zb-h2", "zb-h2"),
    ("interleavedzerobubble", "izb"), ("bfs", "bfs"), ("breadth", "bfs"),
)  # fmt: skip


def schedule_of(row: Row) -> str:
    """The schedule of a row; interleaving follows from its chunks."""
    text = words(row, "schedule")
    for needle, name in _SCHEDULE:
        if needle in text:
            return name
    return "interleaved" if whole(row["plan"].get("vpp") or 1) > 1 else "1f1b"


def stages_of(row: Row, layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk: as the row states it, else as its framework splits them."""
    text, own = words(row, "pp_partition"), row["plan"].get("stages")
    if isinstance(own, list) and len(own) == chunks and sum(map(whole, own)) == layers:
        return tuple(map(whole, own))
    if "embedding" in text or stack_name(row) == "zero-bubble" or layers % chunks:
        ends = ends_as_layers(layers, chunks)
        if ends is not None:
            return ends
    return default_counts(layers, chunks)


def _degrees(row: Row, assumed: list[str]) -> dict[str, int]:
    """tp, pp, cp, dp, ep, etp that multiply to the devices."""
    p = row["plan"]
    tp, pp, cp = (max(1, whole(p.get(k) or 1)) for k in ("tp", "pp", "cp"))
    devices = whole(row["hardware"].get("devices") or tp * pp * cp * whole(p.get("dp") or 1))
    dp = whole(p.get("dp") or max(1, devices // (tp * pp * cp)))
    if tp * pp * cp > devices:
        raise ValueError(f"tp x pp x cp = {tp} x {pp} x {cp} is more than {devices} devices")
    if tp * pp * cp * dp != devices:
        dp = max(1, devices // (tp * pp * cp))
        assumed.append(f"dp={dp} from the devices")
    ep, etp = max(1, whole(p.get("ep") or 1)), max(1, whole(p.get("etp") or 1))
    inside = tp * cp * dp
    if inside % (ep * etp):
        fits = [e for e in range(1, ep + 1) if inside % (e * etp) == 0]
        ep = fits[-1] if fits else 1
        assumed.append(f"ep={ep}: the largest that fits inside a stage")
    return {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep, "etp": etp}


MOST = {"tp": 4096, "pp": 4096, "cp": 4096, "dp": 10**6, "ep": 10**5, "etp": 4096}
"""Degrees beyond which a row is taken as a slip of the pen."""
MOST_LAYERS = 4096


def check_size(degrees: Mapping[str, int], layers: int) -> None:
    """Raise ValueError for a plan or model of a size that no machine has."""
    for name, most in MOST.items():
        if degrees[name] > most:
            raise ValueError(f"{name}={degrees[name]} is more than {most}")
    if not 0 < layers <= MOST_LAYERS:
        raise ValueError(f"layers={layers} is not between 1 and {MOST_LAYERS}")
    if degrees["pp"] > layers + 2:
        raise ValueError(f"pp={degrees['pp']} for {layers} layers")


def _chunks(
    row: Row, pp: int, layers: int, assumed: list[str]
) -> tuple[tuple[str, int, float], ...]:
    """Schedule and chunks a rank with weights: a range where the row says interleaved alone."""
    if pp == 1:
        return (("1f1b", 1, 1.0),)
    vpp = max(1, whole(row["plan"].get("vpp") or 1))
    schedule = schedule_of(row)
    if schedule in ("zb-v", "v-half", "v-min", "dualpipe-v"):
        return ((schedule, 2, 1.0),)
    if schedule in ("zb-h1", "zb-h2", "gpipe", "dualpipe"):
        return ((schedule, 1, 1.0),)
    if vpp == 1 and "interleaved" in words(row, "schedule"):
        even = layers if layers % pp == 0 else layers + 2
        found = [v for v in range(2, even // pp + 1) if even % (pp * v) == 0]
        if found:
            assumed.append(f"vpp: {', '.join(map(str, found))}")
            return tuple(("interleaved", v, 1.0 / len(found)) for v in found)
    while vpp > 1 and pp * vpp > layers + 2:
        vpp -= 1
    if schedule in ("1f1b", "interleaved"):
        schedule = "interleaved" if vpp > 1 else "1f1b"
    return ((schedule, vpp, 1.0),)


def plans_of(
    row: Row, assumed: list[str], mbs: int, recompute: str, layers: int
) -> list[tuple[Plan, float]]:
    """The plans of a row with weights, with a microbatch and a recompute where it states none."""
    d = _degrees(row, assumed)
    check_size(d, layers)
    return [
        (_plan(row, assumed, d, (mbs, recompute, layers), (schedule, vpp)), weight)
        for schedule, vpp, weight in _chunks(row, d["pp"], layers, assumed)
    ]


def _plan(
    row: Row,
    assumed: list[str],
    d: Mapping[str, int],
    choice: tuple[int, str, int],
    chunks: tuple[str, int],
) -> Plan:
    """One plan; `choice`: microbatch, recompute, layers; `chunks`: schedule and chunks a rank."""
    p = row["plan"]
    (mbs, recompute, layers), (schedule, vpp) = choice, chunks
    gbs = whole(p.get("gbs") or d["dp"] * mbs * whole(p.get("num_microbatches") or 1))
    m = max(1, round(gbs / (d["dp"] * mbs)))
    if p.get("num_microbatches") and whole(p["num_microbatches"]) != m:
        if not p.get("gbs"):
            m = whole(p["num_microbatches"])
        else:
            assumed.append(f"num_microbatches={m} from the batch")
    sp = p.get("sequence_parallel")
    if sp is None:
        sp = stack_name(row) not in OLD_KERNELS or recompute == "selective"
    zero = p.get("zero")
    if zero is None:
        # Sharded optimizers came with distributed ones: older software shards when it says so.
        zero = 1 if p.get("dist_optimizer", stack_name(row) not in OLD_KERNELS) else 0
    if whole(zero) == 2 and d["pp"] > 1:
        # With a pipeline, gradients are reduced once a step and not after every microbatch.
        zero = 1
        assumed.append("zero=1: under a pipeline gradients are reduced once a step")
    return Plan(
        **d, vpp=vpp, mbs=mbs, num_microbatches=m, schedule=schedule,
        recompute=recompute, zero=min(3, whole(zero)), sequence_parallel=bool(sp),
        stages=stages_of(row, layers, d["pp"] * vpp),
    )  # fmt: skip


_RECOMPUTE = (
    ("none", "none"), ("no", "none"), ("false", "none"), ("disabled", "none"), ("off", "none"),
    ("sel", "selective"), ("op", "selective"), ("full", "full"), ("true", "full"),
    ("every", "full"), ("block", "full"), ("uniform", "full"), ("enabled", "full"),
)  # fmt: skip


UNSTATED = (("none", 0.94), ("selective", 0.04), ("full", 0.02))
"""How often a run whose recompute is not stated uses each form, before memory is looked at."""


def recomputes(row: Row, assumed: list[str]) -> tuple[tuple[str, float], ...]:
    """Recompute forms with weights: the stated one, or all, to be weighed by what fits."""
    stated = row["plan"].get("recompute")
    if isinstance(stated, bool):
        return (("full" if stated else "none", 1.0),)
    for needle, name in _RECOMPUTE:
        if stated and str(stated).lower().startswith(needle):
            return ((name, 1.0),)
    assumed.append("recompute: the least that fits")
    return UNSTATED


def _missing(row: Row) -> list[str]:
    lacks = [part for part in PARTS[:3] if not isinstance(row.get(part), dict)]
    if lacks:
        return lacks
    m, h, p = row["model"], row["hardware"], row["plan"]
    need = [k for k in ("layers", "hidden") if not m.get(k)]
    if need and named(str(m.get("name") or "")) is not None:
        need = []
    need += [] if m.get("seq_len") else ["seq_len"]
    need += [] if h.get("device") else ["device"]
    if not h.get("devices") and not p.get("dp"):
        need.append("devices")
    if not p.get("gbs") and not p.get("num_microbatches"):
        need.append("gbs")
    return need


def read_row(row: Row) -> Reading:
    """Candidates of a row with their weights; `skipped` says what no default can stand for."""
    label, source = str(row.get("id")), source_of(row)
    fault = fault_of(row)
    if fault:
        return Reading(label, source, "", skipped=fault, row=row)
    missing = _missing(row)
    if missing:
        why = f"the row does not state {', '.join(missing)}"
        return Reading(label, source, "", skipped=why, row=row)
    name = stack_name(row)
    assumed: list[str] = []
    row = completed(row, assumed)
    try:
        found = _candidates(row, assumed)
    except (ValueError, TypeError, InputError) as error:
        return Reading(label, source, name, skipped=" ".join(str(error).split())[:200], row=row)
    return Reading(label, source, name, found, tuple(dict.fromkeys(assumed)), None, row)


@lru_cache(maxsize=1)
def machines() -> tuple[dict[str, Any], ...]:
    """Measured curves of the machines behind published runs."""
    text = resources.files("gangsaw.catalog").joinpath("machines.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["machine"])


def on_machine(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with the curves that were measured on the machine of the row's source."""
    for m in machines():
        if m["source"] in source_of(row) and row["hardware"]["device"] == m["device"]:
            cluster = with_measured_fabric(with_measured_device(cluster, m), m)
    return cluster


def with_measured_device(cluster: ClusterSpec, m: Mapping[str, Any]) -> ClusterSpec:
    """The cluster with a machine's rates of matrix products and attention, where it has them."""
    if "gemm_frac" not in m:
        return cluster
    curve = AttentionCurve(
        kernel="cudnn", a_fwd=_by_width(m["attention_a_fwd"]),
        a_bwd=_by_width(m["attention_a_bwd"]), c0=0.0, c1=0.0, w=m["attention_w"],
        source=m["origin"], as_of=m["as_of"],
    )  # fmt: skip
    device = cluster.device.model_copy(
        update={"gemm_frac": m["gemm_frac"], "gemm_k0": m["gemm_k0"], "attention": (curve,)}
    )
    return cluster.model_copy(update={"device": device})


def with_measured_fabric(cluster: ClusterSpec, m: Mapping[str, Any]) -> ClusterSpec:
    """The cluster with the share of the line rate that collectives reach between its hosts."""
    if "inter_efficiency" not in m:
        return cluster
    return with_inter_efficiency(cluster, m["inter_efficiency"], m["origin"])


def _by_width(table: Mapping[str, float]) -> dict[int, float]:
    return {int(k): float(v) for k, v in table.items()}


def cluster_of_row(row: Row, devices: int) -> ClusterSpec:
    """The cluster that a row ran on."""
    h = row["hardware"]
    link, per_node = h.get("inter_link_gbps_per_device"), h.get("per_node")
    cluster = cluster_of(
        str(h["device"]), devices, per_node=whole(per_node) if per_node else None,
        inter_bytes_per_s=float(link) * 1e9 / 8 if link else None,
        memory_bytes=float(h["mem_gb"]) * 1e9 if h.get("mem_gb") else None,
    )  # fmt: skip
    if "fp4" in words(row, "precision"):
        cluster = four_bits(cluster)
    return on_machine(cluster, row)


def four_bits(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with half of the products of a layer in four bits, half in eight.

    Four-bit recipes keep weight gradients, or some layers, at eight bits and more.
    """
    peaks = dict(cluster.device.peak_flops_per_s)
    if "fp8" in peaks and "fp4" in peaks:
        peaks["fp8"] = 2.0 / (1.0 / peaks["fp8"] + 1.0 / peaks["fp4"])
    device = cluster.device.model_copy(update={"peak_flops_per_s": peaks})
    return cluster.model_copy(update={"device": device})


MICROBATCHES: Mapping[bool, tuple[tuple[int, float], ...]] = {
    False: ((1, 0.4), (2, 0.35), (4, 0.25)),
    True: ((1, 0.8), (2, 0.12), (4, 0.08)),
}
"""Microbatch of a row that states none, without and with a pipeline: how often the shipped tables
that state it use each. A pipeline wants many small ones, other plans large ones."""
STARVED = 0.05
"""Weight of an unstated microbatch that leaves fewer microbatches than stages, over others."""


def _plans(row: Row, assumed: list[str], layers: int) -> list[tuple[Plan, float]]:
    """All plans that a row may mean, with weights."""
    stated = row["plan"].get("mbs")
    choices = MICROBATCHES[whole(row["plan"].get("pp") or 1) > 1]
    if stated:
        choices = ((whole(stated), 1.0),)
    else:
        assumed.append("mbs: 1, 2 or 4")
    out = []
    for mbs, w_mbs in choices:
        for recompute, w_recompute in recomputes(row, assumed):
            for plan, w_chunks in plans_of(row, assumed, mbs, recompute, layers):
                weight = w_mbs * w_recompute * w_chunks
                if not stated and plan.num_microbatches < plan.pp:
                    # Nobody leaves most of a pipeline idle where a smaller microbatch fills it.
                    weight *= STARVED
                out.append((plan, weight))
    return out


def _candidates(row: Row, assumed: list[str]) -> tuple[Candidate, ...]:
    layers = row["model"].get("layers")
    if layers and whole(layers) > MOST_LAYERS:
        raise ValueError(f"layers={layers} is more than {MOST_LAYERS}")
    model = model_of(row, assumed)
    stacks = stacks_of(row, assumed)
    text = words(row, "schedule", "vocab_parallel", "variant", "method")
    spread = any(mark in text for mark in ("vocab", "interlaced"))
    cluster: ClusterSpec | None = None
    out = []
    for plan, w_plan in _plans(row, assumed, model.layers):
        cluster = cluster or cluster_of_row(row, plan.devices)
        recipe = Recipe.model_validate(
            {
                "seq_len": whole(row["model"]["seq_len"]),
                "global_batch": plan.dp * plan.mbs * plan.num_microbatches,
                "precision": precision_of(row),
                "task": row.get("task") or "pretrain",
            }
        )
        for stack, w_stack in stacks:
            job = Job(model=model, recipe=recipe, cluster=cluster, stack=stack)
            out.append(Candidate(job, plan, w_plan * w_stack, spread))
    return tuple(out)
