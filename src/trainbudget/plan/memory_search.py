"""The largest batch and the longest sequence that fit, from few traces."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.memory_prediction import MemoryPrediction, predict_memory
from trainbudget.plan.tracing.trace import Category, Kind, Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

TraceFunction = Callable[[TrainSpec], Trace]
_LASTING = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
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


def floor_bytes(trace: Trace) -> int:
    """What the step holds at any batch and length, with or without checkpointing: the most that parameters, their gradients and
    the optimizer's state take together. 0 for sharded steps, whose shares a trace does not show."""
    if trace.spec.strategy not in ("none", "ddp"):
        return 0
    alive: dict[int, tuple[int, int]] = {}
    held = most = 0
    for kind, a, b, c in trace.events:
        if kind in (Kind.FREE, Kind.RETAG) and a in alive:
            size, category = alive.pop(a)
            held -= size if category in _LASTING else 0
            if kind == Kind.FREE:
                continue
            alive[a] = (size, c)
            held += size if c in _LASTING else 0
        elif kind == Kind.MALLOC:
            alive[a] = (b, c)
            held += b if c in _LASTING else 0
        most = max(most, held)
    return most


class _Search:
    """Interpolation on the predicted device bytes, which never fall with the size; every bound is confirmed by a trace."""

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
        """Where the limit should be met: a parabola through the three known sizes nearest to it (memory is one in batch and
        length)."""
        sizes = sorted(self._known)
        if len(sizes) == 1:
            fits = self._known[sizes[0]] <= self._limit
            return min(max(low + 1, 2 * sizes[0] if fits else sizes[0] // 2), high - 1)
        nearest = sorted(sizes, key=lambda size: abs(self._known[size] - self._limit))[:3]
        guess = _meets([(size, self._known[size]) for size in nearest], self._limit)
        if guess is None:
            guess = (low + high) // 2 if high in self._known else 2 * sizes[-1]
        return min(max(int(guess), low + 1), high - 1)

    def _bytes(self, size: int) -> int:
        if size not in self._known:
            self._traces += 1
            self._known[size] = self._predict(size).device.value
        return self._known[size]


def _meets(points: list[tuple[int, int]], limit: int) -> float | None:
    """The size at which the parabola (or line) through the points reaches ``limit``; None when it never does."""
    (x0, y0), (x1, y1) = points[:2]
    slope = (y1 - y0) / (x1 - x0)
    curve = 0.0
    if len(points) == 3:
        x2, y2 = points[2]
        curve = ((y2 - y0) / (x2 - x0) - slope) / (x2 - x1)
    # y = y0 + slope (x - x0) + curve (x - x0) (x - x1), solved for the larger x
    b = slope - curve * (x0 + x1)
    c = y0 - slope * x0 + curve * x0 * x1 - limit
    if abs(curve) < 1e-9:
        return -c / b if b > 0 else None
    inside = b * b - 4 * curve * c
    if inside < 0:
        return None
    root = (-b + math.sqrt(inside)) / (2 * curve)
    return root if root > 0 else None
