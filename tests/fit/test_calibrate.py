"""From measured steps to a site file and back, and the machine's own matrix products."""

import json
import math

import pytest

from gangsaw.cli.main import run
from gangsaw.cost.gemm import gemm_s
from gangsaw.cost.lower_cluster import device_of
from gangsaw.errors import InputError
from gangsaw.fit.calibrate import (
    calibrate,
    gemm_of,
    read_site,
    suggest,
    toml_of_site,
    with_site,
)
from gangsaw.fit.rows import load_shipped
from gangsaw.fit.sweep import Point, fit_sweep, read_sweep
from gangsaw.fit.validate import judge
from gangsaw.read.clusters import cluster_of, load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job


def slow(rows, factor):
    return [
        {**r, "measured": {**r["measured"], "step_time_s": factor * r["measured"]["step_time_s"]}}
        for r in rows
    ]


def job():
    return Job(
        model=load_model("llama-3.1-8b"), cluster=load_cluster("b200:8"),
        recipe=Recipe(seq_len=4096, global_batch=64), stack=load_stack("megatron-core-te"),
    )  # fmt: skip


def test_site_file_round_trip(tmp_path):
    found = calibrate(load_shipped("simumax-b200")[:4])
    path = tmp_path / "site.toml"
    path.write_text(toml_of_site(found.site))
    again = read_site(path)
    assert again.rows == found.site.rows
    assert again.device == "b200"
    assert [e.effect for e in again.learned] == [e.effect for e in found.site.learned]


def test_a_slower_site_gives_slower_and_narrower_estimates():
    rows = load_shipped("simumax-b200")[:6]
    plan = Plan(tp=2, dp=4, mbs=1, num_microbatches=16)
    plain = estimate(job(), plan)
    site = calibrate(slow(rows, 1.2)).site
    on_site = estimate(with_site(job(), site), plan)
    assert 1.05 < on_site.step_time_s / plain.step_time_s < 1.3
    width = [(e.step_time_hi_s - e.step_time_lo_s) / e.step_time_s for e in (plain, on_site)]
    assert width[1] < width[0]
    total = sum(line.device_s for line in on_site.bill.lines)
    assert total == pytest.approx(8 * on_site.step_time_s)


def test_a_wrong_row_is_named():
    rows = load_shipped("zerobubble2")[:8]
    rows[2] = slow([rows[2]], 1.6)[0]
    assert calibrate(rows).bad == (rows[2]["id"],)


def test_a_swapped_column_is_told_from_a_checkpoint_and_from_another_unit():
    rows = load_shipped("zerobubble2")[:6]
    taken = rows[2]["measured"]["step_time_s"]
    odd = {
        "it is the row's plan.gbs": rows[2]["plan"]["gbs"],
        "in milliseconds?": 1e3 * taken,
        "a checkpoint, an evaluation": 1.6 * taken,
        "another column or another unit": 37.3 * taken,
        "too fast for that plan": 0.55 * taken,
    }
    for said, value in odd.items():
        wrong = {**rows[2], "measured": {**rows[2]["measured"], "step_time_s": value}}
        found = calibrate([*rows[:2], wrong, *rows[3:]])
        (one,) = found.wrong
        assert (one.id, one.measured_s) == (rows[2]["id"], value)
        assert one.expected_s == pytest.approx(taken, rel=0.1)
        assert said in one.said
        assert found.bad == (one.id,)


def test_a_wrong_row_hardly_moves_the_others():
    """Swallowed it would move all plans; named it counts for little."""
    rows = load_shipped("zerobubble2")[:10]
    spoiled = [*rows[:4], slow([rows[4]], 3.0)[0], *rows[5:]]
    plan = Plan(pp=8, dp=1, mbs=1, num_microbatches=16)
    work = Job(
        model=load_model("llama-3.1-8b"), cluster=load_cluster("a100-sxm-80g:8"),
        recipe=Recipe(seq_len=1024, global_batch=16), stack=load_stack("zero-bubble"),
    )  # fmt: skip
    clean, after = (estimate(with_site(work, calibrate(r).site), plan) for r in (rows, spoiled))
    assert after.step_time_s == pytest.approx(clean.step_time_s, rel=0.02)


def test_measured_plans_are_not_suggested_again():
    rows = load_shipped("simumax-b200")
    first = suggest(rows, 3).suggested
    half = [r if str(r["id"]) == first[0].id else {**r, "measured": {}} for r in rows]
    then = suggest(half, 2).suggested
    assert [s.id for s in then] == [s.id for s in first[1:]]
    assert then[0].width_before_frac == pytest.approx(first[0].width_after_frac)


def test_suggestions_do_not_look_at_measurements():
    rows = load_shipped("simumax-b200")
    blind = [{**r, "measured": {}} for r in rows]
    assert suggest(rows, 3) == suggest(blind, 3)
    widths = [s.width_after_frac for s in suggest(rows, 4).suggested]
    assert widths == sorted(widths, reverse=True)


def test_rows_without_times_are_refused():
    with pytest.raises(InputError, match=r"Legal: rows with .*step_time_s"):
        calibrate([{**r, "measured": {}} for r in load_shipped("simumax-b200")[:2]])


def test_sweep_finds_the_curve_it_was_made_from(tmp_path):
    device = device_of(cluster_of("b200", 8), "bf16")._replace(gemm_frac=0.49, gemm_k0=40.0)
    shapes = [(m, n, k) for m in (4096, 8192) for n in (4096, 14336) for k in (1024, 4096, 16384)]
    path = tmp_path / "sweep.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"m": m, "n": n, "k": k, "us": 1e6 * gemm_s(m, n, k, False, device)})
            for m, n, k in shapes
        )
    )
    found = fit_sweep(read_sweep(path), device_of(cluster_of("b200", 8), "bf16"))
    assert found.gemm_frac == pytest.approx(0.49, rel=0.02)
    assert found.gemm_k0 == pytest.approx(40.0, rel=0.3)
    assert found.error_frac < 0.01
    assert found.points == len(shapes)


def sweep_at(share, tmp_path):
    """A pasted sweep of an H100 whose products run at `share` of the catalog's rate."""
    device = device_of(cluster_of("h100-sxm", 8), "bf16")
    slower = device._replace(gemm_frac=share * device.gemm_frac)
    shapes = [(m, n, k) for m in (2048, 8192) for n in (4096, 14336) for k in (512, 4096, 16384)]
    lines = [f"{m},{n},{k},{1e3 * gemm_s(m, n, k, False, slower)}" for m, n, k in shapes]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(["m,n,k,ms", *lines]))
    return path


ON_H100 = ["llama-3.1-8b", "h100-sxm:8", "--seq-len", "4096", "--global-batch", "64", "--tp", "2",
           "--stack", "megatron-core-te", "--json"]  # fmt: skip


def test_a_sweep_alone_makes_a_site_slower_and_surer(tmp_path):
    path, site = sweep_at(0.8, tmp_path), tmp_path / "site.toml"
    words = ["calibrate", "--gemm-sweep", str(path), "--cluster", "h100-sxm:8", "-o", str(site)]
    code, out, err = run(words)
    assert (code, err) == (0, "")
    assert "matrix products: " in out
    plain, own = (
        json.loads(run(["estimate", *ON_H100, *more]).out) for more in ([], ["--site", str(site)])
    )
    assert 1.1 < own["step_time_s"] / plain["step_time_s"] < 1.25
    spread = [e["step_time_hi_s"] / e["step_time_lo_s"] for e in (plain, own)]
    assert spread[1] < spread[0]
    # Nothing was said about memory.
    assert own["memory"]["peak_hi_bytes"] == pytest.approx(plain["memory"]["peak_hi_bytes"])


def test_a_sweep_that_explains_the_runs_is_not_counted_twice(tmp_path):
    """Runs of a machine with slow products: with its sweep they hold nothing more to learn."""
    gemm = gemm_of(sweep_at(0.8, tmp_path), "h100-sxm")
    rows = [r for r in load_shipped("dgxc") if r["hardware"]["device"] == "h100-sxm"][:40:8]
    as_swept = [
        {**r, "measured": {"step_time_s": math.exp(item.view.log_s)}}
        for r, item in zip(rows, judge(rows, gemm=gemm), strict=True)
    ]
    found = calibrate(as_swept, gemm)
    assert all(abs(e.change_frac) < 0.005 for e in found.site.learned)
    without = calibrate(as_swept)
    assert max(abs(e.change_frac) for e in without.site.learned) > 0.02


def test_table_with_commas(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text(
        "m,n,k,tflops\n" + "\n".join(f"{m},4096,4096,600" for m in (512, 1024, 2048, 4096, 8192))
    )
    assert read_sweep(path)[0] == Point(512, 4096, 4096, 2 * 512 * 4096 * 4096 / 600e12)


@pytest.mark.parametrize(
    "text",
    [
        "m,n,k\n1,2,3\n" * 6,
        "{not json}\n" * 6,
        "m,n,k,us\n1,2,3,4\n",
        "m,n,k,us\n" + "1,2,-3,4\n" * 6,
    ],
)
def test_bad_sweeps_are_one_line(tmp_path, text):
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    with pytest.raises(InputError) as said:
        read_sweep(path)
    assert "\n" not in str(said.value)


def test_command_writes_a_site_that_estimate_reads(tmp_path):
    runs, site = tmp_path / "runs.jsonl", tmp_path / "site.toml"
    runs.write_text("\n".join(json.dumps(r) for r in load_shipped("simumax-b200")[:3]))
    code, out, _ = run(["calibrate", str(runs), "-o", str(site), "--json"])
    assert code == 0
    assert json.loads(out)["written"] == str(site)
    words = ["estimate", "llama-3.1-8b", "b200:8", "--tp", "2", "--json", "--seq-len", "4096"]
    plain, own = (json.loads(run([*words, *more]).out) for more in ([], ["--site", str(site)]))
    assert (
        own["step_time_hi_s"] / own["step_time_lo_s"]
        < plain["step_time_hi_s"] / plain["step_time_lo_s"]
    )
    code, out, _ = run(["calibrate", str(runs), "--suggest", "2"])
    assert (code, out.count("measure ")) == (0, 2)
    code, _, err = run(["calibrate", str(runs), "--suggest", "2", "-o", str(site)])
    assert (code, err.count("\n")) == (2, 1)


def test_steps_all_in_milliseconds_are_asked_about():
    rows = [
        {**r, "measured": {**r["measured"], "step_time_s": 1e3 * r["measured"]["step_time_s"]}}
        for r in load_shipped("simumax-b200")[:3]
    ]
    found, clean = calibrate(rows), calibrate(load_shipped("simumax-b200")[:3])
    assert any("is measured.step_time_s in seconds?" in note for note in found.site.notes)
    assert not any("in seconds?" in n for n in clean.site.notes)
