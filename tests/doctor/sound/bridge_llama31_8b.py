from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common


def llama31_8b_pretrain_16gpu_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.1-8B").to_megatron_provider(
        load_weights=False
    )
    cfg.model.seq_length = 8192
    cfg.dataset.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = False
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 512
    cfg.train.train_iters = 1168251
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = True
    cfg.mixed_precision = "bf16_mixed"
    return cfg
