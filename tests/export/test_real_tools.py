"""Exported files read by the tools that they are for."""

import dataclasses
import json
import re

import pytest
from export_jobs import PLANS, job

from gangsaw.doctor.flags import flags_of, releases
from gangsaw.export import export_plan
from gangsaw.read.launch import read_launch_text
from gangsaw.spec import Plan

DENSE = [name for name in PLANS if name not in ("experts", "latent")]


def launch_words(text, name):
    """The words of the torchrun line, as bash makes them."""
    from gangsaw.read.launch.shell import Script

    script = Script(name)
    script.read(text)
    return next(list(c.argv) for c in script.commands if "torchrun" in c.argv)


@pytest.mark.parametrize(
    "target", ["megatron-lm", "megatron-bridge", "torchtitan", "torchrun", "slurm"]
)
@pytest.mark.parametrize("name", ["dense", "interleaved"])
def test_torchrun_reads_its_flags(name, target):
    from torch.distributed.run import parse_args

    made, plan = PLANS[name]
    files = export_plan(made, plan, target).files
    text = next(f.text for f in files if f.name.endswith((".sh", ".sbatch")))
    words = launch_words(text, "x.sh")
    args = parse_args(words[words.index("torchrun") + 1 :])
    nodes = -(-plan.devices // 8)
    assert args.nnodes == str(nodes)
    assert args.nproc_per_node == str(plan.devices // nodes)


@pytest.mark.parametrize(
    ("schedule", "vpp", "count"),
    [("gpipe", 1, 8), ("1f1b", 1, 8), ("interleaved", 2, 8), ("bfs", 2, 8), ("izb", 2, 8),
     ("zb-v", 2, 8), ("dualpipe-v", 2, 8)],
)  # fmt: skip
def test_torch_loads_the_schedule(schedule, vpp, count, tmp_path):
    from torch.distributed.pipelining import schedules as torch_schedules

    made = job("llama-3.1-8b", "h100-sxm:4", count)
    plan = Plan(pp=4, vpp=vpp, num_microbatches=count, schedule=schedule)
    path = tmp_path / "schedule.csv"
    path.write_text(export_plan(made, plan, "schedule-csv").main.text)
    # The runtime as it loads a file, without the stages and processes that it would run on.
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = 4, 4 * vpp, count
    runtime._stages, runtime.stage_index_to_group_rank, runtime.rank = [], {}, 0
    runtime.pipeline_order, runtime._defer_pp_recv = {}, False
    runtime._load_csv(str(path))
    lowered = runtime.pipeline_order_with_comms
    assert sorted(lowered) == [0, 1, 2, 3]
    # Compute actions and, between ranks, what sends and receives between them.
    assert sum(map(len, lowered.values())) > sum(map(len, runtime.pipeline_order.values()))


@pytest.mark.parametrize("name", PLANS)
def test_deepspeeds_own_class_reads_its_configuration(name, monkeypatch):
    from gangsaw.export.nearest import nearest

    made, plan = PLANS[name]
    near, _ = nearest(made, plan, "deepspeed")
    monkeypatch.setenv("WORLD_SIZE", str(near.dp))
    from deepspeed.runtime.config import DeepSpeedConfig

    files = export_plan(made, plan, "deepspeed").files
    data = json.loads(next(f.text for f in files if f.name == "ds_config.json"))
    monkeypatch.setattr("deepspeed.comm.is_initialized", lambda: False)

    class Ranks(DeepSpeedConfig):
        """The class as it is, told how many data parallel ranks there are."""

    Ranks.world_size = property(lambda self: near.dp, lambda self, value: None)
    config = Ranks(data)
    assert config.zero_optimization_stage == near.zero
    assert config.train_batch_size == made.recipe.global_batch
    assert config.train_micro_batch_size_per_gpu == near.mbs
    assert config.gradient_accumulation_steps == near.num_microbatches
    assert config.bfloat16_config.enabled


def megatron_fields(text):
    """Flags of the script as fields of Megatron Core's classes."""
    flags = read_launch_text(text, "launch.sh").flags
    renamed = {
        "num_experts": "num_moe_experts", "swiglu": "gated_linear_unit",
        "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    }  # fmt: skip
    return {renamed.get(key, key): value for key, value in flags.items()}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.filterwarnings("ignore")
def test_megatron_cores_classes_take_the_plan(name):
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    made, plan = PLANS[name]
    if plan.zero >= 2:
        made, plan = PLANS["dense"]
    text = export_plan(made, plan, "megatron-lm").main.text
    fields = megatron_fields(text)
    kind = MLATransformerConfig if fields.get("multi_latent_attention") else TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    taken = {key: value for key, value in fields.items() if key in known and key != "fp8"}
    if "disable_bias_linear" in fields:
        taken["add_bias_linear"] = False
    freq = taken.get("moe_layer_freq")
    if isinstance(freq, str):
        assert re.fullmatch(r"[\[\]()+*0-9]+", freq)
        taken["moe_layer_freq"] = [
            n for v, c in re.findall(r"\[(\d)\]\*(\d+)", freq) for n in [int(v)] * int(c)
        ]
    extra = {"pipeline_dtype": torch.bfloat16, "params_dtype": torch.bfloat16, "bf16": True}
    if taken.get("gated_linear_unit"):
        extra["activation_func"] = torch.nn.functional.silu
    config = kind(**{**taken, **extra})
    assert config.tensor_model_parallel_size == plan.tp
    assert config.pipeline_model_parallel_size == plan.pp
    assert (config.virtual_pipeline_model_parallel_size or 1) == plan.vpp
    assert config.num_layers == made.model.layers
    if plan.stages is not None:
        layout = config.pipeline_model_parallel_layout.layout
        counts = [
            sum(1 for part in stage if part.name == "decoder") for rank in layout for stage in rank
        ]
        assert sum(counts) == made.model.layers


@pytest.mark.parametrize("name", PLANS)
def test_megatron_flags_are_in_its_parser(name):
    text = export_plan(*PLANS[name], "megatron-lm").main.text
    body = text[text.index("MODEL_ARGS=(") :]
    flags = set(re.findall(r"--([a-z][a-z0-9-]+)", body))
    torchrun = {"nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port"}
    for release in releases():
        assert flags - torchrun <= flags_of(release)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.filterwarnings("ignore")
def test_kubernetes_accepts_the_manifests(name):
    import kubernetes_validate
    import yaml

    documents = list(yaml.safe_load_all(export_plan(*PLANS[name], "kubernetes").main.text))
    assert [d["kind"] for d in documents] == ["Service", "Job"]
    for document in documents:
        for version in ("1.28", "1.33"):
            kubernetes_validate.validate(document, version, strict=True)
