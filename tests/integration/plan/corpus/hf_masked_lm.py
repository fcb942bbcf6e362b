"""Continues masked-language pretraining in fp16 with activation checkpointing."""

from datasets import Dataset
from tiny import BERT, folder, texts, tokenizer
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

set_seed(1)
tok = tokenizer()
data = Dataset.from_dict({"text": texts()}).map(lambda r: tok(r["text"]), batched=True, remove_columns=["text"], num_proc=2)
model = AutoModelForMaskedLM.from_pretrained(folder("bert", BERT))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, fp16=True, gradient_checkpointing=True, max_steps=50, dataloader_num_workers=2
)
Trainer(
    model=model, args=arguments, train_dataset=data, data_collator=DataCollatorForLanguageModeling(tok, mlm_probability=0.3)
).train()
raise SystemExit("the loop must not have run")
