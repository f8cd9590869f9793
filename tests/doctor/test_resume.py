"""Resuming with another layout: formats, converters, memory, time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.doctor.resume import FORMATS, resume_check
from gangsaw.errors import InputError
from gangsaw.read.models import load_model
from gangsaw.spec import Plan

LLAMA = load_model("llama-3.1-8b")


def test_legacy_megatron_checkpoints_keep_tp_and_pp():
    # NVIDIA/Megatron-LM#296: saved at tp 1, run at tp 2, the framework refuses.
    found = resume_check(LLAMA, Plan(tp=1, dp=8), Plan(tp=2, dp=4), "torch")
    assert not found.direct
    assert found.weights_only
    assert "--target-tensor-parallel-size 2" in found.command
    assert found.changed == {"tp": (1, 2), "dp": (8, 4)}
    assert resume_check(LLAMA, Plan(tp=2, dp=8), Plan(tp=2, dp=4), "torch").direct


def test_resharding_formats_take_any_layout():
    for form in ("torch_dist", "dcp", "fsdp_dtensor", "deepspeed-universal"):
        found = resume_check(LLAMA, Plan(tp=2, pp=2, dp=8), Plan(tp=8, dp=2), form)
        assert found.direct, form
        assert not found.weights_only
        assert found.command == ""


def test_distributed_optimizer_state_needs_its_flag():
    found = resume_check(LLAMA, Plan(tp=2, dp=8), Plan(tp=4, dp=4), "torch_dist")
    assert any("--dist-ckpt-optim-fully-reshardable" in line for line in found.warnings)
    same = resume_check(LLAMA, Plan(tp=2, dp=8), Plan(tp=2, dp=4), "torch_dist")
    assert not any("--dist-ckpt-optim-fully-reshardable" in line for line in same.warnings)


def test_deepspeed_ranks_read_all_optimizer_state():
    # deepspeedai/DeepSpeed#1111: 5 billion parameters, 8 ranks a node: 60 GB each.
    model = LLAMA
    found = resume_check(model, Plan(dp=4, zero=2), Plan(dp=32, zero=2), "deepspeed", 8)
    assert found.host_bytes_per_node == pytest.approx(12 * model.params() * 8)
    assert "ds_to_universal" in found.command
    assert not found.direct
    per_rank = 12 * 5e9 / 1e9
    assert per_rank == 60


@pytest.mark.parametrize(
    ("form", "per_param"), [("torch_dist", 14), ("dcp", 12), ("safetensors", 2)]
)
def test_sizes_and_times(form, per_param):
    found = resume_check(LLAMA, Plan(dp=8), Plan(dp=8), form, 8, 2e9)
    assert found.size_bytes == per_param * LLAMA.params()
    assert found.load_s == pytest.approx(found.size_bytes / 2e9)
    assert found.convert_s is None


def test_a_published_checkpoint_size():
    # BLOOM-176B: 2,294.77 GiB with bf16 weights, fp32 weights and both moments.
    model = load_model("bloom-176b")
    found = resume_check(model, Plan(tp=4, pp=12, dp=8), Plan(tp=4, pp=12, dp=8), "torch_dist")
    assert found.size_bytes / 2**30 == pytest.approx(2294.77, rel=0.002)


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError, match="Legal: torch_dist"):
        resume_check(LLAMA, Plan(), Plan(), "pickle")


@given(
    st.sampled_from(FORMATS),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 4, 8)),
)
def test_the_same_layout_always_resumes(form, tp, pp, dp):
    plan = Plan(tp=tp, pp=pp, dp=dp)
    found = resume_check(LLAMA, plan, plan, form)
    assert found.changed == {}
    assert found.direct == (form != "safetensors")
    assert found.convert_s is None


@pytest.mark.parametrize(
    ("form", "pair", "parts"),
    [
        ("torch_dist", ("megatron-lm", "torchtitan"), ("convert_checkpoints.py export", "initial_load_in_hf")),
        ("dcp", ("torchtitan", "megatron-bridge"), ("convert_to_hf.py", "convert_checkpoints.py import")),
        ("deepspeed", ("deepspeed", "torchtitan"), ("zero_to_fp32.py", "initial_load_in_hf")),
        ("deepspeed", ("gpt-neox", "llama-factory"), ("convert_neox_to_hf.py", "model_name_or_path")),
    ],
)  # fmt: skip
def test_another_framework_takes_the_weights_alone(form, pair, parts):
    plan = Plan(tp=2, dp=8)
    found = resume_check(LLAMA, plan, plan, form, storage_bytes_per_s=1e9, frameworks=pair)
    assert not found.direct and found.weights_only
    assert all(part in found.command for part in parts)
    assert found.load_s == pytest.approx(2 * LLAMA.params() / 1e9)
    assert any("optimizer state" in line for line in found.warnings)


def test_frameworks_of_one_family_share_checkpoints():
    plan = Plan(tp=2, dp=8)
    for pair in (("megatron-lm", "nemo"), ("deepspeed", "axolotl"), ("torchtitan", "torchtitan")):
        assert resume_check(LLAMA, plan, plan, "torch_dist", frameworks=pair).direct
    lone = resume_check(LLAMA, plan, plan, "dcp", frameworks=("gangsaw", "torchtitan"))
    assert not lone.direct and any("gangsaw" in line for line in lone.warnings)
