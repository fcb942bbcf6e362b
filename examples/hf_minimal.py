"""Hugging Face Trainer watched by trainbudget: `python examples/hf_minimal.py`."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from trainbudget.huggingface import TrainBudgetCallback

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
)
rows = torch.randint(0, 64, (256, 16))
data = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in rows]

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(folder, max_steps=40, per_device_train_batch_size=8, report_to=[], use_cpu=True),
        train_dataset=data,
        callbacks=[TrainBudgetCallback(price="2.49 USD/h", run_name="hf-minimal")],
    )
    trainer.train()
