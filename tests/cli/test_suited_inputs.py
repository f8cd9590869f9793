"""Inputs that are suited to each other: an assumed batch, listed plans, plans beside each other."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.cli.files import put, replacing, writable
from gangsaw.cli.main import run
from gangsaw.cli.options import default_batch
from gangsaw.errors import InputError, RunFailedError


@given(power=st.integers(0, 14), seq_len=st.integers(128, 2**20))
def test_powers_of_two_devices_keep_four_million_tokens(power, seq_len):
    batch = default_batch(seq_len, 2**power, None)
    assert batch & (batch - 1) == 0
    assert 2**21.5 <= batch * seq_len <= 2**22.5


@given(devices=st.integers(1, 5000), seq_len=st.sampled_from([512, 4096, 8192]))
def test_an_assumed_batch_suits_any_device_count(devices, seq_len):
    batch = default_batch(seq_len, devices, None)
    odd = devices // (devices & -devices)
    assert batch % odd == 0
    # At most half a power of two off, unless the odd part alone is larger.
    assert batch == odd or 2**21.5 <= batch * seq_len <= 2**22.5


@given(tp=st.sampled_from([1, 2, 4]), mbs=st.integers(1, 9), devices=st.integers(1, 600))
def test_an_assumed_batch_suits_the_stated_plan(tp, mbs, devices):
    dp = max(1, devices // tp)
    assert default_batch(4096, devices, {"tp": tp, "mbs": mbs}) % (dp * mbs) == 0
    stated = {"dp": 3, "mbs": mbs, "num_microbatches": 5}
    assert default_batch(4096, devices, stated) == 15 * mbs


@pytest.mark.parametrize(("devices", "batch"), [(8, 1024), (12, 768), (48, 768), (4096, 4096)])
def test_one_plan_on_any_device_count(devices, batch):
    found = run(["estimate", "llama-3.1-8b", f"h100-sxm:{devices}", "--json"])
    assert found.code == 0, found.err
    answer = json.loads(found.out)
    assert answer["plan"]["dp"] == devices
    assert answer["plan"]["num_microbatches"] * devices == batch
    assert any(f"--global-batch {batch}" in note for note in answer["notes"])


A_PLAN = {"tp": 2, "pp": 2, "dp": 2, "num_microbatches": 8}


def test_a_list_of_plans_is_read_as_its_first(tmp_path):
    path = tmp_path / "plans.json"
    other = {"plan": {**A_PLAN, "tp": 4, "dp": 1, "num_microbatches": 16}}
    path.write_text(json.dumps({"model": "x", "plans": [{"plan": A_PLAN}, other], "notes": []}))
    found = run(["estimate", "llama-3.1-8b", "h100-sxm:8", "--plan", str(path), "--json"])
    assert found.code == 0, found.err
    plan = json.loads(found.out)["plan"]
    assert {k: plan[k] for k in A_PLAN} == A_PLAN
    assert "lists 2 plans: the first is taken" in found.err


def test_an_empty_list_of_plans_is_refused(tmp_path):
    path = tmp_path / "plans.json"
    path.write_text('{"plans": []}')
    found = run(["estimate", "llama-3.1-8b", "h100-sxm:8", "--plan", str(path)])
    assert found.code == 2
    assert "lists no plan. Legal:" in found.err


def test_the_same_plan_twice_has_no_threshold(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(A_PLAN))
    words = ["threshold", "llama-3.1-8b", "h100-sxm:8", str(path), str(path)]
    found = run([*words, "--global-batch", "16", "--over", "inter-node-bandwidth"])
    assert found.code == 2
    assert "is the same plan as a: they never change rank" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--over", "device-price", "--map", "nope"], "--map 'nope' is unknown. Legal: inter-node"),
        (["--over", "nope"], "--over 'nope' is unknown. Legal: inter-node"),
        ([], "--over is missing. Legal: inter-node-bandwidth, intra-node-bandwidth"),
        (["--over", "device-price", "--range", "5:1"], "the smaller end comes first. Legal: LOW"),
    ],
)
def test_the_flag_that_is_wrong_is_named(words, said):
    found = run(["threshold", "llama-3.1-8b", "h100-sxm:8", *words])
    assert found.code == 2
    assert said in found.err


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"cannot be written\. Legal: a path you may"):
        writable("--out", str(tmp_path / "x.toml"), (".toml",))


MODEL = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_names_beyond_the_terminal_s_encoding(tmp_path, more):
    path = tmp_path / "\u00fcn\u00ef.json"
    path.write_text(json.dumps(MODEL))
    done = subprocess.run(
        [sys.executable, "-m", "gangsaw", "model", str(path), *more],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if more:
        assert json.loads(done.stdout)["name"] == "\u00fcn\u00ef"
    else:
        assert done.stdout.startswith(b"\\xfcn\\xef: ")


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:
        part.write_text("half of the n")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    put(path, "new \u00fc")
    assert path.read_text(encoding="utf-8") == "new \u00fc"
    assert [p.name for p in tmp_path.iterdir()] == ["site.toml"]


def test_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    put(link, "new")
    assert link.is_symlink() and real.read_text() == "new"


def test_a_refused_write_is_one_line(tmp_path):
    path = tmp_path / "x.svg"
    said = r"x\.svg cannot be written: No space left"
    with pytest.raises(RunFailedError, match=said), replacing(path):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_export_into_a_file_is_refused(tmp_path):
    path = tmp_path / "kept"
    path.write_text("kept")
    words = ["export", "llama-3.1-8b", "h100-sxm:8", "--global-batch", "8", "--to", "slurm"]
    found = run([*words, "--out", str(path)])
    assert found.code == 2
    assert "kept is a file. Legal: a folder" in found.err
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dp", "3"], "gangsaw: dp = 3 does not divide the 8 devices of h100-sxm."),
        (["--dp", "3", "--tp", "2"], "gangsaw: tp x dp = 2 x 3 = 6 does not divide the 8 devices"),
    ],
)
def test_a_product_of_one_factor_is_that_factor(words, said):
    found = run(["plan", "llama-3.1-8b", "h100-sxm:8", *words])
    assert found.code == 2
    assert found.err.startswith(said)
