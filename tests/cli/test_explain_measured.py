"""`explain --measured`: the five steps on what was measured (made here, nothing is timed)."""

from __future__ import annotations

import json

import pytest

from gangsaw.cli.main import run
from gangsaw.read.clusters import load_cluster
from gangsaw.trace.cluster_toml import cluster_toml


@pytest.fixture
def folder(tmp_path):
    """Layers that stop getting faster at TP 2, on the curves of a node of eight."""
    (tmp_path / "cluster.toml").write_text(cluster_toml(load_cluster("h100-sxm:8"), ["made"]))
    (tmp_path / "measure.json").write_text(json.dumps({"precisions": ["bf16"], "seq_len": 2048}))
    seconds = {1: 0.010, 2: 0.006, 4: 0.0059, 8: 0.0058}
    rows = [
        {"key": str(tp), "kind": "layer", "tp": tp, "backward": True, "dtype": "bf16"}
        | {"seq": 2048, "mbs": 1, "low_s": s, "kept_bytes": 3e8 / tp if tp < 8 else None}
        for tp, s in seconds.items()
    ]
    rows.append({**rows[0], "key": "forward", "backward": False, "low_s": 1.0})
    text = "\n".join(json.dumps(r) for r in rows)
    (tmp_path / "measure.jsonl").write_text(text + '\n{"key": "torn')
    return tmp_path


def _walk(*words):
    out = run(["explain", "llama-3.1-8b", *words, "--global-batch", "64", "--json"])
    assert out.code == 0, out.err
    return json.loads(out.out), out.err


def test_measured_layers_decide_on_tp(folder):
    found, _ = _walk("--measured", str(folder))
    layers = found["steps"][0]["layers"]
    assert {r["tp"]: r["measured_s"] for r in layers} == {1: 0.01, 2: 0.006, 4: 0.0059, 8: 0.0058}
    assert all(r["total_s"] == r["measured_s"] for r in layers)
    assert [r["measured_kept_bytes"] for r in layers] == [3e8, 1.5e8, 0.75e8, None]
    assert [r["tp"] for r in layers if r["chosen"]] == [2]
    assert len(found["steps"]) == 5
    # Length and precision are those of the measurement; the walk is taken again with others.
    again = {(r["precision"], r["seq_len"]) for r in found["steps"][4]["again"]}
    assert again == {("bf16", 2048), ("fp8", 2048), ("bf16", 8192)}


def test_another_length_follows_the_curves_and_says_so(folder):
    found, said = _walk("--measured", str(folder), "--seq-len", "4096")
    assert {r["measured_s"] for r in found["steps"][0]["layers"]} == {None}
    assert "seq_len=2048" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["h100-sxm:8", "--measured", "x"], "one of both"),
        ([], "CLUSTER is missing"),
        (["--measured", "nowhere"], "no cluster.toml"),
    ],
)
def test_refusals(words, said):
    out = run(["explain", "llama-3.1-8b", *words])
    assert out.code == 2
    assert said in out.err
    assert out.err.count("\n") == 1
