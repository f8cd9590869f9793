"""Measured beside predicted: sums, the largest difference, feedback, the command."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kineto import DATA

from gangsaw.cli.main import run
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.search.timeline import plan_timeline
from gangsaw.simulate.timeline import CAUSE_OF, COMPUTE, OTHER
from gangsaw.spec import Job, Plan, Recipe
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.trace.align import Clocks
from gangsaw.trace.cluster_toml import cluster_toml
from gangsaw.trace.measured import Measured
from gangsaw.trace.reconcile import reconcile, sharpened
from gangsaw.trace.rows import Rows, join

PLAN = Plan(tp=4, pp=4, dp=1, num_microbatches=8)


def a_job():
    return Job(
        model=load_model("llama-3.1-8b"),
        recipe=Recipe(seq_len=4096, global_batch=8),
        cluster=load_cluster("h100-sxm:16"),
        stack=load_stack("unknown"),
    )


def as_measured(line):
    """A timeline as if it had been measured."""
    clock = Clocks(np.zeros(line.ranks), np.zeros(line.ranks), (0,) * line.ranks, ())
    return Measured(dataclasses.replace(line, measured=True), clock, "step", {}, ())


def billed(est, factor):
    """A measured step of one rank with the estimate's own causes, compute `factor` times as long."""
    devices = est.plan.tp * est.plan.pp * est.plan.dp
    spent = {
        r.cause: r.device_s / devices * (factor if r.cause == "compute" else 1.0)
        for r in est.bill.lines
    }
    edges = np.concatenate([[0.0], np.cumsum(list(spent.values()))])
    causes = np.asarray([CAUSE_OF[c] for c in spent])
    rows = Rows.of(0, COMPUTE, edges[:-1], edges[1:], kind=OTHER, cause=causes)
    return as_measured(join([rows], 1, "step"))


def test_differences_sum_to_the_difference_of_the_step():
    job = a_job()
    est, line = estimate(job, PLAN), plan_timeline(job, PLAN)
    found = reconcile(as_measured(line), est, job.cluster, job.recipe.tokens_per_step, line)
    total = sum(row.difference_s for row in found.causes)
    assert total == pytest.approx(found.measured_step_s - found.predicted_step_s, abs=1e-9)
    assert found.bill.device_s == pytest.approx(16 * found.measured_step_s)
    assert sum(row.device_s for row in found.bill.lines) == found.bill.device_s
    for row in found.per_rank:
        assert row.measured_s == row.predicted_s


@pytest.mark.parametrize("factor", [1.7, 3.0])
def test_slow_compute_is_named_and_fed_back(factor):
    job = a_job()
    est = estimate(job, PLAN)
    found = reconcile(billed(est, factor), est, job.cluster, 1, None)
    assert found.largest == "compute"
    assert "gemm_frac" in found.explanation
    assert found.feedback["compute"] == pytest.approx(1 / factor)
    assert all(abs(r.difference_s) < 1e-12 for r in found.causes if r.cause != "compute")
    cluster = sharpened(job.cluster, found, est)
    assert cluster.device.gemm_frac == pytest.approx(
        job.cluster.device.gemm_frac * found.feedback["compute"]
    )
    again = estimate(job.model_copy(update={"cluster": cluster}), PLAN)
    assert abs(again.step_time_s - found.measured_step_s) < abs(
        est.step_time_s - found.measured_step_s
    )


@pytest.mark.parametrize("slower", [1.1, 1.7, 3.0])
def test_feedback_neither_stops_short_nor_goes_too_far(slower):
    """A run whose kernels are slower by a known factor: predicted again, the step is its own."""
    job = a_job()
    est = estimate(job, PLAN)
    device = job.cluster.device
    update = {"gemm_frac": device.gemm_frac / slower, "memory_frac": device.memory_frac / slower}
    update["attention"] = tuple(
        c.model_copy(
            update={
                "a_fwd": {d: a / slower for d, a in c.a_fwd.items()},
                "a_bwd": {d: a / slower for d, a in c.a_bwd.items()},
            }
        )
        for c in device.attention
    )
    slow = job.cluster.model_copy(update={"device": device.model_copy(update=update)})
    truth = estimate(job.model_copy(update={"cluster": slow}), PLAN)
    found = reconcile(billed(truth, 1.0), est, job.cluster, 1, None)
    cluster = sharpened(job.cluster, found, est)
    again = estimate(job.model_copy(update={"cluster": cluster}), PLAN)
    assert again.step_time_s == pytest.approx(truth.step_time_s, rel=0.03)


def test_device_hours_and_money_follow_the_seconds():
    job = a_job()
    est = estimate(job, PLAN)
    found = reconcile(billed(est, 2.0), est, job.cluster, 1, None)
    for row in found.causes:
        assert row.difference_device_hours == pytest.approx(row.difference_s * 16 / 3600)
        assert row.difference_usd == pytest.approx(
            row.difference_device_hours * job.cluster.usd_per_device_hour
        )


names = st.text(min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    name=names, source=names, comment=names, latency=st.floats(0, 1e-3), rate=st.floats(1e5, 1e13)
)
def test_cluster_files_are_read_back_equal(tmp_path_factory, name, source, comment, latency, rate):
    base = load_cluster("h100-sxm:16")
    tier = base.tiers[0].model_copy(
        update={"latency_s": latency, "bytes_per_s": rate, "source": source}
    )
    cluster = base.model_copy(update={"name": name, "tiers": (tier, *base.tiers[1:])})
    text = cluster_toml(cluster, [comment])
    import tomllib

    assert ClusterSpec.model_validate(tomllib.loads(text)) == cluster


@pytest.fixture
def estimate_file(tmp_path):
    path = tmp_path / "estimate.json"
    path.write_text(estimate(a_job(), PLAN).model_dump_json())
    return path


def test_command_on_a_foreign_trace(tmp_path, estimate_file):
    out = run(
        [
            "reconcile",
            str(DATA / "kineto-nccl.json.gz"),
            str(estimate_file),
            "--step",
            "5",
            "--json",
        ]
    )
    assert out.code == 0, out.err
    doc = json.loads(out.out)
    assert doc["step"] == "ProfilerStep#5"
    assert (doc["ranks"], doc["devices"]) == (1, 16)
    assert doc["largest"] in {c["cause"] for c in doc["causes"]}
    assert any("1 of 16" in n for n in doc["notes"])
    total = sum(c["difference_s"] for c in doc["causes"])
    assert total == pytest.approx(doc["measured_step_s"] - doc["predicted_step_s"], abs=1e-9)


def test_command_with_a_plan_file_writes_the_cluster(tmp_path):
    (tmp_path / "plan.toml").write_text("tp = 2\npp = 2\n")
    target = tmp_path / "site.toml"
    words = [
        "--model",
        "llama-3.1-8b",
        "--cluster",
        "h100-sxm:4",
        "--global-batch",
        "8",
        "--write-cluster",
        str(target),
    ]
    own = DATA.parent / "own-run"
    out = run(["reconcile", str(own), str(tmp_path / "plan.toml"), *words])
    assert out.code == 0, out.err
    assert "predicted" in out.out
    assert "rank 3" in out.out
    assert load_cluster(str(target)).device.gemm_frac != load_cluster("h100-sxm:4").device.gemm_frac
    # Scaled once more: what stood at the head of the file stays there.
    words[words.index("--cluster") + 1] = str(target)
    assert run(["reconcile", str(own), str(tmp_path / "plan.toml"), *words]).code == 0
    assert target.read_text().count("# Scaled by gangsaw reconcile to") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "x.json"], "no such file"),
        ([str(DATA), "nothing.json"], "no such file"),
        ([str(DATA / "README.md"), "{est}"], "no trace"),
        ([str(DATA / "kineto-nccl.json.gz"), "{est}", "--step", "77"], "Legal: 4, 5, 6"),
        ([str(DATA / "kineto-nccl.json.gz"), "{est}", "--write-cluster", "x.toml"], "--cluster"),
    ],
)
def test_refusals(words, said, estimate_file):
    out = run(["reconcile", *(w.replace("{est}", str(estimate_file)) for w in words)])
    assert out.code == 2
    assert said in out.err
    assert "Traceback" not in out.err


def test_advice_follows_the_sign_of_the_difference():
    job = a_job()
    est = estimate(job, PLAN)
    rows = []
    for line in est.bill.lines:
        longer = line.model_copy(update={"device_s": line.device_s + 1000.0})
        rows.append(longer if line.cause == "host" else line)
    heavy = est.model_copy(
        update={
            "bill": est.bill.model_copy(update={"lines": tuple(rows)}),
            "step_time_s": est.step_time_s + 1000.0 / 16,
        }
    )
    less = reconcile(billed(est, 1.0), heavy, job.cluster, 1, None)
    more = reconcile(billed(heavy, 1.0), est, job.cluster, 1, None)
    assert less.largest == more.largest == "host"
    assert "less than predicted" in less.explanation and "launches cost less" in less.explanation
    assert "more than predicted" in more.explanation and "fuse, compile" in more.explanation
