"""Extractive question answering: start and end positions, bf16, a list of trackers."""

import torch
from tiny import BERT, folder
from transformers import AutoModelForQuestionAnswering, Trainer, TrainingArguments, default_data_collator

rows = [
    {"input_ids": [5 + i % 7] * 96, "attention_mask": [1] * 96, "start_positions": i % 90, "end_positions": i % 90 + 2}
    for i in range(40)
]
assert torch.cuda.is_available(), "this script wants a GPU"
assert torch.cuda.get_device_capability()[0] >= 8
model = AutoModelForQuestionAnswering.from_pretrained(
    folder("bert", BERT), attn_implementation="flash_attention_2", dtype=torch.bfloat16
)
model.to("cuda:0")
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, bf16=True, report_to=["wandb", "tensorboard"], num_train_epochs=1
)
Trainer(model=model, args=arguments, train_dataset=rows, data_collator=default_data_collator).train()
raise SystemExit("the loop must not have run")
