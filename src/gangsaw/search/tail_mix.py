"""A stated mix of jobs against a published survey of stragglers.

The survey (arXiv:2505.05713) looked at 3,079 jobs of 128 devices and more: S is the step over
that of the same job with all work evened out; a job straggles at S above 1.1. The mix states
models, cuts and conditions; what uneven last stages cost follows from the models' own shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.read.reliability import load_reliability
from gangsaw.search.estimate import Evaluated, evaluate
from gangsaw.search.tail import Conditions, paces_of, tables_of
from gangsaw.search.timeline import plan_schedule, stage_times, stage_transfers
from gangsaw.simulate.noise import coupled_members
from gangsaw.simulate.tail import After, Graph, draw_steps, graph_of, play_vector
from gangsaw.simulate.times import StageTimes
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan

STRAGGLING = 1.1


@dataclass(frozen=True)
class JobMix:
    """Shares of jobs by condition; the rest of a job is its model and cut.

    long_context: jobs with uneven sequences (share as surveyed), whose microbatches vary by
    `sequence_cv`, chosen so that such jobs are slowed by the surveyed 1.34 in the mean. faulty:
    jobs with one worker `faulty_factor` times as slow, uniform between the two, share as surveyed
    and factors about its 3.04. Uneven last stages are not stated: they come from the models.
    """

    long_context_frac: float = 0.214
    sequence_cv: float = 0.20
    faulty_frac: float = 0.017
    faulty_factor: tuple[float, float] = (2.0, 4.5)
    jobs: int = 600
    steps: int = 10


class MixResult(NamedTuple):
    """Slowdowns of a mix: share straggling, their mean slowdown, share of device-hours lost, its
    percentiles over jobs; share of jobs by cause (the largest part of what they lose)."""

    straggling_frac: float
    mean_slowdown: float
    wasted_frac: float
    p90_waste: float
    p99_waste: float
    last_stage_frac: float
    uneven_frac: float
    faulty_slowdown: float
    jobs: int
    seed: int


class _Case(NamedTuple):
    """One job: slowdown S, and S by its stages alone."""

    slowdown: float
    stages: float
    uneven: bool
    faulty: bool


class _Ready(NamedTuple):
    """A case of the mix, evaluated once: its graph, and its step with even and with own stages."""

    ev: Evaluated
    graph: Graph
    members: int
    ideal_s: float
    actual_s: float
    rest_s: float


def _ready(job: Job, plan: Plan) -> _Ready:
    ev = evaluate(job, plan)
    times, schedule, hops = stage_times(ev), plan_schedule(ev), stage_transfers(ev)
    graph = graph_of(schedule, times, hops)
    even_times = StageTimes.of(
        times.stages, float(times.forward_s.mean()), float(times.backward_s.mean()),
        float(times.weight_s.mean()),
    )  # fmt: skip
    one = np.ones((plan.pp, 1))
    ideal = float(play_vector(graph_of(schedule, even_times, hops), one).max())
    actual = float(play_vector(graph, one).max())
    rest = max(0.0, ev.cost.step - actual)
    return _Ready(ev, graph, coupled_members(plan), ideal + rest, actual + rest, rest)


def _one(case: _Ready, mix: JobMix, uneven: bool, faulty: bool, seed: int) -> _Case:
    """One job under its conditions."""
    figures = load_reliability()
    rng = np.random.default_rng((seed, 1))
    # Slow hosts are the mix's own faulty workers.
    changed = {"sequence_cv": mix.sequence_cv if uneven else 0.0, "slow_host_frac": 0.0}
    figures = figures.model_copy(update={"noise": figures.noise.model_copy(update=changed)})
    day = Conditions(figures, routing="sprayed", steps=mix.steps, clusters=1, seed=seed)
    pace: Array = paces_of(case.ev, day, case.members, 1)
    if faulty:
        replica, rank = rng.integers(pace.shape[1]), rng.integers(pace.shape[2])
        pace[0, replica, rank] *= rng.uniform(*mix.faulty_factor)
    tables = tables_of(case.ev, day, case.members)
    drawn = draw_steps(case.graph, pace, tables, After(0.0, case.rest_s), mix.steps, seed)
    slowdown = float(drawn.step_s.mean()) / case.ideal_s
    return _Case(slowdown, case.actual_s / case.ideal_s, uneven, faulty)


def mix_result(cases: Sequence[tuple[Job, Plan]], mix: JobMix, seed: int = 0) -> MixResult:
    """The mix: each job draws a case and its conditions."""
    rng = np.random.default_rng(seed)
    ready = [_ready(job, plan) for job, plan in cases]
    rows = []
    for k in range(mix.jobs):
        case = ready[int(rng.integers(len(ready)))]
        uneven, faulty = rng.random(2) < (mix.long_context_frac, mix.faulty_frac)
        rows.append(_one(case, mix, bool(uneven), bool(faulty), seed * 100_003 + k))
    s = np.array([r.slowdown for r in rows])
    waste = 1.0 - 1.0 / s
    slow = s > STRAGGLING
    by_stage = np.array([r.stages - 1.0 > 0.5 * (r.slowdown - 1.0) for r in rows])
    faulty_s = [r.slowdown for r in rows if r.faulty]
    return MixResult(
        straggling_frac=float(slow.mean()),
        mean_slowdown=float(s[slow].mean()) if slow.any() else 1.0,
        wasted_frac=float(waste.mean()),
        p90_waste=float(np.quantile(waste, 0.9)),
        p99_waste=float(np.quantile(waste, 0.99)),
        last_stage_frac=float(by_stage.mean()),
        uneven_frac=float(np.mean([r.uneven for r in rows])),
        faulty_slowdown=float(np.mean(faulty_s)) if faulty_s else 1.0,
        jobs=mix.jobs,
        seed=seed,
    )


RULED_PARAMS = (6.5e9, 180e9)
RULED_STATE_BYTES = 40e9
"""Of an 80 GB device; the other half is for activations."""


def ruled_cases() -> tuple[tuple[Job, Plan], ...]:
    """Every dense model of the catalog in this range, cut by one rule; nothing is adjusted.

    128, 512 or 1,024 A100 below 20, below 80 billion parameters and above. The first of TP 1, 2,
    4, 8 and then PP 2, 4, 8, 16 with TP 8 that leaves 18 bytes a parameter below 40 GB a device
    and equal layers a stage; 1F1B, 32 microbatches with a pipeline and 8 without. Models that no
    such TP divides are left out.
    """
    from gangsaw.cost.legal import check_shapes
    from gangsaw.read.clusters import load_cluster
    from gangsaw.read.models import list_models, load_model
    from gangsaw.read.stacks import load_stack
    from gangsaw.spec.recipe import Recipe

    cuts = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8), (8, 16)]
    out = []
    for name in list_models():
        model = load_model(name)
        size = float(model.params())
        if not RULED_PARAMS[0] <= size <= RULED_PARAMS[1] or model.vision is not None:
            continue
        if any(kind.moe for kind in model.kinds):
            continue
        room = [
            (tp, pp)
            for tp, pp in cuts
            if 18.0 * size / (tp * pp) <= RULED_STATE_BYTES and model.layers % pp == 0
        ]
        try:
            check_shapes(model, Plan(tp=room[0][0]), 4096)
        except (InputError, IndexError):
            continue
        tp, pp = room[0]
        devices = 128 if size < 20e9 else 512 if size < 80e9 else 1024
        dp, m = devices // (tp * pp), 32 if pp > 1 else 8
        job = Job(
            model=model,
            recipe=Recipe(seq_len=4096, global_batch=dp * m),
            cluster=load_cluster(f"a100-sxm-80g:{devices}"),
            stack=load_stack("megatron-core-te"),
        )
        out.append((job, Plan(tp=tp, pp=pp, dp=dp, num_microbatches=m)))
    return tuple(out)


def survey_cases() -> tuple[tuple[Job, Plan], ...]:
    """The mix of docs/tail.md: dense models of 7 to 175 billion parameters in even stages.

    Half have vocabularies of 128,000 and more, as models of 2024 do; 128 to 1,024 devices of
    eight-device A100 nodes, 1F1B and interleaved; stages hold equal layers, as launch files have
    them where nobody balances the loss.
    """
    from gangsaw.read.clusters import load_cluster
    from gangsaw.read.models import load_model
    from gangsaw.read.stacks import load_stack
    from gangsaw.spec.recipe import Recipe

    shapes = (
        ("llama-2-7b", 128, 1, 1, 1), ("llama-2-13b", 128, 2, 4, 1),
        ("llama-1-65b", 256, 8, 4, 1), ("llama-2-70b", 512, 8, 8, 1),
        ("gpt3-175b", 1024, 8, 8, 1), ("gpt3-175b", 1024, 8, 16, 2),
        ("llama-3-8b", 128, 1, 4, 1), ("llama-3-8b", 256, 2, 8, 1),
        ("qwen2.5-14b", 256, 2, 8, 1), ("qwen2.5-32b", 512, 4, 8, 1),
        ("gemma-2-27b", 256, 8, 2, 1), ("llama-3-70b", 512, 8, 8, 1),
    )  # fmt: skip
    out = []
    for name, devices, tp, pp, vpp in shapes:
        dp = devices // (tp * pp)
        m = 32 if pp > 1 else 8
        job = Job(
            model=load_model(name),
            recipe=Recipe(seq_len=4096, global_batch=dp * m),
            cluster=load_cluster(f"a100-sxm-80g:{devices}"),
            stack=load_stack("megatron-core-te"),
        )
        plan = Plan(
            tp=tp, pp=pp, vpp=vpp, dp=dp, num_microbatches=m, recompute="selective",
            schedule="interleaved" if vpp > 1 else "1f1b",
        )  # fmt: skip
        out.append((job, plan))
    return tuple(out)
