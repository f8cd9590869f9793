"""Random legal plans of real models on real machines, for property tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hypothesis import assume
from hypothesis import strategies as st

from gangsaw.cost.evaluate import plan_step
from gangsaw.cost.layout import default_counts
from gangsaw.cost.legal import check_plan, divisors, legal_tp
from gangsaw.cost.lower import Lowered, cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.plan import SCHEDULES, Plan
from gangsaw.spec.recipe import Recipe

MODELS = (
    "llama-3.1-8b", "llama-3.1-405b", "gpt2-xl", "gpt3-175b", "gpt-oss-20b", "deepseek-v2-lite",
    "deepseek-v3", "gemma-3-4b",
)  # fmt: skip
NODES = ("h100-sxm", "a100-sxm-80g", "gb200-nvl72")
STACKS = (
    "unknown", "megatron-core-te", "megatron-lm-2021", "torchtitan", "fsdp1",
    "megatron-deepspeed-bf16",
)  # fmt: skip
VPP = {"zb-v": 2, "v-half": 2, "v-min": 2, "dualpipe-v": 2}


@dataclass(frozen=True)
class Case:
    """A job and one legal plan of it."""

    job: Job
    plan: Plan

    def step(self, low: Lowered | None = None, plan: Plan | None = None):
        """`StepCost` of the plan, with other numbers if asked for."""
        low, plan = low or lower(self.job), plan or self.plan
        counts = plan.stages or default_counts(self.job.model.layers, plan.pp * plan.vpp)
        return plan_step(
            low.kinds, low.ends, loads_of(self.job.model, plan, counts),
            cut_of(plan, self.job.recipe), memory_state(plan, self.job.recipe), low.device,
            low.net, strides_of(plan), low.stack, low.memory,
        )  # fmt: skip


@cache
def model(name):
    return load_model(name)


@cache
def cluster(node, devices):
    return load_cluster(f"{node}:{devices}")


@cache
def stack(name):
    return load_stack(name)


def job_of(name, devices, *, node="h100-sxm", stack_name="unknown", **recipe):
    values = {"seq_len": 2048, "global_batch": 64, **recipe}
    return Job(
        model=model(name), recipe=Recipe(**values), cluster=cluster(node, devices),
        stack=stack(stack_name),
    )  # fmt: skip


@st.composite
def layouts(draw, layers, chunks):
    """None, or layers of each chunk that somebody chose by hand."""
    if chunks == 1 or draw(st.booleans()):
        return None
    counts = list(default_counts(layers, chunks))
    for _ in range(draw(st.integers(1, 4))):
        a, b = (draw(st.integers(0, chunks - 1)) for _ in range(2))
        if counts[a] > 1:
            counts[a], counts[b] = counts[a] - 1, counts[b] + 1
    return tuple(counts)


@st.composite
def cases(draw, models=MODELS, schedules=SCHEDULES):
    """A legal plan of a model on as many devices as the plan needs."""
    spec = model(draw(st.sampled_from(models)))
    seq_len = draw(st.sampled_from((512, 2048, 8192)))
    tp = draw(st.sampled_from(legal_tp(spec, 16)))
    cp = draw(st.sampled_from((1, 2, 4)))
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.sampled_from([p for p in (1, 2, 4, 6, 8) if p <= spec.layers]))
    chunked = schedule in ("interleaved", "bfs", "izb")
    vpp = VPP.get(schedule, draw(st.sampled_from((2, 3, 4))) if chunked else 1) if pp > 1 else 1
    dp = draw(st.sampled_from((1, 2, 3, 8, 32)))
    mbs, rounds = draw(st.sampled_from((1, 2, 4))), draw(st.integers(1, 6))
    m = rounds * pp if draw(st.booleans()) else rounds
    moes = [k.moe for k in spec.kinds if k.moe]
    ep = draw(st.sampled_from(divisors(moes[0].experts, 64))) if moes else 1
    zero = draw(st.integers(0, 3))
    fields = {
        "tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "dp": dp, "ep": ep, "mbs": mbs,
        "etp": draw(st.sampled_from((1, tp))) if moes else 1, "num_microbatches": m,
        "schedule": schedule, "zero": zero, "stages": draw(layouts(spec.layers, pp * vpp)),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "sequence_parallel": draw(st.booleans()),
        "offload_optimizer": draw(st.sampled_from((0.0, 0.5, 1.0))),
        "offload_activations": draw(st.sampled_from((0.0, 0.5))),
        "shard_group": draw(st.sampled_from((0, *divisors(dp * cp)))) if zero else 0,
        "rank_order": draw(st.sampled_from(("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"))),
    }  # fmt: skip
    fields["recompute_layers"] = draw(st.integers(0, 3)) if fields["recompute"] == "full" else 0
    job = job_of(
        spec.name, tp * cp * pp * dp, node=draw(st.sampled_from(NODES)),
        stack_name=draw(st.sampled_from(STACKS)), seq_len=seq_len, global_batch=dp * mbs * m,
        task=draw(st.sampled_from(("pretrain", "pretrain", "lora", "qlora"))),
        precision=draw(st.sampled_from(("bf16", "bf16", "fp32"))),
    )  # fmt: skip
    plan = Plan(**fields)
    try:
        check_plan(job, plan)
    except InputError:
        assume(False)
    return Case(job, plan)
