"""A plan to the files of a target, with what the target cannot say."""

from __future__ import annotations

from collections.abc import Callable

from gangsaw.errors import GangsawError, InputError
from gangsaw.export import bridge, deepspeed, megatron, own, titan
from gangsaw.export.document import Export, ExportFile, canonical, plan_hash
from gangsaw.export.ends import end_notes
from gangsaw.export.megatron import unscaled
from gangsaw.export.nearest import nearest
from gangsaw.schedule import Schedule, csv_note, generate, to_csv
from gangsaw.search.estimate import closed_form, estimate
from gangsaw.search.timeline import plan_schedule
from gangsaw.spec import Job, Plan
from gangsaw.units import format_gib

Writer = Callable[[Job, Plan], tuple[ExportFile, ...]]
MAX_ACTIONS = 20_000_000


def _schedule_csv(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """The order of a plan's actions as torch's pipelining runtime loads it."""
    size = plan.pp * plan.vpp * plan.num_microbatches
    if size > MAX_ACTIONS:
        raise InputError(
            f"{plan.pp} x {plan.vpp} stages x {plan.num_microbatches} microbatches = {size:,}"
            f" cells; {MAX_ACTIONS:,} are the limit"
        )
    schedule = _schedule(job, plan)
    return (ExportFile(name="schedule.csv", text=to_csv(schedule), main=True),)


def _schedule(job: Job, plan: Plan) -> Schedule:
    """The order of a plan's actions: by name, or synthesised for the stages' own times."""
    if plan.schedule == "auto" and plan.pp > 1:
        return plan_schedule(closed_form(job, plan))
    return generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp)


WRITERS: dict[str, Writer] = {
    "megatron-lm": megatron.files, "megatron-bridge": bridge.files, "torchtitan": titan.files,
    "deepspeed": deepspeed.files, "torchrun": own.torchrun, "slurm": own.slurm,
    "kubernetes": own.kubernetes, "schedule-csv": _schedule_csv,
}  # fmt: skip
TARGETS = tuple(WRITERS)


def export_plan(job: Job, plan: Plan, target: str) -> Export:
    """Complete launch files of `plan` for `target`.

    Where the target cannot express the plan, the files hold the nearest that it can, and the
    result says what differs and what it costs. Raises InputError for an unknown target, an illegal
    plan, or a model that the target does not have.
    """
    if target not in WRITERS:
        raise InputError(f"--to {target!r} is unknown. Legal: {', '.join(TARGETS)}")
    plan.check_product(job.cluster.devices, job.recipe.global_batch)
    longest = job.model.learned_positions
    if longest and job.recipe.seq_len > longest:
        raise InputError(
            f"sequence length {job.recipe.seq_len} is beyond the {longest} positions that"
            f" {job.model.name} has learned. Legal: up to {longest}"
        )
    near, differences = nearest(job, plan, target)
    near.check_product(job.cluster.devices, job.recipe.global_batch)
    notes = _notes(job, near, target)
    step = peak = None
    if differences:
        try:
            before, after = estimate(job, plan), estimate(job, near)
            step = after.step_time_s / before.step_time_s - 1.0
            peak = after.memory.peak_bytes - before.memory.peak_bytes
            if after.memory.fits == "no" and before.memory.fits != "no":
                notes.append(
                    f"as written it needs {format_gib(after.memory.peak_bytes)} where"
                    f" {format_gib(after.memory.capacity_bytes)} fit: gangsaw plan lists what fits"
                )
        except GangsawError:
            pass
    return Export(
        target=target, files=WRITERS[target](job, near), plan=near,
        plan_hash=plan_hash(canonical(job, near)), differences=differences,
        step_time_change_frac=step, peak_change_bytes=peak, notes=tuple(notes),
    )  # fmt: skip


def _notes(job: Job, plan: Plan, target: str) -> list[str]:
    """What the files leave open, or leave out, of the job."""
    notes = list(end_notes(job.model, target))
    precision = job.recipe.precision
    if target in ("torchrun", "slurm", "kubernetes") and precision not in ("bf16", "fp32"):
        notes.append(f"precision {precision}: gangsaw's trainer has bf16 and fp32; bf16 stated")
    if target == "deepspeed" and precision == "fp8":
        notes.append("precision fp8: DeepSpeed under the Trainer has bf16 and fp16; bf16 stated")
    megatron = target in ("megatron-lm", "megatron-bridge") and not job.model.learned_positions
    if megatron and unscaled(job.model):
        notes.append(f"{unscaled(job.model)} is not stated: Megatron has no flags for it")
    if megatron and job.model.rotary is None:
        notes.append(
            "the base of rotary positions is not stated for this model: the framework's default,"
            " 10000, holds unless --rotary-base (rotary_base) states another"
        )
    if target == "schedule-csv" and plan.schedule == "dualpipe":
        notes.append(csv_note(_schedule(job, plan)))
    return notes
