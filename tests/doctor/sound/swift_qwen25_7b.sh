#!/bin/bash
NPROC_PER_NODE=8 megatron sft \
    --load Qwen2.5-7B-Instruct-mcore \
    --dataset AI-ModelScope/alpaca-gpt4-data-zh#500 \
    --tensor_model_parallel_size 2 --sequence_parallel true \
    --micro_batch_size 4 --global_batch_size 64 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
    --max_length 2048 --max_epochs 1 --lr 1e-5 --cross_entropy_loss_fusion true --save out
