"""Where traces come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.tracing.trace import Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec


class Tracer(Protocol):
    """A tracing process, one that asks it for few layers, or a fake in tests."""

    @property
    def facts(self) -> Facts:
        """What the model and the script have told."""

    def trace(self, spec: TrainSpec, target: TargetGpu, *, longest: bool = True) -> Trace:
        """The traced step, or TraceFailed."""


class ParallelTracer(Tracer, Protocol):
    """One that can trace several configurations side by side."""

    def ahead(self, specs: Sequence[TrainSpec], target: TargetGpu) -> None:
        """Trace these now; `trace` then answers at once."""
