"""Online reinforcement learning with TRL: the trainer generates between steps."""

from datasets import Dataset
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA)),
    reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
    args=GRPOConfig("out", per_device_train_batch_size=4, num_generations=4, max_completion_length=16, max_steps=5, bf16=True),
    train_dataset=Dataset.from_dict({"prompt": texts()}),
    processing_class=tokenizer(),
)
trainer.train()
raise SystemExit("the loop must not have run")
