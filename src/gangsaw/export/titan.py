"""torchtitan: a Python recipe of its configuration classes and a launch script, v0.2."""

from __future__ import annotations

from gangsaw.cost.layout import default_counts
from gangsaw.errors import InputError
from gangsaw.export.document import ExportFile, header, nodes_of
from gangsaw.read.launch.titan import MODELS
from gangsaw.spec import Job, Plan

TORCH_NAMES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "bfs": "LoopedBFS",
    "izb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
FLAVORS = {model: pair for pair, model in reversed(MODELS.items())}


def files(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`recipe.py` and `launch.sh`. Raises InputError for a model that torchtitan has not."""
    if job.model.name not in FLAVORS:
        raise InputError(
            f"torchtitan has no flavour of {job.model.name}."
            f" Legal: {', '.join(sorted(FLAVORS))}; or export to megatron-lm"
        )
    family, flavor = FLAVORS[job.model.name]
    recipe = job.recipe
    name = f"{job.model.name.replace('-', '_').replace('.', '_')}_{plan.devices}gpu"
    batch = plan.mbs * plan.num_microbatches if plan.pp > 1 else plan.mbs
    steps = round(recipe.tokens / recipe.tokens_per_step) if recipe.tokens else 1000
    mode = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
    offload = "            enable_cpu_offload=True,\n" if plan.offload_optimizer else ""
    float8 = ""
    if recipe.precision == "fp8":
        float8 = ", converters=[Float8LinearConverter.Config(model_compile_enabled=True)]"
    dtype = {"bf16": "bfloat16", "fp8": "bfloat16", "fp32": "float32", "fp16": "float16"}
    text = [
        '"""Recipe written by gangsaw."""\n', header(job, plan), _IMPORTS,
        f"from torchtitan.models.{family} import model_registry\n\n\n",
        f"def {name}() -> Trainer.Config:\n", f'    """{job.model.name}, plan as above."""\n',
        "    return Trainer.Config(\n", f'        model_spec=model_registry("{flavor}"{float8}),\n',
        "        training=TrainingConfig(\n", f"            local_batch_size={batch},\n",
        f"            global_batch_size={recipe.global_batch},\n",
        f"            seq_len={recipe.seq_len},\n", f"            steps={steps},\n",
        f'            mixed_precision_param="{dtype[recipe.precision]}",\n', offload,
        "        ),\n", "        parallelism=ParallelismConfig(\n",
        *(f"            {key}={value!r},\n" for key, value in parallel_fields(job, plan).items()),
        "        ),\n",
        f"        activation_checkpoint={mode[plan.recompute]},\n",
        "        compile=CompileConfig(enable=True),\n", "    )\n",
    ]  # fmt: skip
    nodes, per_node = nodes_of(job, plan)
    run = (
        "#!/bin/bash\n" + header(job, plan)
        + f"torchrun --nnodes {nodes} --nproc-per-node {per_node} \\\n"
        '    --rdzv-backend c10d --rdzv-endpoint "${MASTER_ADDR:-localhost}:29500" \\\n'
        f'    -m torchtitan.train --module recipe --config {name} "$@"\n'
    )  # fmt: skip
    return (
        ExportFile(name="recipe.py", text="".join(text), main=True),
        ExportFile(name="launch.sh", text=run),
    )


_IMPORTS = """\
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer
"""


def parallel_fields(job: Job, plan: Plan) -> dict[str, object]:
    """Fields of ParallelismConfig."""
    shards = plan.dp * plan.cp
    if plan.zero == 0:
        replicate, shard = plan.dp, 1
    else:
        group = plan.shard_group or shards
        replicate, shard = shards // group, group // plan.cp
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": replicate, "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if plan.zero == 2 else "always",
        "tensor_parallel_degree": plan.tp, "context_parallel_degree": plan.cp,
    }  # fmt: skip
    if any(kind.moe is not None for kind in job.model.kinds):
        fields["expert_parallel_degree"] = plan.ep
    if plan.pp == 1:
        return fields
    fields |= {
        "pipeline_parallel_degree": plan.pp,
        "pipeline_parallel_schedule": TORCH_NAMES[plan.schedule],
        "pipeline_parallel_microbatch_size": plan.mbs,
    }
    layers, chunks = job.model.layers, plan.pp * plan.vpp
    if plan.stages is None:
        fields |= {
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
            "pipeline_parallel_layers_per_stage": layers // chunks,
        }
    else:
        counts = plan.stages or default_counts(layers, chunks)
        fields["module_fqns_per_model_part"] = _parts(tuple(counts))
    return fields


def _parts(counts: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules of each stage."""
    parts, start = [], 0
    for count in counts:
        parts.append([f"layers.{index}" for index in range(start, start + count)])
        start += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts
