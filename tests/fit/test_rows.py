"""Rows of measured runs become jobs and plans; what is absurd is skipped with a reason."""

import copy

import pytest

from gangsaw.fit.row_model import likely_heads, whole
from gangsaw.fit.row_stack import stack_name, stacks_of
from gangsaw.fit.rows import load_shipped, read_row, schedule_of, shipped_sources
from gangsaw.fit.validate import validate

ROW = {
    "id": "mine/1",
    "model": {"name": "x", "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "vocab": 32000,
              "ffn": 11008, "gated_mlp": True},
    "hardware": {"device": "a100-sxm-80g", "devices": 64, "per_node": 8},
    "plan": {"tp": 2, "pp": 4, "mbs": 1, "gbs": 512, "framework": "our own trainer",
             "flash_attention": True, "recompute": "none"},
    "measured": {"step_time_s": 10.0, "oom": False},
    "kind": "step",
    "quality": "A",
}  # fmt: skip


def row(**changes):
    out = copy.deepcopy(ROW)
    for path, value in changes.items():
        part, key = path.split("__")
        out[part][key] = value
    return out


@pytest.mark.parametrize(
    ("framework", "plan", "device", "name"),
    [
        ("Megatron-LM (NGC pytorch 20.12)", {}, "a100-sxm-80g", "megatron-lm-2021"),
        ("Megatron-LM", {}, "a100-sxm-80g", "megatron-lm-2022-sp"),
        ("Megatron-LM", {}, "h100-sxm", "megatron-core-te"),
        ("Megatron-LM 23e00ed + TE 2.11", {"flash_attention": True}, "b200", "megatron-core-te"),
        ("NeMo/Megatron-Core", {"precision": "FP8-CS"}, "h100-sxm", "megatron-core-te-fp8"),
        ("Megatron-DeepSpeed", {"precision": "bf16 (fp32 grads)"}, "a100-sxm-80g", "megatron-deepspeed-bf16"),
        ("Megatron-DeepSpeed", {}, "a100-sxm-80g", "megatron-deepspeed-fp16"),
        ("llm-foundry (Composer/PyTorch FSDP)", {}, "h100-sxm", "fsdp1"),
        ("Megatron-LM (sail-sg fork)", {}, "a100-sxm-80g", "zero-bubble"),
        ("MaxText (JAX)", {}, "tpu-v5p", "jax-maxtext"),
        ("our own trainer", {}, "a100-sxm-80g", "unknown"),
        ("", {}, "a100-sxm-80g", "unknown"),
    ],
)  # fmt: skip
def test_framework_text_names_a_profile(framework, plan, device, name):
    r = row(plan__framework=framework, hardware__device=device, plan__flash_attention=None)
    r["plan"].update(plan)
    assert stack_name(r) == name


def test_unknown_stack_is_a_mixture_with_weights():
    found = stacks_of(row(), [])
    assert len(found) >= 4
    assert sum(w for _, w in found) == pytest.approx(1.0)
    kernels = {s.time.attention_kernel for s, _ in found}
    assert "unfused" not in kernels  # the row says flash attention


def test_fused_norm_kernel_keeps_less():
    plain = stacks_of(row(plan__kernel="flash_attn2"), [])[0][0]
    fused = stacks_of(row(plan__kernel="flash_attn2 + RMS kernel"), [])[0][0]
    assert fused.memory.norm_bytes < plain.memory.norm_bytes
    assert fused.time.traffic_factor <= plain.time.traffic_factor


def test_arguments_left_off_change_what_is_kept():
    def memory(**plan):
        r = row(plan__framework="Megatron-LM 7e6a045a2a", hardware__device="h100-sxm")
        r["plan"].update(plan)
        (found,) = stacks_of(r, [])
        return found[0].memory

    plain, loss = memory(), memory(cross_entropy_fusion=False)
    assert loss.logit_bytes == 3.0 * plain.logit_bytes
    assert not plain.dropout
    assert memory(hidden_dropout=0.1).dropout
    assert not memory(hidden_dropout=0.0, cross_entropy_fusion=False).dropout
    assert memory(hidden_dropout="none").dropout == plain.dropout
    assert plain.wgrad_dummy
    assert not memory(gradient_accumulation_fusion=False).wgrad_dummy
    # A fused softmax keeps one 16-bit score; with dropout a mask and the kept score beside it.
    assert memory(flash_attention=False).unfused_score_bytes == 2.0


def test_overlap_off_exposes_everything():
    r = row(plan__framework="Megatron-LM + TE", plan__overlap="all TP/PP/grad overlap off")
    time = stacks_of(r, [])[0][0].time
    assert (time.tp_exposed_fwd_frac, time.dp_overlap_backward_frac) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "name"),
    [("ZB-1p", "zb-h1"), ("ZB-2p", "zb-h2"), ("ZB-V", "zb-v"), ("V-Half", "v-half"),
     ("1F1B", "1f1b"), ("interleaved 1f1b", "1f1b"), (None, "1f1b")],
)  # fmt: skip
def test_schedule_names(text, name):
    assert schedule_of(row(plan__schedule=text)) == name


def test_named_model_stands_for_missing_shapes():
    r = row()
    r["model"] = {"name": "Llama 3.1 8B", "seq_len": 8192}
    found = read_row(r)
    assert found.skipped is None
    assert found.candidates[0].job.model.layers == 32
    assert any("named model" in a for a in found.assumed)


@pytest.mark.parametrize(
    "change",
    [
        {"model__layers": -3}, {"model__hidden": "wide"}, {"model__heads": 0.5},
        {"plan__tp": 7}, {"plan__mbs": float("nan")}, {"plan__gbs": 1e400},
        {"hardware__device": "abacus"}, {"hardware__devices": 0}, {"plan__pp": 10**9},
        {"plan__ep": 3}, {"model__seq_len": None}, {"measured__step_time_s": "fast"},
        {"measured__peak_mem_gb": -1}, {"model__vocab": []}, {"plan__recompute": {"a": 1}},
    ],
)  # fmt: skip
def test_absurd_rows_never_crash(change):
    (found,) = validate([row(**change)]).rows
    assert found.skipped or found.predicted_step_time_s > 0


@pytest.mark.parametrize(
    "broken", [{}, {"id": 3}, {"id": "a", "model": 4, "hardware": {}, "plan": {}}]
)
def test_rows_without_parts_are_skipped(broken):
    (found,) = validate([broken]).rows
    assert found.skipped


def test_no_shipped_row_with_a_stated_plan_is_skipped():
    need = ("tp", "pp", "mbs", "gbs")
    for source in shipped_sources():
        for r in load_shipped(source):
            stated = all(r["plan"].get(k) for k in need) and all(
                r["model"].get(k) for k in ("layers", "hidden", "seq_len")
            )
            if stated and r["hardware"].get("devices"):
                assert read_row(r).skipped is None, r["id"]


def test_heads_are_usual_ones():
    assert likely_heads(4096) == 32
    assert 14400 % likely_heads(14400) == 0


@pytest.mark.parametrize("bad", [-1, 1.5, float("inf"), "x", None])
def test_whole_numbers_only(bad):
    with pytest.raises(ValueError, match="not a"):
        whole(bad)


def test_four_bits_are_faster_than_eight():
    base = {"hardware__device": "gb200-nvl72", "plan__framework": "Megatron-Bridge (NeMo 26.04)"}
    eight, four = (
        validate([row(**base, plan__precision=p)]).rows[0].predicted_step_time_s
        for p in ("FP8-MX", "NVFP4")
    )
    assert 0.6 * eight < four < eight


def test_vocabulary_split_over_the_pipeline_relieves_the_last_stage():
    base = {"model__vocab": 256000, "plan__framework": "Megatron-LM (sail-sg fork)", "plan__tp": 1}
    plain, spread = (
        validate([row(**base, plan__schedule=s)]).rows[0].predicted_step_time_s
        for s in ("1F1B", "1F1B vocab-1")
    )
    assert spread < 0.95 * plain


@pytest.mark.parametrize(
    "device", ["gb200", "GB300 NVL72", "b300", "mi300x", "mi355x", "tpu-v5p", "h200", "h20", "B200"]
)
def test_new_devices_are_predicted(device):
    (found,) = validate([row(hardware__device=device, plan__precision="bf16")]).rows
    assert found.skipped is None
    assert found.predicted_step_time_s > 0.1


def plans(changed):
    """Weight of each stated field's value over all readings of a row."""
    found = read_row(changed).candidates
    total = sum(c.weight for c in found)
    out = {}
    for c in found:
        key = (c.plan.vpp, c.plan.mbs)
        out[key] = out.get(key, 0.0) + c.weight / total
    return out


def test_interleaved_without_its_chunks_is_a_range():
    reading = read_row(row(plan__schedule="interleaved 1F1B", model__layers=30))
    found = plans(row(plan__schedule="interleaved 1F1B", model__layers=30))
    assert found == {(v, 1): pytest.approx(1.0 / 3.0) for v in (2, 4, 8)}
    assert any(text.startswith("vpp: 2, 4, 8") for text in reading.assumed)


def test_microbatches_that_starve_the_pipeline_are_unlikely():
    few, many = row(plan__gbs=32), row(plan__gbs=512)
    for changed in (few, many):
        del changed["plan"]["mbs"]
    # dp is 8: 4, 2 and 1 microbatches for 4 stages against 64, 32 and 16.
    starved, fed = plans(few), plans(many)
    assert starved[1, 1] > 0.95 > fed[1, 1]
    assert starved[1, 2] / starved[1, 1] == pytest.approx(0.05 * fed[1, 2] / fed[1, 1])


def test_old_software_shards_its_optimizer_only_where_it_says_so():
    old = row(plan__framework="Megatron-DeepSpeed")
    assert {c.plan.zero for c in read_row(old).candidates} == {0}
    assert {c.plan.zero for c in read_row(row()).candidates} == {1}
    said = row(plan__framework="Megatron-DeepSpeed", plan__zero=1)
    assert {c.plan.zero for c in read_row(said).candidates} == {1}
