"""check, oom, export and import on the command line."""

import json
from pathlib import Path

import pytest

from gangsaw.cli.main import run

SOUND = Path(__file__).parent.parent / "doctor" / "sound"
LLAMA = str(SOUND / "megatron_llama3_8b.sh")
MESSAGE = (
    "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.15 GiB of"
    " which 2.00 GiB is free. Of the allocated memory 74.00 GiB is allocated by PyTorch, and"
    " 1.10 GiB is reserved by PyTorch but unallocated."
)
PLAN = ["llama-3.1-8b", "h100-sxm:8", "--seq-len", "8192", "--global-batch", "64", "--tp", "2"]


def test_check_of_a_sound_file():
    code, out, err = run(["check", LLAMA])
    assert (code, err) == (0, "")
    assert "No fault against" in out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100


def test_a_release_has_a_number():
    code, out, err = run(["check", LLAMA, "--version", "foo"])
    assert (code, out) == (2, "")
    assert err.startswith("gangsaw: --version 'foo' has no number. Legal: a release, as core_r")
    assert run(["check", LLAMA, "--version", "0.12"]).code == 0


def test_check_json_of_a_broken_file(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(Path(LLAMA).read_text().replace("--bf16", "").replace("--swiglu", ""))
    code, out, err = run(["check", str(path), "--cluster", "h100-sxm", "--json"])
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert {"WM002", "WM010"} <= {fault["code"] for fault in data["faults"]}
    assert data["peak_bytes"] > 0
    text = run(["check", str(path)]).out
    assert "Trains another model" in text
    assert "repair: --bf16" in text


def test_check_of_what_is_no_launch_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("hello\n")
    code, out, err = run(["check", str(path)])
    assert (code, out) == (2, "")
    assert "no framework recognised" in err
    assert len(err.splitlines()) == 1
    assert run(["check", str(tmp_path / "none.sh")]).code == 2


def test_oom_names_the_tensor():
    code, out, err = run(["oom", LLAMA, "--message", MESSAGE, "--json"])
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["matches"][0]["tensor"] == "fp32 logits of the loss"
    assert data["matches"][0]["error_frac"] < 0.01
    assert {"requested_bytes", "matches", "repairs"} <= set(data)
    text = run(["oom", LLAMA, "--message", MESSAGE]).out
    assert "Asked for 3.91 GiB: fp32 logits of the loss" in text
    assert text.isascii()


def test_oom_reads_a_log(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step 1\n" * 1000 + MESSAGE + "\n")
    assert run(["oom", LLAMA, "--message", f"FILE:{log}"]).code == 0
    code, _, err = run(["oom", LLAMA, "--message", "all is well"])
    assert code == 2
    assert "no out-of-memory message" in err


@pytest.mark.parametrize(
    "target",
    [
        "megatron-lm",
        "megatron-bridge",
        "torchtitan",
        "deepspeed",
        "torchrun",
        "slurm",
        "kubernetes",
    ],
)
def test_export_then_import(target, tmp_path):
    code, out, err = run(
        ["export", *PLAN, "--to", target, "--out", str(tmp_path / "out"), "--json"]
    )
    assert code == 0, err
    data = json.loads(out)
    main = next(f["name"] for f in data["files"] if f["main"])
    code, out, err = run(["import", str(tmp_path / "out" / main), "--json"])
    assert code == 0, err
    plan = json.loads(out)["plan"]
    for name in ("tp", "pp", "dp", "mbs", "num_microbatches", "zero"):
        assert plan[name] == data["plan"][name], name


def test_export_prints_the_main_file():
    code, out, err = run(["export", *PLAN, "--pp", "4", "--to", "schedule-csv"])
    assert code == 0, err
    assert len(out.splitlines()) == 4
    assert out.startswith("0F0,")


def test_export_says_what_differs():
    code, out, err = run(["export", *PLAN, "--zero", "1", "--to", "torchtitan"])
    assert code == 0
    assert "not expressible: zero=1" in err
    assert "predicted cost" in err
    assert out.startswith('"""Recipe')
    assert run(["export", *PLAN, "--to", "nothing"]).code == 2


def test_import_prints_what_it_read():
    code, out, err = run(["import", LLAMA])
    assert (code, err) == (0, "")
    assert "llama-3-8b, 8.03B parameters" in out
    assert "dp=8" in out


def test_check_of_a_resume(tmp_path):
    new = tmp_path / "new.sh"
    new.write_text(Path(LLAMA).read_text().replace("TP_SIZE=1", "TP_SIZE=2"))
    flags = ["--resume-from", LLAMA, "--checkpoint-format", "torch"]
    code, out, err = run(["check", str(new), *flags, "--json"])
    assert (code, err) == (0, "")
    assert json.loads(out)["resume"]["direct"] is False
    assert "convert.py" in run(["check", str(new), *flags]).out
    assert run(["check", str(new), "--checkpoint-format", "torch"]).code == 2
    assert run(["check", str(new), "--resume-from", LLAMA, "--checkpoint-format", "x"]).code == 2


def test_a_save_that_took_long():
    slow = run(["check", LLAMA, "--saved-in", "6min"]).out
    assert "storage is slow" in slow
    late = run(["check", LLAMA, "--saved-in", "1min,3min", "--json"])
    assert json.loads(late.out)["saving"]["cause"] == "straggler"
    wrong = run(["check", LLAMA, "--saved-in", "3min,1min"])
    assert (wrong.code, wrong.out) == (2, "")
    assert "Legal: times above 0" in wrong.err
    assert run(["check", LLAMA, "--saved-in", "1s,2s,3s"]).code == 2
