"""Plan results and uses for the bill's tests, made from a few numbers."""

import math

from gangsaw.bill.invoice import step_bill
from gangsaw.spec.invoice import StepUse
from gangsaw.spec.result import (
    CollectiveDoc,
    EstimateResult,
    MemoryDoc,
    PlanDoc,
    StageMemoryDoc,
)

CAUSE_S = {
    "compute": 4.0, "recompute": 0.5, "bubble": 0.9, "tp_comm": 0.7, "dp_comm": 0.2,
    "pp_comm": 0.1, "optimizer": 0.05, "host": 0.02,
}  # fmt: skip


def memory(stages=4):
    per = tuple(
        StageMemoryDoc(
            stage=i, layers=8, params_bytes=6e9, grads_bytes=12e9, optimizer_bytes=9e9,
            activations_bytes=(30 - 6 * i) * 1e9, logits_bytes=0 if i < stages - 1 else 4e9,
            buffers_bytes=1e9, peak_allocated_bytes=(58 - 6 * i) * 1e9,
            peak_reserved_bytes=(60 - 6 * i) * 1e9, peak_device_bytes=(62 - 6 * i) * 1e9,
            in_flight=stages - i, phase="backward",
        )
        for i in range(stages)
    )  # fmt: skip
    return MemoryDoc(
        capacity_bytes=80e9, per_stage=per, peak_bytes=62e9, peak_lo_bytes=60e9, peak_hi_bytes=64e9,
        headroom_frac=1 - 62 / 80, fits="yes", host_bytes=1e11, moments={},
    )  # fmt: skip


def estimate(causes=None, devices=256, price=2.0, tokens=2**22, **plan):
    causes = causes or CAUSE_S
    step_s = math.fsum(causes.values())
    shape = {"tp": 8, "pp": 4, "dp": devices // 32, "mbs": 1, "num_microbatches": 64, **plan}
    collectives = (
        ("tp", "all_reduce", 8, "node", 0.7), ("dp", "reduce_scatter", 8, "pod", 0.15),
        ("dp", "all_gather", 8, "rack", 0.05), ("pp", "send", 2, "rack", 0.1),
    )  # fmt: skip
    return EstimateResult(
        plan=PlanDoc(
            cp=1, vpp=1, ep=1, etp=1, schedule="1f1b", recompute="selective", zero=1,
            sequence_parallel=True, stages=(8, 8, 8, 8), **shape,
        ),
        step_time_s=step_s, step_time_lo_s=step_s * 0.9, step_time_hi_s=step_s * 1.1,
        mfu_frac=0.4, hfu_frac=0.45, tokens_per_s_per_device=tokens / step_s / devices,
        memory=memory(), bill=step_bill(causes, devices, step_s, price, tokens, None),
        model="m", cluster="c", stack="s", lower_bound_s=step_s / 2,
        collectives=tuple(
            CollectiveDoc(axis=a, operation=o, group=g, tier=t, count_per_step=1, bytes_each=1,
                          seconds_each=s, exposed_s_per_step=s)
            for a, o, g, t, s in collectives
        ),
    )  # fmt: skip


def use(causes=None, devices=64, tokens=1_000_000):
    causes = causes or CAUSE_S
    return StepUse.model_validate(
        {
            "title": "a plan",
            "devices": devices,
            "step_time_s": math.fsum(causes.values()),
            "tokens_per_step": tokens,
            "lines": [{"cause": c, "device_s": devices * s} for c, s in causes.items()],
        }
    )
