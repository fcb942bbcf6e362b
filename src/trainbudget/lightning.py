"""The Lightning adapter, for `lightning.pytorch` and `pytorch_lightning` alike: hooks to `Monitor` calls, no arithmetic.

    trainer = Trainer(..., callbacks=[TrainBudgetCallback()])

Hooks as of Lightning 2.3 to 2.6. Saving has a hook at its beginning only and data waits have none: the checkpoint writer
and the epoch loop's `next` are wrapped on the trainer's own objects while the callback is attached.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from trainbudget.budget import Budget
from trainbudget.live.batch import describe_batch
from trainbudget.live.identity import Ranks
from trainbudget.live.wrapping import Around, hook, put_around
from trainbudget.monitor import Monitor
from trainbudget.sinks.tracker import tracker_values
from trainbudget.wording.status import status_line

#: Methods of tuning callbacks that train on their own account.
_SEARCHES = ("scale_batch_size", "lr_find")

#: The two distributions have unrelated base classes of the same name: ours inherits from whichever are installed.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in loaded or _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        if not loaded:
            loaded = [name]
    found = dict.fromkeys(sys.modules[name].Callback for name in _PACKAGES if name in sys.modules)
    if not found:
        raise ImportError("trainbudget.lightning needs the package lightning or pytorch-lightning: pip install lightning")
    return tuple(found)


class TrainBudgetCallback(*_bases()):  # type: ignore[misc]
    """A live budget for a Lightning run.

    Args:
        budget: what the run may cost, last and hold.
        price: for one GPU and hour, for example `"2.49 USD/h"`.
        plan: a plan file (`trainbudget plan --json`), `"auto"` (the script is planned meanwhile, in a process of low priority)
            or None.
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
        super().__init__()
        self.monitor = monitor or Monitor(framework="lightning", budget=budget, price=price, plan=plan, **settings)
        self._wrapped: list[Around] = []
        self._status_s = 0.0
        self._timed = False
        self._stopped = False
        self._global_step = 0

    # --- the run

    @hook
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        monitor = self.monitor
        if monitor.inert:
            return
        monitor.identify(name=_name_of(trainer), framework="lightning", settings=_settings_of(trainer))
        if trainer.world_size > 1:  # launchers such as ddp_spawn set no variables
            monitor.run.given_ranks = Ranks(
                rank=trainer.global_rank,
                local_rank=trainer.local_rank,
                world_size=trainer.world_size,
                local_world_size=trainer.num_devices,
            )
        monitor.start()
        self._stand_around(trainer.strategy, "save_checkpoint", phase="save")
        for callback in trainer.callbacks:  # tuners train with the callbacks taken away: no hook tells of their steps
            self._stand_around(callback, *_SEARCHES, phase="trial")

    @hook
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        monitor = self.monitor
        if monitor.wants_plan and not monitor.inert:
            trainable = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)
            monitor.plan_from(lambda: {"tables": {}, "trainable_parameters": trainable})

    @hook
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        monitor = self.monitor
        if monitor.inert:
            return
        self._stopped = False
        self._global_step = trainer.global_step
        monitor.train_begin(steps_total=_steps_total(trainer))
        if trainer.global_step:
            monitor.resume(step=trainer.global_step)
        monitor.loader_workers = getattr(trainer.train_dataloader, "num_workers", None)
        self._time_fetcher(trainer)
        monitor.model(**_model_facts(pl_module, trainer))

    @hook
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.train_end()

    @hook
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.detach()

    @hook
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.monitor.exception(exception)
        self.detach()

    @hook
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.epoch_begin(trainer.current_epoch)
        self._time_fetcher(trainer)  # loaders may be made anew each epoch

    @hook
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.epoch_end(trainer.current_epoch)

    # --- steps

    @hook
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        monitor = self.monitor
        if monitor.inert:
            return
        monitor.batch_seen(**describe_batch(batch)._asdict())
        monitor.step_begin(infer_wait=not self._timed)

    @hook
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.monitor.optimizer_begin()

    @hook
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        monitor = self.monitor
        if monitor.inert:
            return
        monitor.optimizer_end()
        if trainer.global_step == self._global_step:
            monitor.micro_step()  # gradients are still accumulating
            return
        self._global_step = trainer.global_step
        self._read_loss(outputs)
        monitor.step_end(step=trainer.global_step)
        self._tell_loggers(trainer)
        if monitor.now_s() >= self._status_s:
            self._show_status(trainer)
        if monitor.stop_requested is not None:
            self._stop(trainer)

    # --- what happens between steps

    @hook
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_begin("sanity")

    @hook
    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_end("sanity")

    @hook
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.monitor.phase_begin("eval")

    @hook
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.monitor.phase_end("eval")

    @hook
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_begin("eval")

    @hook
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_end("eval")

    @hook
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_begin("eval")

    @hook
    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.phase_end("eval")

    # --- details

    def _time_fetcher(self, trainer: Any) -> None:
        """Stand in for the loop's data fetcher: every batch comes through its `__next__`."""
        loop = trainer.fit_loop
        fetcher = getattr(loop, "_data_fetcher", None)
        if fetcher is None or self.monitor.inert or not hasattr(type(fetcher), "__next__"):
            self._timed = False
        elif type(fetcher) is not _TimedFetcher:  # isinstance is fooled by its __class__
            loop._data_fetcher = _TimedFetcher(fetcher, self.monitor)
            self._timed = True

    def _stand_around(self, owner: Any, *names: str, phase: str) -> None:
        wrapper = put_around(owner, dict.fromkeys(names, functools.partial(self._as_phase, phase)), key=self)
        if wrapper is not None:
            self._wrapped.append(wrapper)

    def _as_phase(self, phase: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.monitor.phase(phase):
            return method(*args, **kwargs)

    def _read_loss(self, outputs: Any) -> None:
        loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
        device = getattr(loss, "device", None)
        # A loss on a GPU is not read: that would wait for the device.
        if device is not None and device.type == "cpu" and loss.numel() == 1:
            self.monitor.metrics(loss=float(loss))

    def _tell_loggers(self, trainer: Any) -> None:
        report = self.monitor.report
        if report is None or not trainer.loggers or not trainer._logger_connector.should_update_logs:
            return
        values = tracker_values(report)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def _show_status(self, trainer: Any) -> None:
        self._status_s = self.monitor.now_s() + 1.0
        report = self.monitor.report
        bar: Any = getattr(trainer.progress_bar_callback, "train_progress_bar", None)
        if report is not None and hasattr(bar, "set_postfix_str"):
            bar.set_postfix_str(status_line(report), refresh=False)

    def _stop(self, trainer: Any) -> None:
        """Stop the framework's own way, once, with a checkpoint first. `min_steps` and `min_epochs` still hold."""
        if self._stopped:
            return
        self._stopped = True
        trainer.should_stop = True
        folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
        trainer.save_checkpoint(os.path.join(folder, f"trainbudget-stop-step={trainer.global_step}.ckpt"))

    @hook
    def detach(self) -> None:
        """Take the wrappers off the trainer's objects again and let go of them."""
        for wrapper in self._wrapped:
            wrapper.take_off()
        self._wrapped.clear()
        self._timed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (_fresh, (self.monitor,))


class _TimedFetcher:
    """Forwards everything to the data fetcher and times its `__next__`."""

    def __init__(self, fetcher: Any, monitor: Monitor) -> None:
        self.__dict__["_timed"] = (fetcher, monitor)

    def __iter__(self) -> _TimedFetcher:
        fetcher, monitor = self.__dict__["_timed"]
        began = monitor.now_s()
        iter(fetcher)
        monitor.data_wait(monitor.now_s() - began)
        return self

    def __next__(self) -> Any:
        fetcher, monitor = self.__dict__["_timed"]
        began = monitor.now_s()
        item = next(fetcher)
        monitor.data_wait(monitor.now_s() - began)
        return item

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_timed"][0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_timed"][0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_timed"][0], name, value)


def _fresh(monitor: Monitor) -> TrainBudgetCallback:
    return TrainBudgetCallback(monitor=monitor)


def _steps_total(trainer: Any) -> float | None:
    """Planned optimizer steps, or None where nobody knows."""
    steps = trainer.max_steps
    if steps in (-1, None):
        steps = trainer.estimated_stepping_batches
    return float(steps) if isinstance(steps, int) and steps > 0 else None


def _name_of(trainer: Any) -> str | None:
    for logger in trainer.loggers:
        name = getattr(logger, "name", None)
        if name and str(name) not in ("lightning_logs", "default"):
            return str(name)
    return None


def _settings_of(trainer: Any) -> dict[str, Any]:
    return {
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "log_every_n_steps": trainer.log_every_n_steps,
        "val_check_interval": trainer.val_check_interval,
        "check_val_every_n_epoch": trainer.check_val_every_n_epoch,
        "strategy": type(trainer.strategy).__name__,
        "devices": trainer.num_devices,
        "num_nodes": trainer.num_nodes,
    }


def _model_facts(module: Any, trainer: Any) -> dict[str, Any]:
    parameters = list(module.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    dtype = str(trainable[0].dtype).removeprefix("torch.") if trainable else None
    precision = str(trainer.precision)
    optimizers = trainer.optimizers
    return {
        "parameters": float(sum(p.numel() for p in parameters)),
        "trainable_parameters": float(sum(p.numel() for p in trainable)),
        "parameter_dtype": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype or "", dtype),
        "autocast": "bf16" if precision.startswith("bf16") else "fp16" if precision.startswith("16") else None,
        "optimizer": type(optimizers[0]).__name__ if optimizers else None,
    }


__all__ = ["Budget", "TrainBudgetCallback"]
