#!/bin/bash
# A GPT of 1.3 billion parameters on one node, data parallel.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=${GPUS:-8}
MODEL="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
TRAIN="--micro-batch-size 4 --global-batch-size 512 --train-iters 100000 --lr 2.0e-4 --min-lr 2.0e-5 --lr-decay-style cosine --bf16"
torchrun --standalone --nproc_per_node $GPUS pretrain_gpt.py $MODEL $TRAIN \
    --use-mcore-models --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt \
    --data-path my_corpus_text_document --split 969,30,1 --transformer-impl transformer_engine \
    --save out --save-interval 2000
