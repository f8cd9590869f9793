"""Plans on a calibrated site: ranked by what its steps taught about causes."""

import math

import numpy as np
import pytest

from gangsaw.cost.doubt import Site, view_of
from gangsaw.cost.fitted import ENTRIES, NIC
from gangsaw.cost.lower import cut_of, loads_of, lower, strides_of
from gangsaw.cost.memory_doc import memory_state
from gangsaw.cost.sensitivity import fitted_step
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import counts_of, estimate, evaluate
from gangsaw.search.on_site import effects_of, lower_on_site
from gangsaw.search.search import search
from gangsaw.search.space import Limits
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job
from gangsaw.spec.site import SiteDoc, SiteRow

JOB = Job(
    model=load_model("llama-3.1-8b"), cluster=load_cluster("h100-sxm:32"),
    stack=load_stack("megatron-core-te"), recipe=Recipe(seq_len=2048, global_batch=32),
)  # fmt: skip
WORLD = np.zeros(len(ENTRIES))
WORLD[NIC] = -1.2
"""A site whose network between nodes runs at 30 % of what the fit expects."""
MEASURED = [
    Plan(tp=t, pp=p, dp=32 // t // p, mbs=1, num_microbatches=t * p)
    for t, p in ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4))
]


def args_of(plan):
    low, counts = lower(JOB), counts_of(JOB, plan)
    return (
        low.kinds, low.ends, loads_of(JOB.model, plan, counts), cut_of(plan, JOB.recipe),
        memory_state(plan, JOB.recipe), low.device, low.net, strides_of(plan), low.stack,
        low.memory,
    )  # fmt: skip


def true_s(plan):
    return fitted_step(WORLD, *args_of(plan)).step


def site():
    rows = []
    for number, plan in enumerate(MEASURED):
        view = view_of(args_of(plan))
        rows.append(
            SiteRow(
                id=str(number), measured_s=true_s(plan), predicted_s=math.exp(view.log_s),
                shares=tuple(view.phi), place=tuple(view.z), routed=view.moe,
            )
        )  # fmt: skip
    return SiteDoc(device="h100-sxm", stack="megatron-core-te", rows=tuple(rows))


def plan_of(doc):
    fields = doc.model_dump()
    text, _, first = fields.pop("recompute").partition(":")
    return Plan(**{**fields, "recompute": text, "recompute_layers": int(first or 0)})


def test_the_search_chooses_by_what_the_site_taught():
    """Judged in the true world: the plan found with the site loses less to the best one found."""
    on_site = JOB.model_copy(update={"site": site()})
    listed = {}
    for name, job in (("without", JOB), ("with", on_site)):
        listed[name] = [plan_of(p.plan) for p in search(job, Limits(top=8)).plans]
    best = min(true_s(p) for plans in listed.values() for p in plans)
    regret = {name: true_s(plans[0]) / best - 1.0 for name, plans in listed.items()}
    assert regret["with"] < 0.12
    assert regret["without"] > regret["with"] + 0.2


def test_the_label_of_the_fastest_is_on_the_least_reported_time():
    """What the steps say beyond the causes may reorder what the search found."""
    plans = search(JOB.model_copy(update={"site": site()}), Limits(top=8)).plans
    assert "fastest" in plans[0].labels
    times = [p.step_time_s for p in plans]
    assert times == sorted(times)
    labels = [label for p in plans for label in p.labels]
    assert len(labels) == len(set(labels))


def test_effects_are_on_the_numbers_and_what_is_shared_is_a_factor():
    on_site = JOB.model_copy(update={"site": site()})
    low, shared = lower_on_site(on_site)
    u = effects_of(Site.of(on_site.site))
    plain = lower(JOB)
    assert (low.net.efficiency[1:] / plain.net.efficiency[1:]).max() < 0.85
    assert shared == pytest.approx(math.exp(u[0]))
    assert lower_on_site(JOB)[1] == 1.0


def test_a_time_is_corrected_once():
    """Evaluated with the search's own numbers or without them it is the same step."""
    on_site = JOB.model_copy(update={"site": site()})
    plan = MEASURED[3]
    low, _ = lower_on_site(on_site)
    once = evaluate(on_site, plan, low).cost.step
    assert once == pytest.approx(evaluate(on_site, plan).cost.step)
    assert once == pytest.approx(estimate(on_site, plan).step_time_s)
    assert once == pytest.approx(true_s(plan), rel=0.05)


def test_a_site_without_rows_changes_nothing():
    empty = JOB.model_copy(update={"site": SiteDoc()})
    assert lower_on_site(empty)[0].device == lower(JOB).device
    assert evaluate(empty, MEASURED[0]).cost.step == evaluate(JOB, MEASURED[0]).cost.step
