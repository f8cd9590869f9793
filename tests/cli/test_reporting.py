"""What goes into a report, from real estimates of small jobs."""

import re

import pytest

from gangsaw.cli.main import run
from gangsaw.cli.reporting import MOST_DRAWN, MOST_FRAMED, Drawing, pipeline, quick
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

WORDS = (
    "estimate", "llama-3.1-8b", "h100-sxm:16", "--seq-len", "4096", "--global-batch", "64",
    "--tp", "2", "--pp", "4", "--tokens", "1T",
)  # fmt: skip


def job(batch=64):
    return Job(
        model=load_model("llama-3.1-8b"),
        cluster=load_cluster("h100-sxm:16"),
        stack=load_stack("megatron-core-te"),
        recipe=Recipe(seq_len=4096, global_batch=batch),
    )


def plan(batch=64, **change):
    return Plan(**{"tp": 2, "pp": 4, "dp": 2, "num_microbatches": batch // 2, **change})


def test_estimate_writes_a_whole_report(tmp_path):
    path = tmp_path / "r.html"
    code, out, err = run([*WORDS, "--report", str(path)])
    assert code == 0, err
    assert err.splitlines()[-1] == f"report: {path}"
    html = path.read_text("utf-8")
    for said in ("Memory of each stage", "Invoice of one step", "rank 3", "critical path",
                 "Microbatch count", "GB/s a device and direction", "the whole run"):  # fmt: skip
        assert said in html
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert "TP 2" in out


def test_report_that_ends_in_svg_is_the_picture_alone(tmp_path):
    path = tmp_path / "r.svg"
    assert run([*WORDS, "--report", str(path)]).code == 0
    text = path.read_text("utf-8")
    assert text.startswith("<svg")
    assert "critical path" in text
    assert "var(" not in text


def test_quick_points_are_those_of_the_estimate():
    whole, fast = estimate(job(), plan()), quick(job(), plan())
    assert fast.step_time_s == whole.step_time_s
    assert fast.memory.peak_bytes == whole.memory.peak_bytes


def test_pipelines_are_drawn_framed_or_refused_by_their_length():
    flat = estimate(job(), plan(pp=1, dp=8, num_microbatches=8))
    assert pipeline(job(), flat) == Drawing()
    assert pipeline(job(), estimate(job(), plan())).svg.startswith("<svg")
    batch = 2 * (MOST_DRAWN // 8 + 1)
    longer = pipeline(job(batch), estimate(job(batch), plan(batch)))
    assert longer.page.startswith("<!doctype html>")
    assert (longer.svg, longer.ranks) == ("", 4)
    batch = 2 * (MOST_FRAMED // 8 + 1)
    many = pipeline(job(batch), estimate(job(batch), plan(batch)))
    assert "too many" in many.why_not


def test_a_folder_in_the_way_is_wrong_input(tmp_path):
    (tmp_path / "r.html").mkdir()
    code, out, err = run([*WORDS, "--report", str(tmp_path / "r.html")])
    assert (code, out) == (2, "")
    assert "is a folder" in err


@pytest.mark.parametrize("flag", ["--json", "--seed=3"])
def test_report_goes_with_other_output(flag, tmp_path):
    path = tmp_path / "r.html"
    assert run([*WORDS, flag, "--report", str(path)]).code == 0
    assert path.exists()
