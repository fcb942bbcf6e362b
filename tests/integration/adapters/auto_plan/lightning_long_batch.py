"""A LightningModule of its own on the CPU, whose data set has one long example; ends once the monitor has spoken."""

import sys
import time

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from trainbudget.lightning import TrainBudgetCallback

#: Where the record goes; memory of the mock card; the finding that is waited for, before the first step or while steps go on;
#: whether the run ends then; examples, and which of them is long.
directory, memory_gib, wanted, when, ends, count, place = sys.argv[1:]
PATIENCE_S = 500.0
LONG, SHORT, VOCABULARY = 1500, 16, 8000


class Rows(Dataset):
    def __len__(self):
        return int(count)

    def __getitem__(self, i):
        return {"input_ids": torch.full((LONG if i == int(place) else SHORT,), 7)}


def pad(rows):
    return {"input_ids": torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)}


class Language(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, width)
        self.block = torch.nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def training_step(self, batch, index):
        ids = batch["input_ids"]
        loss = torch.nn.functional.cross_entropy(self.head(self.block(self.words(ids))).flatten(0, 1), ids.flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class UntilTold(pl.Callback):
    """Goes slowly: a run of an hour is played in as long as the planner takes."""

    def __init__(self, monitor):
        self.monitor, self.until_s = monitor, time.monotonic() + PATIENCE_S

    def _told(self):
        report = self.monitor.report
        return report is not None and any(f.code == wanted for f in report.findings)

    def on_train_batch_start(self, trainer, module, batch, index):
        if index == 0:
            while when == "before" and time.monotonic() < self.until_s and not self._told():
                time.sleep(0.1)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        time.sleep(0.1 if ends == "yes" else 0.0)
        trainer.should_stop = time.monotonic() > self.until_s or (ends == "yes" and self._told())


if __name__ == "__main__":
    torch.manual_seed(0)
    callback = TrainBudgetCallback(
        plan="auto", backend=f"mock:healthy:{memory_gib}", run_directory=directory, listen="off", interval=0.1, sample_period=0.2
    )
    with open(directory + ".started", "a") as file:
        file.write("once\n")
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[callback, UntilTold(callback.monitor)],
    )  # fmt: skip
    trainer.fit(Language(), DataLoader(Rows(), batch_size=2, collate_fn=pad))
    callback.monitor.close()
