#!/bin/bash
#SBATCH --nodes=128
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
# GPT-3 175B on 1024 A100-80GB
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8
PP=16
DP=$(( SLURM_NNODES * 8 / (TP * PP) ))
options=" \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage 1 \
    --sequence-parallel \
    --num-layers 96 \
    --hidden-size 12288 \
    --num-attention-heads 96 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --train-samples 146484375 \
    --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --tokenizer-type GPT2BPETokenizer \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --use-flash-attn \
    --bf16"
run_cmd="python -u pretrain_gpt.py ${options}"
srun -l --nodes=$SLURM_NNODES sh -c "${run_cmd}"
