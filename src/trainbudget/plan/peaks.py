"""The peak at several lengths, each traced again at its own shape: what a longer batch to come will need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainbudget.plan.memory_prediction import MemoryPrediction, predict_memory
from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.tracer import Tracer
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.train_spec import TargetGpu, TrainSpec
from trainbudget.plan.uncertainty import Interval

#: Batches closer than this need no second trace: the allocator rounds by as much.
SAME_RATIO = 0.97
#: From this ratio on a third length is traced in between: attention without a fused kernel grows with the square.
FAR_RATIO = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePeak:
    """The peak of a step whose micro-batch has `tokens` tokens; `reserved` is what the allocator holds then, in bytes."""

    tokens: int
    reserved: Interval


def peaks_by_tokens(tracer: Tracer, spec: TrainSpec, target: TargetGpu, longest: MemoryPrediction) -> tuple[ShapePeak, ...]:
    """Peaks of the first batch, of one in between and of the longest one, shortest first; only the longest where all are alike,
    nothing where batches have no tokens.

    Args:
        spec: of the longest batch.
        longest: its prediction.
    """
    facts = tracer.facts
    if not facts.long_batches:
        return ()
    most = spec.micro_batch * spec.sequence_length
    peaks = [ShapePeak(tokens=most, reserved=longest.reserved)]
    for shape, of_longest in _others(facts, spec, most):
        try:
            trace = tracer.trace(shape, target, longest=of_longest)
        except TraceFailed:
            continue
        tokens = shape.micro_batch * shape.sequence_length if of_longest else _first_tokens(facts)
        peaks.append(ShapePeak(tokens=tokens, reserved=predict_memory(trace, target).reserved))
    return tuple(sorted(peaks, key=lambda p: p.tokens))


def _first_tokens(facts: Facts) -> int:
    examples, length = facts.first_batch
    return (examples or 0) * (length or 0)


def _others(facts: Facts, spec: TrainSpec, most: int) -> Iterator[tuple[TrainSpec, bool]]:
    """(configuration, whether it is the longest batch at another length) of the shapes to trace beside the longest."""
    first = _first_tokens(facts)
    if not 0 < first < SAME_RATIO * most:
        return
    yield spec, False
    if most >= FAR_RATIO * first:
        between = round((first * most) ** 0.5 / spec.micro_batch)
        if 0 < between < spec.sequence_length:
            yield spec.with_shape(sequence_length=between), True
