"""The same model, data and delays through all three ways in: the same ledger."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch.utils.data import DataLoader

from integration.adapters.small import Examples, Linear, SleepingCollator, watched
from trainbudget.live.pipeline import replay
from trainbudget.trace import read_trace

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")
from trainbudget.huggingface import TrainBudgetCallback as HuggingFace  # noqa: E402
from trainbudget.lightning import TrainBudgetCallback as Lightning  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*(num_workers|LeafSpec|treespec|isinstance).*")]

STEPS = 70
BATCH = 2


class Delays(SleepingCollator):
    """Waits and step times that vary by a seeded draw, the same for everybody."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._draw = random.Random(7)

    def __call__(self, rows):
        self.seconds = self._draw.uniform(0.02, 0.05)
        return super().__call__(rows)


def model() -> Linear:
    draw = random.Random(8)

    def work(number, size):
        time.sleep(draw.uniform(0.03, 0.07))

    return Linear(on_forward=work)


def by_huggingface(monitor, folder):
    transformers.Trainer(
        model=model(),
        args=transformers.TrainingArguments(
            str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no", logging_strategy="no", dataloader_pin_memory=False, remove_unused_columns=False,
        ),
        train_dataset=Examples(STEPS * BATCH),
        data_collator=Delays(),
        callbacks=[HuggingFace(monitor=monitor)],
    ).train()  # fmt: skip


def by_lightning(monitor, folder):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    pl.Trainer(
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", callbacks=[Lightning(monitor=monitor)],
    ).fit(Module(), DataLoader(Examples(STEPS * BATCH), batch_size=BATCH, collate_fn=Delays()))  # fmt: skip


def by_hand(monitor, folder):
    network = model()
    optimizer = torch.optim.AdamW(network.parameters())
    loader = DataLoader(Examples(STEPS * BATCH), batch_size=BATCH, collate_fn=Delays())
    monitor.train_begin(steps_total=STEPS)
    for batch in monitor.batches(loader):
        with monitor.step(samples=BATCH):
            network(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    monitor.train_end()


def ledger_of(way, folder):
    """Seconds by bucket, without the start-up, which is the framework's own."""
    monitor = watched(folder)
    way(monitor, folder / "out")
    monitor.close()
    report = replay(read_trace(monitor.directory))
    assert report.steps.done == STEPS
    return {bucket: line.gpu_seconds for bucket, line in report.ledger.items() if bucket not in ("startup", "idle")}


def test_three_ways_one_ledger(tmp_path):
    ledgers = {}
    for way in (by_huggingface, by_lightning, by_hand):
        folder = tmp_path / way.__name__
        folder.mkdir()
        ledgers[way.__name__] = ledger_of(way, folder)
    whole = {name: sum(ledger.values()) for name, ledger in ledgers.items()}
    buckets = set().union(*ledgers.values())
    assert {"compute", "data_wait"} <= buckets
    for bucket in buckets:
        shares = [ledgers[name].get(bucket, 0.0) / whole[name] for name in ledgers]
        assert max(shares) - min(shares) < 0.05, (bucket, ledgers)
    assert max(whole.values()) / min(whole.values()) < 1.10  # the frameworks' own time a step differs a little
