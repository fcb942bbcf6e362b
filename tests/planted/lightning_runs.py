"""Lightning runs through the callback, each with one fault that the script really commits."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader

from planted.model import BATCH, Net, Rows, one_thread
from trainbudget import Budget
from trainbudget.lightning import TrainBudgetCallback

Settings = dict[str, Any]


class Module(pl.LightningModule):
    """The small net; `diverges_at` is a step at which the learning rate jumps to 1e30."""

    def __init__(self, diverges_at: int | None = None) -> None:
        super().__init__()
        self.net, self.diverges_at = Net(), diverges_at

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        if self.diverges_at is not None and self.global_step == self.diverges_at:
            self.optimizers().param_groups[0]["lr"] = 1e30
        return self.net(batch["x"], batch["y"])["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.log("val_loss", self.net(batch["x"], batch["y"])["loss"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(
    settings: Settings, seconds: float, loader: Any, *, module: Module | None = None, validation: Any = None, **more: Any
) -> None:
    """Fit for some seconds, then close the record as the end of the process would."""
    one_thread()
    budget = more.pop("budget", None)
    watched = TrainBudgetCallback(budget, **settings)
    arguments = {"enable_checkpointing": False, "max_steps": 100_000, **more}
    callbacks = [watched, *arguments.pop("callbacks", ())]
    training = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(),
        max_time={"seconds": int(seconds)},
        callbacks=callbacks,
        **arguments,
    )
    try:
        training.fit(module or Module(), loader, validation)
    finally:
        watched.monitor.close()


def loader(count: int = 100_000, **more: Any) -> DataLoader[Any]:
    return DataLoader(Rows(count), batch_size=BATCH, **more)


def healthy(settings: Settings) -> None:
    """Long epochs, validation and checkpoints in decent doses."""
    fit(
        settings,
        75.0,
        loader(num_workers=1, persistent_workers=True, prefetch_factor=4),
        validation=loader(4 * BATCH),
        module=Deep(),
        val_check_interval=60,
        enable_checkpointing=True,
        callbacks=[ModelCheckpoint(dirpath=tempfile.mkdtemp(), every_n_train_steps=60)],
    )


class Deep(Module):
    """Enough work a step that one loader process keeps up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(depth=24)


def diverging(settings: Settings) -> None:
    """The learning rate jumps to 1e30 at step 60: from then on every loss is not a number."""
    fit(settings, 40.0, loader(), module=Module(diverges_at=60))


class SlowDisk(TorchCheckpointIO):
    """A disk that takes a second and a half for each checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        time.sleep(1.5)


def checkpoints_too_often(settings: Settings) -> None:
    """A checkpoint every five steps, on a slow disk."""
    fit(
        settings,
        75.0,
        loader(),
        enable_checkpointing=True,
        plugins=[SlowDisk()],
        callbacks=[ModelCheckpoint(dirpath=tempfile.mkdtemp(), every_n_train_steps=5)],
    )


def opens_a_database(worker: int) -> None:
    """What each new worker does first: a second of waiting for somebody else."""
    time.sleep(1.2)


def workers_anew(settings: Settings) -> None:
    """Epochs of 40 batches, and loader workers that are created anew for each of them."""
    fit(
        settings,
        60.0,
        DataLoader(Rows(40 * 16), batch_size=16, num_workers=2, worker_init_fn=opens_a_database),
        module=Deep(),
        max_epochs=-1,
    )


def small_time_budget(settings: Settings) -> None:
    """100,000 steps and three minutes for them."""
    fit(settings, 70.0, loader(), budget=Budget(run_time="3min"))


RUNS: dict[str, Callable[[Settings], None]] = {
    "lightning_healthy": healthy,
    "lightning_diverging": diverging,
    "lightning_checkpoints_too_often": checkpoints_too_often,
    "lightning_workers_anew": workers_anew,
    "lightning_small_time_budget": small_time_budget,
}
