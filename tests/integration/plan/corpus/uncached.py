"""Loads a model that is not on this machine."""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("some-lab/some-model-7b")
Trainer(model=model, args=TrainingArguments("out"), train_dataset=[]).train()
