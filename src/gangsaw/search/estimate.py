"""One plan, every term: time, memory, bill, bounds, collectives, and where each comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gangsaw.bill.invoice import step_bill
from gangsaw.cost.bound import step_bound_s
from gangsaw.cost.doubt import Site, View, predict_interval, view_of
from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.flops import (
    core_flops_per_token,
    frozen_flops_per_token,
    layers_flops_per_token,
    model_flops_per_token,
)
from gangsaw.cost.layout import default_counts
from gangsaw.cost.legal import check_plan
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.lower_cluster import peak_flops_per_s
from gangsaw.cost.memory_doc import memory_doc, memory_state
from gangsaw.cost.mixture import quantile
from gangsaw.cost.types import StepCost
from gangsaw.search.collectives import collectives_of
from gangsaw.search.on_site import plain_low
from gangsaw.search.unnamed import members_note, members_of
from gangsaw.spec.job import Job
from gangsaw.spec.plan import OWN_FILES, Plan
from gangsaw.spec.result import BillDoc, EstimateResult, PlanDoc, PlanResult, WaterfallStep


@dataclass(frozen=True)
class Evaluated:
    """A plan with its layout and the seconds of its step."""

    job: Job
    plan: Plan
    counts: tuple[int, ...]
    low: Lowered
    cost: StepCost


def counts_of(job: Job, plan: Plan) -> tuple[int, ...]:
    """Transformer layers of each chunk: as stated, else as even as they go."""
    if plan.stages is not None:
        return tuple(plan.stages)
    return default_counts(job.model.layers, plan.pp * plan.vpp)


PERIODS = ("auto", "dualpipe", "zb-h2")
"""Schedules without a fixed order whose stages are laid out in the event loop: ordered for their
times, on two pipes, or timed by their period."""


def in_the_loop(plan: Plan) -> bool:
    """Whether the plan's pipeline is timed by the event loop: where stages run a fixed order."""
    return plan.schedule.startswith(OWN_FILES) or (plan.pp > 1 and plan.schedule not in PERIODS)


def ordered(plan: Plan) -> bool:
    """Whether the plan's order is synthesised for its own stage times, which the loop then runs."""
    return plan.schedule == "auto" and plan.pp > 1


def evaluate(job: Job, plan: Plan, low: Lowered | None = None) -> Evaluated:
    """Seconds of one step of a legal plan; InputError names the rule that a plan breaks.

    The pipeline is that of the event loop on the plan's own stages, which are rarely equal: what
    the closed form takes for idle is replaced by what is (`search.timeline.simulated_cost`).
    """
    ev = closed_form(job, plan, low)
    cost = ev.cost
    if in_the_loop(plan) or ordered(plan):
        from gangsaw.search.timeline import simulated_cost

        cost = simulated_cost(ev)
    if job.site is not None:
        shift, _ = site_of(job).predict([view_of_plan(job, plan, ev.counts, ev.low)])
        cost = StepCost(*(math.exp(float(shift[0])) * seconds for seconds in cost))
    return replace(ev, cost=cost)


def closed_form(job: Job, plan: Plan, low: Lowered | None = None) -> Evaluated:
    """The step as the search has it for every plan, without a site's steps: formulas alone."""
    check_plan(job, plan)
    # A site's steps are corrections of the general fit: that is what they are applied to.
    low = plain_low(job) if job.site is not None else low or lower(job)
    counts = counts_of(job, plan)
    cost = plan_step(
        low.kinds, low.ends, loads_of(job.model, plan, counts), cut_of(plan, job.recipe),
        memory_state(plan, job.recipe), low.device, low.net, strides_of(plan), low.stack,
        low.memory,
    )  # fmt: skip
    return Evaluated(job, plan, counts, low, cost)


def recompute_text(plan: Plan) -> str:
    """Recompute as the flag takes it: none, selective, full, full:N layers a chunk."""
    if plan.recompute == "full" and plan.recompute_layers:
        return f"full:{plan.recompute_layers}"
    return plan.recompute


def plan_doc(plan: Plan, counts: tuple[int, ...]) -> PlanDoc:
    """The plan as the JSON shows it, with the layers of each stage."""
    return PlanDoc(
        tp=plan.tp, cp=plan.cp, pp=plan.pp, vpp=plan.vpp, dp=plan.dp, ep=plan.ep, etp=plan.etp,
        mbs=plan.mbs, num_microbatches=plan.num_microbatches,
        schedule=plan.schedule.replace("file-v:", "file:"),
        recompute=recompute_text(plan), zero=plan.zero, shard_group=plan.shard_group,
        sequence_parallel=plan.sequence_parallel, offload_optimizer=plan.offload_optimizer,
        offload_activations=plan.offload_activations, stages=counts, rank_order=plan.rank_order,
    )  # fmt: skip


def causes_of(cost: StepCost) -> dict[str, float]:
    """Seconds of the average device by cause, summing to the step.

    The bubble is what is left of the pipeline's time; rounding may make it a hair negative.
    """
    causes = {k: v for k, v in cost._asdict().items() if k != "step"}
    if causes["bubble"] < 0.0:
        causes["compute"] += causes["bubble"]
        causes["bubble"] = 0.0
    return causes


def model_flops_per_step(job: Job) -> float:
    """FLOPs that the model needs for a step, recompute not counted, attention causal as half.

    With frozen weights (LoRA) the weight gradients are not needed.
    """
    recipe = job.recipe
    count = frozen_flops_per_token if frozen(job) else model_flops_per_token
    images = float(recipe.images_per_sequence)
    return count(job.model, recipe.seq_len, True, images) * recipe.tokens_per_step


def frozen(job: Job) -> bool:
    """Whether the model's own weights stay as they are and only adapters are trained."""
    return job.recipe.task in ("lora", "qlora")


def peak_of(job: Job) -> float:
    """Dense FLOP/s of one device that MFU is counted against: that of the recipe's precision."""
    return peak_flops_per_s(job.cluster.device, job.recipe.precision)


def waterfall(job: Job, cost: StepCost) -> tuple[WaterfallStep, ...]:
    """From the peak to what is delivered: each cause and the MFU that is left after it."""
    flops = model_flops_per_step(job)
    devices = job.cluster.devices
    ideal = flops / (devices * peak_of(job))
    causes = causes_of(cost)
    rows = [("peak", 0.0, ideal)]
    total = ideal
    order = ["compute", "recompute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "bubble"]
    order += ["dp_comm", "optimizer", "offload", "host"]
    for cause in order:
        lost = causes[cause] - (ideal if cause == "compute" else 0.0)
        if lost == 0.0:
            continue
        total += lost
        rows.append(("kernels below peak" if cause == "compute" else cause, lost, total))
    return tuple(WaterfallStep(cause=c, seconds=s, mfu_frac_after=ideal / t) for c, s, t in rows)


def bounds_of(ev: Evaluated) -> dict[str, float]:
    """Physical lower bounds of the step, seconds."""
    job, plan, low = ev.job, ev.plan, ev.low
    state = memory_state(plan, job.recipe)
    loads = loads_of(job.model, plan, ev.counts)
    slowest = step_bound_s(low.kinds, low.ends, loads, cut_of(plan, job.recipe), state, low.device)
    mean = model_flops_per_step(job) / (job.cluster.devices * peak_of(job))
    return {"slowest stage at peak": slowest, "all devices at peak": mean}


_views: dict[tuple[int, Plan, tuple[int, ...]], tuple[Lowered, View]] = {}
"""Views of plans asked for lately: an interval and a comparison want the same ones. The numbers of
the job are kept beside, so that their identity stays theirs."""
MOST_VIEWS = 256


def view_of_plan(job: Job, plan: Plan, counts: tuple[int, ...], low: Lowered) -> View:
    """What the plan's step time answers to, and where the plan stands among others."""
    key = (id(low), plan, counts)
    if key in _views:
        return _views[key][1]
    args = (
        low.kinds, low.ends, loads_of(job.model, plan, counts), cut_of(plan, job.recipe),
        memory_state(plan, job.recipe), low.device, low.net, strides_of(plan), low.stack,
        low.memory,
    )  # fmt: skip
    view = view_of(args)
    if len(_views) >= MOST_VIEWS:
        _views.clear()
    _views[key] = (low, view)
    return view


def site_of(job: Job) -> Site:
    """What the measured steps of the job's site taught; nothing without one."""
    return Site() if job.site is None else Site.of(job.site)


def interval_of(ev: Evaluated) -> tuple[float, float]:
    """80 % interval of a step time, from sources left out whole and the site's own steps.

    Where no stack is named, of the mixture of all that it may be.
    """
    view = view_of_plan(ev.job, ev.plan, ev.counts, ev.low)
    (found,) = predict_interval([view], site_of(ev.job))
    may_be = members_of(ev)
    lo, hi = (quantile(p, may_be.offsets, may_be.weights, found.log_sd) for p in (0.1, 0.9))
    return ev.cost.step * math.exp(lo), ev.cost.step * math.exp(hi)


def bill_of(job: Job, cost: StepCost) -> BillDoc:
    """The invoice of one step of the plan on all devices of the cluster."""
    return step_bill(
        causes_of(cost),
        job.cluster.devices,
        cost.step,
        job.cluster.usd_per_device_hour,
        job.recipe.tokens_per_step,
        job.recipe.tokens,
    )


def recomputed_flops_per_step(job: Job, plan: Plan, counts: Sequence[int]) -> float:
    """FLOPs of a step that recompute adds, in the stack's meaning of `selective`.

    `counts`: transformer layers of each chunk; full recompute of the first N covers N of each.
    """
    recipe = job.recipe
    args = (job.model, recipe.seq_len, True, float(recipe.images_per_sequence))
    again = 0.0
    if plan.recompute == "full":
        first = plan.recompute_layers or max(counts)
        again = layers_flops_per_token(*args) * sum(min(first, n) for n in counts) / sum(counts)
    elif plan.recompute == "selective" and job.stack.memory.selective == "core_attention":
        again = core_flops_per_token(*args)
    elif plan.recompute == "selective" and job.stack.memory.selective == "op":
        # Of each two products one is kept, attention is kept.
        again = 0.5 * (layers_flops_per_token(*args) - core_flops_per_token(*args))
    return again * recipe.tokens_per_step


def hfu_share(job: Job, plan: Plan, counts: Sequence[int]) -> float:
    """Hardware FLOPs over model FLOPs: recompute added, as the plan recomputes.

    As Korthikanti et al. define it (arXiv:2205.05198): embedding and logits are never recomputed,
    so a model recomputed in full is below 4/3.
    """
    return 1.0 + recomputed_flops_per_step(job, plan, counts) / model_flops_per_step(job)


def plan_result(ev: Evaluated) -> PlanResult:
    """Time, memory and bill of an evaluated plan side by side."""
    job, plan, cost = ev.job, ev.plan, ev.cost
    lo, hi = interval_of(ev)
    mfu = model_flops_per_step(job) / (job.cluster.devices * peak_of(job) * cost.step)
    return PlanResult(
        plan=plan_doc(plan, ev.counts),
        step_time_s=cost.step,
        step_time_lo_s=lo,
        step_time_hi_s=hi,
        mfu_frac=mfu,
        hfu_frac=mfu * hfu_share(job, plan, ev.counts),
        tokens_per_s_per_device=job.recipe.tokens_per_step / (cost.step * job.cluster.devices),
        memory=memory_doc(job, plan, ev.counts, ev.low, _held(ev)),
        bill=bill_of(job, cost),
        why=limiting(cost),
    )


def _held(ev: Evaluated) -> list[float] | None:
    if not (ev.plan.schedule.startswith(OWN_FILES) or ordered(ev.plan)):
        return None
    from gangsaw.search.timeline import held_by

    return held_by(ev)


def estimate(job: Job, plan: Plan, low: Lowered | None = None) -> EstimateResult:
    """Every term of one plan. Raises InputError where the plan breaks a rule."""
    ev = evaluate(job, plan, low)
    bounds = bounds_of(ev)
    return EstimateResult(
        **dict(plan_result(ev)),
        model=job.model.name,
        cluster=job.cluster.name,
        stack=job.stack.name,
        lower_bound_s=max(bounds.values()),
        lower_bounds=bounds,
        waterfall=waterfall(job, ev.cost),
        collectives=collectives_of(ev.job, ev.plan, ev.counts, ev.low),
        sources=sources_of(job),
        notes=(*_unnamed(ev), *notes_of(job, plan)),
    )


def _unnamed(ev: Evaluated) -> tuple[str, ...]:
    """What the software decides, where none is named."""
    found = members_of(ev)
    return (members_note(ev.cost.step, found),) if len(found.names) > 1 else ()


def limiting(cost: StepCost) -> str:
    """What the step loses most to, in one line."""
    causes = causes_of(cost)
    lost = {k: v for k, v in causes.items() if k != "compute"}
    worst = max(lost, key=lambda k: lost[k])
    share, useful = lost[worst] / cost.step, causes["compute"] / cost.step
    axis = worst.removesuffix("_comm")
    said = worst if axis == worst else f"{axis.upper()} communication"
    return f"compute {100 * useful:.1f} %; most lost to {said} {100 * share:.1f} %"


def sources_of(job: Job) -> tuple[str, ...]:
    """Where the figures of this estimate come from."""
    device = job.cluster.device
    out = [f"device {device.name}: {device.source} ({device.as_of})"]
    out += [f"tier {t.name}: {t.source}" for t in job.cluster.tiers if t.source]
    out += [f"stack {job.stack.name}: {s}" for s in job.stack.sources]
    if job.cluster.price_source:
        out.append(f"price: {job.cluster.price_source} ({job.cluster.price_as_of})")
    if job.model.source:
        out.append(f"model {job.model.name}: {job.model.source}")
    return tuple(out)


def notes_of(job: Job, plan: Plan) -> tuple[str, ...]:
    """What the estimate leaves out or assumes."""
    notes = ["failures, checkpoints, evaluation and stragglers are not in the step time"]
    if job.recipe.moe_imbalance == 1.0 and any(k.moe for k in job.model.kinds):
        notes.append("routing is taken as balanced; state an imbalance to see what skew costs")
    if job.model.mtp is not None:
        notes.append("multi-token prediction layers are trained and counted in time and memory")
    if job.recipe.task == "qlora":
        notes.append("unpacking the 4-bit weights is not in the time; expect it to be slower")
    if plan.schedule.startswith(OWN_FILES):
        notes.append(
            "the pipeline is the schedule file in the event loop; a microbatch counts as held until"
            " its weight gradient is done"
        )
    if ordered(plan):
        notes.append(
            "the pipeline is an order synthesised for these stage times within the device's memory,"
            " in the event loop; where no microbatch fits, zb-h1's idle time"
        )
    group = plan.dp * plan.cp
    if 0 < plan.shard_group < group:
        notes.append(f"state is sharded over {plan.shard_group} of {group} data-parallel ranks")
    return tuple(notes)
