from nemo.collections.llm.recipes import mixtral_8x7b


def mixtral():
    recipe = mixtral_8x7b.pretrain_recipe(name="mixtral-8x7b", num_nodes=8, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 1
    recipe.trainer.strategy.pipeline_model_parallel_size = 4
    recipe.trainer.strategy.virtual_pipeline_model_parallel_size = 8
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.trainer.strategy.expert_model_parallel_size = 8
    recipe.trainer.strategy.expert_tensor_parallel_size = 1
    recipe.data.seq_length = 4096
    recipe.data.micro_batch_size = 1
    recipe.data.global_batch_size = 256
    return recipe
