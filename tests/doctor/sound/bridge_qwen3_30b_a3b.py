from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
from megatron.core.distributed import DistributedDataParallelConfig


def model_config(
    tensor_parallelism: int = 4,
    pipeline_parallelism: int = 2,
    context_parallelism: int = 1,
    expert_parallelism: int = 4,
    sequence_parallelism: bool = True,
):
    bridge = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B")
    provider = bridge.to_megatron_provider(load_weights=False)
    provider.tensor_model_parallel_size = tensor_parallelism
    provider.pipeline_model_parallel_size = pipeline_parallelism
    provider.context_parallel_size = context_parallelism
    provider.expert_model_parallel_size = expert_parallelism
    provider.expert_tensor_parallel_size = 1
    provider.sequence_parallel = sequence_parallelism
    provider.moe_grouped_gemm = True
    provider.moe_token_dispatcher_type = "alltoall"
    return provider


def pretrain_config(
    seq_length: int = 4096,
    global_batch_size: int = 512,
    micro_batch_size: int = 1,
) -> ConfigContainer:
    return ConfigContainer(
        model=model_config(),
        train=TrainingConfig(
            train_iters=300000,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
        ),
        ddp=DistributedDataParallelConfig(
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            use_distributed_optimizer=True,
        ),
        dataset={"sequence_length": seq_length},
        mixed_precision="bf16_mixed",
    )
