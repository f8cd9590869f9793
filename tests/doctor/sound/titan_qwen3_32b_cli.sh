#!/bin/bash
torchrun --nnodes 4 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint head:29500 \
    -m torchtitan.train --model.name qwen3 --model.flavor 32B --training.local_batch_size 2 \
    --training.seq_len 4096 --parallelism.tensor_parallel_degree 2 --activation_checkpoint.mode full \
    --compile.enable
