"""Layers before and behind the decoder in exported files: stated where a target has them."""

import pytest
from export_jobs import job

from gangsaw.export import TARGETS, export_plan
from gangsaw.read.launch import read_launch_text
from gangsaw.read.launch.stages import expand_layout
from gangsaw.spec import Plan

CUTS = {
    "1f1b": ({"pp": 16, "dp": 64}, (3, *(4,) * 13, 3, 3)),
    "interleaved": ({"pp": 16, "vpp": 2, "dp": 64, "schedule": "interleaved"}, (3, *(2,) * 29, 0, 0)),
}  # fmt: skip


def deepseek(name):
    fields, stages = CUTS[name]
    made = job("deepseek-v3", "h100-sxm:1024", 8192, seq=4096)
    return made, Plan(tp=1, ep=64, num_microbatches=128, stages=stages, **fields)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_prediction_layers_stand_where_the_planner_has_them(name, target):
    """The rules are those of megatron/core/transformer/pipeline_parallel_layer_layout.py, r0.15."""
    made, plan = deepseek(name)
    found = export_plan(made, plan, target)
    text = found.main.text
    assert "--mtp-num-layers 1" in text or "mtp_num_layers=1" in text
    layout = next(line for line in text.splitlines() if "pipeline" in line and "layout" in line)
    stages = expand_layout(layout.split("'")[1])
    assert [stage.count("t") for stage in stages] == list(plan.stages)
    flat = "".join(stages)
    assert flat.startswith("E") and flat.endswith("mL")
    assert flat.count("m") == made.model.mtp.layers == 1 and "t" not in flat[flat.index("m") :]
    assert [i for i, stage in enumerate(stages) if "m" in stage] == [len(stages) - 1]
    assert len(stages) % plan.pp == 0
    assert not any("multi-token" in note for note in found.notes)


def test_the_imported_model_has_them_too():
    made, plan = deepseek("1f1b")
    again = read_launch_text(export_plan(made, plan, "megatron-lm").main.text, "launch.sh")
    assert again.model.mtp.layers == 1
    assert again.model.mtp.params() == made.model.mtp.params()
    assert again.model.params() == made.model.params()
    assert again.plan.stages == plan.stages


def test_every_other_target_says_that_it_has_none():
    made, plan = deepseek("1f1b")
    dense = job("llama-3.1-8b", "h100-sxm:8", 64)
    for target in TARGETS:
        said = [n for n in export_plan(made, plan, target).notes if "multi-token" in n]
        has = target in ("megatron-lm", "megatron-bridge", "schedule-csv")
        assert len(said) == (0 if has else 1), target
        text = "".join(f.text for f in export_plan(made, plan, target).files)
        assert ("mtp" in text) == (target in ("megatron-lm", "megatron-bridge"))
        plain = export_plan(dense, Plan(tp=2, dp=4, num_microbatches=16), target)
        assert not any("multi-token" in n or "tower" in n for n in plain.notes)
        assert "mtp" not in plain.main.text


def test_a_vision_tower_is_named_where_it_is_left_out():
    made = job("qwen2.5-vl-7b", "h100-sxm:8", 64, seq=4096)
    plan = Plan(tp=2, pp=2, dp=2, num_microbatches=32)
    for target in ("megatron-lm", "megatron-bridge", "deepspeed", "torchrun"):
        said = [n for n in export_plan(made, plan, target).notes if "tower" in n]
        assert len(said) == 1 and "32 layers" in said[0]


def test_dualpipe_and_auto_as_a_schedule():
    """The file of a two-way program says what torch needs; `auto` is the order it found."""
    made = job("llama-3.1-8b", "h100-sxm:4", 16, seq=4096)
    two = export_plan(made, Plan(pp=4, num_microbatches=16, schedule="dualpipe"), "schedule-csv")
    assert len(two.notes) == 1 and "dualpipe-v runs as it stands" in two.notes[0]
    assert len(two.main.text.splitlines()) == 4
    found = export_plan(made, Plan(pp=4, num_microbatches=16, schedule="auto"), "schedule-csv")
    rows = found.main.text.splitlines()
    assert found.notes == () and len(rows) == 4
    assert all(sum("F" in cell for cell in row.split(",")) >= 16 for row in rows)
