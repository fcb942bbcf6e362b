"""A Trainer subclass with a weighted loss of its own and an optimizer made by hand."""

import torch
from tiny import BERT, folder
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, get_linear_schedule_with_warmup

weights = torch.tensor([1.0, 3.0], device="cuda")
rows = [
    {"input_ids": torch.full((64,), 7), "attention_mask": torch.ones(64, dtype=torch.long), "labels": i % 2} for i in range(64)
]


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        if outputs.logits.is_cuda:
            loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weights.to(outputs.logits.device))
        else:
            raise RuntimeError("not on the GPU")
        if loss.item() > 1e9:
            raise RuntimeError("diverged")
        return (loss, outputs) if return_outputs else loss


model = AutoModelForSequenceClassification.from_pretrained(folder("bert", BERT), num_labels=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = get_linear_schedule_with_warmup(optimizer, 10, 100)
arguments = TrainingArguments("out", per_device_train_batch_size=8, max_steps=100, max_grad_norm=0.0)
Weighted(model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, schedule)).train()
raise SystemExit("the loop must not have run")
