#!/bin/bash
cat > zero2.json <<'JSON'
{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": "auto"},
  "gradient_accumulation_steps": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "train_batch_size": "auto",
  "gradient_clipping": "auto"
}
JSON
deepspeed --num_gpus 8 finetune.py --deepspeed zero2.json --model_name_or_path mistralai/Mistral-7B-v0.1 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --bf16 true \
    --gradient_checkpointing true --max_seq_length 8192 --learning_rate 1e-5 --output_dir out
