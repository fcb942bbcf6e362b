"""Preference optimization with TRL: chosen and rejected answers, a reference model beside the trained one."""

from datasets import Dataset
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

words = texts()
data = Dataset.from_dict({"prompt": words, "chosen": [" " + w for w in words[::-1]], "rejected": [" " + w[:9] for w in words]})
path = folder("llama", LLAMA)
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(path),
    ref_model=AutoModelForCausalLM.from_pretrained(path),
    args=DPOConfig("out", per_device_train_batch_size=2, max_steps=30, bf16=True),
    train_dataset=data,
    processing_class=tokenizer(),
)
trainer.train()
raise SystemExit("the loop must not have run")
