"""Megatron-Bridge: a Python recipe of its configuration classes, v0.2."""

from __future__ import annotations

from gangsaw.export.document import ExportFile, header, nodes_of
from gangsaw.export.megatron import (
    Flags,
    model_flags,
    parallel_flags,
    recompute_flags,
    rotary_flags,
)
from gangsaw.spec import Job, Plan

_MODEL = {
    "num-experts": "num_moe_experts", "swiglu": "gated_linear_unit",
    "untie-embeddings-and-output-weights": "", "disable-bias-linear": "", "use-mcore-models": "",
    "group-query-attention": "", "multi-latent-attention": "multi_latent_attention",
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "use-tp-pp-dp-mapping": "use_tp_pp_dp_mapping", "use-rope-scaling": "rope_scaling",
    "rotary-seq-len-interpolation-factor": "seq_len_interpolation_factor",
}  # fmt: skip
_DDP = (
    "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
    "num-distributed-optimizer-instances", "use-megatron-fsdp", "data-parallel-sharding-strategy",
)  # fmt: skip
_OPTIMIZER = (
    "optimizer-cpu-offload", "use-precision-aware-optimizer", "optimizer-offload-fraction",
)  # fmt: skip


def files(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`recipe.py`, and the script that runs it under torchrun."""
    recipe, shape = job.recipe, _shape(job, plan)
    name = f"pretrain_{plan.devices}gpu_config"
    provider = "MLAModelProvider" if job.model.kinds[0].attention.is_mla else "GPTModelProvider"
    cut = _named([*parallel_flags(job, plan), *recompute_flags(job, plan)])
    ddp = {key: cut.pop(key) for key in [k.replace("-", "_") for k in _DDP] if key in cut}
    optim = {key: cut.pop(key) for key in [k.replace("-", "_") for k in _OPTIMIZER] if key in cut}
    order = cut.pop("use_tp_pp_dp_mapping", None)
    ckpt = cut.pop("ckpt_format", "torch_dist")
    ddp.setdefault("use_distributed_optimizer", plan.zero == 1)
    if plan.zero != 1:
        ddp.setdefault("overlap_param_gather", False)
    optim |= _both_off(ddp)
    steps = round(recipe.tokens / recipe.tokens_per_step) if recipe.tokens else 1000
    text = [
        '"""Recipe written by gangsaw."""\n', header(job, plan), "import torch\n\n",
        "from megatron.bridge.models.gpt_provider import GPTModelProvider\n",
        "from megatron.bridge.models.mla_provider import MLAModelProvider\n",
        "from megatron.bridge.recipes.common import _pretrain_common\n",
        "from megatron.bridge.training.config import ConfigContainer\n\n\n",
        f"def {name}() -> ConfigContainer:\n", f'    """{job.model.name}, plan as above."""\n',
        "    cfg = _pretrain_common()\n", f"    cfg.model = {provider}(\n",
        *(f"        {key}={value!r},\n" for key, value in shape.items()), "    )\n",
        *(f"    cfg.model.{key} = {value!r}\n" for key, value in cut.items()),
        "    cfg.model.pipeline_dtype = torch.bfloat16\n",
        f"    cfg.dataset.seq_length = {recipe.seq_len}\n",
        f"    cfg.train.train_iters = {steps}\n",
        f"    cfg.train.global_batch_size = {recipe.global_batch}\n",
        f"    cfg.train.micro_batch_size = {plan.mbs}\n",
        *(f"    cfg.ddp.{key} = {value!r}\n" for key, value in ddp.items()),
        *(f"    cfg.optimizer.{key} = {value!r}\n" for key, value in optim.items()),
        f"    cfg.checkpoint.ckpt_format = {ckpt!r}\n",
        f'    cfg.mixed_precision = "{_mixed(recipe.precision)}"\n',
        "    cfg.dist.use_tp_pp_dp_mapping = True\n" if order else "", "    return cfg\n",
    ]  # fmt: skip
    nodes, per_node = nodes_of(job, plan)
    run = (
        "#!/bin/bash\n" + header(job, plan)
        + f"torchrun --nnodes {nodes} --nproc-per-node {per_node} \\\n"
        '    --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" run.py "$@"\n'
    )  # fmt: skip
    start = (
        header(job, plan) + "from megatron.bridge.training.gpt_step import forward_step\n"
        "from megatron.bridge.training.pretrain import pretrain\n"
        f"from recipe import {name}\n\n"
        f'if __name__ == "__main__":\n    pretrain({name}(), forward_step)\n'
    )
    return (
        ExportFile(name="recipe.py", text="".join(text), main=True),
        ExportFile(name="run.py", text=start), ExportFile(name="launch.sh", text=run),
    )  # fmt: skip


def _shape(job: Job, plan: Plan) -> dict[str, object]:
    """What the provider of the model takes."""
    model = job.model
    shape = _named(model_flags(model, plan.tp))
    shape.setdefault("gated_linear_unit", False)
    shape["share_embeddings_and_output_weights"] = model.tied
    shape["add_bias_linear"] = model.kinds[0].attention.out_bias
    shape["position_embedding_type"] = "learned_absolute" if model.learned_positions else "rope"
    shape |= _named(rotary_flags(model))
    shape["seq_length"] = job.recipe.seq_len
    if model.learned_positions:
        shape["max_position_embeddings"] = model.learned_positions
    shape["hidden_dropout"] = shape["attention_dropout"] = 0.0
    return shape


def _both_off(ddp: dict[str, object]) -> dict[str, object]:
    """What the optimizer has to say too: Bridge turns both on where either is, and its own is."""
    keys = ("use_distributed_optimizer", "overlap_param_gather")
    return {key: False for key in keys if ddp.get(key) is False}


def _mixed(precision: str) -> str:
    return {
        "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp32": "fp32",
        "fp8": "bf16_with_fp8_current_scaling_mixed",
    }[precision]  # fmt: skip


def _named(flags: Flags) -> dict[str, object]:
    """Flags as fields of the configuration classes, with Python values."""
    out: dict[str, object] = {}
    for name, value in flags:
        key = _MODEL.get(name, name.replace("-", "_"))
        if key:
            out[key] = _python(value)
    return out


def _python(value: object) -> object:
    text = str(value)
    if value is True or isinstance(value, int):
        return value
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
