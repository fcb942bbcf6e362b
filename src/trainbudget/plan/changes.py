"""What to change so that a configuration fits, in the user's own setting names; every suggestion is predicted again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


Evaluate = Callable[[TrainSpec], tuple[MemoryPrediction, StepTime]]


def changes_that_fit(
    spec: TrainSpec,
    gpu: GpuSpec,
    evaluate: Evaluate,
    *,
    vocabulary: str,
    settings: frozenset[str] = frozenset(),
    largest: int | None = None,
) -> list[Change]:
    """The changes with which the step fits, fastest first; single ones before pairs, pairs before triples.

    Args:
        evaluate: memory and step time of a configuration.
        settings: setting names that exist in the user's installation, where that is known.
        largest: the largest micro-batch that fits, where it was searched.
    """
    for level in (1, 2, 3):
        found = []
        for idea in _ideas(spec, gpu, level, vocabulary, largest):
            try:
                memory, step = evaluate(idea.spec)
            except TraceFailed:
                continue  # this combination cannot be run: no suggestion
            if memory.fits:
                found.append(Change(setting=_wording(idea, spec, vocabulary, settings), spec=idea.spec, memory=memory, step=step))
        if found:
            return sorted(found, key=lambda c: c.step.step.value)[:MOST]
    return []


def _ideas(spec: TrainSpec, gpu: GpuSpec, level: int, vocabulary: str, largest: int | None) -> Iterator[_Idea]:
    """Combinations of `level` changes, each changing something and allowed in this vocabulary."""
    singles = [
        i
        for i in (_checkpoint(spec, vocabulary), _precision(spec, gpu), _optimizer(spec, vocabulary), _batch(spec, largest))
        if i
    ]
    if level == 1:
        yield from singles
        return
    for i, first in enumerate(singles):
        for j, second in enumerate(singles[i + 1 :], i + 1):
            pair = _merged(spec, first, second)
            if level == 2:
                yield pair
                continue
            for third in singles[j + 1 :]:
                yield _merged(spec, pair, third)


def _merged(base: TrainSpec, a: _Idea, b: _Idea) -> _Idea:
    new = {f: getattr(b.spec, f) for f in TrainSpec.__struct_fields__ if getattr(b.spec, f) != getattr(base, f)}
    if "micro_batch" in new:  # with another change a larger part of the batch may fit: one half is the safe step
        new["micro_batch"] = max(1, base.micro_batch // 2)
        new["gradient_accumulation"] = base.gradient_accumulation * -(-base.micro_batch // new["micro_batch"])
    return _Idea(names=(*a.names, *b.names), spec=msgspec.structs.replace(a.spec, **new))


def _checkpoint(spec: TrainSpec, vocabulary: str) -> _Idea | None:
    if spec.activation_checkpointing is not None or vocabulary == "lightning":
        return None
    return _Idea(names=("checkpointing",), spec=msgspec.structs.replace(spec, activation_checkpointing="non_reentrant"))


def _precision(spec: TrainSpec, gpu: GpuSpec) -> _Idea | None:
    if spec.precision not in ("fp32", "tf32"):
        return None
    precision = "bf16" if gpu.supports("bf16") else "fp16" if gpu.supports("fp16") else None
    return None if precision is None else _Idea(names=("precision",), spec=msgspec.structs.replace(spec, precision=precision))


def _optimizer(spec: TrainSpec, vocabulary: str) -> _Idea | None:
    if vocabulary == "lightning" or not spec.optimizer.startswith("adamw") or "8bit" in spec.optimizer:
        return None
    return _Idea(names=("optimizer",), spec=msgspec.structs.replace(spec, optimizer="adamw_8bit"))


def _batch(spec: TrainSpec, largest: int | None) -> _Idea | None:
    """A smaller micro-batch with as much more accumulation: the same optimizer step."""
    if spec.micro_batch <= 1 or largest == 0:
        return None
    limit = min(largest or spec.micro_batch // 2, spec.micro_batch - 1)
    divisors = [n for n in range(limit, 0, -1) if spec.micro_batch % n == 0]
    micro = divisors[0]
    spec = msgspec.structs.replace(
        spec, micro_batch=micro, gradient_accumulation=spec.gradient_accumulation * (spec.micro_batch // micro)
    )
    return _Idea(names=("batch",), spec=spec)


def _wording(idea: _Idea, base: TrainSpec, vocabulary: str, settings: frozenset[str]) -> str:
    return ", ".join(_name(n, idea.spec, base, vocabulary, settings) for n in idea.names)


def _name(what: str, new: TrainSpec, base: TrainSpec, vocabulary: str, settings: frozenset[str]) -> str:
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
        },
        "plan": {
            "checkpointing": "activation_checkpointing = true",
            "precision": f'precision = "{new.precision}"',
            "optimizer": f'optimizer = "{new.optimizer}"',
            "batch": f"micro_batch = {new.micro_batch}, gradient_accumulation = {new.gradient_accumulation}",
        },
    }
    return words[vocabulary][what]
