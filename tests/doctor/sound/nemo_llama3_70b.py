import nemo_run as run
from nemo.collections import llm


def configure_recipe(nodes: int = 8, gpus_per_node: int = 8):
    recipe = llm.llama3_70b.pretrain_recipe(
        dir="/checkpoints/llama3_70b",
        name="llama3_70b_pretraining",
        num_nodes=nodes,
        num_gpus_per_node=gpus_per_node,
    )
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.pipeline_model_parallel_size = 4
    recipe.trainer.strategy.virtual_pipeline_model_parallel_size = 5
    recipe.trainer.strategy.context_parallel_size = 2
    recipe.trainer.strategy.sequence_parallel = True
    recipe.data.seq_length = 8192
    recipe.data.global_batch_size = 128
    recipe.data.micro_batch_size = 1
    return recipe


def run_pretraining():
    recipe = configure_recipe(nodes=8)
    executor = run.LocalExecutor(ntasks_per_node=8, launcher="torchrun")
    run.run(recipe, executor=executor)


if __name__ == "__main__":
    run_pretraining()
