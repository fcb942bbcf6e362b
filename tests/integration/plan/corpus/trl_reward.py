"""A reward model from preference pairs with TRL."""

from datasets import Dataset
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

words = texts()
trainer = RewardTrainer(
    model=AutoModelForSequenceClassification.from_pretrained(folder("llama", LLAMA), num_labels=1),
    args=RewardConfig("out", per_device_train_batch_size=4, max_steps=30, bf16=True),
    train_dataset=Dataset.from_dict({"chosen": words, "rejected": words[::-1]}),
    processing_class=tokenizer(),
)
trainer.train()
raise SystemExit("the loop must not have run")
