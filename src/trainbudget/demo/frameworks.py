"""The same job through each of the three ways in."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from trainbudget.demo.job import Job, collate, data, model
from trainbudget.live.batch import describe_batch
from trainbudget.monitor import Monitor


def huggingface(job: Job, monitor: Monitor) -> None:
    """Hugging Face Trainer with the callback."""
    from transformers import Trainer, TrainingArguments
    from transformers.utils import logging as hf_logging

    from trainbudget.huggingface import TrainBudgetCallback

    hf_logging.set_verbosity_error()
    train, held_out = data(job)
    arguments = TrainingArguments(
        str(job.output),
        per_device_train_batch_size=job.batch_size,
        max_steps=job.steps,
        logging_steps=max(10, job.steps // 8),
        eval_strategy="steps",
        eval_steps=max(20, job.steps // 3),
        save_steps=max(20, job.steps // 2),
        learning_rate=3e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=False,
        dataloader_pin_memory=False,
        seed=job.seed,
    )
    trainer = Trainer(
        model=model(job),
        args=arguments,
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=collate,
        callbacks=[TrainBudgetCallback(monitor=monitor)],
    )
    trainer.train()


def lightning(job: Job, monitor: Monitor) -> None:
    """Lightning Trainer with the callback."""
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    from trainbudget.lightning import TrainBudgetCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    train, held_out = data(job)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model(job)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch).loss

        def validation_step(self, batch: Any, index: int) -> Any:
            self.log("val_loss", self.model(**batch).loss)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def loader(examples: Any, *, shuffle: bool) -> Any:
        return DataLoader(examples, batch_size=job.batch_size, shuffle=shuffle, collate_fn=collate)

    trainer = pl.Trainer(
        max_steps=job.steps,
        val_check_interval=max(20, job.steps // 3),
        check_val_every_n_epoch=None,
        default_root_dir=str(job.output),
        accelerator="cpu",
        logger=False,
        enable_model_summary=False,
        callbacks=[TrainBudgetCallback(monitor=monitor)],
    )
    trainer.fit(Module(), loader(train, shuffle=True), loader(held_out, shuffle=False))


def loop(job: Job, monitor: Monitor) -> None:
    """A plain PyTorch loop with the context manager."""
    import torch
    from torch.utils.data import DataLoader

    train, held_out = data(job)
    network = model(job)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    loader: Any = DataLoader(_as_any(train), batch_size=job.batch_size, shuffle=True, collate_fn=collate)
    monitor.train_begin(steps_total=job.steps, batch_size=job.batch_size)
    done = 0
    while done < job.steps:
        for batch in monitor.batches(loader):
            with monitor.step(**describe_batch(batch)._asdict()):
                loss = network(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.metrics(loss=loss.item())
            done += 1
            if done % max(20, job.steps // 3) == 0:
                with monitor.phase("eval"), torch.no_grad():
                    for held in DataLoader(_as_any(held_out), batch_size=job.batch_size, collate_fn=collate):
                        network(**held)
            if done >= job.steps:
                break
    with monitor.phase("save"):
        torch.save(network.state_dict(), job.output / "model.pt")
    monitor.train_end()


def _as_any(examples: Any) -> Any:
    """A map-style data set need not be a torch `Dataset`: length and indexing are enough."""
    return examples
