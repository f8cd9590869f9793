"""Settings of any framework to a LaunchFile: translate, resolve, complete, build."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from gangsaw.errors import InputError
from gangsaw.read.launch import build, hf, megatron, own, titan, world
from gangsaw.read.launch.document import Framework, LaunchFile, Settings, Value
from gangsaw.read.launch.facts import Facts, Vocabulary, catalog_name, vocabulary
from gangsaw.read.models import load_model
from gangsaw.spec import ModelSpec

_SECTIONS = (
    "model", "train", "training", "parallelism", "activation_checkpoint", "optimizer", "compile",
    "checkpoint", "metrics", "experimental", "float8", "quantize", "comm",
)  # fmt: skip
_HF = ("deepspeed", "llama-factory", "axolotl", "gpt-neox", "nanotron")
_NAMES_SIMPLE = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "expert_parallelism": "expert_model_parallel_size",
}
_HELPERS = {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}
"""Keywords of NeMo's functions that make a trainer."""
_SIDE = re.compile(r"vision|projection|projector|audio|image")
_VERL = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "micro_batch_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "verl_mini_batch",
    "actor_rollout_ref.rollout.n": "verl_rollout_n",
    "actor_rollout_ref.model.path": "tokenizer_model",
    "data.max_prompt_length": "verl_prompt",
    "data.max_response_length": "verl_response",
    "trainer.nnodes": "num_nodes",
    "trainer.n_gpus_per_node": "num_gpus_per_node",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "verl_rollout_share",
}
_VERL_PREFIX = "actor_rollout_ref.actor.megatron."


class Restated(NamedTuple):
    """Facts that stand in place of what a file states (None: not stated), and a world size for
    files that leave it open."""

    facts: dict[str, Value] = {}  # noqa: RUF012 - never changed
    world: int | None = None


def key_of(framework: Framework) -> Callable[[str], str]:
    """How a framework's keys are brought to the spelling of its vocabulary."""
    if framework in ("megatron-bridge", "nemo"):
        return _recipe_key
    if framework in ("megatron-lm", "ms-swift"):
        return _megatron_key
    if framework == "verl":
        return _verl_key
    if framework == "torchtitan":
        return _titan_key
    if framework in ("gpt-neox", "deepspeed"):
        return lambda key: key.replace("-", "_")
    return lambda key: key


def _megatron_key(key: str) -> str:
    last = key.rsplit(".--", 1)[-1] if ".--" in key else key.rsplit(".", 1)[-1]
    last = last.lstrip("-").replace("-", "_")
    return _NAMES_SIMPLE.get(last, last)


def _recipe_key(key: str) -> str:
    """A recipe's key; what belongs to a vision tower or a projector is not the language model's."""
    if any(_SIDE.search(part) for part in key.split(".")[:-1]):
        return f"side.{key}"
    last = _megatron_key(key)
    return _HELPERS.get(last, last)


def _verl_key(key: str) -> str:
    if key in _VERL:
        return _VERL[key]
    if key.startswith(_VERL_PREFIX):
        return _megatron_key(key)
    return f"verl.{key}"


def _titan_key(key: str) -> str:
    """A recipe's `training.local_batch_size`, or the class-named `Config` fields, by section."""
    parts = key.split(".")
    if len(parts) > 2 and parts[0] not in _SECTIONS and parts[1] in _SECTIONS:
        parts = parts[1:]
    if parts[0] == "model_spec":
        return "model.flavor" if parts[-1] == "flavor" else key
    return ".".join(parts)


def recognised(settings: Settings, framework: Framework) -> int:
    """How many settings bear on the plan or the model."""
    words, spell = vocabulary(framework), key_of(framework)
    return sum(1 for item in settings if words.means(spell(item.key)))


def launch_file(
    settings: Settings, framework: Framework, where: str, restated: Restated | None = None
) -> LaunchFile:
    """Everything that the settings say, and what follows from them.

    `restated` are facts that replace what the settings state, before anything follows from them.
    """
    held = settings.copy()
    found = _translated(settings, framework, where, restated or Restated())
    found._settings = held
    return found


def restate(launch: LaunchFile, restated: Restated) -> LaunchFile:
    """The launch file as it would read with other statements; nothing else about it changes."""
    settings = launch._settings
    if settings is None:
        return launch
    found = _translated(settings.copy(), launch.framework, launch.path, restated)
    found._settings = settings
    return found


def _translated(
    settings: Settings, framework: Framework, where: str, restated: Restated
) -> LaunchFile:
    facts = Facts(settings)
    one_node = "@one_node" in settings.items
    for key in [key for key in settings.items if key.startswith("@")]:
        item = settings.items.pop(key)
        value = item.value
        if key == "@named_world":
            facts.derive("named_world", value)
        elif key == "@one_node":
            continue
        elif key.startswith("@slurm_"):
            facts.derive(key[1:], value, settings.at(item.line))
        elif isinstance(value, int) and value > 0:
            facts.state(key[1:], value, settings.at(item.line))
    if one_node and facts.whole("world") is None:
        facts.assume("nodes", 1, "default of torchrun and deepspeed: one node")
    if framework == "slurm":
        return _finish(facts, framework, where, "", None)
    if framework == "gangsaw":
        name = own.take(facts)
        words = None
    else:
        words = vocabulary(framework)
        facts.take(words, key_of(framework))
        name = _name(facts, framework)
    _restate(facts, restated)
    model = _named(facts, name)
    if words is not None:
        _resolve(facts, framework, words, model)
    else:
        if model is not None:
            build.fill_from_model(facts, model)
        world.complete(facts)
        own.finish(facts)
    return _finish(facts, framework, where, name, model)


def _restate(facts: Facts, restated: Restated) -> None:
    for fact, value in restated.facts.items():
        if value is None:
            facts.held.pop(fact, None)
        else:
            facts.state(fact, value, "")
    if restated.world and facts.whole("world") is None and not _counted(facts):
        facts.assume("world", restated.world, "the stated cluster")


def _counted(facts: Facts) -> bool:
    """Whether the file itself says how many devices there are."""
    if facts.whole("nodes") and (facts.whole("per_node") or facts.whole("tasks")):
        return True
    return bool(facts.whole("tasks") or facts.whole("named_world") or facts.is_stated("dp"))


def _name(facts: Facts, framework: Framework) -> str:
    """The catalog's name of the model that the file names, "" when it names none."""
    if framework == "torchtitan":
        found = titan.named_model(facts) or _titan_flavor(facts)
        if found or any(re.search(r"debug_?model", text) for text in facts.settings.names):
            return found
    path = facts.get("model_path") or facts.get("tokenizer_path")
    texts = [str(path)] if path else []
    for text in [*texts, *facts.settings.names]:
        name = catalog_name(text)
        if name:
            return name
    return ""


def _titan_flavor(facts: Facts) -> str:
    """`llama3_405b` and `model_registry("405B")` of a recipe."""
    texts = facts.settings.names
    if any(re.search(r"debug_?model", text) for text in texts):
        return ""
    for text in texts:
        name = catalog_name(text.replace("_", "-"))
        if name:
            return name
        facts.derive("flavor", text) if text.rstrip("B").isdigit() else None
    return titan.named_model(facts)


def _named(facts: Facts, name: str) -> ModelSpec | None:
    if not name:
        return None
    try:
        return load_model(name)
    except InputError:
        facts.lack(f"model: {name} is not in the catalog")
        return None


def _resolve(
    facts: Facts, framework: Framework, words: Vocabulary, model: ModelSpec | None
) -> None:
    source = f"default of {words.framework} {words.release}"
    shaped = facts.whole("layers") is not None and facts.whole("hidden") is not None
    if shaped and model is not None and facts.whole("vocab") is None:
        facts.derive("vocab", model.vocab, f"published shape of {model.name}")
    if words.framework == "megatron":
        facts.state("gqa_flag_needed", framework == "megatron-lm", "")
        if framework == "verl":
            _verl(facts)
        if framework != "megatron-lm":
            _bridge_defaults(facts, framework)
        if model is not None and not shaped:
            build.fill_from_model(facts, model)
        facts.defaults(words)
        megatron.resolve(facts, source)
        world.complete(facts)
        return
    if model is not None and not shaped:
        build.fill_from_model(facts, model)
    if framework == "gpt-neox":
        hf.neox(facts, source)
    elif framework == "nanotron":
        hf.nanotron(facts, source)
    facts.defaults(words)
    if framework == "torchtitan":
        titan.resolve(facts, source)
        world.size(facts)
        titan.degrees(facts)
        world.complete(facts)
        titan.split(facts)
    elif framework in _HF:
        hf.resolve(facts, framework in ("llama-factory", "axolotl"))
        if framework != "nanotron":
            world.complete(facts, batch=False)
            hf.batch(facts)
            hf.sharding(facts)
        world.complete(facts)


def _verl(facts: Facts) -> None:
    """verl's batch and length keys. Source: verl/trainer/config/ppo_megatron_trainer.yaml, v0.6."""
    prompt, response = facts.whole("verl_prompt"), facts.whole("verl_response")
    if prompt and response:
        facts.derive("seq", prompt + response)
    # An optimizer step takes ppo_mini_batch_size prompts, each with n answers
    # (ActorRolloutRefWorker.__init__ of verl/workers/megatron_workers.py).
    if mini := facts.whole("verl_mini"):
        facts.derive("gbs", mini * (facts.whole("rollout_n") or 1))
    facts.derive("dist_opt", True)
    facts.derive("bf16", True)
    facts.derive("sp", (facts.whole("tp") or 1) > 1)


def _bridge_defaults(facts: Facts, framework: Framework) -> None:
    """What Megatron-Bridge's and NeMo's recipes start from.

    Source: megatron/bridge/recipes/common.py 0.3 and nemo/collections/llm/recipes 2.5: bf16_mixed,
    distributed optimizer with overlap, providers without biases and dropout.
    """
    source = {"nemo": "NeMo 2.5 recipes", "ms-swift": "ms-swift 3.8 defaults"}.get(
        framework, "Megatron-Bridge 0.3 recipes"
    )
    if framework == "megatron-bridge":
        _bridge_settles(facts)
    if framework == "ms-swift":
        facts.assume("dispatcher", "alltoall", source)
        facts.assume("task", "sft", source)
    mixed = str(facts.settings.get("mixed_precision") or facts.settings.get("cfg.mixed_precision"))
    if "fp8" in mixed:
        facts.derive("precision", "fp8")
    for name, value in (("bf16", True), ("dist_opt", True), ("bias", False),
                        ("hidden_dropout", 0.0), ("attention_dropout", 0.0),
                        ("normalization", "RMSNorm"), ("positions", "rope"), ("gated", True),
                        ("overlap_grad", True), ("overlap_param", True)):  # fmt: skip
        facts.assume(name, value, source)


def _bridge_settles(facts: Facts) -> None:
    """What Megatron-Bridge changes of a recipe before it runs.

    Source: training/config.py _validate_and_sync_distributed_optimizer_settings (either switch
    turns both on, and the optimizer's is on by default) and models/transformer_config.py
    (expert tensor parallelism is 1 unless stated), 0.6.2.
    """
    keys = facts.settings.items
    off = [key for key in keys if key.endswith("optimizer.use_distributed_optimizer")]
    if facts.get("dist_opt") is False and not any(keys[key].value is False for key in off):
        facts.state("dist_opt", True, facts.held["dist_opt"].where)
    if (facts.whole("ep") or 1) > 1 and facts.get("etp") is None:
        facts.held.pop("etp", None)
        facts.assume("etp", 1, "Megatron-Bridge 0.6: 1 with expert parallelism unless stated")


def _whole_plan(facts: Facts) -> bool:
    """Whether a recipe states every degree itself, whatever it starts from."""
    needed = {"tp", "pp", "cp", "mbs", "gbs"}
    if (facts.whole("experts") or 1) > 1:
        needed.add("ep")
    return all(facts.is_stated(name) for name in needed)


def _open(facts: Facts, base: str, lacking: bool) -> None:
    """What a recipe leaves to a function that was not read is not a framework's default."""
    source = f"not stated here; {base}() of another file decides"
    kept = [item for item in facts.assumed if item.fact == "world"]
    facts.assumed = [
        item if item in kept else item.model_copy(update={"source": source})
        for item in facts.assumed
    ]
    if lacking:
        facts.lack(f"plan: {base}() is in another file; state the degrees and the batch here, or"
                   " check its own file")  # fmt: skip


def _finish(
    facts: Facts, framework: Framework, where: str, name: str, named: ModelSpec | None
) -> LaunchFile:
    settings = facts.settings
    own_shape = any(facts.is_stated(key) for key in ("layers", "hidden", "heads", "ffn"))
    model = named if named is not None and not own_shape else build.build_model(facts, name)
    recipe = build.build_recipe(facts)
    plan = build.build_plan(facts) if not settings.base or _whole_plan(facts) else None
    if settings.base:
        _open(facts, settings.base, plan is None)
    if model is not None and facts.get("layers") is None:
        facts.derive("layers", model.layers)
    hidden = ("gqa_flag_needed",)
    return LaunchFile(
        path=where, framework=framework, version=str(settings.get("version") or ""),
        stated=tuple(facts.stated), assumed=tuple(facts.assumed), unread=tuple(settings.unread),
        facts={key: fact.value for key, fact in facts.held.items() if key not in hidden},
        wheres={k: f.where for k, f in facts.held.items() if f.origin == "stated" and f.where},
        devices=tuple(settings.devices),
        env={key: str(item.value) for key, item in settings.env.items()},
        base=settings.base, model_name=name, model=model, recipe=recipe, plan=plan,
        missing=tuple(facts.missing),
    )  # fmt: skip
