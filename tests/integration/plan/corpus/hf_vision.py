"""Image classification with a ViT: a transform on the fly, images stacked by a collator."""

import torch
from datasets import Dataset
from tiny import VIT, folder
from transformers import Trainer, TrainingArguments, ViTForImageClassification

data = Dataset.from_dict({"seed": list(range(40)), "label": [i % 10 for i in range(40)]})


def transform(rows):
    rows["pixel_values"] = [torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(s)) for s in rows["seed"]]
    return rows


def collate(rows):
    return {"pixel_values": torch.stack([r["pixel_values"] for r in rows]), "labels": torch.tensor([r["label"] for r in rows])}


model = ViTForImageClassification.from_pretrained(folder("vit", VIT), num_labels=10, ignore_mismatched_sizes=True)
Trainer(
    model=model,
    args=TrainingArguments("out", per_device_train_batch_size=8, remove_unused_columns=False, bf16=True, num_train_epochs=1),
    train_dataset=data.with_transform(transform),
    data_collator=collate,
).train()
raise SystemExit("the loop must not have run")
