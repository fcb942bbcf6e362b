"""The Hugging Face Trainer adapter: hooks to `Monitor` calls, no arithmetic.

    trainer = Trainer(..., callbacks=[TrainBudgetCallback()])

Hooks as of transformers 4.44 to 5.x (`trainer_callback.py`). Begin and end of evaluation, saving and logging, and
exceptions, have no hooks: the Trainer's own methods are wrapped on the instance while the callback is attached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainbudget.budget import Budget
from trainbudget.engine.oom_message import is_device_oom
from trainbudget.live.batch import describe_batch
from trainbudget.live.loader import TimedLoader
from trainbudget.monitor import Monitor
from trainbudget.sinks.tracker import PREFIX, tracker_values
from trainbudget.wording.status import status_line

#: Trainer methods that are phases of their own.
_PHASE_METHODS = {"evaluate": "eval", "predict": "eval", "_save_checkpoint": "save", "log": "log"}


class TrainBudgetCallback(TrainerCallback):
    """A live budget for a Trainer run.

    Args:
        budget: what the run may cost, last and hold.
        price: for one GPU and hour, for example `"2.49 USD/h"`.
        plan: a plan file (`trainbudget plan --json`) or None.
        monitor: an existing `Monitor` to feed; else one is made from `settings` (`trainbudget.config.Settings`).

    Raises:
        ValueError: a setting is unusable. Nothing is ever raised later.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        price: str | float | None = None,
        *,
        plan: str | None = None,
        monitor: Monitor | None = None,
        **settings: Any,
    ) -> None:
        self.monitor = monitor or Monitor(framework="huggingface", budget=budget, price=price, plan=plan, **settings)
        self._wrapped: list[tuple[Any, str]] = []
        self._loader: tuple[Any, Any] | None = None
        self._bar: Any = None
        self._status_s = 0.0
        self._loss: Any = None
        self._eval_open = False
        self._exact_phases = False

    # --- the run

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._guarded(lambda: self._attach(args))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._guarded(lambda: self._begin(args, state, kwargs))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.train_end()
        self._guarded(self._release)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.epoch_begin(state.epoch)
        self._guarded(lambda: self._time_loader(kwargs.get("train_dataloader")))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._guarded(self._restore_loader)
        self.monitor.epoch_end(state.epoch)

    # --- steps

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.step_begin(infer_wait=True)

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.micro_step()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.optimizer_begin()

    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.optimizer_end()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        monitor = self.monitor
        if self._loss is not None:
            self._guarded(self._read_loss_on_host)
        monitor.step_end(step=state.global_step)
        if self._bar is not None and monitor.now_s() >= self._status_s:
            self._guarded(self._show_status)
        if monitor.stop_requested is not None:
            control.should_save = True
            control.should_training_stop = True

    # --- what happens between steps

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._guarded(lambda: self._log(logs or {}, logs))
        if not self._exact_phases:
            self.monitor.boundary()

    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases and not self._eval_open:
            self._eval_open = True
            self.monitor.phase_begin("eval")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases:
            self._eval_open = False
            self.monitor.phase_end("eval", start_s=self.monitor.boundary_s)

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        self.on_evaluate(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases:
            self.monitor.phase_end("save", start_s=self.monitor.boundary_s)

    # --- attaching to the Trainer

    def _attach(self, args: TrainingArguments) -> None:
        """Find the Trainer that calls us, wrap what has no hooks, and stand before the trackers' callbacks."""
        trainer = _calling_trainer(self)
        self.monitor.run.settings = {**_settings_of(args)}
        if self.monitor.run.name == "run":
            self.monitor.run.name = _name_of(args)
        self.monitor.start()
        if trainer is None or self._wrapped:
            return
        for method, phase in _PHASE_METHODS.items():
            self._wrap(trainer, method, functools.partial(self._as_phase, phase))
        for method in ("train", "_inner_training_loop"):
            self._wrap(trainer, method, functools.partial(self._watched, args))
        self._wrap(trainer, "training_step", self._keeping_loss)
        self._exact_phases = True
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            # Numbers for trackers must be in the logs before the trackers' callbacks see them, and out again
            # before the progress bar prints them.
            callbacks.remove(self)
            callbacks.insert(min(1, len(callbacks)), self)
            callbacks.insert(len(callbacks) - 1 if len(callbacks) > 1 else len(callbacks), _Quiet())

    def _wrap(self, trainer: Any, name: str, around: Callable[..., Any]) -> None:
        method = getattr(trainer, name, None)
        if method is None:
            return

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs)

        setattr(trainer, name, wrapped)
        self._wrapped.append((trainer, name))

    def _as_phase(self, phase: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.monitor.phase(phase):
            return method(*args, **kwargs)

    def _watched(self, arguments: TrainingArguments, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as err:
            retried = method.__name__ == "_inner_training_loop" and getattr(arguments, "auto_find_batch_size", False)
            if retried and is_device_oom(type(err).__name__, str(err)):
                self.monitor.out_of_memory(err)
            else:
                self.monitor.exception(err)
            self._guarded(self._release)
            raise

    def _keeping_loss(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = method(*args, **kwargs)
        self._loss = loss
        return loss

    # --- details

    def _begin(self, args: TrainingArguments, state: TrainerState, kwargs: dict[str, Any]) -> None:
        monitor = self.monitor
        if not self._exact_phases:
            self._attach(args)
        self._restore_loader()
        monitor.train_begin(batch_size=getattr(state, "train_batch_size", None), steps_total=state.max_steps or None)
        if state.global_step:
            monitor.resume(step=state.global_step)
        model = kwargs.get("model")
        if model is not None:
            monitor.model(**_model_facts(model, args))
        self._bar = _progress_bar_of(self)

    def _time_loader(self, loader: Any) -> None:
        """Put the timing proxy in place of accelerate's inner loader for this epoch."""
        self._restore_loader()
        inner = getattr(loader, "base_dataloader", None)
        if inner is None or isinstance(inner, TimedLoader):
            return
        monitor = self.monitor
        monitor.loader_workers = getattr(inner, "num_workers", None)
        loader.base_dataloader = TimedLoader(inner, waited=monitor.data_wait, seen=self._seen, now_s=monitor.now_s)
        self._loader = (loader, inner)

    def _restore_loader(self) -> None:
        if self._loader is not None:
            loader, inner = self._loader
            self._loader = None
            loader.base_dataloader = inner

    def _seen(self, batch: Any) -> None:
        self._guarded(lambda: self.monitor.batch_seen(**describe_batch(batch)._asdict()))

    def _read_loss_on_host(self) -> None:
        loss, self._loss = self._loss, None
        device = getattr(loss, "device", None)
        if device is not None and device.type == "cpu":
            self.monitor.metrics(loss=float(loss))
        else:
            self._loss = loss.detach()  # read when the Trainer itself has waited for the device (on_log)

    def _log(self, logs: dict[str, Any], shared: dict[str, Any] | None) -> None:
        monitor = self.monitor
        loss = self._loss
        if loss is not None and "loss" in logs:
            # The Trainer has just read its own loss from the device, so this wait is over already. Its log filter
            # replaces NaN by the running mean: only the tensor itself tells.
            self._loss = None
            monitor.metrics(loss=float(loss))
        if "grad_norm" in logs:
            monitor.metrics(grad_norm=float(logs["grad_norm"]))
        report = monitor.report
        if shared is not None and report is not None and self._exact_phases:
            shared.update(tracker_values(report))

    def _show_status(self) -> None:
        self._status_s = self.monitor.now_s() + 1.0
        report = self.monitor.report
        bar = getattr(self._bar, "training_bar", None)
        if report is not None and bar is not None:
            bar.set_postfix_str(status_line(report), refresh=False)

    def _release(self) -> None:
        """Hold nothing of the trainer once training is over, however it ended."""
        self._restore_loader()
        self._loss = self._bar = None

    def detach(self) -> None:
        """Take the wrappers off the Trainer again."""
        for trainer, name in self._wrapped:
            trainer.__dict__.pop(name, None)
        self._wrapped.clear()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as err:  # noqa: BLE001 - training comes first
            self.monitor._fault("huggingface", err)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_fresh, (self.monitor,))


class _Quiet(TrainerCallback):
    """Takes our numbers out of the logs before the console prints them."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for name in [n for n in logs or {} if n.startswith(PREFIX)]:
            (logs or {}).pop(name)


def _fresh(monitor: Monitor) -> TrainBudgetCallback:
    return TrainBudgetCallback(monitor=monitor)


def _calling_trainer(callback: TrainBudgetCallback) -> Any | None:
    """The Trainer whose handler holds this callback: the one hooks are not given."""
    import sys

    frame = sys._getframe(1)
    for _ in range(12):
        if frame.f_back is None:
            break
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if handler is not None and callback in getattr(handler, "callbacks", ()):
            return owner
    return None


def _progress_bar_of(callback: TrainBudgetCallback) -> Any | None:
    """The handler's progress callback, for the one-line status."""
    for trainer, _ in callback._wrapped[:1]:
        for other in trainer.callback_handler.callbacks:
            if hasattr(other, "training_bar"):
                return other
    return None


def _settings_of(args: TrainingArguments) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if not name.startswith("_")}


def _name_of(args: TrainingArguments) -> str:
    run_name, output = getattr(args, "run_name", None), getattr(args, "output_dir", None)
    if run_name and run_name != output:
        return str(run_name)
    return str(output).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1] if output else "run"


def _model_facts(model: Any, args: TrainingArguments) -> dict[str, Any]:
    total = trainable = 0
    dtype = None
    for parameter in model.parameters():
        total += parameter.numel()
        if parameter.requires_grad:
            trainable += parameter.numel()
            dtype = dtype or str(parameter.dtype).removeprefix("torch.")
    autocast = "bf16" if getattr(args, "bf16", False) else "fp16" if getattr(args, "fp16", False) else None
    return {
        "parameters": float(total),
        "trainable_parameters": float(trainable),
        "parameter_dtype": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype or "", dtype),
        "autocast": autocast,
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "compiled": bool(getattr(args, "torch_compile", False)),
        "optimizer": str(getattr(getattr(args, "optim", None), "value", getattr(args, "optim", None))),
    }


__all__ = ["Budget", "TrainBudgetCallback"]
