"""How long a checkpoint took beside how large it is: slow storage, or one slow writer."""

from __future__ import annotations

from pydantic import Field

from gangsaw.doctor.resume import FORMATS, RULES
from gangsaw.errors import InputError
from gangsaw.spec import ModelSpec, Plan
from gangsaw.spec.base import Document
from gangsaw.units import GB, format_s

LATE_FRAC = 0.25
"""A last writer is late when it needs this much longer than the others."""
NODE_BYTES_PER_S = 1e9
"""A node writes at least this to a parallel file system or a local drive of its own; less is slow.
A single PCIe 3 NVMe drive writes 2 to 3 GB/s, one 25 Gb/s storage link carries 3 GB/s."""


class SaveResult(Document):
    """A save that was timed."""

    format: str
    size_bytes: float
    writers: int
    bytes_per_writer: float
    took_s: float
    bandwidth_bytes_per_s: float = Field(description="of all writers together")
    node_bytes_per_s: float
    late_s: float = Field(0.0, description="by which the last writer ends after the others")
    cause: str = Field(description="straggler, storage, or none")
    explanation: str


def save_check(
    model: ModelSpec,
    plan: Plan,
    form: str,
    took_s: float,
    others_s: float | None = None,
    ranks_per_node: int = 8,
) -> SaveResult:
    """A save of `took_s` seconds; `others_s` is when all but the last writer had ended.

    Every rank writes its part, except in the formats that write one file a model-parallel rank.
    Raises InputError for an unknown format or times that are no times.
    """
    if form not in RULES:
        raise InputError(f"checkpoint format {form!r} is unknown. Legal: {', '.join(FORMATS)}")
    if not 0.0 < took_s < 1e7 or (others_s is not None and not 0.0 < others_s <= took_s):
        raise InputError(
            f"a save of {took_s:g} s whose other writers ended after {others_s} s. Legal: times"
            " above 0, the others' not above the whole"
        )
    size = RULES[form].bytes_per_param * float(model.params())
    writers = plan.devices if form != "torch" else plan.tp * plan.pp
    nodes = max(1, plan.devices // max(1, ranks_per_node))
    speed = size / took_s
    late, slow = _late(took_s, others_s), _slow(size, nodes, others_s or took_s)
    return SaveResult(
        format=form, size_bytes=size, writers=writers, bytes_per_writer=size / writers,
        took_s=took_s, bandwidth_bytes_per_s=speed, node_bytes_per_s=speed / nodes,
        late_s=0.0 if others_s is None else took_s - others_s,
        cause="straggler" if late else "storage" if slow else "none",
        explanation=_explain(size, writers, nodes, took_s, others_s),
    )  # fmt: skip


def _late(took_s: float, others_s: float | None) -> bool:
    return others_s is not None and took_s > (1.0 + LATE_FRAC) * others_s


def _slow(size: float, nodes: int, took_s: float) -> bool:
    return size / took_s / nodes < NODE_BYTES_PER_S


def _explain(size: float, writers: int, nodes: int, took_s: float, others_s: float | None) -> str:
    lines = [
        f"{size / GB:,.1f} GB in {format_s(took_s)} are {size / took_s / GB:.3g} GB/s together,"
        f" {size / took_s / writers / 1e6:.3g} MB/s a writer of {size / writers / GB:.3g} GB"
    ]
    if others_s is not None and _late(took_s, others_s):
        lines.append(
            f"one writer is late: the others ended after {format_s(others_s)}, the last needs"
            f" {took_s / others_s:.1f} times as long for as many bytes. Size is not the cause:"
            " look at that rank (a gather or an export on rank 0, its host, its disk)"
        )
    most_s = others_s or took_s
    if _slow(size, nodes, most_s):
        lines.append(
            f"storage is slow: {size / most_s / nodes / GB:.3g} GB/s a node. Save"
            " asynchronously, faster storage, or weights alone for all but a few saves"
        )
    return "; ".join(lines)
