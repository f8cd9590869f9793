"""Rows of the list: merits stand alone, what cannot be told apart shares a row."""

import itertools
import json

import pytest
from search_jobs import JOBS

from gangsaw.cli.main import run
from gangsaw.cli.schema import schema_of
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import evaluate, plan_result
from gangsaw.search.merging import alone, merged, with_chances
from gangsaw.search.probability import CERTAIN_PROB, Chances, chances_of, joint_of
from gangsaw.search.ranking import complexity, whys
from gangsaw.search.search import search
from gangsaw.search.space import Limits
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


def row(labels=(), **cut):
    job = Job(
        model=load_model("llama-3.1-8b"), cluster=load_cluster("h100-sxm:16"),
        stack=load_stack("megatron-core-te"), recipe=Recipe(seq_len=4096, global_batch=64),
    )  # fmt: skip
    plan = Plan(**{"dp": 16, "num_microbatches": 4, **cut})
    ev = evaluate(job, plan)
    return ev, labels, plan_result(ev)


PLAIN = {}
CONTEXT = {"cp": 2, "dp": 8, "num_microbatches": 8}
PIPE = {"pp": 2, "dp": 8, "num_microbatches": 8}
MIXED = {"tp": 2, "pp": 2, "dp": 4, "num_microbatches": 16}


def places(groups):
    return [(g.row, g.like) for g in groups]


def test_what_is_tied_goes_under_the_fastest_row_and_merits_stay():
    rows = [row(("fastest",)), row(**CONTEXT), row(("safest",), **PIPE), row(**MIXED)]
    tied = ((1, 2), (0, 2), (0, 1), ())
    assert places(merged(rows, Chances((0.5, 0.2, 0.2, 0.1), tied))) == [
        (0, (1,)),
        (2, ()),
        (3, ()),
    ]
    assert places(alone(rows)) == [(0, ()), (1, ()), (2, ()), (3, ())]


def test_the_simplest_stands_for_plans_without_a_merit():
    rows = [row(("fastest",)), row(**MIXED), row(**PIPE)]
    assert complexity(rows[2][0].plan) < complexity(rows[1][0].plan)
    groups = merged(rows, Chances((0.8, 0.1, 0.1), ((), (2,), (1,))))
    assert places(groups) == [(0, ()), (2, (1,))]


def test_rows_say_what_is_like_them_and_no_chance_is_lost():
    rows = [row(("fastest",)), row(**CONTEXT, mbs=1), row(("safest",), **PIPE)]
    chances = Chances((0.5, 0.3, 0.2), ((1, 2), (0,), (0,)))
    groups = merged(rows, chances)
    found = with_chances(whys([rows[g.row] for g in groups]), rows, groups, chances)
    assert [p.labels for p in found] == [("fastest",), ("safest",)]
    assert found[0].like[0].differs == "CP2 DP8"
    assert found[0].best_prob_frac == 0.5
    assert found[0].group_prob_frac == pytest.approx(0.8)
    assert sum(p.group_prob_frac for p in found) == pytest.approx(1.0)
    assert found[0].why.endswith("; cannot be told from 2 in time")


@pytest.mark.parametrize("name", ["dense", "uneven layers"])
def test_rows_of_a_search_are_told_apart_by_time_or_by_merit(name):
    found = search(JOBS[name](), Limits(top=6))
    plans = found.plans
    times = [p.step_time_s for p in plans]
    assert times == sorted(times)
    labels = [label for p in plans for label in p.labels]
    assert sorted(labels) == ["cheapest", "fastest", "safest", "simplest"]
    assert "fastest" in plans[0].labels
    assert sum(p.group_prob_frac for p in plans) == pytest.approx(1.0)
    # Evaluated again, each plan under a row is tied with it, or with what stands there.
    job = JOBS[name]()
    for p in plans:
        if not p.like:
            continue
        cuts = [p.plan, *(q.plan for q in p.like)]
        evs = [evaluate(job, Plan(**_fields(cut))) for cut in cuts]
        joint = joint_of(evs)
        for j in range(1, len(evs)):
            tied = [k for k in range(len(evs)) if k != j and _tied(joint, j, k)]
            assert tied
    without = [p for p in plans if not p.labels]
    for a, b in itertools.pairwise(without):
        evs = [evaluate(job, Plan(**_fields(p.plan))) for p in (a, b)]
        apart = not chances_of(evs).tied[0]
        assert apart or a.like or b.like


def _tied(joint, i, j):
    return 1.0 - CERTAIN_PROB < joint.faster_prob(i, j) < CERTAIN_PROB


def _fields(doc):
    fields = doc.model_dump()
    text, _, first = fields.pop("recompute").partition(":")
    return {**fields, "recompute": text, "recompute_layers": int(first or 0)}


def test_text_json_and_report_show_what_is_like_a_row(tmp_path):
    report = tmp_path / "report.html"
    words = ["plan", "llama-3.1-8b", "h100-sxm:16", "--stack", "megatron-core-te",
             "--seq-len", "2048", "--global-batch", "32", "--top", "8"]  # fmt: skip
    code, out, err = run([*words, "--json", "--report", str(report)])
    assert code == 0, err
    first = json.loads(out)["plans"][0]
    assert first["like"]
    text = " ".join(run(words).out.split())
    said = f"and {len(first['like'])} like it: {first['like'][0]['differs']} ("
    assert said in text
    assert said in report.read_text()
    schema = schema_of("plan")
    assert {"like", "group_prob_frac"} <= set(schema["$defs"]["PlanResult"]["properties"])
    assert max(map(len, run(words).out.splitlines())) <= 100
