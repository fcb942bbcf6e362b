"""A Hugging Face model inside a LightningModule, schedule from the number of steps, gradients accumulated."""

import lightning.pytorch as pl
import torch
from tiny import LLAMA, folder
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup


class Tuner(pl.LightningModule):
    def __init__(self, path):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def training_step(self, batch):
        out = self.model(**batch)
        self.log_dict({"loss": out.loss, "lr": self.lr_schedulers().get_last_lr()[0] if False else 0.0})
        return {"loss": out.loss}

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        rest = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-4)
        schedule = get_cosine_schedule_with_warmup(optimizer, 10, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


rows = [{"input_ids": torch.full((64,), 7), "labels": torch.full((64,), 7)} for _ in range(32)]
trainer = pl.Trainer(precision="bf16-mixed", accumulate_grad_batches=4, max_steps=40, devices=1)
trainer.fit(Tuner(folder("llama", LLAMA)), DataLoader(rows, batch_size=4, shuffle=True))
raise SystemExit("the loop must not have run")
