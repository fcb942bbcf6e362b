"""What a caught Hugging Face Trainer says about its run: shapes, settings, length, the longest batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from trainbudget.plan.model_config import method_of
from trainbudget.plan.script.capture import Catch, shape_of
from trainbudget.plan.script.models import BuiltModels
from trainbudget.plan.script.protocol import Facts

#: Settings whose names the suggestions use or the title shows.
_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "bf16",
    "fp16",
    "tf32",
    "max_grad_norm",
    "activation_checkpointing",
    "gradient_checkpointing",
    "per_device_eval_batch_size",
    "eval_accumulation_steps",
    "torch_compile",
    "max_length",
    "packing",
    "train_sampling_strategy",
    "group_by_length",
    "num_train_epochs",
    "max_steps",
)


def facts_of(trainer: Any, catch: Catch, strategy: str | None, batch: Any) -> Facts:
    args, model, built = trainer.args, trainer.model, catch.built
    examples, tokens = shape_of(batch) if batch is not None else (None, None)
    dtype = _model_dtype(model)
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "tf32" if args.tf32 else "fp32"
    if precision in ("fp32", "tf32") and dtype in ("bfloat16", "float16"):
        precision = "bf16_pure" if dtype == "bfloat16" else "fp16_pure"
    config: Any = getattr(model, "config", None)
    notes = [*built.notes]
    adapter = _adapter(model)
    return Facts(
        framework="huggingface",
        title=_title(model, adapter, built),
        spec={
            "micro_batch": args.per_device_train_batch_size if examples is None else examples,
            "sequence_length": tokens or _asked_length(args),
            "gradient_accumulation": args.gradient_accumulation_steps,
            "precision": precision,
            "model_dtype": dtype,
            "optimizer": getattr(args.optim, "value", str(args.optim)),
            "activation_checkpointing": kind_of_checkpointing(args) if asks_for_checkpointing(args) else None,
            "peft": adapter or ({"type": "given"} if built.quantization not in ("none", "unknown") else None),
            "quantization": built.quantization if built.quantization != "unknown" else "none",
            "strategy": strategy or ("ddp" if catch.world_size > 1 else "none"),
            "world_size": catch.world_size,
            "max_grad_norm": args.max_grad_norm or 0.0,
            "pad": not _has_padding(batch),
            "compiled": catch.compiled,
            "task": "image_classification" if tokens is None and batch is not None else "causal_lm",
        },
        settings={n: _plain(getattr(args, n)) for n in _SETTINGS if hasattr(args, n)},
        eval_steps=_interval(args, "eval"),
        eval_batches=_eval_batches(trainer),
        save_steps=_interval(args, "save"),
        model_config=config.to_dict() if hasattr(config, "to_dict") else None,
        notes=notes,
    )


def optimizer_steps(args: Any, loader: Any, *, world_size: int = 1, kept: float = 1.0) -> int | None:
    """Optimizer steps of the run; `kept` = the part of the data set that was prepared."""
    if args.max_steps and args.max_steps > 0:
        return int(args.max_steps)
    try:
        batches = len(loader)
        if kept < 1.0:
            batches = math.ceil(len(loader.dataset) / kept / args.per_device_train_batch_size)
    except TypeError:
        return None
    return math.ceil(args.num_train_epochs * max(1, math.ceil(batches / world_size / args.gradient_accumulation_steps)))


def _has_padding(batch: Any) -> bool:
    mask = batch.get("attention_mask") if hasattr(batch, "get") else None
    return isinstance(mask, torch.Tensor) and not mask.is_meta and bool((mask == 0).any())


def _asked_length(args: Any) -> int:
    """Tokens an example as the arguments bound them, for trainers that generate their own; 512 where they do not say."""
    parts = [getattr(args, n, None) for n in ("max_prompt_length", "max_completion_length")]
    known = [int(p) for p in parts if p]
    return sum(known) if known else int(getattr(args, "max_length", None) or 512)


def _interval(args: Any, which: str) -> int | None:
    strategy = getattr(args, f"{which}_strategy", getattr(args, "evaluation_strategy", "no"))
    strategy = getattr(strategy, "value", strategy)
    steps = getattr(args, f"{which}_steps", None)
    return int(steps) if strategy == "steps" and steps and steps >= 1 else None


def _eval_batches(trainer: Any) -> int | None:
    try:
        return math.ceil(len(trainer.eval_dataset) / trainer.args.per_device_eval_batch_size)
    except TypeError:
        return None


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _model_dtype(model: Any) -> str:
    kinds: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            kinds[str(parameter.dtype)[6:]] = kinds.get(str(parameter.dtype)[6:], 0) + parameter.numel()
    return max(kinds, key=lambda k: kinds[k], default="float32")


def _adapter(model: Any) -> dict[str, Any] | None:
    """Kind and rank of the adapter that trains."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return None
    config = next(iter(configs.values()))
    kind = "dora" if getattr(config, "use_dora", False) else type(config).__name__.removesuffix("Config").lower()
    return {"type": kind, "r": config.r} if isinstance(getattr(config, "r", None), int) else {"type": kind}


def _title(model: Any, adapter: dict[str, Any] | None, built: BuiltModels) -> str:
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
    return f"{Path(str(name)).name} · {method_of(adapter, built.quantization)}"


def asks_for_checkpointing(args: Any) -> bool:
    """Whether the arguments ask for activation checkpointing, by its new or its old name."""
    return bool(getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing)


def kind_of_checkpointing(args: Any) -> str:
    options = getattr(args, "activation_checkpointing_kwargs", None) or getattr(args, "gradient_checkpointing_kwargs", None) or {}
    return "reentrant" if options.get("use_reentrant") else "non_reentrant"
