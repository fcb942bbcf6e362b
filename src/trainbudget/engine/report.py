"""The immutable picture of a run at one moment: what every sink and view reads."""

from __future__ import annotations

from typing import Any

import msgspec

from trainbudget.engine.forecast import Projection
from trainbudget.events import Allocator, Bound, Gpu, Header, HostReading, Model, Price, Reading, Self
from trainbudget.findings import Finding


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    gpu_seconds: float
    ratio: float
    cost: float | None = None


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """One device: what it is, its newest answers, its allocator. None = unknown."""

    info: Gpu
    reading: Reading | None = None
    allocator: Allocator | None = None
    owned: bool = True
    charged: bool = True
    unused: bool = False
    limit_bytes: float | None = None
    peak_used_bytes: float | None = None
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    headroom_bytes: float | None = None
    errors: dict[str, int] = msgspec.field(default_factory=dict)
    errors_total: dict[str, int] = msgspec.field(default_factory=dict)
    last_reading_s: float | None = None
    lost: bool = False


class StepsReport(msgspec.Struct, frozen=True, kw_only=True):
    done: int = 0
    last: int | None = None
    total: float | None = None
    step_time_s: float | None = None  # median of the window
    data_wait_s: float | None = None  # mean of the window, before one step
    samples: float = 0.0
    tokens: float | None = None
    useful_tokens: float | None = None
    tokens_per_s: float | None = None
    model_flops_utilization_ratio: float | None = None
    last_end_s: float | None = None  # t_s of the newest step
    histogram: tuple[int, ...] = ()  # steps by duration, bounds `tracks.steps.STEP_BUCKETS_S`, then the longer ones
    step_sum_s: float = 0.0  # seconds inside all steps


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Times are trace seconds (`t_s`); wall seconds leave suspends out."""

    header: Header
    t_s: float
    wall_s: float
    gaps_s: float
    state: str  # starting, training, evaluating, saving, compiling, stalled, idle, finished, failed, interrupted, stopped
    outcome: str | None
    phase: str | None
    steps: StepsReport
    gpus: tuple[GpuReport, ...]
    host: HostReading | None
    model: Model | None
    ledger: dict[str, LedgerLine]
    pending_gpu_seconds: float
    gpu_seconds: float
    charged_gpus: int
    wait_assumed: bool
    price: Price | None
    currency: str | None
    cost: float | None
    wasted_gpu_seconds: float
    wasted_cost: float | None
    wasted_by: dict[str, LedgerLine]
    budget: dict[str, Bound]
    projection: Projection | None
    findings: tuple[Finding, ...]
    self_: Self | None
    missing: tuple[str, ...]
    events: int
    data_wait_ratio: float | None = None
    phase_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    extra: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def active(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.cleared_s is None)
