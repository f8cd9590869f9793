#!/bin/bash
# Full fine-tuning of Llama 2 13B with the Trainer on two nodes of 8 A100-80GB
cat > ds_config.json <<'JSON'
{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"
}
JSON
deepspeed --num_nodes 2 --num_gpus 8 --hostfile hostfile train.py \
  --deepspeed ds_config.json \
  --model_name_or_path meta-llama/Llama-2-13b-hf \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 2 \
  --model_max_length 4096 \
  --learning_rate 2e-5 --num_train_epochs 3 \
  --bf16 True --gradient_checkpointing True \
  --output_dir out --save_steps 500
