"""What a plan says, and how it says it as JSON.

`Plan.to_json()` has the keys of the design plus `intervals`, `source` and other additions; numbers in SI units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbudget.plan import prices
from trainbudget.plan.changes import Change
from trainbudget.plan.memory import Interval, MemoryPrediction
from trainbudget.plan.peaks import ShapePeak
from trainbudget.plan.request import PlanRequest
from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.step_time import Estimate, StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Duration and money of the whole run; money is None without a dated or given price."""

    steps: int
    run: Estimate  # seconds
    eval_s: float
    save_s: float
    gpu_hours: float
    cost: Estimate | None
    preprocess_cost: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer for one card."""

    request: PlanRequest
    title: str
    memory: MemoryPrediction
    limit_bytes: float | None
    step: StepTime | None  # None where only an analytic answer was possible
    run: RunCost | None
    price: prices.Quote | None
    price_hint: str | None
    max_micro_batch: int | None
    max_sequence_length: int | None
    changes: tuple[Change, ...]
    not_understood: tuple[str, ...]
    searched: bool = True  # whether changes, batches and lengths that fit were looked for
    facts: Facts | None = None
    peaks: tuple[ShapePeak, ...] = ()
    parameters: int | None = None
    trainable_parameters: int | None = None

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None = the limit lies inside the interval."""
        return self.memory.fits

    def to_json(self) -> dict[str, Any]:
        """The structure of `plan --json`."""
        step, run = self.step, self.run
        out: dict[str, Any] = {
            "memory": memory_json(self.memory),
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "max_micro_batch": self.max_micro_batch,
            "max_sequence_length": self.max_sequence_length,
            "step_time_s": None if step is None else step.step.value,
            "tokens_per_s": None if step is None else step.tokens_per_s,
            "mfu": None if step is None else step.mfu,
            "run_time_s": None if run is None else run.run.value,
            "cost": None if run is None or run.cost is None or self.price is None else _cost_json(run.cost, self.price),
            "changes": [
                {"setting": c.setting, "memory": memory_json(c.memory), "step_time_s": c.step.step.value} for c in self.changes
            ],
            "not_understood": list(self.not_understood),
        }
        out["title"], out["gpu"], out["gpu_count"] = self.title, self.request.gpu.name, self.request.count
        out["source"], out["reasons"] = self.memory.source, list(self.memory.reasons)
        out["intervals"] = {
            "step_time_s": None if step is None else _estimate_json(step.step),
            "run_time_s": None if run is None else _estimate_json(run.run),
        }
        out["parameters"], out["trainable_parameters"] = self.parameters, self.trainable_parameters
        out["steps"] = None if run is None else run.steps
        out["gpu_hours"] = None if run is None else run.gpu_hours
        out["price"] = None if self.price is None else _price_json(self.price)
        out["preprocess_cost"] = None if run is None or run.preprocess_cost is None else _estimate_json(run.preprocess_cost)
        out["longest_batches"] = [] if self.facts is None else [{"step": s, "tokens": t} for s, t in self.facts.long_batches]
        out["peak_by_tokens"] = [
            {"tokens": p.tokens, "value": p.reserved.value, "low": p.reserved.low, "high": p.reserved.high} for p in self.peaks
        ]
        out["script_startup_s"] = None if self.facts is None else self.facts.startup_s or None
        out["startup_included"] = False  # run time and cost are of steps, evaluations and saves; a bill begins with the process
        out["flops_per_step"] = None if step is None else step.model_flops
        return out


def memory_json(memory: MemoryPrediction) -> dict[str, Any]:
    """The `memory` object of the answer."""

    def bounds(part: Interval) -> dict[str, int]:
        return {"value": part.value, "low": part.low, "high": part.high}

    return {
        "allocated_bytes": bounds(memory.allocated),
        "reserved_bytes": bounds(memory.reserved),
        "device_bytes": bounds(memory.device),
        "categories": dict(memory.categories),
        "peak_phase": memory.peak_phase,
        "peak_by_phase": dict(memory.peak_by_phase),
    }


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "source": estimate.source}


def _cost_json(cost: Estimate, price: prices.Quote) -> dict[str, Any]:
    source = price.source + (f" {price.date}" if price.date else "")
    return {"value": cost.value, "low": cost.low, "high": cost.high, "currency": price.currency, "price_source": source}


def _price_json(price: prices.Quote) -> dict[str, Any]:
    return {name: getattr(price, name) for name in prices.Quote.__slots__}
