"""Catches Lightning's `Trainer.fit` at its door: the module's own `training_step`, `configure_optimizers` and first batch."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from trainbudget.plan.memory import Trace, TrainSpec, spec_of, trace_step
from trainbudget.plan.script.batches import scan
from trainbudget.plan.script.capture import Captured, Catch, on_simulated_device, reshaped, shape_of
from trainbudget.plan.script.protocol import Facts, Question
from trainbudget.plan.simulated_device.cuda import Patches
from trainbudget.plan.tracing.from_config import AUTOCAST, PURE

_PRECISION = {"32": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16", "16-true": "fp16_pure", "bf16-true": "bf16_pure"}
_STRATEGY = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "deepspeed_stage_1": "zero1",
    "deepspeed_stage_2": "zero2",
    "deepspeed_stage_3": "zero3",
}


def intercept(patches: Patches, catch: Catch) -> None:
    """Replace `fit` of whichever of `lightning` and `pytorch_lightning` is installed."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            trainer_class = importlib.import_module(package).Trainer
        except ImportError:
            continue
        _intercept_class(patches, trainer_class, catch)


def _intercept_class(patches: Patches, trainer_class: Any, catch: Catch) -> None:
    init = trainer_class.__init__

    def tamed(self: Any, *args: Any, **kwargs: Any) -> None:
        # One process on the host: what was asked for is remembered, launching and logging are not done.
        self._trainbudget_asked = dict(kwargs)
        kwargs.update(accelerator="cpu", devices=1, strategy="auto", num_nodes=1, logger=False, precision="32-true")
        kwargs.update(
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, profiler=None, plugins=None
        )
        kwargs["callbacks"] = [c for c in kwargs.get("callbacks") or [] if "Checkpoint" not in type(c).__name__]
        kwargs["sync_batchnorm"] = False
        init(self, *args, **kwargs)

    def fit(
        self: Any, model: Any, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None, **_: Any
    ) -> None:
        catch.captured = _capture(self, model, train_dataloaders, datamodule, catch)
        catch.stop()

    patches.put(trainer_class, "__init__", tamed)
    patches.put(trainer_class, "fit", fit)
    for name in ("validate", "test", "predict"):
        patches.put(trainer_class, name, lambda self, *args, **kwargs: [])
    patches.put(
        trainer_class, "estimated_stepping_batches", property(lambda self: getattr(self, "_trainbudget_steps", None) or 1000)
    )


def _capture(trainer: Any, module: Any, loaders: Any, datamodule: Any, catch: Catch) -> Captured:
    if datamodule is None and hasattr(loaders, "train_dataloader"):
        loaders, datamodule = None, loaders
    if not module.automatic_optimization:
        catch.refused = "manual optimization (automatic_optimization=False): the step is the script's own and cannot be traced"
        catch.stop()
    loader = _train_loader(trainer, module, loaders, datamodule, catch.prepare_data)
    first = next(iter(loader))
    accumulation = int(trainer._trainbudget_asked.get("accumulate_grad_batches") or 1)
    found = scan(loader, first, batches_per_step=accumulation * _ranks(trainer._trainbudget_asked, catch))
    facts = _facts(trainer, module, found.batch, loader, catch)
    facts.long_batches, facts.token_ratio, facts.first_batch = found.long_batches, found.token_ratio, shape_of(first)
    trainer._trainbudget_steps = facts.steps
    facts.notes.extend(catch.notes)
    base = spec_of(facts.spec)

    def trace(question: Question) -> Trace:
        catch.host.enabled = False
        return _trace(module, question, found.batch if question.longest else first, base)

    return Captured(facts=facts, trace=trace)


def _train_loader(trainer: Any, module: Any, loaders: Any, datamodule: Any, prepare: bool) -> Any:
    """The loader, after the hooks that Lightning runs before it asks for one."""
    sources = [s for s in (datamodule, module) if s is not None]
    for source in sources:
        source.trainer = trainer
        if prepare:
            source.prepare_data()
        source.setup("fit")
    module.configure_model()
    if loaders is None:
        loaders = sources[0].train_dataloader()
    while isinstance(loaders, (dict, list, tuple)):  # several loaders at once: the first stands for all
        loaders = next(iter(loaders.values())) if isinstance(loaders, dict) else loaders[0]
    return loaders


def _facts(trainer: Any, module: Any, batch: Any, loader: Any, catch: Catch) -> Facts:
    asked = trainer._trainbudget_asked
    examples, tokens = shape_of(batch)
    precision = _PRECISION.get(str(asked.get("precision") or "32"), "fp32")
    count = _ranks(asked, catch)
    strategy = asked.get("strategy") or "auto"
    name = strategy if isinstance(strategy, str) else type(strategy).__name__.removesuffix("Strategy").lower()
    accumulation = int(asked.get("accumulate_grad_batches") or 1)
    steps = int(asked["max_steps"]) if (asked.get("max_steps") or -1) > 0 else None
    if steps is None:
        try:
            epochs = asked.get("max_epochs") or 1000  # Lightning's own default
            steps = math.ceil(len(loader) / count / accumulation) * epochs
        except TypeError:
            steps = None
    notes = list(catch.built.notes)
    if asked.get("accelerator") in ("cpu", "mps"):
        notes.append(f"the script trains on another device (accelerator={asked['accelerator']!r}): planned as if on the GPU")
    if not isinstance(strategy, str):
        notes.append(f"options of {type(strategy).__name__} are not read")
    return Facts(
        framework="lightning",
        title=f"{type(module).__name__} · Lightning",
        spec={
            "micro_batch": examples or 1,
            "sequence_length": tokens or 1,
            "gradient_accumulation": accumulation,
            "precision": precision,
            "optimizer": "configure_optimizers",
            "strategy": next((v for k, v in _STRATEGY.items() if name.startswith(k)), "ddp") if count > 1 else "none",
            "world_size": count,
            "max_grad_norm": asked.get("gradient_clip_val") or 0.0,
            "loop": "trainer",
            "task": "image_classification" if tokens is None else "causal_lm",
            "compiled": catch.compiled,
        },
        settings={k: v for k, v in asked.items() if isinstance(v, (int, float, str, bool))},
        steps=steps,
        notes=notes,
    )


def _ranks(asked: dict[str, Any], catch: Catch) -> int:
    """Processes that share the data, as the trainer or a launcher says."""
    devices = asked.get("devices")
    count = devices if isinstance(devices, int) and devices > 0 else len(devices) if isinstance(devices, (list, tuple)) else 1
    return max(count * int(asked.get("num_nodes") or 1), catch.world_size)


def _trace(module: Any, question: Question, batch: Any, base: TrainSpec) -> Trace:
    spec = question.spec
    batch = reshaped(
        batch,
        shape_of(batch),
        (
            spec.micro_batch if spec.micro_batch != base.micro_batch else None,
            spec.sequence_length if spec.sequence_length != base.sequence_length else None,
        ),
    )
    for name in ("log", "log_dict"):
        object.__setattr__(module, name, lambda *args, **kwargs: None)
    if spec.precision in PURE:
        dtype = getattr(torch, PURE[spec.precision])
        module.to(dtype)
        batch = torch.utils._pytree.tree_map(
            lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, batch
        )
    module.train()
    two = _takes_index(module.training_step)

    def step(model: Any, inputs: Any) -> Any:
        model.train()
        out = model.training_step(inputs, 0) if two else model.training_step(inputs)
        return out["loss"] if isinstance(out, dict) else out

    def optimizer(parameters: Any) -> Any:
        return _first_optimizer(module.configure_optimizers())

    def build() -> torch.nn.Module:
        on_simulated_device(module)
        return module  # type: ignore[no-any-return]

    config = getattr(getattr(module, "model", None), "config", None)
    return trace_step(
        model=build,
        batches=[batch],
        training_step=step,
        optimizer_factory=optimizer,
        target=question.target,
        spec=spec,
        autocast=AUTOCAST.get(spec.precision),
        vocabulary=getattr(config, "vocab_size", None),
    )


def _takes_index(step: Any) -> bool:
    import inspect

    return len(inspect.signature(step).parameters) > 1


def _first_optimizer(answer: Any) -> Any:
    """Of everything `configure_optimizers` may return, the optimizer."""
    if isinstance(answer, dict):
        return answer["optimizer"]
    if isinstance(answer, (list, tuple)):
        first = answer[0]
        return _first_optimizer(first[0] if isinstance(first, (list, tuple)) else first)
    return answer
