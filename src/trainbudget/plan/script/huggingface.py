"""Catches Hugging Face's Trainer and its subclasses at the door of the training loop: their own loss, optimizer, batches."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainbudget.plan.memory import Trace, TrainSpec, spec_of, trace_step
from trainbudget.plan.script.batches import scan
from trainbudget.plan.script.capture import Captured, Catch, WithCompanions, on_simulated_device, reshaped, shape_of
from trainbudget.plan.script.host import scratch_folder
from trainbudget.plan.script.huggingface_facts import (
    asks_for_checkpointing,
    facts_of,
    kind_of_checkpointing,
    optimizer_steps,
)
from trainbudget.plan.script.protocol import Question
from trainbudget.plan.simulated_device.cuda import Patches
from trainbudget.plan.tracing.from_config import AUTOCAST
from trainbudget.plan.tracing.optimizers import optimizer_of

#: Trainers that generate text between optimizer steps: their time and memory is mostly not the training step's.
ONLINE = ("GRPO", "PPO", "RLOO", "OnlineDPO", "XPO", "NashMD", "Reinforce", "GKD")
_COMPANIONS = ("ref_model", "teacher_model", "reward_model", "value_model")
_OWN_KERNELS = ("8bit", "4bit", "bnb", "paged", "lion", "ademamix", "apex", "32bit")


class _Sharding:
    """What the arguments said about DeepSpeed or FSDP, before it was taken out of them."""

    strategy: str | None = None


def intercept(patches: Patches, catch: Catch) -> None:
    """Replace the training loop of `transformers.Trainer`; its `train` still runs up to it."""
    import transformers

    sharding = _Sharding()
    _tame_arguments(patches, transformers.TrainingArguments, sharding, catch)
    trainer_class = transformers.Trainer
    train = trainer_class.train

    @functools.wraps(train)
    def train_without_resume(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        return train(self, None, *args, **kwargs)

    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        catch.captured = _capture(self, catch, sharding)
        return catch.stop()

    def refuse_online(init: Any) -> Any:
        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            name = next(
                (c.__name__ for c in type(self).__mro__ if c.__name__.startswith(ONLINE) and c.__name__.endswith("Trainer")), None
            )
            init(self, *args, **kwargs)
            if name is not None:
                catch.refused = (
                    f"{name} generates while it trains (online reinforcement learning): only the training step is estimated"
                )
                catch.facts = facts_of(self, catch, sharding.strategy, None)
                catch.stop()

        return checked

    patches.put(trainer_class, "__init__", refuse_online(trainer_class.__init__))
    patches.put(trainer_class, "train", train_without_resume)
    patches.put(trainer_class, "_inner_training_loop", loop)
    patches.put(trainer_class, "_move_model_to_device", lambda self, model, device: None)
    for name, answer in (("evaluate", lambda self, *a, **k: _AnyMetric()), ("save_model", lambda self, *a, **k: None)):
        patches.put(trainer_class, name, answer)


class _AnyMetric(dict[str, float]):
    """Metrics of an evaluation that did not happen."""

    def __missing__(self, key: str) -> float:
        return 1.0


def _tame_arguments(patches: Patches, arguments: Any, sharding: _Sharding, catch: Catch) -> None:
    init = arguments.__post_init__

    @functools.wraps(init)
    def post_init(self: Any) -> None:
        self.report_to, self.push_to_hub = "none", False
        self.output_dir = str(Path(scratch_folder(), "output"))
        for name in ("logging_dir", "hub_model_id", "hub_token"):
            if getattr(self, name, None) is not None:
                setattr(self, name, None)
        _take_sharding(self, sharding)
        _leave_the_cpu(self, catch)
        if hasattr(self, "torch_compile"):
            if self.torch_compile or self.torch_compile_backend or self.torch_compile_mode:
                catch.asked_to_compile()
            self.torch_compile, self.torch_compile_backend, self.torch_compile_mode = False, None, None
        init(self)

    patches.put(arguments, "__post_init__", post_init)


def _leave_the_cpu(args: Any, catch: Catch) -> None:
    """A script that asks for the CPU (a smoke test, a laptop) is planned for the card that was asked for, and told so."""
    asked = [name for name in ("use_cpu", "no_cuda", "use_mps_device") if getattr(args, name, False)]
    for name in asked:
        setattr(args, name, False)
    if asked:
        catch.note(f"the script trains on another device ({asked[0]}=True): planned as if it trained on the GPU")


def _take_sharding(args: Any, sharding: _Sharding) -> None:
    deepspeed, fsdp = getattr(args, "deepspeed", None), getattr(args, "fsdp", None)
    if deepspeed or os.environ.get("TRAINBUDGET_LAUNCHED_DEEPSPEED"):
        values = deepspeed if isinstance(deepspeed, Mapping) else _json_file(deepspeed)
        stage = int(values.get("zero_optimization", {}).get("stage", os.environ.get("TRAINBUDGET_LAUNCHED_DEEPSPEED") or 0))
        sharding.strategy = f"zero{stage}" if stage else "ddp"
        args.deepspeed = None
    if fsdp or os.environ.get("TRAINBUDGET_LAUNCHED_FSDP"):
        config = getattr(args, "fsdp_config", None)
        values = config if isinstance(config, Mapping) else _json_file(config)
        version = str(values.get("version", values.get("fsdp_version", os.environ.get("TRAINBUDGET_LAUNCHED_FSDP") or 1)))
        sharding.strategy = "fsdp2" if version == "2" else "fsdp"
        args.fsdp, args.fsdp_config = type(fsdp)() if isinstance(fsdp, (str, list)) else None, None


def _json_file(path: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(str(path)).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _capture(trainer: Any, catch: Catch, sharding: _Sharding) -> Captured:
    args = trainer.args
    loader = trainer.get_train_dataloader()
    batches = _first_batches(loader, min(2, args.gradient_accumulation_steps))
    found = scan(loader, batches[0], batches_per_step=args.gradient_accumulation_steps * catch.world_size)
    facts = facts_of(trainer, catch, sharding.strategy, found.batch)
    facts.long_batches, facts.token_ratio, facts.first_batch = found.long_batches, found.token_ratio, shape_of(batches[0])
    facts.steps = optimizer_steps(args, loader, world_size=catch.world_size, kept=min(catch.kept, default=1.0))
    facts.notes.extend(catch.notes)
    base = spec_of(facts.spec)

    def trace(question: Question) -> Trace:
        catch.host.enabled = False
        return _trace(trainer, question, found.batch if question.longest else batches[0], base)

    return Captured(facts=facts, trace=trace)


def _first_batches(loader: Any, count: int) -> list[Any]:
    iterator = iter(loader)
    batches = []
    for _ in range(max(1, count)):
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
    if not batches:
        raise ValueError("the training data set has no batch")
    return batches


def _trace(trainer: Any, question: Question, batch: Any, base: TrainSpec) -> Trace:
    args, spec = trainer.args, question.spec
    new = tuple(n if n != o else None for n, o in zip(_shape(spec), _shape(base), strict=True))
    batch = reshaped(batch, shape_of(batch), (new[0], new[1]))
    args.gradient_accumulation_steps = trainer.current_gradient_accumulation_steps = spec.gradient_accumulation
    if spec.activation_checkpointing != base.activation_checkpointing and spec.activation_checkpointing is not None:
        _checkpoint(trainer.model, spec.activation_checkpointing)
    elif asks_for_checkpointing(args):
        _checkpoint(trainer.model, kind_of_checkpointing(args))
    items = _items(trainer, batch, spec.gradient_accumulation)
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    model = trainer.accelerator.prepare_model(trainer.model, device_placement=False)
    trainer.model_wrapped = model
    companions = [m for n in _COMPANIONS if isinstance(m := getattr(trainer, n, None), torch.nn.Module)]
    takes_items = "num_items_in_batch" in inspect.signature(trainer.training_step).parameters

    def step(both: Any, inputs: Any) -> Any:
        return trainer.training_step(model, inputs, items) if takes_items else trainer.training_step(model, inputs)

    def optimizer(parameters: Any) -> Any:
        if spec.optimizer != base.optimizer or any(word in spec.optimizer for word in _OWN_KERNELS):
            return optimizer_of(spec.optimizer).build(parameters)  # a stand-in where a library brings its own CUDA kernels
        if trainer.optimizer is not None:
            return _rebound(trainer.optimizer, names, dict(trainer.model.named_parameters()))
        return trainer.create_optimizer()

    def build() -> torch.nn.Module:
        on_simulated_device(trainer.model, *companions)
        return WithCompanions(trainer.model, companions) if companions else trainer.model

    config: Any = getattr(trainer.model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return trace_step(
        model=build,
        batches=[batch],
        training_step=step,
        optimizer_factory=optimizer,
        target=question.target,
        spec=spec,
        autocast=AUTOCAST.get(spec.precision) if spec.precision != base.precision else None,
        vocabulary=getattr(text, "vocab_size", None),
    )


def _shape(spec: TrainSpec) -> tuple[int, int]:
    return spec.micro_batch, spec.sequence_length


def _rebound(optimizer: Any, names: dict[int, str], fresh: dict[str, Any]) -> Any:
    """An optimizer the script made itself, on the traced parameters instead of the ones it was made for."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    for group in optimizer.param_groups:
        group["params"] = [fresh[names[id(p)]] for p in group["params"] if id(p) in names]
    optimizer.state.clear()
    return optimizer


def _checkpoint(model: Any, kind: str) -> None:
    options = {"use_reentrant": kind == "reentrant"}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if hasattr(model, "peft_config") or getattr(model, "is_quantized", False):
        model.enable_input_require_grads()


def _items(trainer: Any, batch: Any, accumulation: int) -> int | None:
    """Label tokens of an optimizer step, which the loss is divided by; None where the trainer does not count them."""
    labels = batch.get("labels") if hasattr(batch, "get") else None
    if labels is None or not getattr(trainer, "model_accepts_loss_kwargs", False):
        return None
    return int(labels.numel()) * accumulation
