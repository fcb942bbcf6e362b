"""How long the GPU itself took for a step, without ever waiting for it.

Two `cudaEventRecord` calls an optimizer step on the training thread (begin and end of the step, on the current stream);
the feeder asks whether they have completed (`cudaEventQuery`) and reads the times between them. None of it runs while a
CUDA graph is being captured.
"""

from __future__ import annotations

from typing import Any

from trainbudget.live.probes.torch_memory import torch_cuda


class StepMarks:
    """The two events of one step. `begin` may be missing (the clock was switched on within the step)."""

    __slots__ = ("begin", "end", "previous_end")

    def __init__(self, begin: Any, end: Any, previous_end: Any) -> None:
        self.begin, self.end, self.previous_end = begin, end, previous_end

    @property
    def done(self) -> bool:
        """Whether the GPU has passed the step's end; never waits."""
        return bool(self.end.query())

    def busy_s(self) -> float | None:
        """Seconds the stream took from the step's begin to its end; call only when `done`."""
        return None if self.begin is None else self.begin.elapsed_time(self.end) / 1000.0

    def idle_before_s(self) -> float | None:
        """Seconds in which the stream had nothing between the previous step's end and this one's begin."""
        if self.begin is None or self.previous_end is None:
            return None
        return max(0.0, self.previous_end.elapsed_time(self.begin) / 1000.0)


class CudaStepClock:
    """Records events on the training thread. A failure switches it off for good: the wall clock remains."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self._begin: Any = None
        self._last_end: Any = None

    def begin(self) -> None:
        cuda = self._cuda()
        self._begin = self._record(cuda) if cuda is not None else None

    def end(self) -> StepMarks | None:
        cuda = self._cuda()
        if cuda is None:
            return None
        end = self._record(cuda)
        if end is None:
            return None
        marks = StepMarks(self._begin, end, self._last_end)
        self._begin, self._last_end = None, end
        return marks

    def drop(self) -> None:
        """Let go of all events (after train_end)."""
        self._begin = self._last_end = None

    def _cuda(self) -> Any | None:
        if self.failed is not None:
            return None
        cuda = torch_cuda()
        if cuda is None or cuda.is_current_stream_capturing():
            return None
        return cuda

    def _record(self, cuda: Any) -> Any | None:
        try:
            event = cuda.Event(enable_timing=True)
            event.record()
        except Exception as err:  # noqa: BLE001 - any CUDA error here must not reach training
            self.failed = f"{type(err).__name__}: {err}"
            return None
        return event
