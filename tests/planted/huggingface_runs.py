"""Hugging Face Trainer runs through the callback, each with one fault that the script really commits."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from planted.model import BATCH, CUDA_OUT_OF_MEMORY, VOCABULARY, Net, Rows, Texts, one_thread, padded
from trainbudget import Monitor
from trainbudget.huggingface import TrainBudgetCallback

Settings = dict[str, Any]


class StopAfter(TrainerCallback):
    """Ends training after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end = seconds, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end = time.monotonic() + self.seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() >= self.end:
            control.should_training_stop = True


def language_model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
        )
    )


def trainer(settings: Settings, seconds: float, *, model: Any, callbacks: tuple[Any, ...] = (), **more: Any) -> Trainer:
    """A Trainer on the CPU as scripts make one; what is given beyond that goes to it or to its arguments."""
    one_thread()
    own = {name: more.pop(name) for name in ("train_dataset", "eval_dataset", "data_collator") if name in more}
    arguments = {"max_steps": 100_000, "per_device_train_batch_size": 8, "logging_steps": 50, "save_strategy": "no", **more}
    return Trainer(
        model=model,
        args=TrainingArguments(output_dir=tempfile.mkdtemp(), report_to="none", use_cpu=True, disable_tqdm=True, **arguments),
        callbacks=[TrainBudgetCallback(**settings), StopAfter(seconds), *callbacks],
        **own,
    )


def finish(training: Trainer, **how: Any) -> None:
    """Train, then close the record as the end of the process would."""
    watched = next(c for c in training.callback_handler.callbacks if isinstance(c, TrainBudgetCallback))
    try:
        training.train(**how)
    finally:
        watched.monitor.close()


def healthy(settings: Settings) -> None:
    """A small language model, batches padded to their longest text, evaluation and checkpoints in decent doses."""
    finish(
        trainer(
            settings,
            75.0,
            model=language_model(),
            train_dataset=Texts(100_000, shortest=120, longest=128),
            eval_dataset=Texts(32, shortest=120, longest=128),
            data_collator=padded,
            eval_strategy="steps",
            eval_steps=100,
            save_strategy="steps",
            save_steps=100,
            save_total_limit=1,
        )
    )


def padding(settings: Settings) -> None:
    """Texts of 16 to 64 tokens, all padded to 256."""
    finish(
        trainer(
            settings,
            75.0,
            model=language_model(),
            train_dataset=Texts(100_000, shortest=16, longest=64),
            data_collator=partial(padded, to=256),
        )
    )


def broken_data(settings: Settings) -> None:
    """From the 40th batch on the data holds NaN; the Trainer's own log filters it out of the loss it prints."""
    data = Rows(1_000_000, broken_from=40 * BATCH)
    finish(
        trainer(
            settings,
            40.0,
            model=Net(),
            train_dataset=data,
            per_device_train_batch_size=BATCH,
            logging_steps=10,
            train_sampling_strategy="sequential",
        )
    )


def evaluation_too_often(settings: Settings) -> None:
    """Every ten steps the whole of an evaluation set that takes several times as long."""
    finish(
        trainer(
            settings,
            80.0,
            model=Net(),
            train_dataset=Rows(1_000_000),
            eval_dataset=Rows(60 * BATCH),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            eval_strategy="steps",
            eval_steps=10,
        )
    )


class Upload(TrainerCallback):
    """Sends each log to a server that answers after 0.6 s, and waits for it."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.6)


def slow_logging(settings: Settings) -> None:
    """A tracker that waits for its server, called every second step."""
    finish(
        trainer(
            settings,
            75.0,
            model=Net(),
            callbacks=(Upload(),),
            train_dataset=Rows(1_000_000),
            per_device_train_batch_size=BATCH,
            logging_steps=2,
        )
    )


class Narrow(Net):
    """A model for which batches above 16 rows do not fit, from its sixth step on."""

    calls = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        Narrow.calls += 1
        if len(x) > 16 and Narrow.calls > 5:
            raise torch.OutOfMemoryError(CUDA_OUT_OF_MEMORY)
        return super().forward(x, y)


def retried_out_of_memory(settings: Settings) -> None:
    """The batch does not fit; the Trainer tries again with smaller ones until it does."""
    finish(
        trainer(
            settings,
            30.0,
            model=Narrow(),
            train_dataset=Rows(1_000_000),
            per_device_train_batch_size=BATCH,
            auto_find_batch_size=True,
        )
    )


class Fails(Rows):
    """Rows whose file ends in the middle, once."""

    failed = False

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if i == 90 * 8 and not Fails.failed:
            Fails.failed = True
            raise OSError("unexpected end of file")
        return super().__getitem__(i)


def resumed(settings: Settings) -> None:
    """Training dies at step 90 of 120; the script goes on from its checkpoint of step 30 and does 60 steps again."""
    monitor = Monitor(framework="huggingface", **settings)
    training = trainer(
        {"monitor": monitor},
        1e9,
        model=Net(),
        train_dataset=Fails(100_000),
        max_steps=120,
        save_strategy="steps",
        save_steps=30,
        train_sampling_strategy="sequential",
    )
    try:
        training.train()
    except OSError:
        training.train(resume_from_checkpoint=f"{training.args.output_dir}/checkpoint-30")
    finally:
        monitor.close()


RUNS: dict[str, Callable[[Settings], None]] = {
    "huggingface_healthy": healthy,
    "huggingface_padding": padding,
    "huggingface_broken_data": broken_data,
    "huggingface_evaluation_too_often": evaluation_too_often,
    "huggingface_slow_logging": slow_logging,
    "huggingface_retried_out_of_memory": retried_out_of_memory,
    "huggingface_resumed": resumed,
}
