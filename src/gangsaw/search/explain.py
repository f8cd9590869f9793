"""The five steps that lead to a plan, with the numbers at each step.

1. one layer: memory and collective time by TP; 2. raise TP while its collectives stay inside the
fast domain and the layer still gets faster; 3. add PP until the state fits, and sweep microbatches
until the bubble stops paying; 4. data parallelism takes what is left; 5. walk again with another
precision and sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import Field

from gangsaw.cost.evaluate import time_table
from gangsaw.cost.legal import divisors, legal_tp
from gangsaw.cost.lower import Lowered, cut_of, lower, strides_of
from gangsaw.cost.lower_cluster import tier_name_for
from gangsaw.cost.memory import DENSE, EXPERT, KEPT_NONE, memory_table
from gangsaw.cost.memory_doc import memory_doc
from gangsaw.cost.step import BWD, FWD, TP_B, TP_F, WGRAD
from gangsaw.errors import InputError
from gangsaw.search.estimate import Evaluated, causes_of, evaluate
from gangsaw.spec.base import Document
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

WORTH_TP = 0.9
"""TP is doubled while a layer takes at most 9/10 of the time that it took before."""
STATE_BYTES = 16.0


class LayerRow(Document):
    """One layer and one sequence on one rank."""

    tp: int
    tier: str = Field(description="the outermost tier that the tensor group crosses")
    state_bytes: float = Field(description="parameters, gradients and optimizer, unsharded")
    activation_bytes: float = Field(description="kept for backward, by the stack's profile")
    measured_kept_bytes: float | None = Field(
        None, description="the same as seen on the machine, the layer's input in it"
    )
    compute_s: float
    tp_comm_s: float
    tp_comm_frac: float
    total_s: float = Field(description="measured where it was measured, else predicted")
    measured_s: float | None = Field(None, description="forward and backward on the machine")
    chosen: bool = False


class PipelineRow(Document):
    """One number of stages with its best microbatch."""

    pp: int
    vpp: int
    dp: int
    mbs: int
    num_microbatches: int
    recompute: str
    bubble_frac: float
    step_time_s: float
    peak_bytes: float
    fits: str
    chosen: bool = False


class MicrobatchRow(Document):
    """One microbatch size at the chosen degrees."""

    mbs: int
    num_microbatches: int
    bubble_frac: float
    compute_s: float
    step_time_s: float
    peak_bytes: float
    fits: str
    chosen: bool = False


class DataRow(Document):
    """One ZeRO stage over the data-parallel ranks."""

    zero: int
    dp: int
    dp_comm_s: float
    step_time_s: float
    peak_bytes: float
    fits: str
    chosen: bool = False


class AgainRow(Document):
    """The walk's outcome for another precision or sequence length."""

    precision: str
    seq_len: int
    tp: int
    pp: int
    vpp: int
    dp: int
    mbs: int
    recompute: str
    step_time_s: float
    fits: str


class ExplainStep(Document):
    """One step of the walk: its figures and what follows from them."""

    title: str
    layers: tuple[LayerRow, ...] = ()
    pipelines: tuple[PipelineRow, ...] = ()
    microbatches: tuple[MicrobatchRow, ...] = ()
    sharding: tuple[DataRow, ...] = ()
    again: tuple[AgainRow, ...] = ()
    conclusion: str


class ExplainResult(Document):
    """What `explain` answers."""

    model: str
    cluster: str
    stack: str
    steps: tuple[ExplainStep, ...]


class Measured(NamedTuple):
    """Seconds of a layer forward and backward, and bytes that it keeps between, by TP size."""

    seconds: Mapping[int, float] = {}
    kept_bytes: Mapping[int, float] = {}


def layer_rows(job: Job, low: Lowered, measured: Measured) -> list[LayerRow]:
    """The most frequent layer kind on one rank, by TP; measured seconds by TP stand for ours."""
    kind = max(range(len(job.model.kinds)), key=job.model.order.count)
    rows = []
    for tp in [t for t in legal_tp(job.model, 64) if job.cluster.devices % t == 0]:
        sp = job.recipe.seq_len % tp == 0
        plan = Plan(tp=tp, dp=job.cluster.devices // tp, sequence_parallel=sp)
        cut = cut_of(plan, job.recipe)
        time = time_table(low.kinds, cut, low.device, low.net, strides_of(plan), low.stack)[kind]
        held = memory_table(low.kinds, cut, low.memory)[kind]
        compute = float(time[FWD] + time[BWD] + time[WGRAD])
        comm = float(time[TP_F] + time[TP_B])
        rows.append(
            LayerRow(
                tp=tp,
                tier=tier_name_for(job.cluster, tp, 1),
                state_bytes=STATE_BYTES * float(held[DENSE] + held[EXPERT]),
                activation_bytes=float(held[KEPT_NONE]),
                measured_kept_bytes=measured.kept_bytes.get(tp),
                compute_s=compute,
                tp_comm_s=comm,
                tp_comm_frac=comm / (compute + comm),
                total_s=measured.seconds.get(tp, compute + comm),
                measured_s=measured.seconds.get(tp),
            )
        )
    return rows


def choose_tp(rows: list[LayerRow]) -> tuple[int, str]:
    """The TP of step 2, and why it stops there."""
    fast = rows[0].tier
    best = rows[0]
    for row in rows[1:]:
        if row.tier != fast:
            return best.tp, f"tp={row.tp} would leave the {fast}: collectives cross the {row.tier}"
        if row.total_s > WORTH_TP * best.total_s:
            return best.tp, f"tp={row.tp} takes {row.total_s / best.total_s:.2f} x the time"
        best = row
    return best.tp, "no larger tp divides the model's heads and the devices"


def candidates(job: Job, tp: int, pp: int) -> Iterator[Plan]:
    """Plans of one number of stages: microbatches, chunks and recompute."""
    dp = job.cluster.devices // (tp * pp)
    per = job.recipe.global_batch // dp
    sp = job.recipe.seq_len % tp == 0
    layers = job.model.layers
    for mbs in [b for b in divisors(per) if b <= 16]:
        m = per // mbs
        chunks = [1]
        if pp > 1 and m % pp == 0:
            chunks += [v for v in divisors(layers // pp) if 1 < v <= 8]
        for v in chunks:
            for recompute in ("none", "selective", "full"):
                yield Plan.model_validate(
                    {
                        "tp": tp, "pp": pp, "dp": dp, "vpp": v, "mbs": mbs, "num_microbatches": m,
                        "schedule": "interleaved" if v > 1 else "1f1b", "recompute": recompute,
                        "sequence_parallel": sp,
                    }
                )  # fmt: skip


def best_of(job: Job, low: Lowered, plans: Iterator[Plan]) -> tuple[Evaluated, str] | None:
    """The fastest plan that fits; the one that holds least where none does."""
    tried = []
    for plan in plans:
        try:
            tried.append(evaluate(job, plan, low))
        except InputError:
            continue
    tried.sort(key=lambda e: e.cost.step)
    least = None
    for ev in tried:
        memory = memory_doc(job, ev.plan, ev.counts, low)
        if memory.fits == "yes":
            return ev, "yes"
        if least is None or memory.peak_bytes < least[1]:
            least = (ev, memory.peak_bytes, memory.fits)
    return (least[0], least[2]) if least else None


def bubble_frac(ev: Evaluated) -> float:
    """Share of the step that the mean device waits for the pipeline."""
    return causes_of(ev.cost)["bubble"] / ev.cost.step


def pipeline_rows(job: Job, low: Lowered, tp: int) -> list[tuple[PipelineRow, Evaluated]]:
    """Step 3: the best plan of each number of stages."""
    rows = []
    for pp in [p for p in divisors(job.cluster.devices // tp) if p <= min(job.model.layers, 64)]:
        if job.recipe.global_batch % (job.cluster.devices // (tp * pp)):
            continue
        found = best_of(job, low, candidates(job, tp, pp))
        if found is None:
            continue
        ev, fits = found
        plan = ev.plan
        row = PipelineRow(
            pp=pp, vpp=plan.vpp, dp=plan.dp, mbs=plan.mbs, num_microbatches=plan.num_microbatches,
            recompute=plan.recompute, bubble_frac=bubble_frac(ev), step_time_s=ev.cost.step,
            peak_bytes=memory_doc(job, plan, ev.counts, low).peak_bytes, fits=fits,
        )  # fmt: skip
        rows.append((row, ev))
    return rows


def microbatch_rows(job: Job, low: Lowered, plan: Plan) -> list[MicrobatchRow]:
    """The chosen degrees at every microbatch: bubble against kernels and memory."""
    rows = []
    per = job.recipe.global_batch // plan.dp
    for mbs in [b for b in divisors(per) if b <= 16]:
        trial = plan.model_copy(update={"mbs": mbs, "num_microbatches": per // mbs})
        try:
            ev = evaluate(job, trial, low)
        except InputError:
            continue
        memory = memory_doc(job, trial, ev.counts, low)
        rows.append(
            MicrobatchRow(
                mbs=mbs,
                num_microbatches=per // mbs,
                bubble_frac=bubble_frac(ev),
                compute_s=ev.cost.compute,
                step_time_s=ev.cost.step,
                peak_bytes=memory.peak_bytes,
                fits=memory.fits,
                chosen=mbs == plan.mbs,
            )
        )
    return rows


def data_rows(job: Job, low: Lowered, plan: Plan) -> list[DataRow]:
    """Step 4: the ZeRO stages over the ranks that are left."""
    rows = []
    for zero in (0, 1, 2, 3):
        trial = plan.model_copy(update={"zero": zero})
        ev = evaluate(job, trial, low)
        memory = memory_doc(job, trial, ev.counts, low)
        rows.append(
            DataRow(
                zero=zero,
                dp=plan.dp,
                dp_comm_s=ev.cost.dp_comm,
                step_time_s=ev.cost.step,
                peak_bytes=memory.peak_bytes,
                fits=memory.fits,
                chosen=zero == plan.zero,
            )
        )
    return rows


def walk(job: Job, measured: Measured | None = None) -> tuple[list[ExplainStep], Evaluated, str]:
    """Steps 1 to 4 and the plan that they lead to; `measured`: a layer by TP."""
    low = lower(job)
    rows = layer_rows(job, low, measured or Measured())
    tp, reason = choose_tp(rows)
    pipelines = pipeline_rows(job, low, tp)
    if not pipelines:
        raise InputError(
            f"with tp={tp} no number of stages divides {job.cluster.devices} devices and"
            f" {job.recipe.global_batch} sequences; choose another global batch"
        )
    fit = [p for p in pipelines if p[0].fits == "yes"]
    best = min(fit or pipelines, key=lambda p: p[0].step_time_s)
    if not fit:
        best = min(pipelines, key=lambda p: p[0].peak_bytes)
    ev = best[1]
    shown = tuple(r.model_copy(update={"chosen": r is best[0]}) for r, _ in pipelines)
    first = rows[0]
    last = next(r for r in rows if r.tp == tp)
    said = (
        f"pp={best[0].pp} with {best[0].num_microbatches} microbatches of {best[0].mbs}:"
        f" bubble {100 * best[0].bubble_frac:.1f} %, fits: {best[0].fits}"
    )
    sharded = (
        f"dp={ev.plan.dp}; exposed gradient and parameter traffic"
        f" {100 * ev.cost.dp_comm / ev.cost.step:.1f} % of the step"
    )
    if ev.plan.pp > 1:
        sharded += (
            "; ZeRO 3 under a pipeline gathers once a step and keeps a stage's weights and"
            " gradients whole until its end"
        )
    steps = [
        ExplainStep(
            title="1 One layer by TP",
            layers=tuple(r.model_copy(update={"chosen": r.tp == tp}) for r in rows),
            conclusion=(
                f"a layer holds {first.state_bytes / 2**30:.2f} GiB of state at tp=1 and"
                f" {last.state_bytes / 2**30:.2f} at tp={tp}"
            ),
        ),
        ExplainStep(
            title="2 Raise TP inside the fast domain", conclusion=f"tp={tp}, because {reason}"
        ),
        ExplainStep(
            title="3 Add stages until it fits, and sweep microbatches",
            pipelines=shown,
            microbatches=tuple(microbatch_rows(job, low, ev.plan)),
            conclusion=said,
        ),
        ExplainStep(
            title="4 Data parallelism last",
            sharding=tuple(data_rows(job, low, ev.plan)),
            conclusion=sharded,
        ),
    ]
    return steps, ev, best[0].fits


def again_rows(job: Job) -> list[AgainRow]:
    """Step 5: the walk with other precision and sequence length."""
    trials = [(job.recipe.precision, job.recipe.seq_len)]
    for precision in ("bf16", "fp8"):
        if precision in job.cluster.device.peak_flops_per_s and precision != job.recipe.precision:
            trials.append((precision, job.recipe.seq_len))
    if job.recipe.global_batch % 4 == 0:
        trials.append((job.recipe.precision, 4 * job.recipe.seq_len))
    rows = []
    for precision, seq_len in trials:
        batch = job.recipe.global_batch * job.recipe.seq_len // seq_len
        recipe = job.recipe.model_copy(
            update={"precision": precision, "seq_len": seq_len, "global_batch": batch}
        )
        try:
            _, ev, fits = walk(job.model_copy(update={"recipe": recipe}))
        except InputError:
            continue
        p = ev.plan
        rows.append(
            AgainRow(
                precision=precision,
                seq_len=seq_len,
                tp=p.tp,
                pp=p.pp,
                vpp=p.vpp,
                dp=p.dp,
                mbs=p.mbs,
                recompute=p.recompute,
                step_time_s=ev.cost.step,
                fits=fits,
            )
        )
    return rows


def explain(job: Job, measured: Measured | None = None) -> ExplainResult:
    """The walk to a plan of the job.

    `measured`: of a layer on this machine by TP size, for one sequence of the recipe's length in
    its precision; its seconds decide step 2. Step 5, at other precisions and lengths, follows the
    curves of the (measured) cluster.
    """
    steps, _, _ = walk(job, measured)
    again = again_rows(job)
    cuts = {(r.tp, r.pp, r.vpp, r.dp) for r in again}
    if len(cuts) > 1:
        said = "the cut changes with them"
    elif len({(r.mbs, r.recompute) for r in again}) > 1:
        said = "the same cut holds for all; microbatch or recompute change"
    else:
        said = "the same plan holds for all"
    steps.append(
        ExplainStep(
            title="5 Again with another precision and sequence length",
            again=tuple(again),
            conclusion=said,
        )
    )
    return ExplainResult(
        model=job.model.name,
        cluster=f"{job.cluster.name}:{job.cluster.devices}",
        stack=job.stack.name,
        steps=tuple(steps),
    )
