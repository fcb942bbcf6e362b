"""What to change so that a configuration fits, in the user's own setting names; every suggestion is predicted again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec

from trainbudget.plan.hardware import GpuSpec
from trainbudget.plan.memory import MemoryPrediction
from trainbudget.plan.step_time import StepTime
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.train_spec import TrainSpec

#: More suggestions than this are no help.
MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of settings (several settings where they belong together), with its prediction."""

    setting: str
    spec: TrainSpec
    memory: MemoryPrediction
    step: StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idea:
    names: tuple[str, ...]  # what changes, for wording
    spec: TrainSpec
    batch: bool = False  # a smaller micro-batch too: halved until it fits


Evaluate = Callable[[TrainSpec], tuple[MemoryPrediction, StepTime]]


def changes_that_fit(
    spec: TrainSpec, gpu: GpuSpec, evaluate: Evaluate, *, vocabulary: str, settings: frozenset[str] = frozenset()
) -> list[Change]:
    """The changes with which the step fits, fastest first; single ones before pairs, pairs before triples.

    Args:
        evaluate: memory and step time of a configuration.
        settings: setting names that exist in the user's installation, where that is known.
    """
    for level in (1, 2, 3, 4):
        found = [
            c
            for idea in _ideas(spec, gpu, level, vocabulary)
            if (c := _first_that_fits(idea, spec, evaluate, vocabulary, settings))
        ]
        if found:
            return sorted(found, key=lambda c: c.step.step.value)[:MOST]
    return []


def _first_that_fits(
    idea: _Idea, base: TrainSpec, evaluate: Evaluate, vocabulary: str, settings: frozenset[str]
) -> Change | None:
    for spec in _batches(idea) if idea.batch else (idea.spec,):
        try:
            memory, step = evaluate(spec)
        except TraceFailed:
            return None  # this combination cannot be run: no suggestion
        if memory.fits:
            return Change(setting=_wording(idea, spec, vocabulary, settings), spec=spec, memory=memory, step=step)
    return None


def _batches(idea: _Idea) -> Iterator[TrainSpec]:
    """Smaller micro-batches with as much more accumulation: the same optimizer step."""
    spec, micro = idea.spec, idea.spec.micro_batch // 2
    while micro >= 1:
        if spec.micro_batch % micro == 0:
            yield msgspec.structs.replace(
                spec, micro_batch=micro, gradient_accumulation=spec.gradient_accumulation * (spec.micro_batch // micro)
            )
        micro //= 2


def _ideas(spec: TrainSpec, gpu: GpuSpec, level: int, vocabulary: str) -> Iterator[_Idea]:
    """Combinations of `level` changes, each changing something and allowed in this vocabulary."""
    singles = {
        "checkpointing": _checkpoint(spec, vocabulary),
        "precision": _precision(spec, gpu),
        "optimizer": _optimizer(spec, vocabulary),
        "batch": {} if spec.micro_batch > 1 else None,
        "adapter": _adapter(spec, vocabulary),
    }
    possible = [name for name, new in singles.items() if new is not None]
    for names in combinations(possible, level):
        if {"optimizer", "adapter"} <= set(names):
            continue  # the suggested adapter's optimizer state is too small to matter
        new = {k: v for n in names for k, v in (singles[n] or {}).items()}
        yield _Idea(names=names, spec=msgspec.structs.replace(spec, **new), batch="batch" in names)


def _checkpoint(spec: TrainSpec, vocabulary: str) -> dict[str, Any] | None:
    possible = spec.activation_checkpointing is None and vocabulary != "lightning"
    return {"activation_checkpointing": "non_reentrant"} if possible else None


def _precision(spec: TrainSpec, gpu: GpuSpec) -> dict[str, Any] | None:
    if spec.precision not in ("fp32", "tf32"):
        return None
    return {"precision": "bf16"} if gpu.supports("bf16") else {"precision": "fp16"} if gpu.supports("fp16") else None


def _optimizer(spec: TrainSpec, vocabulary: str) -> dict[str, Any] | None:
    possible = vocabulary != "lightning" and spec.optimizer.startswith("adamw") and "8bit" not in spec.optimizer
    return {"optimizer": "adamw_8bit"} if possible else None


def _adapter(spec: TrainSpec, vocabulary: str) -> dict[str, Any] | None:
    """LoRA instead of all weights: another training, so only where the plan and not a script builds the model."""
    if spec.peft is not None or vocabulary not in ("flags", "plan") or spec.task == "image_classification":
        return None
    return {"peft": {"type": "lora", "r": 16, "target_modules": "all-linear"}}


def _wording(idea: _Idea, new: TrainSpec, vocabulary: str, settings: frozenset[str]) -> str:
    return ", ".join(_name(n, new, vocabulary, settings) for n in idea.names)


def _name(what: str, new: TrainSpec, vocabulary: str, settings: frozenset[str]) -> str:
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in settings else "gradient_checkpointing"
    words = {
        "huggingface": {
            "checkpointing": f"{checkpointing}=True",
            "precision": f"{new.precision}=True",
            "optimizer": f'optim="{new.optimizer}" (needs bitsandbytes)',
            "batch": f"per_device_train_batch_size={new.micro_batch}, gradient_accumulation_steps={new.gradient_accumulation}",
        },
        "lightning": {
            "precision": f'precision="{"bf16" if new.precision == "bf16" else "16"}-mixed"',
            "batch": f"batch_size={new.micro_batch} in the DataLoader, accumulate_grad_batches={new.gradient_accumulation}",
        },
        "flags": {
            "checkpointing": "--checkpointing",
            "precision": f"--precision {new.precision}",
            "optimizer": f"--optim {new.optimizer}",
            "batch": f"--batch {new.micro_batch} --accumulate {new.gradient_accumulation}",
            "adapter": "--lora 16 (trains an adapter only)",
        },
        "plan": {
            "checkpointing": "activation_checkpointing = true",
            "precision": f'precision = "{new.precision}"',
            "optimizer": f'optimizer = "{new.optimizer}"',
            "batch": f"micro_batch = {new.micro_batch}, gradient_accumulation = {new.gradient_accumulation}",
            "adapter": 'peft = {type = "lora", r = 16} (trains an adapter only)',
        },
    }
    return words[vocabulary][what]
