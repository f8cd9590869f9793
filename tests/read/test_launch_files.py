"""Published-style launch files of eleven frameworks, read into documents."""

from pathlib import Path

import pytest

from gangsaw.errors import InputError
from gangsaw.read.launch import read_launch, read_launch_text

SOUND = Path(__file__).parent.parent / "doctor" / "sound"

# file: framework, model, parameters, (tp, cp, pp, vpp, dp, ep, etp, mbs, m, zero), seq, batch
FILES = {
    "megatron_llama3_8b.sh": ("megatron-lm", "llama-3-8b", (1, 1, 1, 1, 8, 1, 1, 1, 16, 1), 8192, 128),
    "megatron_gpt3_175b.sh": ("megatron-lm", "gpt3-175b", (8, 1, 16, 6, 8, 1, 1, 1, 192, 1), 2048, 1536),
    "megatron_mixtral_8x7b.sh": ("megatron-lm", "mixtral-8x7b", (1, 1, 4, 1, 16, 8, 1, 1, 16, 1), 4096, 256),
    "megatron_deepseek_v3.yaml": ("megatron-lm", "deepseek-v3", (1, 1, 16, 2, 64, 64, 1, 1, 128, 1), 4096, 8192),
    "bridge_llama31_405b.py": ("megatron-bridge", "llama-3.1-405b", (8, 2, 8, 8, 8, 1, 1, 1, 64, 1), 8192, 512),
    "nemo_llama3_70b.py": ("nemo", "llama-3-70b", (4, 2, 4, 5, 2, 1, 1, 1, 64, 1), 8192, 128),
    "titan_llama3_70b.toml": ("torchtitan", "llama-3.1-70b", (8, 1, 1, 1, 32, 1, 1, 8, 1, 3), 8192, 256),
    "titan_llama3_405b.py": ("torchtitan", "llama-3.1-405b", (8, 1, 8, 2, 8, 1, 1, 1, 16, 2), 8192, 128),
    "titan_qwen3_cli.sh": ("torchtitan", "qwen3-32b", (1, 1, 1, 1, 16, 1, 1, 2, 2, 3), 4096, 64),
    "deepspeed_zero3_llama2_13b.sh": ("deepspeed", "llama-2-13b", (1, 1, 1, 1, 16, 1, 1, 4, 2, 3), 4096, 128),
    "nanotron_smollm.yaml": ("nanotron", "smollm2-1.7b", (1, 1, 1, 1, 64, 1, 1, 8, 2, 1), 2048, 1024),
    "neox_20b.yml": ("gpt-neox", "gpt-neox-20b", (2, 1, 4, 1, 12, 1, 1, 4, 32, 1), 2048, 1536),
    "verl_qwen3_30b.sh": ("verl", "qwen3-30b-a3b", (2, 1, 2, 1, 8, 8, 1, 1, 16, 1), 4096, 128),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_plan_and_recipe_of_a_launch_file(name):
    framework, model, degrees, seq, batch = FILES[name]
    found = read_launch(SOUND / name)
    assert found.framework == framework
    assert found.model_name == model
    assert found.missing == ()
    plan = found.plan
    assert (
        plan.tp, plan.cp, plan.pp, plan.vpp, plan.dp, plan.ep, plan.etp, plan.mbs,
        plan.num_microbatches, plan.zero,
    ) == degrees  # fmt: skip
    assert (found.recipe.seq_len, found.recipe.global_batch) == (seq, batch)
    plan.check_product(plan.tp * plan.cp * plan.pp * plan.dp, batch)


# Parameters counted elsewhere: the model classes of transformers on the meta device.
COUNTED = {
    "megatron_llama3_8b.sh": 8_030_261_248,
    "megatron_mixtral_8x7b.sh": 46_702_792_704,
    "megatron_deepseek_v3.yaml": 671_026_419_200,
    "bridge_llama31_405b.py": 405_853_388_800,
    "bridge_qwen3_30b_a3b.py": 30_532_122_624,
    "titan_qwen3_cli.sh": 32_762_123_264,
    "nanotron_smollm.yaml": 1_711_376_384,
    "neox_20b.yml": 20_554_567_680,
}


@pytest.mark.parametrize("name", COUNTED)
def test_model_of_a_launch_file_has_the_counted_parameters(name):
    assert read_launch(SOUND / name).model.params() == COUNTED[name]


def test_partial_files_say_what_is_missing():
    found = read_launch(SOUND / "deepspeed_zero1.json")
    assert found.plan is None
    assert any("layers" in reason for reason in found.missing)
    assert found.facts["zero"] == 1
    assert found.facts["gbs"] == 256


def test_defaults_are_listed_with_their_release():
    found = read_launch(SOUND / "megatron_mixtral_8x7b.sh")
    assumed = {item.fact: item for item in found.assumed}
    assert assumed["cp"].value == 1
    assert "core_r0.15" in assumed["cp"].source
    assert "tp" not in assumed


def test_every_stated_flag_has_its_line():
    found = read_launch(SOUND / "megatron_llama3_8b.sh")
    text = (SOUND / "megatron_llama3_8b.sh").read_text().splitlines()
    line = int(found.where("layers").rsplit(":", 1)[1])
    assert "--num-layers 32" in text[line - 1]


def test_uneven_stages_of_a_layout():
    plan = read_launch(SOUND / "megatron_deepseek_v3.yaml").plan
    assert sum(plan.stages) == 61
    assert plan.stages[0] == 3
    assert plan.stages[-2:] == (0, 0)


def test_unknown_keys_are_listed_and_not_dropped():
    text = (SOUND / "titan_llama3_70b.toml").read_text() + "\n[surprise]\nnew_key = 3\n"
    found = read_launch_text(text, "x.toml")
    assert any("surprise.new_key" in entry for entry in found.unread)


def test_a_recipe_is_chosen_by_name_where_a_file_holds_several(tmp_path):
    from gangsaw.errors import InputError

    body = (SOUND / "titan_llama3_405b.py").read_text()
    second = body[body.index("def llama3_405b") :].replace("def llama3_405b", "def other")
    path = tmp_path / "registry.py"
    path.write_text(
        body + "\n\n" + second.replace("tensor_parallel_degree=8", "tensor_parallel_degree=4")
    )
    with pytest.raises(InputError, match="holds 2 recipes"):
        read_launch(path)
    assert read_launch(f"{path}:other").plan.tp == 4
    assert read_launch(f"{path}:llama3_405b").plan.tp == 8


def test_overrides_on_a_recipe_of_the_same_file(tmp_path):
    body = (SOUND / "titan_llama3_405b.py").read_text()
    path = tmp_path / "registry.py"
    path.write_text(body + (
        "\n\ndef smaller():\n    config = llama3_405b()\n"
        "    config.parallelism.tensor_parallel_degree = 4\n    return config\n"
    ))  # fmt: skip
    assert read_launch(f"{path}:smaller").plan.tp == 4


def test_deepspeed_json_beside_the_script_is_read(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 --nnodes 1 train.py --deepspeed ds.json"
        " --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2"
        " --gradient_accumulation_steps 4 --max_seq_length 4096\n"
    )
    plan = read_launch(script).plan
    assert (plan.zero, plan.dp, plan.mbs, plan.num_microbatches) == (2, 8, 2, 4)


def test_deepspeed_json_elsewhere_is_not_read(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "deepspeed --num_gpus 8 train.py --deepspeed /etc/passwd.json"
        " --per_device_train_batch_size 2\n"
    )
    found = read_launch(script)
    assert any("not read" in entry for entry in found.unread)


def test_verl_step_takes_every_answer_of_the_mini_batch():
    actor = "actor_rollout_ref.actor."
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B"
        f" {actor}ppo_mini_batch_size=128 {actor}ppo_micro_batch_size_per_gpu=1"
        f" {actor}megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8"
        " trainer.nnodes=4 trainer.n_gpus_per_node=8\n"
    )
    plan = read_launch_text(text, "verl.sh").plan
    assert plan is not None
    assert (plan.dp, plan.num_microbatches) == (16, 64)


def test_nanotron_defaults_and_stages():
    text = """model:
  model_config: {hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32,
    num_hidden_layers: 24, num_key_value_heads: 32, vocab_size: 49152}
optimizer: {zero_stage: 3}
parallelism: {dp: 2, pp: 4, tp: 1}
tokens: {sequence_length: 2048, micro_batch_size: 1, batch_accumulation_per_replica: 8}
"""
    launch = read_launch_text(text, "nanotron.yaml")
    plan = launch.plan
    assert plan is not None
    assert launch.facts["precision"] == "bf16"
    # All forwards, then all backwards, where no engine is named; a stage above 0 is stage 1.
    assert (plan.schedule, plan.zero) == ("gpipe", 1)


@pytest.mark.parametrize(
    "text", ['{"model_type": "llama", "hidden_size": 64}', '{"architectures": ["X"]}']
)
def test_a_models_configuration_is_no_launch_file(text):
    with pytest.raises(
        InputError, match=r"the configuration of a model.*gangsaw model config\.json"
    ):
        read_launch_text(text, "config.json")


def test_a_json_is_read_as_what_it_is():
    assert (
        read_launch_text('{"zero_optimization": {"stage": 2}}', "a.json").framework == "deepspeed"
    )
    tuner = '{"model_name_or_path": "x", "finetuning_type": "lora", "cutoff_len": 128}'
    assert read_launch_text(tuner, "a.json").framework == "llama-factory"
    trainer = '{"model_name_or_path": "x", "per_device_train_batch_size": 1, "deepspeed": "z.json"}'
    assert read_launch_text(trainer, "a.json").framework == "deepspeed"
    with pytest.raises(InputError, match="no framework recognised"):
        read_launch_text('{"a": 1}', "a.json")


@pytest.mark.parametrize(
    ("checkpointing", "mode"),
    [("FullAC.Config()", "full"), ("SelectiveAC.Config()", "selective"), ("None", "none")],
)
def test_torchtitan_names_checkpointing_by_a_class(checkpointing, mode):
    text = (
        "from torchtitan.trainer import Trainer\n"
        "def llama3_70b():\n    return Trainer.Config(model_spec=model_registry('70B'),\n"
        "        training=TrainingConfig(local_batch_size=8, seq_len=8192),\n"
        "        parallelism=ParallelismConfig(tensor_parallel_degree=8),\n"
        f"        activation_checkpoint={checkpointing})\n"
    )
    found = read_launch_text(text, "config_registry.py")
    assert found.facts["recompute"] == mode
    assert found.unread == ()
