"""Under a pipeline ZeRO-3 gathers once a step, in the table of collectives as in the step."""

import pytest

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.collectives import collectives_of
from gangsaw.search.estimate import evaluate
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


@pytest.mark.parametrize(
    ("pp", "zero", "gathers", "reductions"),
    [(4, 3, 1, 1), (1, 3, 128, 64), (1, 2, 1, 64), (4, 1, 1, 1)],
)
def test_exchanges_are_as_often_as_the_step_has_them(pp, zero, gathers, reductions):
    job = Job(
        model=load_model("llama-3.1-70b"), cluster=load_cluster("h100-sxm:64"),
        recipe=Recipe(seq_len=4096, global_batch=256), stack=load_stack("unknown"),
    )  # fmt: skip
    plan = Plan(tp=16 // pp, pp=pp, dp=4, mbs=1, num_microbatches=64, zero=zero)
    ev = evaluate(job, plan)
    rows = {r.operation: r for r in collectives_of(job, ev.plan, ev.counts, ev.low)}
    assert rows["parameters all-gather"].count_per_step == gathers
    assert rows["gradients reduce-scatter"].count_per_step == reductions
    if gathers == reductions == 1:
        shown = sum(r.exposed_s_per_step for r in rows.values() if r.axis == "dp")
        assert shown == pytest.approx(ev.cost.dp_comm, rel=0.25)
