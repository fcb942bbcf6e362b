"""Peak GPU memory of a training step, predicted without a GPU.

    trace = trace_config(config, spec, target)            # or trace_step(...) for a user's own model and training step
    prediction = predict_memory(trace, target)

A trace holds every malloc and free of the real step, run on fake tensors; a prediction replays it through a simulator of the
caching allocator. Tracing loads torch (and transformers); predicting from a finished trace does not. Run traces in a process
of their own (:func:`trace_in_subprocess`): an operator that fails inside backward aborts the process it runs in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.memory_prediction import MemoryPrediction, predict_memory
from trainbudget.plan.memory_search import max_micro_batch, max_sequence_length
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.tracing.subprocess import trace_in_subprocess
from trainbudget.plan.tracing.trace import Category, OperatorCost, Phase, Trace, decode_trace, encode_trace
from trainbudget.plan.train_spec import EvalSpec, TargetGpu, TrainSpec, spec_of
from trainbudget.plan.uncertainty import Interval

__all__ = [
    "AllocatorOptions",
    "Category",
    "EvalSpec",
    "Interval",
    "MemoryPrediction",
    "OperatorCost",
    "Phase",
    "TargetGpu",
    "Trace",
    "TraceFailed",
    "TrainSpec",
    "decode_trace",
    "encode_trace",
    "max_micro_batch",
    "max_sequence_length",
    "predict_memory",
    "spec_of",
    "trace_config",
    "trace_in_subprocess",
    "trace_step",
]


def trace_config(model_config: Mapping[str, Any] | str | Path, spec: TrainSpec, target: TargetGpu | None = None) -> Trace:
    """The traced step of a model built from a Hugging Face configuration, in this process.

    Args:
        model_config: the configuration's values, its ``config.json``, a directory that holds one, or ``"package.module:build"``.

    Raises:
        ConfigError: the configuration cannot be read or contradicts ``spec``.
        TraceFailed: the model cannot be traced, with the reason in one line.
    """
    from trainbudget.plan.tracing.from_config import trace_config as run

    return run(model_config, spec, target or TargetGpu())


def trace_step(
    *,
    model: Any,
    batches: Sequence[Any],
    training_step: Callable[[Any, Any], Any],
    optimizer_factory: Callable[[Sequence[Any]], Any] | None,
    target: TargetGpu | None = None,
    spec: TrainSpec | None = None,
    autocast: str | None = None,
    steps: int = 2,
    vocabulary: int | None = None,
    evaluation_step: Callable[[Any, Any], Any] | None = None,
) -> Trace:
    """The traced step of a user's own model and training step, in this process.

    The model may be real (its tensors are replaced by fake ones on the simulated device; the caller's model is left changed),
    built under ``torch.device("meta")``, or a callable that builds it. User code sees a CUDA device: ``is_cuda``,
    ``device.type`` and ``torch.cuda.is_available()`` answer for the target.

    Args:
        batches: example batches (any nest of tensors); each is moved to the device as the loop would, the last one is repeated.
        training_step: ``(model, batch) -> loss``; when it calls ``backward`` itself, as Hugging Face's does, that is noticed.
        optimizer_factory: trainable parameters -> torch optimizer; None = no optimizer step.
        spec: what the trace cannot see: ``gradient_accumulation``, ``max_grad_norm``, ``loop``, ``zero_grad``, ``strategy``
            with its options, ``world_size``, ``evaluation``; and what reports name: ``micro_batch``, ``sequence_length``,
            ``precision``.
        autocast: ``float16`` or ``bfloat16`` when the caller's step does not enter autocast itself.
        vocabulary: size of the last dimension of logits, to tell them from other activations.
        evaluation_step: ``(model, batch) -> logits`` to record the forward of an evaluation too.

    Raises:
        TraceFailed: with the reason in one line.
    """
    from trainbudget.plan.tracing.step import StepSettings
    from trainbudget.plan.tracing.step import trace_step as run

    spec = spec or TrainSpec()
    settings = StepSettings(spec=spec, autocast=autocast, steps=steps, vocabulary=vocabulary)
    return run(
        model=model,
        batches=batches,
        training_step=training_step,
        optimizer_factory=optimizer_factory,
        target=target or TargetGpu(),
        settings=settings,
        evaluation_step=evaluation_step,
    )
