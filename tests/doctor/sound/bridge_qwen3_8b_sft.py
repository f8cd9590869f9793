from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _sft_common


def qwen3_8b_sft_4gpu_config():
    cfg = _sft_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider(
        load_weights=False
    )
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.pipeline_dtype = None
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.sequence_parallel = False
    cfg.model.seq_length = 2048
    cfg.dataset.seq_length = 2048
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    cfg.ddp.use_distributed_optimizer = False
    return cfg
