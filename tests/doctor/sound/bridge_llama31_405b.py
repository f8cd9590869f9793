"""Llama 3.1 405B pre-training on 1024 GPUs with Megatron-Bridge."""

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer

SEQUENCE_LENGTH: int = 8192


def llama31_405b_pretrain_1024gpu_h100_bf16_config() -> ConfigContainer:
    """TP=8, PP=8 with 8 virtual stages, CP=2."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.1-405B").to_megatron_provider(
        load_weights=False
    )
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.dataset.seq_length = SEQUENCE_LENGTH
    cfg.model.tensor_model_parallel_size = 8
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = 8
    cfg.model.account_for_embedding_in_pipeline_split = True
    cfg.model.account_for_loss_in_pipeline_split = True
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = SEQUENCE_LENGTH
    cfg.train.train_iters = 1168251
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.grad_reduce_in_fp32 = True
    return cfg
