"""The exported files: complete, marked, legal for their framework, honest about differences."""

import ast
import subprocess

import pytest
from export_jobs import PLANS, job

from gangsaw.doctor.check import check
from gangsaw.errors import InputError
from gangsaw.export import TARGETS, export_plan
from gangsaw.read.launch import read_launch_text
from gangsaw.search.estimate import estimate
from gangsaw.spec import Plan

EVERY = [(name, target) for name in PLANS for target in TARGETS]


def exported(name, target):
    made, plan = PLANS[name]
    try:
        return export_plan(made, plan, target)
    except InputError as refused:
        assert target in ("torchtitan", "deepspeed"), refused
        return None


@pytest.mark.parametrize(("name", "target"), EVERY)
def test_headers_hold_version_and_hash(name, target):
    found = exported(name, target)
    if found is None or target == "schedule-csv":
        return
    from gangsaw import __version__

    for file in found.files:
        assert __version__ in file.text, file.name
        assert found.plan_hash in file.text, file.name
        assert file.text.endswith("\n")
    assert sum(file.main for file in found.files) == 1


@pytest.mark.parametrize(("name", "target"), EVERY)
def test_shell_and_python_are_well_formed(name, target, tmp_path):
    found = exported(name, target)
    if found is None:
        return
    for file in found.files:
        if file.name.endswith((".sh", ".sbatch")):
            path = tmp_path / file.name
            path.write_text(file.text)
            done = subprocess.run(
                ["bash", "-n", str(path)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        if file.name.endswith(".py"):
            ast.parse(file.text)


@pytest.mark.parametrize(("name", "target"), EVERY)
def test_the_doctor_finds_no_error_in_an_export(name, target):
    found = exported(name, target)
    if found is None or target == "schedule-csv":
        return
    launch = read_launch_text(found.main.text, found.main.name)
    faults = [f for f in check(launch).faults if f.severity != "waste"]
    assert [(f.code, f.message) for f in faults] == []
    assert launch.unread == ()


def test_a_difference_is_said_with_its_cost():
    made, plan = job("llama-3.1-8b", "h100-sxm:32", 64), Plan(
        tp=1, pp=4, vpp=2, dp=8, num_microbatches=8, schedule="zb-v", recompute="full"
    )  # fmt: skip
    found = export_plan(made, plan, "megatron-lm")
    assert found.plan.schedule == "interleaved"
    assert len(found.differences) == 1
    assert "zb-v" in found.differences[0]
    before, after = estimate(made, plan), estimate(made, found.plan)
    assert found.step_time_change_frac == pytest.approx(after.step_time_s / before.step_time_s - 1)
    assert found.peak_change_bytes == pytest.approx(
        after.memory.peak_bytes - before.memory.peak_bytes
    )
    exact = export_plan(made, plan, "torchtitan")
    assert exact.plan.schedule == "zb-v"
    assert all("schedule" not in line for line in exact.differences)


def test_refusals_are_one_line():
    made, plan = PLANS["dense"]
    with pytest.raises(InputError, match="Legal: megatron-lm"):
        export_plan(made, plan, "mesh-tensorflow")
    with pytest.raises(InputError, match="no flavour"):
        export_plan(job("mixtral-8x7b", "h100-sxm:8", 64), plan, "torchtitan")
    with pytest.raises(InputError, match="global batch"):
        export_plan(job("llama-3.1-8b", "h100-sxm:8", 63), plan, "slurm")


def test_slurm_headers_say_nodes_and_devices():
    text = export_plan(*PLANS["latent"], "slurm").main.text
    assert "#SBATCH --nodes=128\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    found = read_launch_text(text, "job.sbatch")
    assert found.plan.devices == 1024
