"""Supervised fine-tuning with TRL on a text column, with LoRA given as a configuration."""

from datasets import Dataset
from peft import LoraConfig
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA)),
    args=SFTConfig("out", per_device_train_batch_size=4, max_length=32, max_steps=30, gradient_checkpointing=True, bf16=True),
    train_dataset=Dataset.from_dict({"text": texts()}),
    processing_class=tokenizer(),
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
raise SystemExit("the loop must not have run")
