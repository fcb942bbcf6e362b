"""What is to be planned: model, training, card, length of the run, price. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbudget.plan import hardware
from trainbudget.plan.train_spec import TrainSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How long the run is: exactly one of steps, tokens or epochs x samples, or nothing (then there is no run time)."""

    steps: int | None = None
    tokens: float | None = None
    epochs: float | None = None
    samples: int | None = None
    eval_steps: int | None = None
    save_steps: int | None = None
    measured_step_time_s: float | None = None
    preprocess_cpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """What is known of the price."""

    given: str | float | None = None
    file: Path | None = None
    provider: str | None = None
    instance: str | None = None
    region: str | None = None
    spot: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Everything the planner needs. `model` is a configuration's values, a path or name, or `pkg.mod:build`."""

    model: Mapping[str, Any] | str
    spec: TrainSpec
    gpu: hardware.GpuSpec
    count: int = 1
    memory_gib: float | None = None
    duration: Duration = field(default_factory=Duration)
    charges: Charges = field(default_factory=Charges)
    title: str | None = None
    vocabulary: str = "plan"  # whose setting names the changes use: plan, huggingface, lightning, flags

    @property
    def limit_bytes(self) -> float | None:
        """What the process may use on one card."""
        return self.memory_gib * hardware.GIB if self.memory_gib is not None else self.gpu.memory_limit_bytes
