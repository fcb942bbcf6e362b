"""PyTorch Lightning watched by trainbudget: `python examples/lightning_minimal.py`."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainbudget.lightning import TrainBudgetCallback


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
inputs = torch.randn(1024, 32)
loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=32)
callback = TrainBudgetCallback(price="2.49 USD/h", run_name="lightning-minimal")
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback])
trainer.fit(Regression(), loader)
