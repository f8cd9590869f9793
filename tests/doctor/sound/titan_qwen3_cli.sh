#!/usr/bin/env bash
# torchtitan with overrides on the command line
set -ex
NGPU=${NGPU:-"8"}
CONFIG=${CONFIG:-"qwen3_32b"}
PYTORCH_ALLOC_CONF="expandable_segments:True" \
torchrun --nnodes 2 --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \
  -m torchtitan.train --module qwen3 --config ${CONFIG} \
  --model.name qwen3 --model.flavor 32B \
  --training.seq_len 4096 --training.local_batch_size 2 --training.global_batch_size 64 \
  --parallelism.data_parallel_shard_degree=16 \
  --activation_checkpoint.mode full
