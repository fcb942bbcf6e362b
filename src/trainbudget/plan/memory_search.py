"""The largest batch and the longest sequence that fit, from few traces."""

from __future__ import annotations

from collections.abc import Callable

from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.memory_prediction import MemoryPrediction, predict_memory
from trainbudget.plan.tracing.trace import Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

TraceFunction = Callable[[TrainSpec], Trace]
MAX_TRACES = 8
MAX_BATCH = 65536
MAX_LENGTH = 1 << 21


def max_micro_batch(
    trace_of: TraceFunction,
    spec: TrainSpec,
    target: TargetGpu,
    *,
    allocator_options: AllocatorOptions | None = None,
    context_bytes: int | None = None,
    known: Trace | None = None,
) -> int | None:
    """The largest micro-batch whose predicted device bytes fit; 0 when one example does not fit; None when the traces do not
    settle it.

    Args:
        trace_of: traces a configuration, for example ``lambda s: trace_in_subprocess(config, s, target)``.
        known: the trace of ``spec`` itself, to save one.

    Raises:
        TraceFailed: from ``trace_of``.
    """
    search = _Search(
        lambda n: predict_memory(
            trace_of(spec.with_shape(micro_batch=n)), target, allocator_options=allocator_options, context_bytes=context_bytes
        ),
        target.usable_bytes,
    )
    if known is not None:
        search.learn(
            spec.micro_batch, predict_memory(known, target, allocator_options=allocator_options, context_bytes=context_bytes)
        )
    return search.largest(spec.micro_batch, 1, MAX_BATCH)


def max_sequence_length(
    trace_of: TraceFunction,
    spec: TrainSpec,
    target: TargetGpu,
    *,
    allocator_options: AllocatorOptions | None = None,
    context_bytes: int | None = None,
    known: Trace | None = None,
    multiple: int = 64,
) -> int | None:
    """The longest sequence, a multiple of ``multiple`` tokens, that fits at the given micro-batch; 0 and None as for the
    batch."""
    search = _Search(
        lambda n: predict_memory(
            trace_of(spec.with_shape(sequence_length=n * multiple)),
            target,
            allocator_options=allocator_options,
            context_bytes=context_bytes,
        ),
        target.usable_bytes,
    )
    start = max(1, spec.sequence_length // multiple)
    if known is not None and start * multiple == spec.sequence_length:
        search.learn(start, predict_memory(known, target, allocator_options=allocator_options, context_bytes=context_bytes))
    found = search.largest(start, 1, MAX_LENGTH // multiple)
    return None if found is None else found * multiple


class _Search:
    """Secant search on the predicted device bytes, which never fall with the size; every bound is confirmed by a trace."""

    def __init__(self, predict: Callable[[int], MemoryPrediction], limit_bytes: int) -> None:
        self._predict = predict
        self._limit = limit_bytes
        self._known: dict[int, int] = {}
        self._traces = 0

    def learn(self, size: int, prediction: MemoryPrediction) -> None:
        """A prediction that is there already."""
        self._known[size] = prediction.device.value

    def largest(self, start: int, smallest: int, greatest: int) -> int | None:
        """The largest size that fits between the bounds."""
        low, high = smallest - 1, greatest + 1  # low fits (or is nothing), high does not
        self._bytes(start)
        probe = start
        while high - low > 1 and self._traces < MAX_TRACES:
            if self._bytes(probe) <= self._limit:
                low = max(low, probe)
            else:
                high = min(high, probe)
            if high - low > 1:
                probe = self._next(low, high)
        if high - low > 1 and not (high - low) / max(low, 1) < 0.02:  # a remaining gap under 2 % is answered with its safe end
            return None
        return low

    def _next(self, low: int, high: int) -> int:
        sizes = sorted(self._known)
        if len(sizes) == 1:
            return min(max(low + 1, 2 * sizes[0] if self._known[sizes[0]] <= self._limit else sizes[0] // 2), high - 1)
        below = [s for s in sizes if s <= low] or sizes[:1]
        above = [s for s in sizes if s >= high]
        a, b = (below[-1], above[0]) if above else (sizes[-2], sizes[-1])
        if a == b:
            b = sizes[-1] if sizes[-1] != a else sizes[0]
        slope = (self._known[b] - self._known[a]) / (b - a)
        guess = (low + high) // 2 if slope <= 0 else int(a + (self._limit - self._known[a]) / slope)
        if guess <= low:
            guess = low + 1
        return min(guess, high - 1)

    def _bytes(self, size: int) -> int:
        if size not in self._known:
            self._traces += 1
            self._known[size] = self._predict(size).device.value
        return self._known[size]
