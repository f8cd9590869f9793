"""import(export(plan)) gives the plan back, for every target that states a plan."""

from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gangsaw.errors import InputError
from gangsaw.export import TARGETS, export_plan
from gangsaw.export.document import canonical, plan_hash
from gangsaw.export.nearest import nearest
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Job, Plan, Recipe

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt3-175b",
)
STATED = (
    "megatron-lm",
    "megatron-bridge",
    "torchtitan",
    "deepspeed",
    "torchrun",
    "slurm",
    "kubernetes",
)
SCHEDULES = {
    1: ("1f1b", "gpipe", "zb-h1", "zb-h2"),
    2: ("interleaved", "bfs", "izb", "zb-v", "v-half", "v-min", "dualpipe-v"),
    3: ("interleaved", "bfs", "izb"),
    4: ("interleaved", "bfs", "izb"),
}


@cache
def model_of(name):
    return load_model(name)


@cache
def cluster_of(devices):
    return load_cluster(f"h100-sxm:{devices}")


@st.composite
def plans(draw):
    """A job and a legal plan of it, over every field that a plan has."""
    model = model_of(draw(st.sampled_from(MODELS)))
    tp = draw(st.sampled_from((1, 2, 4, 8)))
    cp = draw(st.sampled_from((1, 2, 4)))
    pp = draw(st.sampled_from((1, 2, 4, 8)))
    vpp = draw(st.sampled_from((1, 2, 3, 4))) if pp > 1 else 1
    dp = draw(st.sampled_from((1, 2, 3, 4, 8)))
    moe = next((k.moe for k in model.kinds if k.moe is not None), None)
    ep = etp = 1
    if moe is not None:
        etp = draw(st.sampled_from([d for d in (1, tp) if (tp * cp * dp) % d == 0]))
        inside = tp * cp * dp // etp
        ep = draw(
            st.sampled_from([d for d in (1, 2, 4, 8) if inside % d == 0 and moe.experts % d == 0])
        )
    mbs = draw(st.sampled_from((1, 2, 4)))
    count = draw(st.integers(1, 6)) * pp * 2
    recompute = draw(st.sampled_from(("none", "selective", "full")))
    zero = draw(st.sampled_from((0, 1, 2, 3)))
    width = dp * cp
    group = draw(st.sampled_from([0, *(d for d in range(1, width) if width % d == 0)]))
    stages = None
    if pp > 1 and draw(st.booleans()):
        chunks = pp * vpp
        assume(model.layers >= 2 * chunks)
        rest = model.layers - chunks
        cuts = sorted(
            draw(st.lists(st.integers(0, rest), min_size=chunks - 1, max_size=chunks - 1))
        )
        stages = tuple(b - a + 1 for a, b in zip([0, *cuts], [*cuts, rest], strict=True))
    plan = Plan(
        tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=ep, etp=etp, mbs=mbs, num_microbatches=count,
        schedule=draw(st.sampled_from(SCHEDULES[vpp])), recompute=recompute,
        recompute_layers=draw(st.integers(0, 3)) if recompute == "full" else 0, zero=zero,
        shard_group=group if zero else 0, sequence_parallel=draw(st.booleans()),
        offload_optimizer=draw(st.sampled_from((0.0, 0.25, 0.5, 1.0))),
        offload_activations=draw(st.sampled_from((0.0, 0.0, 0.5))), stages=stages,
        rank_order=draw(st.sampled_from(("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-ep-cp-pp-dp"))),
    )  # fmt: skip
    recipe = Recipe(
        seq_len=2048 if model.learned_positions else draw(st.sampled_from((4096, 8192))), global_batch=dp * mbs * count,
        precision=draw(st.sampled_from(("bf16", "fp8"))),
    )  # fmt: skip
    job = Job(
        model=model, recipe=recipe, cluster=cluster_of(plan.devices), stack=load_stack("unknown")
    )
    return job, plan


def back(job, export):
    return read_launch_text(export.main.text, export.main.name)


@pytest.mark.parametrize("target", STATED)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(plans())
def test_import_gives_the_exported_plan_back(target, made):
    job, plan = made
    if target == "torchtitan" and job.model.name in ("mixtral-8x7b", "gpt3-175b"):
        with pytest.raises(InputError, match="no flavour"):
            export_plan(job, plan, target)
        return
    try:
        export = export_plan(job, plan, target)
    except InputError as refused:
        assert target == "deepspeed"
        assert "do not divide" in str(refused) or "microbatches" in str(refused)
        return
    found = back(job, export)
    assert found.missing == ()
    assert canonical(job, found.plan) == export.plan
    assert found.plan is not None
    assert (found.recipe.seq_len, found.recipe.global_batch) == (
        job.recipe.seq_len,
        job.recipe.global_batch,
    )
    if target not in ("deepspeed", "torchrun", "slurm", "kubernetes"):
        assert found.recipe.precision == job.recipe.precision
    assert found.model.params() == job.model.params()
    assert plan_hash(canonical(job, found.plan)) == export.plan_hash
    # What the files state is the plan itself unless a line says what differs.
    if not export.differences:
        assert export.plan == canonical(job, plan)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(plans(), st.sampled_from([t for t in TARGETS if t != "schedule-csv"]))
def test_the_nearest_plan_is_its_own_nearest(made, target):
    job, plan = made
    try:
        near, _ = nearest(job, plan, target)
    except InputError:
        return
    again, differences = nearest(job, near, target)
    assert again == near
    assert differences == ()
    assert near.devices == plan.devices
