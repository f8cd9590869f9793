#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 32 --nproc_per_node 8 pretrain_gpt.py \
    --use-mcore-models --num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 \
    --num-attention-heads 64 --group-query-attention --num-query-groups 4 --kv-channels 128 \
    --qk-layernorm --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --rotary-base 1000000 --untie-embeddings-and-output-weights \
    --hidden-dropout 0.0 --attention-dropout 0.0 --seq-length 4096 --max-position-embeddings 40960 \
    --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 1536 --moe-grouped-gemm \
    --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss \
    --moe-aux-loss-coeff 1e-3 --tensor-model-parallel-size 2 --sequence-parallel \
    --pipeline-model-parallel-size 8 --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 \
    --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11 \
    --micro-batch-size 1 --global-batch-size 2048 --bf16 --train-iters 10000 --lr 1e-4 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-235B-A22B --vocab-size 151936 \
    --mock-data
