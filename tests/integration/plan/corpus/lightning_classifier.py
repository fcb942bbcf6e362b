"""A convolutional classifier as a LightningModule with a data module, two GPUs, mixed precision."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Images(L.LightningDataModule):
    def prepare_data(self):
        self.prepared = True

    def setup(self, stage):
        self.data = TensorDataset(torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,)))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=16, num_workers=2, persistent_workers=True, pin_memory=True)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        raise RuntimeError("validation must not run")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(accelerator="gpu", devices=2, precision="16-mixed", max_epochs=3, gradient_clip_val=1.0)
    trainer.fit(Classifier(), datamodule=Images())
    raise SystemExit("the loop must not have run")
