"""A loop of its own with Accelerate around a Hugging Face model."""

import torch
from accelerate import Accelerator
from tiny import LLAMA, folder
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA))
loader = DataLoader([{"input_ids": torch.full((32,), 7), "labels": torch.full((32,), 7)} for _ in range(16)], batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
