"""Public facts restated as checks: every line with its stated tolerance."""

import json
import math
from functools import cache
from pathlib import Path

import pytest
from case_rows import bloom_row, titan_row

from gangsaw.doctor.check import check
from gangsaw.doctor.context import names_of
from gangsaw.doctor.tensors import tensors
from gangsaw.fit.validate import validate
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text
from gangsaw.read.launch.stages import layout_counts
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import Job, Plan, Recipe

LINES = (
    (Path(__file__).parent.parent / "data" / "cases" / "checkable.jsonl").read_text().splitlines()
)
CASES = {case["id"]: case for case in map(json.loads, LINES)}
NAMES = {"GLM-4.5-Air": "glm-4.5-air", "Llama-2-70b": "llama-2-70b", "Qwen3-30B-A3B": "qwen3-30b-a3b",
         "DeepSeek-V3": "deepseek-v3", "Llama-3.1-8B": "llama-3.1-8b"}  # fmt: skip


def megatron(world=64, **flags):
    base = {
        "num-layers": 48, "hidden-size": 4096, "num-attention-heads": 64, "kv-channels": 64,
        "seq-length": 4096, "max-position-embeddings": 8192, "micro-batch-size": 1, "bf16": True,
        "vocab-size": 50304, "use-distributed-optimizer": True,
    }  # fmt: skip
    base.update({key.replace("_", "-"): value for key, value in flags.items()})
    words = [f"--{k}" if v is True else f"--{k} {v}" for k, v in base.items() if v is not None]
    nodes = max(1, world // 8)
    text = (
        f"torchrun --nnodes {nodes} --nproc_per_node {world // nodes} pretrain_gpt.py "
        + " ".join(words)
    )
    return read_launch_text(text + "\n", "run.sh")


def refused(launch):
    return {fault.code for fault in check(launch).faults if fault.severity == "error"}


def valid_launch(plan):
    """The plan of a `valid` line as a launch of its framework, and the rule that it breaks."""
    if "rule" in plan:
        return megatron(seq_length=plan["seq"], context_parallel_size=plan["cp"]), "MLM021"
    if plan.get("framework") == "torchtitan":
        pp, count = plan.get("pp", 1), plan.get("num_microbatches", 8)
        words = (
            f"torchrun --nnodes 8 --nproc_per_node 8 -m torchtitan.train --model.name llama3"
            f" --model.flavor 8B --training.local_batch_size {count}"
            f" --parallelism.pipeline_parallel_degree {pp}"
            f" --parallelism.tensor_parallel_degree {plan.get('tp', 1)}\n"
        )
        launch = read_launch_text(words, "run.sh")
        if "kv_heads" in plan:
            facts = {**launch.facts, "kv_heads": plan["kv_heads"], "heads": 16}
            return launch.model_copy(update={"facts": facts}), "TT010"
        return launch, "TT013"
    if "heads" in plan:
        return megatron(
            num_attention_heads=plan["heads"], tensor_model_parallel_size=plan["tp"]
        ), "MLM017"
    flags = {
        "num_layers": plan.get("layers", 12 * plan["pp"]),
        "pipeline_model_parallel_size": plan["pp"],
    }
    if "tp" in plan:
        flags["tensor_model_parallel_size"] = plan["tp"]
    if "ep" in plan:
        flags |= {"num_experts": 128, "expert_model_parallel_size": plan["ep"], "sequence_parallel": True,
                  "expert_tensor_parallel_size": 1, "moe_grouped_gemm": True}  # fmt: skip
    if "layers_per_virtual_stage" in plan:
        flags["num_layers_per_virtual_pipeline_stage"] = plan["layers_per_virtual_stage"]
        return megatron(**flags), "MLM003"
    if "vpp" in plan:
        flags |= {
            "num_virtual_stages_per_pipeline_rank": plan["vpp"],
            "global_batch_size": plan["num_microbatches"] * 8,
        }
        return megatron(world=8 * plan["pp"], **flags), "MLM014"
    return megatron(world=16 * plan["pp"], **flags), "MLM002"


def of(check_name):
    return [
        pytest.param(case, id=case["id"]) for case in CASES.values() if case["check"] == check_name
    ]


@pytest.mark.parametrize("case", of("valid"))
def test_valid(case):
    launch, code = valid_launch(case["plan"])
    assert case["expect"] is False
    assert code in refused(launch)


def test_the_same_launches_are_accepted_once_repaired():
    assert refused(megatron(num_layers=40, pipeline_model_parallel_size=8)) == set()
    assert refused(megatron(num_layers=46, pipeline_model_parallel_size=2)) == set()
    assert refused(megatron(seq_length=4096, context_parallel_size=4)) == set()
    assert refused(megatron(num_attention_heads=64, tensor_model_parallel_size=8)) == set()


@pytest.mark.parametrize("case", of("layout_layers"))
def test_layout_layers(case):
    counts = layout_counts(case["plan"]["layout"])
    assert len(counts) == case["plan"]["pp"] * case["plan"]["vpp"]
    assert sum(counts) == case["expect"]


def legal_worlds(plan, limit):
    """World sizes at which no rule about the product of degrees is broken."""
    flags = {
        "tensor_model_parallel_size": plan["tp"], "pipeline_model_parallel_size": plan["pp"],
        "expert_model_parallel_size": plan["ep"], "expert_tensor_parallel_size": plan["etp"],
        "num_experts": 128, "sequence_parallel": True, "moe_grouped_gemm": True,
    }  # fmt: skip
    return [
        world for world in range(1, limit + 1)
        if world % 8 == 0 or world < 8
        if not {"MLM001", "MLM027"} & refused(megatron(world=world, **flags))
    ]  # fmt: skip


@pytest.mark.parametrize("case", of("min_world"))
def test_min_world(case):
    assert min(legal_worlds(case["plan"], 64)) == case["expect"]


@pytest.mark.parametrize("case", of("world_multiple"))
def test_world_multiple(case):
    assert math.gcd(*legal_worlds(case["plan"], 320)) == case["expect"]


@pytest.mark.parametrize("case", of("params"))
def test_params(case):
    p = case["plan"]
    launch = megatron(
        num_layers=p["layers"], hidden_size=p["hidden"], ffn_hidden_size=p["ffn"], kv_channels=None,
        num_attention_heads=p["heads"], num_query_groups=8, vocab_size=p["vocab"], swiglu=True,
        untie_embeddings_and_output_weights=True, normalization="RMSNorm",
        disable_bias_linear=True, position_embedding_type="rope",
        tokenizer_model="meta-llama/Meta-Llama-3-8B",
    )  # fmt: skip
    assert launch.model.params() == case["expect"]
    assert "WM001" in {fault.code for fault in check(launch).faults}


@pytest.mark.parametrize("case", of("fits"))
def test_fits(case):
    p = case["plan"]
    cluster = load_cluster(f"a100-sxm-80g:{p['tp'] * p['pp'] * p['dp']}")
    for stack in ("unknown", "hf-eager", "megatron-core-te"):
        job = Job(
            model=load_model(NAMES[p["model"]]), cluster=cluster, stack=load_stack(stack),
            recipe=Recipe(seq_len=p["seq"], global_batch=p["mbs"] * p["dp"]),
        )  # fmt: skip
        plan = Plan(tp=p["tp"], pp=p["pp"], dp=p["dp"], mbs=p["mbs"], zero=p["zero"])
        assert (estimate(job, plan).memory.fits != "no") == case["expect"], stack


def sizes(model, plan, seq=4096):
    recipe = Recipe(seq_len=seq, global_batch=plan.dp * plan.mbs * plan.num_microbatches)
    return {item.name: item.bytes for item in tensors(load_model(model), recipe, plan)}


@pytest.mark.parametrize("case", of("weights_gb"))
def test_weights(case):
    p = case["plan"]
    found = sizes(NAMES[p["model"]], Plan(tp=p["tp"], pp=p["pp"], ep=p["ep"], dp=4))
    assert found["all parameters, one 16-bit copy"] / 1e9 == pytest.approx(
        case["expect"], rel=case["tolerance"]
    )


@pytest.mark.parametrize("case", [*of("logits_fp32_mib"), *of("logits_fp32_gib")])
def test_logits(case):
    p = case["plan"]
    tokens, mbs = (p["tokens"], 1) if "tokens" in p else (p["seq"], p["mbs"])
    launch = megatron(
        world=8, vocab_size=p["vocab"], seq_length=tokens, micro_batch_size=mbs,
        max_position_embeddings=tokens, global_batch_size=mbs * 8,
        position_embedding_type="rope",
    )  # fmt: skip
    found = {t.name: t.bytes for t in tensors(launch.model, launch.recipe, launch.plan)}
    unit = 2**20 if case["check"].endswith("mib") else 2**30
    assert found["fp32 logits of the loss"] / unit == pytest.approx(
        case["expect"], rel=case["tolerance"]
    )


@pytest.mark.parametrize("case", of("unsharded_layer_gb"))
def test_unsharded_layer(case):
    found = sizes("deepseek-v3", Plan(ep=case["plan"]["ep"], dp=8, zero=3))
    layers = {
        name: size
        for name, size in found.items()
        if name.startswith("one unsharded") and "fp32" not in name
    }
    assert max(layers.values()) / 1e9 == pytest.approx(case["expect"], rel=case["tolerance"])


@pytest.mark.parametrize("case", of("num_microbatches"))
def test_num_microbatches(case):
    p = case["plan"]
    launch = megatron(world=8 * p["dp"], tensor_model_parallel_size=8, micro_batch_size=p["mbs"],
                      global_batch_size=p["gbs"])  # fmt: skip
    assert launch.plan.num_microbatches == case["expect"]


@pytest.mark.parametrize("case", of("bubble"))
def test_bubble(case):
    p = case["plan"]
    launch = megatron(
        world=p["pp"], pipeline_model_parallel_size=p["pp"], num_layers=p["pp"] * 4,
        global_batch_size=p["num_microbatches"],
    )  # fmt: skip
    facts = {"pp": p["pp"], "num_microbatches": p["num_microbatches"], "vpp": 1}
    launch = launch.model_copy(update={"facts": {**launch.facts, **facts}})
    assert names_of(launch)["bubble_frac"] == pytest.approx(case["expect"], rel=case["tolerance"])


@pytest.mark.parametrize("case", of("checkpoint_gb"))
def test_checkpoint(case):
    params = load_model(NAMES[case["plan"]["model"]]).params()
    size = params * case["plan"]["bytes_per_param"] / 1e9
    assert size == pytest.approx(case["expect"], rel=case["tolerance"])


@cache
def predicted():
    """All measured lines, predicted at once."""
    rows = [bloom_row(c) for c in CASES.values() if c["check"] == "memory_gb+step_s"]
    rows += [titan_row(c) for c in CASES.values() if c["check"] == "tps+memory_gib"]
    return {row.id: row for row in validate(rows).rows}


MISSED = {"chk-059": 0.16}
"""Lines whose step is further off than their tolerance, and how far: a known fault, 15.2 % fast.

TP of 8 with one sequence is slower on BLOOM's machine than predicted (docs/accuracy.md).
"""


@pytest.mark.parametrize("case", [*of("memory_gb+step_s"), *of("tps+memory_gib")])
def test_measured(case):
    row = predicted()[case["id"]]
    assert row.skipped is None
    off = abs(row.predicted_step_time_s / row.measured_step_time_s - 1)
    assert off <= MISSED.get(case["id"], case["tolerance"])
    assert (off > case["tolerance"]) == (case["id"] in MISSED), "no longer missed"
    assert row.predicted_peak_bytes == pytest.approx(row.measured_peak_bytes, rel=case["tolerance"])


def test_every_line_is_a_test():
    tried = {
        "valid", "layout_layers", "min_world", "world_multiple", "params", "fits", "weights_gb",
        "logits_fp32_mib", "logits_fp32_gib", "unsharded_layer_gb", "num_microbatches", "bubble",
        "checkpoint_gb", "memory_gb+step_s", "tps+memory_gib",
    }  # fmt: skip
    assert {case["check"] for case in CASES.values()} == tried
    assert len(CASES) == 40
