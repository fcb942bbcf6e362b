"""A GAN with two optimizers: manual optimization inside training_step."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.judge = nn.Linear(8, 16), nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.manual_backward(self.judge(self.generator(batch)).mean())
        first.step()
        second.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.judge.parameters())


L.Trainer(max_epochs=1).fit(Gan(), DataLoader(torch.rand(32, 8), batch_size=8))
raise SystemExit("the loop must not have run")
