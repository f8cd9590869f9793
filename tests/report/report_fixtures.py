"""Results that hang together, made from a few numbers: memory adds up, bills sum, MFU follows."""

from __future__ import annotations

import math

from gangsaw.bill.invoice import step_bill
from gangsaw.spec.result import (
    CollectiveDoc,
    EstimateResult,
    MemoryDoc,
    PlanDoc,
    PlanListResult,
    PlanResult,
    SearchedDoc,
    StageMemoryDoc,
    WaterfallStep,
)

GIB = 2.0**30
PEAK = 989e12
MODEL_FLOPS = 6 * 405e9 * 8192 * 2048


def stage_memory(stage, stages, layers, tp, dp, activations_scale):
    params = layers * 3.2e9 / tp * 2 + (4.2e9 / tp if stage in (0, stages - 1) else 0)
    grads = params * 2
    optimizer = params * 6 / dp
    activations = activations_scale * (stages - stage) / stages * layers * 7.0 * GIB / 7
    logits = 2.1 * GIB if stage == stages - 1 else 0.0
    buffers = 1.4 * GIB
    allocated = params + grads + optimizer + activations + logits + buffers
    reserved = allocated * 1.06
    return StageMemoryDoc(
        stage=stage,
        layers=layers,
        params_bytes=params,
        grads_bytes=grads,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        logits_bytes=logits,
        buffers_bytes=buffers,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=reserved + 1.5e9,
        in_flight=float(stages - stage),
        phase="loss" if stage == stages - 1 else "backward",
    )


def memory(pp, tp, dp, scale=1.0, layers=126):
    base, extra = divmod(layers, pp)
    split = [base + (1 if 0 < i <= extra else 0) for i in range(pp)]
    if sum(split) < layers:
        split[-1] += layers - sum(split)
    stages = tuple(stage_memory(i, pp, n, tp, dp, scale) for i, n in enumerate(split))
    peak = max(s.peak_device_bytes for s in stages)
    capacity = 79.1 * GIB
    fits = "yes" if peak * 1.05 < capacity else "risky" if peak * 0.95 < capacity else "no"
    return split, MemoryDoc(
        capacity_bytes=capacity,
        per_stage=stages,
        peak_bytes=peak,
        peak_lo_bytes=peak * 0.95,
        peak_hi_bytes=peak * 1.05,
        headroom_frac=(capacity - peak) / capacity,
        fits=fits,
        host_bytes=320 * GIB,
        moments={"build": 20 * GIB, "first step": peak, "save": 0.8 * peak},
    )


def plan_result(
    tp=8, cp=1, pp=16, vpp=1, dp=128, mbs=1, schedule="1f1b", recompute="none", ideal_s=5.0,
    scale=1.0, labels=(), why="", devices=16384, price=2.5, **loss
):  # fmt: skip
    m = 2048 // dp // mbs
    causes = {"compute": ideal_s * 1.35, "optimizer": 0.02, "host": 0.03, **loss}
    causes["bubble"] = sum(causes.values()) * (pp - 1) / (vpp * m)
    if recompute == "full":
        causes["recompute"] = ideal_s * 0.4
    step = math.fsum(causes.values())
    split, mem = memory(pp, tp, dp, scale * (0.2 if recompute == "full" else 1.0))
    bill = step_bill(causes, devices, step, price, 8192 * 2048, 15.6e12)
    mfu = MODEL_FLOPS / (step * devices * PEAK)
    return PlanResult(
        plan=PlanDoc(
            tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=1, etp=1, mbs=mbs, num_microbatches=m,
            schedule=schedule, recompute=recompute, zero=1, sequence_parallel=True,
            stages=tuple(split),
        ),
        labels=labels,
        step_time_s=step,
        step_time_lo_s=step * 0.94,
        step_time_hi_s=step * 1.07,
        best_prob_frac=0.5,
        mfu_frac=mfu,
        hfu_frac=mfu * (1.33 if recompute == "full" else 1.0),
        tokens_per_s_per_device=8192 * 2048 / step / devices,
        memory=mem,
        bill=bill,
        why=why,
    )  # fmt: skip


def plans():
    return (
        plan_result(
            labels=("fastest", "cheapest"), tp_comm=0.62, dp_comm=0.11, pp_comm=0.07, vpp=7,
            schedule="interleaved", scale=0.62,
            why="1.9 % faster than the next: seven chunks a rank cut the bubble from 48.4 % to 11.8 %",
        ),
        plan_result(
            tp=8, pp=8, dp=256, tp_comm=0.62, dp_comm=0.21, pp_comm=0.03, vpp=2,
            schedule="interleaved", scale=0.4,
            why="fewer stages than the next, and half its bubble; more memory a stage",
        ),
        plan_result(
            labels=("safest",), tp=16, pp=8, dp=128, tp_comm=1.9, dp_comm=0.08, pp_comm=0.03,
            scale=0.25, why="31.0 % of memory free; TP 16 leaves the node and pays for it",
        ),
        plan_result(
            labels=("simplest",), tp=8, pp=16, dp=128, recompute="full", tp_comm=0.71,
            dp_comm=0.11, pp_comm=0.07, why="even stages and no interleaving",
        ),
        plan_result(tp=4, pp=32, dp=128, tp_comm=0.3, dp_comm=0.1, pp_comm=0.14, why="least TP"),
    )  # fmt: skip


def plan_list(**change):
    found = plans()
    values = {
        "model": "llama-3.1-405b",
        "cluster": "h100-sxm:16384",
        "recipe": {
            "seq_len": 8192, "global_batch": 2048, "precision": "bf16", "task": "pretrain",
            "tokens": 15.6e12,
        },
        "stack": "megatron-core",
        "searched": SearchedDoc(plans=1_204_332, legal=1_630_112, fit=83_211, wall_s=1.94),
        "plans": found,
        "pareto": found[:3],
        "notes": ("latency inside a node is that of the catalog, not measured here",),
    }  # fmt: skip
    return PlanListResult(**{**values, **change})


def estimate_of(result: PlanResult) -> EstimateResult:
    seconds = {line.cause: line.device_s / 16384 for line in result.bill.lines}
    ideal = MODEL_FLOPS / 16384 / PEAK
    walk = [("kernel efficiency", seconds.pop("compute") - ideal)]
    walk += sorted(seconds.items(), key=lambda kv: -kv[1])
    steps, spent = [], ideal
    for cause, extra in walk:
        spent += extra
        steps.append(WaterfallStep(cause=cause, seconds=extra, mfu_frac_after=ideal / spent))
    return EstimateResult(
        **result.model_dump(),
        model="llama-3.1-405b",
        cluster="h100-sxm:16384",
        stack="megatron-core",
        lower_bound_s=ideal,
        lower_bounds={"compute": ideal, "memory": 0.4, "network": 0.9},
        waterfall=tuple(steps),
        collectives=(
            CollectiveDoc(
                axis="tp", operation="all-gather", group=8, tier="nvlink", count_per_step=2016.0,
                bytes_each=2.7e8, seconds_each=7.4e-4, exposed_s_per_step=0.62,
            ),
            CollectiveDoc(
                axis="dp", operation="reduce-scatter", group=128, tier="fabric",
                count_per_step=7.0, bytes_each=1.9e9, seconds_each=0.047, exposed_s_per_step=0.11,
            ),
        ),
        sources=("device curves: measured GEMM sweep on H100 SXM", "prices: list, 2026-06"),
        notes=("mean of the interval is not the median",),
    )  # fmt: skip
