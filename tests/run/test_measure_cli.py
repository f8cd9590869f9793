"""`gangsaw measure` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from test_train_cli import MODEL

from gangsaw.cli.main import run
from gangsaw.fit.sweep import read_sweep
from gangsaw.read.clusters import load_cluster


def test_measure_writes_a_cluster_that_plans_can_use(tmp_path):
    (tmp_path / "config.json").write_text(MODEL)
    words = [
        "measure",
        str(tmp_path / "config.json"),
        "--ranks",
        "2",
        "--seq-len",
        "32",
        "--seconds",
        "0.002",
        "--sustained",
        "0.2",
        "--out",
        str(tmp_path / "m"),
        "--json",
    ]
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "gangsaw.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=900,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert "measure" in done.stderr
    assert facts["machine"]["torch"]
    cluster = load_cluster(facts["cluster"])
    assert cluster.devices == 2
    out = run(
        [
            "estimate",
            str(tmp_path / "config.json"),
            facts["cluster"],
            "--pp",
            "2",
            "--seq-len",
            "32",
            "--global-batch",
            "4",
            "--precision",
            "fp32",
        ]
    )
    assert out.code == 0, out.err
    # What else it wrote: the products as a sweep, and the model's layer as a recording.
    assert len(read_sweep(tmp_path / "m" / "measure.jsonl")) >= 5
    recorded = str(tmp_path / "m" / "layer.json")
    flags = ["--model", str(tmp_path / "config.json"), "--cluster", facts["cluster"], "--json"]
    made = run(["calibrate", "--layer-trace", recorded, *flags])
    assert made.code == 0, made.err
    layer = json.loads(made.out)["layer"]
    assert layer["counted_bytes"] == pytest.approx(layer["kept_bytes"])
    assert {"time.gemm_factor", "time.traffic_factor"} <= {
        e["entry"] for e in layer["entries"] if e["measured"]
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch-model"], "nosuch"),
        (["llama-3.1-8b", "--ranks", "0"], "--ranks"),
        (["llama-3.1-8b", "--precision", "fp8"], "fp32, bf16"),
        (["llama-3.1-8b", "--seconds", "nan"], "--seconds"),
        (["deepseek-v3"], "not carried"),
    ],
)
def test_refusals(words, said):
    out = run(["measure", *words])
    assert out.code == 2
    assert said in out.err
    assert out.out == ""


@pytest.mark.parametrize("verb", [["measure", "llama-3.1-8b"], ["train", "demo"]])
def test_without_torch_the_way_to_get_it_is_told(verb, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    out = run(verb)
    assert out.code == 2
    assert "gangsaw[run]" in out.err
