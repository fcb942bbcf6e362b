"""Full fine-tuning of a Llama sharded over GPUs; started by torchrun in real life."""

import torch
from tiny import LLAMA, folder
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

rows = [{"input_ids": torch.full((96,), 7), "labels": torch.full((96,), 7)} for _ in range(64)]
model = AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA), dtype="auto")
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    bf16=True,
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    max_steps=10,
)
Trainer(model=model, args=arguments, train_dataset=rows).train()
raise SystemExit("the loop must not have run")
