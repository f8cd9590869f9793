"""Plans of a stack that nobody named: a mixture of all profiles, from one joint law."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cli.main import run
from gangsaw.cost.doubt import QUANTILE_80, predict_interval
from gangsaw.cost.mixture import members, quantile
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.search.estimate import evaluate, interval_of, view_of_plan
from gangsaw.search.probability import chances_of, joint_of
from gangsaw.search.unnamed import members_of
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job

PLANS = [
    Plan(tp=8, pp=2, dp=4, mbs=1, num_microbatches=64),
    Plan(tp=4, pp=4, dp=4, mbs=1, num_microbatches=64),
    Plan(tp=2, pp=8, dp=4, mbs=1, num_microbatches=64),
    Plan(tp=8, pp=1, dp=8, mbs=1, num_microbatches=32),
]


def job(stack="unknown", cluster="h100-sxm:64", precision="bf16"):
    return Job(
        model=load_model("llama-3.1-70b"), cluster=load_cluster(cluster), stack=load_stack(stack),
        recipe=Recipe(seq_len=4096, global_batch=256, precision=precision),
    )  # fmt: skip


@pytest.mark.parametrize("device", ["a100-sxm-80g", "h100-sxm", "tpu-v5p"])
@pytest.mark.parametrize("fp8", [False, True])
def test_every_profile_is_a_member_and_weights_sum_to_one(device, fp8):
    found = dict(members(device, fp8, list_stacks()))
    assert sum(found.values()) == pytest.approx(1.0)
    swapped = {"megatron-core-te", "megatron-core-te-fp8"}
    wanted = set(list_stacks()) - swapped | {sorted(swapped)[int(fp8)]}
    assert set(found) == wanted
    assert min(found.values()) > 0.0


def test_the_interval_is_that_of_predictions_under_each_profile():
    """Drawn by hand: a profile by its weight, its own prediction, the doubt that all share."""
    for plan in PLANS[:2]:
        ev = evaluate(job(), plan)
        (plain,) = predict_interval([view_of_plan(ev.job, plan, ev.counts, ev.low)])
        rng = np.random.default_rng(5)
        names, weights = zip(*members("h100-sxm", False, list_stacks()), strict=True)
        own = np.array([math.log(evaluate(job(name), plan).cost.step) for name in names])
        drawn = own[rng.choice(len(names), 400_000, p=weights)]
        drawn = drawn + plain.log_sd * rng.standard_normal(len(drawn))
        wanted = np.exp(np.quantile(drawn, [0.1, 0.9]))
        assert interval_of(ev) == pytest.approx(wanted, rel=0.005)


def test_interval_and_probability_are_of_one_joint_sample():
    plans = [evaluate(job(), plan) for plan in PLANS]
    sample = np.exp(joint_of(plans).sample(draws=60_000, seed=3))
    for i, ev in enumerate(plans):
        assert np.quantile(sample[:, i], [0.1, 0.9]) == pytest.approx(interval_of(ev), rel=0.01)
    share = np.bincount(sample.argmin(axis=1), minlength=len(plans)) / len(sample)
    found = chances_of(plans)
    assert found.best_prob_frac == pytest.approx(share, abs=0.03)
    assert sum(found.best_prob_frac) == pytest.approx(1.0)


def test_a_tie_is_what_the_sample_says():
    plans = [evaluate(job(), plan) for plan in PLANS]
    joint, found = joint_of(plans), chances_of(plans)
    sample = joint.sample(draws=60_000, seed=7)
    for i in range(len(plans)):
        for j in range(len(plans)):
            share = float((sample[:, j] < sample[:, i]).mean())
            if i != j:
                assert joint.faster_prob(j, i) == pytest.approx(share, abs=0.01)
                if abs(abs(share - 0.5) - 0.3) > 0.02:
                    assert (j in found.tied[i]) == (0.2 < share < 0.8)


def test_one_software_generation_holds_for_all_plans_of_a_draw():
    """Two plans that answer alike to everything keep their order whatever the software is."""
    slow = [evaluate(job(), plan) for plan in (PLANS[0], PLANS[0])]
    joint = joint_of(slow)
    assert np.ptp(joint.centres, axis=0) == pytest.approx(0.0)
    assert joint.centres[0].std() > 0.05


@given(st.floats(0.02, 0.5), st.floats(0.01, 0.99))
@settings(max_examples=30, deadline=None)
def test_a_named_stack_is_a_normal_law(sd, prob):
    from statistics import NormalDist

    found = quantile(prob, np.zeros(1), np.ones(1), sd)
    assert found == pytest.approx(NormalDist(0.0, sd).inv_cdf(prob), abs=1e-6)


def test_a_named_stack_has_the_interval_of_its_doubt():
    ev = evaluate(job("megatron-core-te"), PLANS[0])
    (found,) = predict_interval([view_of_plan(ev.job, ev.plan, ev.counts, ev.low)])
    spread = math.exp(QUANTILE_80 * found.log_sd)
    wanted = (ev.cost.step / spread, ev.cost.step * spread)
    assert interval_of(ev) == pytest.approx(wanted, rel=1e-4)
    assert members_of(ev).names == ("",)


def test_estimate_says_between_which_profiles_the_step_lies():
    words = ["estimate", "llama-3.1-70b", "h100-sxm:64", "--tp", "8", "--pp", "2", "--json",
             "--global-batch", "256"]  # fmt: skip
    plain, named = (json.loads(run([*words, *more]).out) for more in ([], ["--stack", "unknown"]))
    assert plain == named
    (note,) = [n for n in plain["notes"] if "mixture of" in n]
    low, high = (float(p.split()[-2]) for p in note.split(" as ")[:2])
    assert low < plain["step_time_s"] < high
    one = json.loads(run([*words, "--stack", "torchtitan"]).out)
    assert not [n for n in one["notes"] if "mixture of" in n]
    width = [p["step_time_hi_s"] / p["step_time_lo_s"] for p in (plain, one)]
    assert width[0] > width[1]
