# Megatron-SWIFT: Qwen3-30B-A3B on two nodes
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NNODES=2 \
NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen/Qwen3-30B-A3B-Instruct-2507 \
    --dataset swift/self-cognition \
    --tensor_model_parallel_size 2 \
    --expert_tensor_parallel_size 1 \
    --expert_model_parallel_size 8 \
    --moe_permute_fusion true \
    --moe_grouped_gemm true \
    --moe_shared_expert_overlap true \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --max_length 8192 \
    --sequence_parallel true \
    --attention_backend flash \
    --lr 1e-5
