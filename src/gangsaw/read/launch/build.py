"""Facts to documents: the model, the recipe and the plan, as far as they are known."""

from __future__ import annotations

import ast
from typing import cast

from pydantic import ValidationError

from gangsaw.errors import InputError
from gangsaw.read.launch.document import Value
from gangsaw.read.launch.facts import Facts
from gangsaw.spec import (
    AttentionSpec,
    LayerKind,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    Plan,
    Recipe,
)
from gangsaw.spec.recipe import Precision, Task

_SHAPE = ("layers", "hidden", "heads", "vocab")
MAX_LAYERS = 10_000


def fill_from_model(facts: Facts, model: ModelSpec) -> None:
    """Shapes of a named model as facts, where the file itself states none."""
    kind = model.kinds[model.order[-1]]
    attention = kind.attention
    where = f"published shape of {model.name}"
    values: dict[str, Value] = {
        "layers": model.layers, "hidden": model.hidden, "vocab": model.vocab, "tied": model.tied,
        "heads": attention.heads, "kv_heads": attention.kv_heads, "head_dim": attention.head_dim,
    }  # fmt: skip
    mlp = next((k.mlp for k in model.kinds if k.mlp is not None), None)
    if mlp is not None:
        values |= {"ffn": mlp.ffn, "gated": mlp.gated}
    if kind.moe is not None:
        values |= {
            "experts": kind.moe.experts, "topk": kind.moe.topk, "moe_ffn": kind.moe.expert.ffn,
            "gated": kind.moe.expert.gated,
        }  # fmt: skip
        if kind.moe.shared is not None:
            values["shared_ffn"] = kind.moe.shared.ffn
    for name, value in values.items():
        facts.derive(name, value, where)


def build_model(facts: Facts, name: str) -> ModelSpec | None:
    """A model from shapes alone; None, with the reason noted, where one is missing."""
    lacking = [key for key in _SHAPE if (facts.whole(key) or 0) < 1]
    if lacking:
        facts.lack(f"model: {', '.join(lacking)} not stated")
        return None
    try:
        return _model(facts, name)
    except (ValidationError, ZeroDivisionError, InputError) as error:
        facts.lack(f"model: {str(error).splitlines()[0]}")
        return None


def _model(facts: Facts, name: str) -> ModelSpec:
    layers, hidden = _need(facts, "layers"), _need(facts, "hidden")
    if layers > MAX_LAYERS:
        raise InputError(f"{layers} layers; {MAX_LAYERS} are the limit")
    attention = _attention(facts)
    bias = facts.flag("bias")
    layernorm = str(facts.get("normalization") or "RMSNorm").lower().startswith("layer")
    gated = facts.flag("gated")
    activation = str(facts.get("activation") or ("silu" if gated else "gelu"))

    def mlp(width: int) -> MlpSpec:
        return MlpSpec(ffn=width, gated=gated, in_bias=bias, out_bias=bias, activation=activation)

    ffn = facts.whole("ffn") or 4 * hidden
    base = {"hidden": hidden, "attention": attention, "norm_bias": layernorm, "norms": 2}
    dense = LayerKind.model_validate({"name": "dense", "mlp": mlp(ffn), **base})
    experts = facts.whole("experts") or 0
    kinds: tuple[LayerKind, ...] = (dense,)
    order = [0] * layers
    if experts > 1:
        shared = facts.whole("shared_ffn") or 0
        moe = MoeSpec(
            experts=experts, topk=min(facts.whole("topk") or 1, experts),
            expert=mlp(facts.whole("moe_ffn") or ffn), shared=mlp(shared) if shared else None,
            router_bias=facts.flag("router_bias"),
        )  # fmt: skip
        routed = LayerKind.model_validate({"name": "routed", "moe": moe, **base})
        pattern = moe_pattern(facts.get("moe_layer_freq"), layers)
        kinds = (dense, routed) if 0 in pattern else (routed,)
        order = pattern if 0 in pattern else [0] * layers
    predicted = facts.whole("mtp_layers") or 0
    rope = str(facts.get("positions") or "rope") not in ("learned_absolute", "learned")
    positions = 0 if rope else facts.whole("max_positions") or facts.whole("seq") or 0
    return ModelSpec(
        name=name or f"{layers}-layers-{hidden}-wide", hidden=hidden,
        vocab=_need(facts, "vocab"), kinds=kinds, order=tuple(order), tied=facts.flag("tied"),
        mtp=MtpSpec.behind(kinds[order[-1]], predicted) if predicted > 0 else None,
        learned_positions=positions, final_norm_params=hidden * (2 if layernorm else 1),
        source="launch file",
    )  # fmt: skip


def _attention(facts: Facts) -> AttentionSpec:
    heads, hidden = _need(facts, "heads"), _need(facts, "hidden")
    bias = facts.flag("bias")
    qkv_bias = bias or facts.flag("qkv_bias")
    qk_norm = "head" if facts.flag("qk_norm") else "none"
    if facts.flag("mla"):
        rope = facts.whole("qk_rope_dim") or 64
        head = (facts.whole("qk_nope_dim") or 128) + rope
        return AttentionSpec.model_validate({
            "heads": heads, "kv_heads": heads, "head_dim": head,
            "v_head_dim": facts.whole("v_head_dim") or 128,
            "q_lora_rank": facts.whole("q_lora_rank") or 0,
            "kv_lora_rank": facts.whole("kv_lora_rank") or 512, "rope_head_dim": rope,
            "out_bias": bias,
        })  # fmt: skip
    head = facts.whole("head_dim") or hidden // heads
    return AttentionSpec.model_validate({
        "heads": heads, "kv_heads": facts.whole("kv_heads") or heads, "head_dim": head,
        "v_head_dim": head, "q_bias": qkv_bias, "kv_bias": qkv_bias, "out_bias": bias,
        "qk_norm": qk_norm,
    })  # fmt: skip


def moe_pattern(value: Value, layers: int) -> list[int]:
    """1 for a routed layer, 0 for a dense one: an interval, a list, or `([0]*3+[1]*58)`.

    Source: --moe-layer-freq in megatron/training/arguments.py.
    """
    pattern = value
    if isinstance(pattern, str):
        pattern = _list_expression(pattern)
    if pattern is None:
        return [1] * layers
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 1:
        return [1 if index % pattern == 0 else 0 for index in range(layers)]
    if isinstance(pattern, list) and len(pattern) == layers:
        return [1 if item == 1 else 0 for item in pattern]
    raise InputError(f"moe_layer_freq={value!r} does not give {layers} layers")


def _list_expression(text: str) -> Value:
    """A list of integers written with `+` and `*`, evaluated without Python's eval."""
    try:
        tree = ast.parse(text[:2000].strip(), mode="eval")
        return _list_node(tree.body, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _list_node(node: ast.expr, depth: int) -> Value:
    if depth > 20:
        raise ValueError("too deep")
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_list_node(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.BinOp):
        left, right = _list_node(node.left, depth + 1), _list_node(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return [*left, *right][:MAX_LAYERS]
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            return (left * max(0, min(right, MAX_LAYERS)))[:MAX_LAYERS]
    raise ValueError("not a list of integers")


def build_recipe(facts: Facts) -> Recipe | None:
    """The recipe; None, with the reason noted, where length or batch are not known."""
    seq, batch = facts.whole("seq"), facts.whole("gbs")
    if not seq or not batch or seq < 1 or batch < 1:
        lacking = [name for name, value in (("seq", seq), ("gbs", batch)) if not value]
        facts.lack(f"recipe: {', '.join(lacking)} not stated")
        return None
    precision = str(facts.get("precision") or "bf16")
    task = str(facts.get("task") or "pretrain")
    steps = facts.whole("train_iters")
    try:
        return Recipe(
            seq_len=seq, global_batch=batch, precision=cast(Precision, precision),
            task=cast(Task, task), lora_rank=facts.whole("lora_rank") or 16,
            tokens=float(steps) * seq * batch if steps else None,
        )  # fmt: skip
    except ValidationError as error:
        facts.lack(f"recipe: {str(error).splitlines()[-1].strip()}")
        return None


def build_plan(facts: Facts) -> Plan | None:
    """The plan; None, with the reason noted, where a degree is not known."""
    lacking = [name for name in ("dp", "mbs", "num_microbatches") if not facts.whole(name)]
    if lacking:
        facts.lack(f"plan: {', '.join(lacking)} not known")
        return None
    data: dict[str, object] = {}
    for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs", "num_microbatches", "zero",
                 "shard_group", "recompute_layers"):  # fmt: skip
        value = facts.whole(name)
        if value is not None:
            data[name] = value
    if (facts.whole("experts") or 1) <= 1 and not facts.is_stated("etp"):
        data["etp"] = 1
    for name in ("schedule", "recompute", "rank_order"):
        if facts.get(name) is not None:
            data[name] = str(facts.get(name))
    data["sequence_parallel"] = facts.flag("sp")
    for name in ("offload_optimizer", "offload_activations"):
        share = facts.get(name)
        if isinstance(share, (int, float)):
            data[name] = float(share)
    stages = facts.get("stages")
    if isinstance(stages, list):
        data["stages"] = tuple(stages)
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        facts.lack(f"plan: {' '.join(str(error).split())[:200]}")
        return None


def _need(facts: Facts, name: str) -> int:
    value = facts.whole(name)
    if value is None or value < 1:
        raise InputError(f"{name} not stated")
    return value
