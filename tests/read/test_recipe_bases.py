"""Recipes that start from a function of another file, and names that recipes of three frameworks
give their models."""

import pytest

from gangsaw.doctor.check import check
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text

NEMO = """
import nemo_run as run
from nemo.collections import llm
def configure():
    recipe = llm.llama3_70b.pretrain_recipe(name="l70", num_nodes=4, num_gpus_per_node=8)
    recipe.data.global_batch_size = 128
    {more}
    return recipe
"""
BRIDGE = """
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
cfg = llama3_70b_pretrain_config()
cfg.train.global_batch_size = 126
cfg.model.context_parallel_size = 2
"""
TITAN = """
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_671b
from torchtitan.trainer import Trainer
def mine() -> Trainer.Config:
    config = deepseek_v3_671b()
    config.training.steps = 100
    return config
"""
WHOLE = """recipe.data.micro_batch_size = 1
    recipe.data.seq_length = 8192
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.trainer.strategy.pipeline_model_parallel_size = 4"""


@pytest.mark.parametrize(
    ("text", "base", "model"),
    [
        (NEMO.format(more="pass"), "llm.llama3_70b.pretrain_recipe", "llama-3-70b"),
        (BRIDGE, "llama3_70b_pretrain_config", "llama-3-70b"),
        (TITAN, "deepseek_v3_671b", "deepseek-v3"),
    ],
)
def test_what_a_base_of_another_file_sets_is_not_assumed(text, base, model):
    """NeMo's 70B starts from tp 4, pp 4, cp 2; none of it may be taken as 1 and judged."""
    launch = read_launch_text(text, "mine.py")
    assert launch.base == base
    assert launch.model_name == model
    assert launch.plan is None
    assert any(base in item for item in launch.unread)
    assert any(base in item for item in launch.missing)
    assert all(base in item.source for item in launch.assumed if item.fact != "world")
    found = check(launch, load_cluster("h100-sxm:32"))
    assert found.faults == ()
    assert "tp" not in found.grid


def test_a_recipe_that_states_every_degree_is_judged_whatever_it_starts_from():
    launch = read_launch_text(NEMO.format(more=WHOLE), "mine.py")
    assert (launch.plan.tp, launch.plan.pp, launch.plan.dp) == (4, 4, 2)
    # 128 / (1 x 2)
    assert launch.plan.num_microbatches == 64
    wrong = NEMO.format(
        more=WHOLE.replace("= 8192", "= 8192\n    recipe.data.global_batch_size = 127")
    )
    assert "MLM016" in {fault.code for fault in check(read_launch_text(wrong, "mine.py")).faults}


def test_idle_devices_are_seen_where_the_nodes_are_stated():
    launch = read_launch_text(NEMO.format(more="pass"), "mine.py")
    assert {f.code for f in check(launch, load_cluster("h100-sxm:64")).faults} == {"GEN014"}


def test_a_common_start_has_known_defaults():
    text = BRIDGE.replace("llama3_70b_pretrain_config", "_pretrain_common")
    assert read_launch_text(text, "mine.py").base == ""


def test_the_class_names_the_model_before_the_tokenizer():
    """NeMo's 128-expert recipe takes the tokenizer of the one with 16."""
    text = """
import nemo_run as run
from nemo.collections import llm, vlm
def recipe():
    return run.Partial(pretrain, model=run.Config(vlm.Llama4OmniModel, config=run.Config(
        vlm.Llama4MaverickExperts128Config,
        language_transformer_config=run.Config(llm.Llama4Experts128Config),
        vision_projection_config=run.Config(
            vlm.MultimodalProjectorConfig, hidden_size=999, ffn_hidden_size=777))),
        tokenizer=run.Config(AutoTokenizer, "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        trainer=run.Config(Trainer, strategy=run.Config(
            Strategy, tensor_model_parallel_size=4, expert_model_parallel_size=128)))
"""
    launch = read_launch_text(text, "mine.py")
    assert launch.model_name == "llama-4-maverick-17b-128e"
    assert launch.facts["experts"] == 128
    assert launch.facts["hidden"] == 5120
    assert launch.facts["ffn"] != 777
    assert any("vision_projection_config.ffn_hidden_size" in item for item in launch.unread)


def test_emulated_float8_is_bf16_and_a_debug_model_is_none_of_the_catalog():
    text = """
from torchtitan.trainer import Trainer
def llama3_debugmodel_float8():
    return Trainer.Config(
        model_spec=llama3_model_registry("debugmodel", converters=[
            Float8LinearConverter.Config({emulate})]),
        training=TrainingConfig(local_batch_size=8, seq_len=2048),
        parallelism=ParallelismConfig(tensor_parallel_degree=2))
"""
    real = read_launch_text(text.format(emulate=""), "mine.py")
    emulated = read_launch_text(text.format(emulate="emulate=True"), "mine.py")
    assert real.model_name == emulated.model_name == ""
    assert (real.facts["precision"], emulated.facts["precision"]) == ("fp8", "bf16")
    assert "WS018" in {fault.code for fault in check(real).faults}
    assert "WS018" not in {fault.code for fault in check(emulated).faults}


def test_zero_is_no_legal_batch():
    text = BRIDGE.replace("llama3_70b_pretrain_config", "_pretrain_common") + (
        "cfg.train.micro_batch_size = 4\ncfg.train.global_batch_size = 32\n"
        "cfg.model.tensor_model_parallel_size = 2\ncfg.model.context_parallel_size = 1\n"
    )
    # 4 x (32 / 2) = 64
    found = check(read_launch_text(text, "mine.py"), load_cluster("h100-sxm:32"))
    legal = next(fault.legal for fault in found.faults if fault.code == "MLM016")
    assert legal[0] == 64
    assert 0 not in legal
