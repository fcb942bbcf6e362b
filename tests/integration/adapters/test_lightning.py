"""The Lightning callback on real trainings of a few steps: what it measures against what is known to be true."""

from __future__ import annotations

import copy
import pickle
import time

import pytest
import torch
from torch.utils.data import DataLoader

from integration.adapters.small import (
    Examples,
    Linear,
    SleepingCollator,
    count_of,
    facts_of,
    is_the_wait,
    moments,
    phases,
    seconds,
    steps,
    total,
    watched,
)
from trainbudget.live.pipeline import replay
from trainbudget.trace import read_trace

pl = pytest.importorskip("lightning.pytorch")
from trainbudget.lightning import TrainBudgetCallback, _TimedFetcher  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*(num_workers|logging interval|val_dataloader|training batches|`Trainer.fit`).*"),
    pytest.mark.filterwarnings("ignore:.*(LeafSpec|treespec|isinstance|resuming from a checkpoint).*"),
]


class Module(pl.LightningModule):
    def __init__(self, model=None, collator=None, batch_size=2):
        super().__init__()
        self.model = model or Linear()
        self.collator = collator or SleepingCollator(0.0)
        self.batch_size = batch_size
        self.losses = []

    def training_step(self, batch, index):
        loss = self.model(**batch)["loss"]
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, index):
        self.model(**batch)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return DataLoader(Examples(24), batch_size=self.batch_size, collate_fn=self.collator)

    def val_dataloader(self):
        return DataLoader(Examples(8), batch_size=4, collate_fn=SleepingCollator(0.0))

    test_dataloader = val_dataloader


def trainer_of(folder, monitor, *, callbacks=(), **arguments):
    defaults = {
        "max_steps": 6,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "accelerator": "cpu",
        "default_root_dir": str(folder),
    }
    given = [*callbacks, TrainBudgetCallback(monitor=monitor)] if monitor is not None else list(callbacks)
    return pl.Trainer(**defaults | arguments, callbacks=given)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_data_wait_is_what_the_collator_took(tmp_path, accumulation):
    monitor, collator = watched(tmp_path), SleepingCollator(0.03)
    trainer_of(tmp_path, monitor, accumulate_grad_batches=accumulation, max_steps=-1, max_epochs=2).fit(Module(collator=collator))
    facts = facts_of(monitor)
    assert count_of(facts) == 24 // accumulation
    assert total(facts, "samples") == 48
    assert is_the_wait(total(facts, "data_wait_s"), collator.slept_s)
    assert total(facts, "micro_steps") == (24 if accumulation > 1 else 0)  # absent where there are none


def test_loaders_that_are_made_anew_each_epoch_are_timed_too(tmp_path):
    monitor, collator = watched(tmp_path), SleepingCollator(0.02)
    trainer = trainer_of(tmp_path, monitor, max_steps=-1, max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Module(collator=collator))
    facts = facts_of(monitor)
    assert len(moments(facts, "epoch_begin")) == 3
    assert is_the_wait(total(facts, "data_wait_s"), collator.slept_s)


def test_sanity_validation_and_saving_have_their_own_time(tmp_path):
    monitor = watched(tmp_path)
    checkpoint = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "ckpt", every_n_train_steps=3, save_top_k=-1)
    trainer = trainer_of(
        tmp_path, monitor, callbacks=[checkpoint], enable_checkpointing=True, num_sanity_val_steps=2, limit_val_batches=2,
        val_check_interval=3,
    )  # fmt: skip
    write = trainer.strategy.checkpoint_io.save_checkpoint

    def slowly(*args, **kwargs):
        time.sleep(0.1)
        return write(*args, **kwargs)

    trainer.strategy.checkpoint_io.save_checkpoint = slowly
    trainer.fit(Module(model=Linear(eval_delay_s=0.05)))
    facts = facts_of(monitor)
    assert len(phases(facts, "sanity")) == 1
    assert len(phases(facts, "eval")) == 2
    assert len(phases(facts, "save")) == 2
    assert 4 * 0.05 <= seconds(facts, "eval") < 4 * 0.05 + 0.3
    assert 2 * 0.1 <= seconds(facts, "save") < 2 * 0.1 + 0.5
    assert total(facts, "data_wait_s") < 0.15


def test_validation_and_test_outside_training(tmp_path):
    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, limit_val_batches=1)
    trainer.validate(Module(), verbose=False)
    trainer.fit(Module())
    trainer.test(Module(), verbose=False)
    facts = facts_of(monitor)
    assert len(phases(facts, "eval")) >= 2
    assert count_of(facts) == 6
    assert monitor.report.outcome == "finished"


def test_tuning_is_a_trial_and_its_steps_are_not_ours(tmp_path):
    monitor = watched(tmp_path)
    finder = pl.callbacks.BatchSizeFinder(mode="power", steps_per_trial=1, init_val=2, max_trials=2)
    trainer_of(tmp_path, monitor, callbacks=[finder], max_steps=3).fit(Module())
    facts = facts_of(monitor)
    assert len(phases(facts, "trial")) == 1
    assert count_of(facts) == 3
    assert monitor.report.outcome == "finished"
    assert type(finder) is pl.callbacks.BatchSizeFinder


@pytest.mark.parametrize(
    ("error", "raised", "word", "event"),
    [(ValueError("mine"), ValueError, "failed", "exception"), (KeyboardInterrupt(), SystemExit, "interrupted", "interrupt")],
)
def test_an_error_ends_the_training_and_comes_out(tmp_path, error, raised, word, event):
    import signal

    def fail(number, size):
        if number == 3:
            raise error

    handler = signal.getsignal(signal.SIGINT)
    monitor = watched(tmp_path)
    try:
        with pytest.raises(raised):
            trainer_of(tmp_path, monitor).fit(Module(model=Linear(on_forward=fail)))
    finally:
        signal.signal(signal.SIGINT, handler)
    facts = facts_of(monitor)
    assert [m.event for m in moments(facts)][-1] == event
    assert count_of(facts) == 2
    assert monitor.report.outcome == word


def test_two_trainings_in_one_process(tmp_path):
    monitor = watched(tmp_path)
    for _ in range(2):
        trainer_of(tmp_path, monitor, max_steps=3).fit(Module())
    facts = facts_of(monitor)
    assert [m.event for m in moments(facts, "train_begin", "train_end")] == ["train_begin", "train_end"] * 2
    assert count_of(facts) == 6


def test_resume_continues_the_numbers(tmp_path):
    first = trainer_of(tmp_path, None, max_steps=4)
    module = Module()
    first.fit(module)
    first.save_checkpoint(tmp_path / "four.ckpt")
    monitor = watched(tmp_path)
    trainer_of(tmp_path, monitor, max_steps=8).fit(Module(), ckpt_path=tmp_path / "four.ckpt")
    facts = facts_of(monitor)
    assert [m.detail["step"] for m in moments(facts, "resume")] == [4]
    assert steps(facts)[-1].step == 8
    assert count_of(facts) == 4


def test_stop_on_exceeded_budget_with_a_checkpoint(tmp_path):
    monitor = watched(tmp_path, budget={"run_time_s": 0.5}, on_exceed="stop")
    trainer = trainer_of(tmp_path, monitor, max_steps=2000)
    trainer.fit(Module(model=Linear(delay_s=0.02)))
    facts = facts_of(monitor)
    done = steps(facts)[-1].step
    assert done < 2000
    saved = torch.load(tmp_path / f"trainbudget-stop-step={done}.ckpt", weights_only=False)
    assert saved["global_step"] == done
    assert len(phases(facts, "save")) == 1
    assert monitor.report.outcome == "stopped"


def test_losses_are_the_modules_own(tmp_path):
    monitor = watched(tmp_path)
    module = Module(model=Linear(delay_s=0.11))
    trainer_of(tmp_path, monitor, max_steps=4).fit(module)
    assert [s.loss for s in steps(facts_of(monitor))] == pytest.approx(module.losses)


def test_loggers_get_our_numbers(tmp_path):
    class Logger(pl.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.seen = {}

        def log_metrics(self, metrics, step=None):
            self.seen.update(metrics)

    logger, monitor = Logger(), watched(tmp_path)
    trainer_of(tmp_path, monitor, logger=logger, log_every_n_steps=1, max_steps=6).fit(Module(model=Linear(delay_s=0.1)))
    monitor.close()
    assert {"trainbudget/cost", "trainbudget/findings_active"} <= logger.seen.keys()


def test_the_header_tells_framework_and_settings(tmp_path):
    monitor = watched(tmp_path)
    trainer_of(tmp_path, monitor, max_steps=2).fit(Module())
    header = facts_of(monitor)[0]
    assert header.framework == "lightning"
    assert header.settings["precision"] == "32-true"
    assert header.settings["max_steps"] == 2


def test_everything_is_as_it_was_afterwards(tmp_path):
    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, max_steps=2)
    kind = type(trainer.strategy)
    during = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            during.append((type(trainer.fit_loop._data_fetcher), type(trainer.strategy) is kind))

    trainer.callbacks.append(Look())
    trainer.fit(Module())
    assert during == [(_TimedFetcher, False)] * 2
    assert type(trainer.strategy) is kind
    assert trainer.fit_loop._data_fetcher is None
    monitor.close()


def test_copies_and_switched_off(tmp_path):
    monitor = watched(tmp_path, disabled=True)
    callback = TrainBudgetCallback(monitor=monitor)
    for twin in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert twin.monitor is not monitor
    trainer_of(tmp_path, monitor, max_steps=2).fit(Module())
    assert not (tmp_path / "run").exists()


def test_the_replay_of_the_record_says_what_the_live_run_said(tmp_path):
    monitor = watched(tmp_path, budget={"step_time_s": 0.001, "memory_peak": "1 GiB"})
    trainer_of(tmp_path, monitor, max_steps=60).fit(Module(collator=SleepingCollator(0.004)))
    monitor.close()
    live, again = monitor.report, replay(read_trace(monitor.directory))
    assert again.ledger == live.ledger
    assert again.findings == live.findings
    assert live.findings
