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
from trainbudget.live.batch import BatchFacts, describe_batch
from trainbudget.live.first_length import FirstLength
from trainbudget.live.loader import TimedLoader
from trainbudget.live.wrapping import Around, hook, put_around
from trainbudget.monitor import Monitor
from trainbudget.sinks.tracker import PREFIX, tracker_values
from trainbudget.wording.status import status_line

#: Trainer methods that are phases of their own.
_PHASE_METHODS = {"evaluate": "eval", "predict": "eval", "_save_checkpoint": "save", "log": "log"}

#: Callbacks of transformers that print the logs.
_PRINTERS = ("PrinterCallback", "ProgressCallback", "NotebookProgressCallback")


class TrainBudgetCallback(TrainerCallback):
    """A live budget for a Trainer run.

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
        self.monitor = monitor or Monitor(framework="huggingface", budget=budget, price=price, plan=plan, **settings)
        self._wrapped: list[Around] = []
        self._loader: tuple[Any, Any] | None = None
        self._bar: Any = None
        self._status_s = 0.0
        self._loss: Any = None
        self._eval_open = False
        self._exact_phases = False
        self._inside: set[str] = set()
        self._length = FirstLength()
        self._batch_size: int | None = None

    # --- the run

    @hook
    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._attach(args)

    @hook
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        monitor = self.monitor
        self._attach(args)
        self._restore_loader()
        batch_size = getattr(state, "train_batch_size", None)
        if self._batch_size not in (None, batch_size):
            monitor.forget_plan()  # `auto_find_batch_size` begins again with a smaller one
        self._batch_size = batch_size
        monitor.train_begin(batch_size=batch_size, steps_total=state.max_steps or None)
        if state.global_step:
            monitor.resume(step=state.global_step)
        model = kwargs.get("model")
        if model is not None and not monitor.inert:
            facts = _model_facts(model, args)
            monitor.model(**facts)
            if monitor.wants_plan:
                monitor.plan_from(functools.partial(_plan_request, model, args, facts["trainable_parameters"], self._length))

    @hook
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.train_end()
        self._release()

    @hook
    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.epoch_begin(state.epoch)
        self._time_loader(kwargs.get("train_dataloader"))

    @hook
    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._restore_loader()
        self.monitor.epoch_end(state.epoch)

    # --- steps

    @hook
    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.step_begin(infer_wait=True)

    @hook
    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.micro_step()

    @hook
    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.optimizer_begin()

    @hook
    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.monitor.optimizer_end()

    @hook
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        monitor = self.monitor
        if self._loss is not None:
            self._read_loss_on_host()
        monitor.step_end(step=state.global_step)
        if self._bar is not None and monitor.now_s() >= self._status_s:
            self._show_status()
        if monitor.stop_requested is not None:
            control.should_save = True
            control.should_training_stop = True

    # --- what happens between steps

    @hook
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._log(logs)
        if not self._exact_phases:
            self.monitor.boundary()

    @hook
    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases and not self._eval_open:
            self._eval_open = True
            self.monitor.phase_begin("eval")

    @hook
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases:
            self._eval_open = False
            self.monitor.phase_end("eval", start_s=self.monitor.boundary_s)

    on_predict = on_evaluate  # type: ignore[assignment]

    @hook
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._exact_phases:
            self.monitor.phase_end("save", start_s=self.monitor.boundary_s)

    # --- attaching to the Trainer

    def _attach(self, args: TrainingArguments) -> None:
        """Find the Trainer that calls us, wrap what has no hooks, and stand before the trackers' callbacks."""
        if self.monitor.inert:
            return
        self.monitor.identify(name=_name_of(args), framework="huggingface", settings=_settings_of(args))
        self.monitor.start()
        trainer = _calling_trainer(self)
        self._exact_phases = False
        if trainer is None:
            return
        self._wrapped = [wrapper for wrapper in self._wrapped if wrapper.owned]
        around: dict[str, Callable[..., Any]] = {
            "train": functools.partial(self._watched, args, "train"),
            "_inner_training_loop": functools.partial(self._watched, args, "_inner_training_loop"),
            "training_step": functools.partial(self._keeping_loss, args),
            "get_batch_samples": self._as_wait,
            **{method: functools.partial(self._as_phase, phase) for method, phase in _PHASE_METHODS.items()},
        }
        wrapper = put_around(trainer, around, key=self)
        if wrapper is not None:
            self._wrapped.append(wrapper)
        self._exact_phases = True
        self._find_a_place(trainer.callback_handler)

    def _find_a_place(self, handler: Any) -> None:
        """Numbers for trackers must be in the logs before the trackers' callbacks see them, and out of them while the
        console prints them. A new list: the handler may be in the middle of the old one."""
        others = [c for c in handler.callbacks if c is not self and not isinstance(c, (_Quiet, _Loud))]
        placed: list[Any] = []
        for callback in others:
            if any(base.__name__ in _PRINTERS for base in type(callback).__mro__):
                quiet = _Quiet()
                placed += [quiet, callback, _Loud(quiet)]
            else:
                placed.append(callback)
        placed.insert(min(1, len(placed)), self)  # after the default one, which decides the flow
        handler.callbacks = placed
        self._bar = next((c for c in others if hasattr(c, "training_bar")), None)

    def _as_phase(self, phase: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if phase in self._inside:  # evaluation on several sets calls itself
            return method(*args, **kwargs)
        self._inside.add(phase)
        try:
            with self.monitor.phase(phase):
                return method(*args, **kwargs)
        finally:
            self._inside.discard(phase)

    def _watched(self, arguments: TrainingArguments, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as err:
            self._failed(err, arguments, retried=name == "_inner_training_loop")
            raise

    def _keeping_loss(self, arguments: TrainingArguments, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            loss = method(*args, **kwargs)
        except BaseException as err:
            # Told here too: with a callback that was added in the middle, nobody stands around the loop.
            self._failed(err, arguments, retried=True)
            raise
        self._loss = loss
        return loss

    @hook
    def _failed(self, err: BaseException, arguments: TrainingArguments, *, retried: bool) -> None:
        """An error on its way out of the Trainer; with `auto_find_batch_size` it goes on after one of memory."""
        if retried and getattr(arguments, "auto_find_batch_size", False) and is_device_oom(type(err).__name__, str(err)):
            self.monitor.out_of_memory(err)
        else:
            self.monitor.exception(err)
        self._release()

    def _as_wait(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The fetch of a step's batches, for loaders that the proxy does not stand in (those that skip after a resume)."""
        monitor = self.monitor
        before, began = monitor.waited_s, monitor.now_s()
        result = method(*args, **kwargs)
        if monitor.waited_s == before:
            monitor.data_wait(monitor.now_s() - began)
        return result

    # --- details

    def _time_loader(self, loader: Any) -> None:
        """Put the timing proxy in place of accelerate's inner loader for this epoch."""
        self._restore_loader()
        inner = getattr(loader, "base_dataloader", None)
        monitor = self.monitor
        if inner is None or monitor.inert:
            return
        monitor.loader_workers = getattr(inner, "num_workers", None)
        # accelerate fetches one batch ahead, to know the last one.
        loader.base_dataloader = TimedLoader(
            inner, waited=monitor.data_wait, describe=self._describe, seen=self._seen, now_s=monitor.now_s, ahead=1
        )
        self._loader = (loader, inner)

    def _restore_loader(self) -> None:
        if self._loader is not None:
            loader, inner = self._loader
            self._loader = None
            loader.base_dataloader = inner

    @hook
    def _describe(self, batch: Any) -> BatchFacts:
        return describe_batch(batch)

    @hook
    def _seen(self, facts: BatchFacts | None) -> None:
        if facts is None:
            return
        self.monitor.batch_seen(**facts._asdict())
        if not self._length.known:
            self._length.tell(facts.max_sequence_tokens)

    def _read_loss_on_host(self) -> None:
        loss, self._loss = self._loss, None
        device = getattr(loss, "device", None)
        if device is not None and device.type == "cpu":
            self.monitor.metrics(loss=float(loss))
        else:
            self._loss = loss.detach()  # read when the Trainer itself has waited for the device (on_log)

    def _log(self, logs: dict[str, Any] | None) -> None:
        monitor = self.monitor
        logs = {} if logs is None else logs
        loss = self._loss
        if loss is not None and "loss" in logs:
            # The Trainer has just read its own loss from the device, so this wait is over already. Its log filter
            # replaces NaN by the running mean: only the tensor itself tells.
            self._loss = None
            monitor.metrics(loss=float(loss))
        if "grad_norm" in logs:
            monitor.metrics(grad_norm=float(logs["grad_norm"]))
        report = monitor.report
        if report is not None and self._exact_phases:
            logs.update(tracker_values(report))

    def _show_status(self) -> None:
        self._status_s = self.monitor.now_s() + 1.0
        report = self.monitor.report
        bar = getattr(self._bar, "training_bar", None)
        if report is not None and bar is not None:
            bar.set_postfix_str(status_line(report), refresh=False)

    def _release(self) -> None:
        """Hold nothing of the trainer once training is over, however it ended."""
        self._restore_loader()
        self._loss = None
        self._length.tell(None)  # nobody waits for a batch any more

    @hook
    def detach(self) -> None:
        """Take the wrappers off the Trainer again."""
        for wrapper in self._wrapped:
            wrapper.take_off()
        self._wrapped.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_fresh, (self.monitor,))


class _Quiet(TrainerCallback):
    """Takes our numbers out of the logs before the console prints them."""

    def __init__(self) -> None:
        self.taken: dict[str, Any] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.taken = {}
        if isinstance(logs, dict):
            self.taken = {name: logs.pop(name) for name in list(logs) if name.startswith(PREFIX)}


class _Loud(TrainerCallback):
    """Puts them back for whoever comes after the console."""

    def __init__(self, quiet: _Quiet) -> None:
        self._quiet = quiet

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if isinstance(logs, dict):
            logs.update(self._quiet.taken)
        self._quiet.taken = {}


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


def _settings_of(args: TrainingArguments) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if not name.startswith("_")}


def _name_of(args: TrainingArguments) -> str | None:
    run_name, output = getattr(args, "run_name", None), getattr(args, "output_dir", None)
    if run_name and run_name != output:
        return str(run_name)
    return str(output).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1] if output else None


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
        "vocab_size": getattr(getattr(model, "config", None), "vocab_size", None),
        "optimizer": str(getattr(getattr(args, "optim", None), "value", getattr(args, "optim", None))),
    }


def _plan_request(model: Any, args: TrainingArguments, trainable: float, length: FirstLength) -> dict[str, Any]:
    """What `AutoPlan.start` asks for: where the script cannot be planned again, the run is described. Off the training thread."""
    config = getattr(model, "config", None)
    known = bool(getattr(config, "model_type", None))
    return {
        "tables": plan_tables(model, args),
        "config": config.to_dict() if config is not None and known else None,
        "sequence_length": length.wait,
        "trainable_parameters": int(trainable),
    }


def plan_tables(model: Any, args: TrainingArguments) -> dict[str, dict[str, Any]]:
    """The run as the tables of a plan file (`docs/plan.md`), from what the Trainer was given, but for the sequence length."""
    adapter = next(iter(getattr(model, "peft_config", {}).values()), None)
    precision = "bf16" if getattr(args, "bf16", False) else "fp16" if getattr(args, "fp16", False) else None
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
    pure = {"bfloat16": "bf16_pure", "float16": "fp16_pure"}.get(dtype)
    train = {
        "micro_batch": args.per_device_train_batch_size,
        "gradient_accumulation": args.gradient_accumulation_steps,
        "precision": (pure if adapter is None else None) or precision or "fp32",
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "activation_checkpointing": bool(getattr(model, "is_gradient_checkpointing", False)),
        "steps": args.max_steps if args.max_steps > 0 else None,
        "max_grad_norm": args.max_grad_norm,
    }
    if adapter is not None:
        targets = getattr(adapter, "target_modules", None)
        peft = {
            "type": str(getattr(adapter.peft_type, "value", adapter.peft_type)).lower(),
            "r": getattr(adapter, "r", None),
            "target_modules": sorted(targets) if isinstance(targets, (set, list, tuple)) else None,
        }
        train["peft"] = {name: value for name, value in peft.items() if value is not None}
    return {"train": train, "parallel": {"world_size": args.world_size}}


__all__ = ["Budget", "TrainBudgetCallback"]
