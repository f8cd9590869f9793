"""`gangsaw train` from the command line: torchrun's agent, resume, refusals in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangsaw.cli.main import run

MODEL = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
"num_key_value_heads": 2, "tie_word_embeddings": true, "hidden_act": "silu",
"rms_norm_eps": 1e-05}"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(MODEL)
    (tmp_path / "plan.toml").write_text(
        'pp = 2\nnum_microbatches = 2\nschedule = "zb-h1"\nstages = "2,1"\n'
    )
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return tmp_path


def _train(job: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [
        "train",
        str(job / "plan.toml"),
        "--model",
        str(job / "config.json"),
        "--data",
        str(job / "text.txt"),
        "--seq-len",
        "32",
        "--out",
        str(job / "run"),
        *more,
    ]
    # A process of its own: torchrun's agent forks ranks, which must not copy pytest.
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-m", "gangsaw.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=900,
        env=env,
    )


def test_train_then_resume(job):
    first = _train(job, "--steps", "3", "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert (summary["steps"], summary["ranks"]) == (3, 2)
    run_folder = job / "run"
    assert (run_folder / "checkpoints" / "latest").read_text() == "step-00000003"
    assert "0REDUCE_GRAD" in (run_folder / "actions" / "rank0.txt").read_text()
    assert (run_folder / "trace" / "rank1.json").exists()
    again = _train(job, "--steps", "3", "--json")
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert again.stderr.count("\n") <= 2


def test_failing_rank_is_one_line_and_code_1(job):
    """A disk that refuses the checkpoint: the run fails with the reason, not with a traceback."""
    blocked = job / "run"
    blocked.mkdir()
    (blocked / "checkpoints").write_text("a file stands where the folder must be")
    result = _train(job, "--steps", "1")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("gangsaw: rank")
    assert "checkpoints" in last


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "missing.txt"], "does not exist"),
        (["--data", "README.md", "--tp", "3"], "tp=3"),
        (["--data", "README.md", "--pp", "2", "--schedule", "dualpipe"], "dualpipe-v"),
        (["--data", "README.md", "--steps", "0"], "--steps"),
        (["--data", "README.md", "--precision", "fp8"], "bf16"),
        ([], "--data"),
    ],
)
def test_refusals(job, words, said):
    words = [str(job / w) if w == "README.md" else w for w in words]
    (job / "README.md").write_text("x" * 9000)
    (job / "one.toml").write_text("tp = 1\n")
    outcome = run(
        [
            "train",
            str(job / "one.toml"),
            "--model",
            str(job / "config.json"),
            "--out",
            str(job / "r"),
            *words,
        ]
    )
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_another_length_of_a_run_is_refused_before_ranks_start(job):
    assert _train(job, "--steps", "2").returncode == 0
    again = _train(job, "--steps", "3", "--resume")
    assert again.returncode == 2
    assert again.stderr.startswith("gangsaw: --resume: --steps is 3, the checkpoint step-00000002")
    assert "Legal: 2, or another --out" in again.stderr
    assert len(again.stderr.splitlines()) == 1


def test_a_finished_run_says_that_nothing_is_left(job):
    assert _train(job, "--steps", "2").returncode == 0
    again = _train(job, "--steps", "2", "--resume")
    assert again.returncode == 0
    assert "nothing was left to train" in again.stderr


def test_half_a_line_of_the_log_is_dropped_and_steps_stand_once(job):
    assert _train(job, "--steps", "2").returncode == 0
    log = job / "run" / "log.jsonl"
    whole = log.read_text()
    # A killed run: a step behind the checkpoint, and half a record.
    log.write_text(whole + whole.splitlines()[-1].replace('"step": 2', '"step": 3') + '\n{"st')
    again = _train(job, "--steps", "2", "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == 2
    assert log.read_text() == whole


def test_two_runs_do_not_share_a_folder(job):
    from gangsaw.errors import InputError
    from gangsaw.run.launch import held

    (job / "run").mkdir()
    with held(job / "run"):
        second = _train(job, "--steps", "2")
        assert second.returncode == 2
        assert "another run writes there" in second.stderr
        with pytest.raises(InputError, match="another folder"), held(job / "run"):
            pass
    assert _train(job, "--steps", "2").returncode == 0


def test_a_file_is_no_run_folder(job):
    (job / "run").write_text("kept")
    refused = _train(job, "--steps", "2")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and "is a file. Legal: a folder" in refused.stderr
    assert (job / "run").read_text() == "kept"


def test_a_prediction_of_another_plan_is_not_held_against_a_run(job):
    assert _train(job, "--steps", "3").returncode == 0
    other = job / "other.toml"
    other.write_text("pp = 1\ntp = 2\nnum_microbatches = 2\n")
    found = run(
        ["reconcile", str(job / "run"), str(other), "--model", str(job / "config.json"),
         "--cluster", "h100-sxm:2", "--seq-len", "32"]
    )  # fmt: skip
    assert found.code == 2
    assert "is of another plan than the one that ran: tp=2 pp=1" in found.err
    assert "tp=1 pp=2" in found.err
